"""Connections whose login ended after the copy that began it: the session's next copy has them.

Not here: logins, and connections that a copy has used (connections.py).
"""

from __future__ import annotations

import threading

from pscp.connect.bootstrap import Far


class Latecomers:
    """What came late, until the session is closed. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._fars: list[Far] = []
        self._is_closed = False

    def accept(self, far: Far) -> None:
        """Keep a connection for the next copy; close it, if there will be none."""
        with self._lock:
            if not self._is_closed:
                far.was_kept = True
                self._fars.append(far)
                return
        far.close()

    def take(self) -> list[Far]:
        """The connections that have come since this was asked last."""
        with self._lock:
            fars, self._fars = self._fars, []
        return fars

    def closed(self) -> Latecomers:
        """Close what has come, and whatever still comes; returns one for what comes after."""
        with self._lock:
            self._is_closed = True
        for far in self.take():
            far.close()
        return Latecomers()
