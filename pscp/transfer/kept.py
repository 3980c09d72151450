"""Connections that outlive the copy that used them.

Not here: the session's next copy (connect/connections.py), logins that no copy waits for
(connect/spare_logins.py).
"""

from __future__ import annotations

import threading

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.spare_logins import Latecomers


class KeptConnections:
    """Takes the connections that lanes need no more. Any thread may use it."""

    def __init__(self, keeps: bool, late: Latecomers) -> None:
        """Unless it `keeps` them, each is closed. `late` takes those that nobody waits for."""
        self.late = late
        self._keeps = keeps
        self._lock = threading.Lock()  # guards what follows
        self._agents: list[RemoteAgent] = []

    @property
    def agents(self) -> list[RemoteAgent]:
        """The connections that the next copy can use."""
        with self._lock:
            return list(self._agents)

    def keep(self, far: RemoteAgent) -> None:
        """Take a connection whose agent is ready for the next copy."""
        if self._keeps:
            with self._lock:
                self._agents.append(far)
        else:
            far.close()

    def keep_late(self, far: RemoteAgent) -> None:
        """Take a connection that was opened when the copy was over."""
        if self._keeps:
            self.late.accept(far)
        else:
            far.close()
