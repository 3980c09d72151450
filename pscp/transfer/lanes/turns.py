"""Turns of threads that each make many short system calls: for what small files cost at this end.

Not here: the turns of lanes whose rate is limited (lane_context.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from pscp.endpoint.reading import tree


class Turns:
    """Batches of short system calls, of which threads do one at a time while that takes CPU alone.

    Threads that each make many such calls hand CPython's lock back and forth, and each time the
    kernel switches between them: 100,000 small files, pushed with turns, took 20% less time. Where
    a batch waits for a disk or a server, others use the time: from such a disk they took 35% more.
    """

    _WAIT_S = 0.01  # for another's batch
    _ENTRIES, _ENTRIES_S = 64, 0.002  # of a walk
    # Three that take so long, one after the other, wait for more than the processor: so many go
    # without a turn then. From memory they take 0.5 ms each, cold from an SSD 4.
    _LONG_S, _LONG, _FREE = 0.001, 3, 64

    def __init__(self) -> None:
        self._turn = threading.Lock()  # guards nothing
        # About so many, since any thread may change them:
        self._long = 0  # batches that took long, one after the other
        self._free = 0  # batches that go without a turn

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Do a batch when it is this thread's turn, or at once where that gains nothing."""
        if self._free > 0:
            self._free -= 1
            yield
            return
        is_own = self._turn.acquire(timeout=self._WAIT_S)
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            if is_own:
                self._turn.release()
            is_long = time.perf_counter() - begun_s > self._LONG_S
            self._long = self._long + 1 if is_long else 0
            if self._long >= self._LONG:
                self._long, self._free = 0, self._FREE

    def batches(self, walked: Iterator[tree.Entry]) -> Iterator[tree.Entry]:
        """Yield the entries of a walk, which goes on batch by batch."""
        while batch := self._next(walked):
            yield from batch

    def _next(self, walked: Iterator[tree.Entry]) -> list[tree.Entry]:
        batch = []
        with self.take():
            until_s = time.perf_counter() + self._ENTRIES_S
            for entry in walked:
                batch.append(entry)
                if len(batch) == self._ENTRIES or time.perf_counter() > until_s:
                    break
        return batch


turns = Turns()  # CPython's lock is one for the process, so these are as well
