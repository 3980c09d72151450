"""Writes that a copy's bookkeeping decides on, done in their order once its lock was released.

Whoever writes may have to wait: for a journal in a home on a slow server, for a full pipe behind a
dry run, for a temporary folder on a disk that hangs. With the work queue's lock held all lanes
would wait.

Not here: what is written (journal.py, ending.py, progress.py), when the lock is released
(work_queue.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_WAITING_MOST = 1000  # writes; with more the walk, which causes them, waits until all are done


class LaterWrites:
    """Writes that wait to be done one after the other, by any thread that has added some."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` gets what a write raises; the writes after it are done all the same."""
        self._failed = failed
        self._waiting: deque[Callable[[], object]] = deque()
        self._turn = threading.Lock()  # held by the thread that writes

    def add(self, write: Callable[[], object]) -> None:
        """Add a write behind all that were added before. Never waits."""
        self._waiting.append(write)

    def start(self) -> None:
        """Do what waits, unless another thread writes: then that one does it."""
        # Looks again after each turn: others left to it what they added in its last moment.
        while self._waiting and self._turn.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._turn.release()

    def finish(self) -> None:
        """Do what waits. All that was added before this call is done when it returns."""
        with self._turn:
            self._write()

    def keep_short(self) -> None:
        """Do what waits, if that has become too much. For a thread that adds much."""
        if len(self._waiting) >= _WAITING_MOST:
            self.finish()

    def _write(self) -> None:
        while self._waiting:
            write = self._waiting.popleft()
            try:
                write()
            except Exception as error:
                self._failed(error)
