"""A lane's share of the work queue: what it has taken and not finished.

Not here: which work a lane gets (work_queue.py), how much of it (window.py), what it does with it
(lane.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pscp.transfer.plan import Ask, Chunk, Work
from pscp.transfer.window import Window


class LaneShare:
    """The pieces of work that one lane has taken and not finished.

    Only the queue changes it, with its lock held; its lane may read it.
    """

    def __init__(
        self, window: Window, lane: int = 0, is_parked: Callable[[], bool] = lambda: False
    ) -> None:
        """`lane` is the lane's number. While `is_parked()` the lane gets no more work."""
        self.window, self.lane, self.is_parked = window, lane, is_parked
        self.is_over = False  # it was given back: the lane has ended
        self.has_worked = False  # the lane brought at least one piece to its end
        self.work: dict[int, Work] = {}
        self._taken_s: dict[int, float] = {}

    def take(self, number: int, work: Work) -> None:
        self.work[number], self._taken_s[number] = work, time.monotonic()
        self.window.take(work.cost_bytes)

    def pop(self, number: int) -> Work | None:
        """Remove the piece with this number and return it; None if it is not here any more."""
        work = self.work.pop(number, None)
        if work is not None:
            del self._taken_s[number]
            self.window.credit(work.cost_bytes)
            if not isinstance(work, Ask):
                self.window.follow_pace(work.cost_bytes)
        return work

    def age_s(self, number: int) -> float:
        """Return how long a piece has been in flight; 0 for one that is not any more."""
        return time.monotonic() - self._taken_s[number] if number in self._taken_s else 0.0

    def oldest_chunk(self) -> tuple[int, Chunk] | None:
        """Return the chunk that was taken first, with its number here."""
        chunks = ((n, each) for n, each in self.work.items() if isinstance(each, Chunk))
        return next(chunks, None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing but requests is in flight. A stream's may wait for very long."""
        return all(isinstance(work, Ask) for work in self.work.values())

    def held_since(self, before_s: float) -> Chunk | None:
        """Return the chunk that this lane alone took last, if it did so before this moment.

        Of a stream, the one that it took first: all that comes after it waits for it.
        """
        for number, work in self._latest_first():
            if isinstance(work, Chunk) and work.takers == 1 and not work.is_over:
                return work if self._taken_s[number] < before_s else None
        return None

    def _latest_first(self) -> Iterable[tuple[int, Work]]:
        first = next(iter(self.work.values()), None)
        is_stream = isinstance(first, Chunk) and first.job.may_be_short
        return self.work.items() if is_stream else reversed(self.work.items())
