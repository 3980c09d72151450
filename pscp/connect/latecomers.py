"""Connections whose login ended after the copy that began it: the session's next copy has them.

Not here: logins, and connections that a copy has used (connections.py).
"""

from __future__ import annotations

import threading

from pscp.connect.bootstrap import Far


class Latecomers:
    """Connections that came late, until the session is closed. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._fars: list[Far] = []
        self._awaited = 0  # logins that go on without a copy
        self._is_closed = False

    def expect(self, count: int) -> None:
        """Count logins that go on without a copy; each ends with no_longer_expect()."""
        with self._changed:
            self._awaited += count

    def no_longer_expect(self) -> None:
        """Count one login less: it has come to its end, whatever that was."""
        with self._changed:
            self._awaited -= 1
            self._changed.notify_all()

    def accept(self, far: Far) -> None:
        """Keep a connection for the next copy; close it, if there will be none."""
        with self._changed:
            if not self._is_closed:
                far.was_kept = True
                self._fars.append(far)
                self._changed.notify_all()
                return
        far.close()

    def take(self) -> list[Far]:
        """Return the connections that have come since this was called last."""
        with self._changed:
            fars, self._fars = self._fars, []
        return fars

    def next(self) -> Far | None:
        """Wait for a connection, and return it; None where none is expected any more.

        So a copy logs in no more often than it may have connections, whatever is still under way
        of the copy before.
        """
        with self._changed:
            while not self._fars and self._awaited and not self._is_closed:
                self._changed.wait()
            return self._fars.pop(0) if self._fars else None

    def close(self) -> None:
        """Close what has come, and whatever still comes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for far in self.take():
            far.close()
