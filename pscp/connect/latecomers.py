"""Connections whose login ended after the copy that began it: the session's next copy has them.

Not here: logins, and connections that a copy has used (connections.py).
"""

from __future__ import annotations

import threading

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.early_logins import LET_GO_S
from pscp.errors import ConnectionLost

# A login that no copy needs is ended after LET_GO_S. One of those that are expected may be waiting
# here itself, its copy being over meanwhile.
_PATIENCE_S = LET_GO_S + 1.0


class Latecomers:
    """Connections that came late, until the session is closed. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._agents: list[RemoteAgent] = []
        self._awaited = 0  # logins that go on without a copy
        self._is_closed = False
        self._is_cut = False  # logins that go on are ended at once

    def expect(self, count: int) -> None:
        """Count logins that go on though their copy is over; each ends with no_longer_expect()."""
        with self._changed:
            self._awaited += count

    def no_longer_expect(self) -> None:
        """Count one login less: it has come to its end, whatever that was."""
        with self._changed:
            self._awaited -= 1
            self._changed.notify_all()

    def accept(self, far: RemoteAgent) -> None:
        """Keep a connection for the next copy; close it, if there will be none."""
        with self._changed:
            if not self._is_closed:
                far.was_kept = True
                self._agents.append(far)
                self._changed.notify_all()
                return
        far.close()

    def take(self) -> list[RemoteAgent]:
        """Return the connections that have come since this was called last."""
        with self._changed:
            agents, self._agents = self._agents, []
        return agents

    def next(self) -> RemoteAgent | None:
        """Wait for a connection, and return it; None where none is expected any more.

        So a copy logs in no more often than it may have connections, whatever is still under way
        of the copy before. Raises ConnectionLost where the session is closed.
        """
        with self._changed:
            self._changed.wait_for(self._has_news, _PATIENCE_S)
            if self._is_closed:
                raise ConnectionLost("the session was closed before it had connected")
            return self._agents.pop(0) if self._agents else None

    def _has_news(self) -> bool:
        return bool(self._agents) or not self._awaited or self._is_closed

    def close(self, *, is_cut: bool = False) -> None:
        """Close what has come, and whatever still comes; with `is_cut` wait until that has ended.

        So is a login that asks for a password when there is nobody any more to answer it: ssh
        would send an empty one, which the server counts as a wrong password.
        """
        with self._changed:
            self._is_closed, self._is_cut = True, is_cut
            self._changed.notify_all()
            if is_cut:
                self._changed.wait_for(lambda: not self._awaited, _PATIENCE_S)
        for far in self.take():
            far.close()

    @property
    def is_cut(self) -> bool:
        """Whether logins that go on are to be ended at once."""
        with self._changed:
            return self._is_cut
