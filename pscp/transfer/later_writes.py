"""Writes that a copy's bookkeeping decides on, done in their order once its lock was let go.

A journal in a home on a slow server, a full pipe behind a dry run, a temporary folder on a disk
that hangs: whoever writes there waits, and with the work queue's lock held all lanes would.

Not here: what is written (journal.py, spool.py, progress.py), when the lock is let go
(work_queue.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_WAITING_MOST = 1000  # writes; the walk, which causes them, then waits until all are done


class LaterWrites:
    """Writes that wait, and are done one after the other by any thread that has added some."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` gets what a write raises; those after it are done all the same."""
        self._failed = failed
        self._waiting: deque[Callable[[], object]] = deque()
        self._turn = threading.Lock()  # whose holder writes

    def add(self, write: Callable[[], object]) -> None:
        """Have this written after all that were added before. Waits for nothing."""
        self._waiting.append(write)

    def start(self) -> None:
        """Do what waits, unless another thread is at it: then that one does."""
        # Asked again after each turn: what was added during its last moment has been left to it.
        while self._waiting and self._turn.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._turn.release()

    def finish(self) -> None:
        """Do what waits; what was added before this call is done when it returns."""
        with self._turn:
            self._write()

    def keep_short(self) -> None:
        """Wait, if so much waits that somebody who adds should."""
        if len(self._waiting) >= _WAITING_MOST:
            self.finish()

    def _write(self) -> None:
        while self._waiting:
            write = self._waiting.popleft()
            try:
                write()
            except Exception as error:
                self._failed(error)
