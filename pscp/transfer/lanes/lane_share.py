"""A lane's share of the work queue: what it has taken and not finished, and how much it may.

Not here: which work a lane gets (work_queue.py), what it does with it (lane.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from pscp.transfer.pieces.plan import Ask, Chunk, Work

IsParked = Callable[[], bool]  # says whether a lane takes no more work

_PACE_S = 1.0  # over which a lane's pace is measured
_SLACK_S = 0.2  # of work that a lane may hold beyond two round trips
STEADY_S = 10.0  # a connection that lived for so long ends an outage
LEAST_BYTES = 2 * 1024 * 1024  # the window of an OpenSSH channel


class Window:
    """The bytes that a lane has in flight, and how many it may have.

    It may have what it lately moved in two round trips and a bit, so that a lane that has become
    slow does not hold work that others could do. The queue's lock guards it.
    """

    def __init__(self, first_bytes: int, rtt_s: float, most_bytes: int | None = None) -> None:
        """Begin with `first_bytes`; with more at most, grow by what lands, as TCP's window does."""
        self.capacity_bytes = first_bytes
        self.in_flight_bytes = 0
        self.moved_bytes = 0  # ever
        self._most_bytes = first_bytes if most_bytes is None else most_bytes
        self._span_s = 2 * rtt_s + _SLACK_S
        self._moved: deque[tuple[float, int]] = deque()  # when, and bytes, of the last second
        self._begun_s = time.monotonic()

    @property
    def has_room(self) -> bool:
        """Whether the lane may take one more piece, of any size."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes < self.capacity_bytes

    def take(self, size_bytes: int) -> None:
        self.in_flight_bytes += size_bytes

    def credit(self, size_bytes: int) -> None:
        """Count so many bytes as not in flight any more."""
        if size_bytes > self.in_flight_bytes:
            raise RuntimeError("more was acknowledged than was sent")
        self.in_flight_bytes -= size_bytes

    def follow_pace(self, size_bytes: int) -> None:
        """Count so many bytes as moved, and adapt the capacity to the lane's pace."""
        now_s = time.monotonic()
        self.moved_bytes += size_bytes
        self._moved.append((now_s, size_bytes))
        while self._moved[0][0] < now_s - _PACE_S:
            self._moved.popleft()
        wanted_bytes = self.capacity_bytes + size_bytes
        if now_s - self._begun_s > 2 * _PACE_S:  # before that, the connection gathers speed
            bytes_per_s = sum(moved_bytes for _, moved_bytes in self._moved) / _PACE_S
            wanted_bytes = max(int(bytes_per_s * self._span_s), LEAST_BYTES)
        self.capacity_bytes = min(wanted_bytes, self._most_bytes)


def never() -> bool:
    """Return False: a lane that is never parked."""
    return False


class LaneShare:
    """The pieces of work that one lane has taken and not finished.

    Only the queue changes it, with its lock held; its lane may read it. Its clock, which tells how
    long a piece is in flight, is stopped by the lane.
    """

    give_up: Callable[[], object]  # ends the lane, which stands still; its lane sets it

    def __init__(self, window: Window, lane: int = 0, is_parked: IsParked = never) -> None:
        """`lane` is the lane's number. While `is_parked()` the lane gets no more work."""
        self.window, self.lane, self.is_parked = window, lane, is_parked
        self.is_over = False  # the lane has ended, and its work was given back
        self.has_worked = False  # it has brought the copy on, or did for long what was asked
        self.work: dict[int, Work] = {}
        self._taken_s: dict[int, float] = {}  # by the lane's clock
        self._stopped_s: float | None = None  # when its clock stopped, if it stands
        self._begun_s = time.monotonic()
        self._behind_s = 0.0  # how long its clock has stood before

    @contextlib.contextmanager
    def on_hold(self) -> Iterator[None]:
        """Run a block in which the lane's clock stands: it waits for its turn, and is not slow.

        For the one thread of the lane that waits for turns.
        """
        self._stopped_s = began_s = time.monotonic()
        try:
            yield
        finally:
            self._behind_s += time.monotonic() - began_s  # first: who looks meanwhile sees less
            self._stopped_s = None

    def _now_s(self) -> float:
        stopped_s = self._stopped_s
        return (time.monotonic() if stopped_s is None else stopped_s) - self._behind_s

    def take(self, number: int, work: Work) -> None:
        self.work[number], self._taken_s[number] = work, self._now_s()
        self.window.take(work.cost_bytes)

    def pop(self, number: int) -> Work | None:
        """Remove the piece with this number and return it; None if it was given back."""
        work = self.work.pop(number, None)
        if work is not None:
            del self._taken_s[number]
            self.window.credit(work.cost_bytes)
            if not isinstance(work, Ask):
                self.window.follow_pace(work.cost_bytes)
        return work

    def note_finished(self, work: Work) -> None:
        is_steady = time.monotonic() - self._begun_s > STEADY_S
        self.has_worked = self.has_worked or work.is_progress or is_steady

    def age_s(self, number: int) -> float:
        """Return how long a piece has been in flight, by the lane's clock; 0 if it is not."""
        return self._now_s() - self._taken_s[number] if number in self._taken_s else 0.0

    def oldest_chunk(self) -> tuple[int, Chunk] | None:
        """Return the chunk that was taken first, with its number."""
        chunks = ((n, each) for n, each in self.work.items() if isinstance(each, Chunk))
        return next(chunks, None)

    @property
    def is_idle(self) -> bool:
        """Whether only requests are in flight; those of a stream may wait for very long."""
        return all(isinstance(work, Ask) for work in self.work.values())

    def held_for(self, least_s: float) -> Chunk | None:
        """Return the last chunk that only this lane has taken, if that is so long in flight.

        Of a stream it is the first such chunk, since all later ones wait for it.
        """
        for number, work in self._latest_first():
            if isinstance(work, Chunk) and work.takers == 1 and not work.is_over:
                return work if self.age_s(number) > least_s else None
        return None

    def _latest_first(self) -> Iterable[tuple[int, Work]]:
        first = next(iter(self.work.values()), None)
        is_stream = isinstance(first, Chunk) and first.job.may_be_short
        return self.work.items() if is_stream else reversed(self.work.items())
