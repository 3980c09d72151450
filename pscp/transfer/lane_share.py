"""A lane's share of the work queue: what it has taken and not finished, and how much it may take.

Not here: which work a lane gets (work_queue.py), what it does with it (lane.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from pscp.endpoint.session import Window
from pscp.transfer.plan import Ask, Chunk, Work

_PACE_S = 1.0  # over which a lane's pace is measured
_SLACK_S = 0.2  # of work that a lane may hold beyond two round trips
_LEAST_BYTES = 2 * 1024 * 1024  # the window of an OpenSSH channel


class LaneShare:
    """A lane's share of the queue: what it has taken and not finished.

    Its window follows its pace, so that a lane that has become slow does not sit on work that
    others could do: at most what it lately did in two round trips and a bit. Only the queue changes
    it; its lane may read it.
    """

    def __init__(
        self, window_bytes: int, rtt_s: float, begins_small: bool = False, lane: int = 0,
        is_parked: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`lane` is the number of the lane whose share it is. With `begins_small` the window grows
        by what lands, from the least, as TCP's does. While `is_parked()` it gets no more work.
        """
        self.lane, self.is_parked = lane, is_parked
        self.is_over = False  # it was given back: the lane has ended
        self.window = Window(_LEAST_BYTES if begins_small else window_bytes)
        self.work: dict[int, Work] = {}
        self._taken_s: dict[int, float] = {}
        self._most_bytes, self._span_s = window_bytes, 2 * rtt_s + _SLACK_S
        self._done: deque[tuple[float, int]] = deque()  # when, and bytes, of the last second
        self._begun_s = time.monotonic()

    def take(self, number: int, work: Work) -> None:
        self.work[number], self._taken_s[number] = work, time.monotonic()
        self.window.take(work.cost_bytes)

    def pop(self, number: int) -> Work | None:
        """What had this number; None when it is not in flight here any more."""
        work = self.work.pop(number, None)
        if work is not None:
            del self._taken_s[number]
            self.window.credit(work.cost_bytes)
            if not isinstance(work, Ask):
                self._keep_pace(work.cost_bytes)
        return work

    def _keep_pace(self, count: int) -> None:
        now_s = time.monotonic()
        self._done.append((now_s, count))
        while self._done[0][0] < now_s - _PACE_S:
            self._done.popleft()
        grown = self.window.capacity_bytes + count
        self.window.capacity_bytes = min(grown, self._most_bytes)
        if now_s - self._begun_s > 2 * _PACE_S:  # before that, the connection gathers speed
            rate = sum(each for _, each in self._done) / _PACE_S
            wanted = max(int(rate * self._span_s), _LEAST_BYTES)
            self.window.capacity_bytes = min(wanted, self._most_bytes)

    def age_s(self, number: int) -> float:
        """How long a piece has been in flight; 0 for one that is not any more."""
        return time.monotonic() - self._taken_s[number] if number in self._taken_s else 0.0

    def oldest_chunk(self) -> tuple[int, Chunk] | None:
        """The one that was taken first, with its number here."""
        chunks = ((n, each) for n, each in self.work.items() if isinstance(each, Chunk))
        return next(chunks, None)

    @property
    def is_idle(self) -> bool:
        """Is nothing in flight but questions? A stream's may wait for very long."""
        return all(isinstance(work, Ask) for work in self.work.values())

    def held_since(self, before_s: float) -> Chunk | None:
        """The chunk that this lane, and no other, took last, if that was before this moment.

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
