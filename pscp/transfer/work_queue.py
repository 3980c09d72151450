"""The work queue: where work waits, and from where lanes take it.

It holds what no lane has taken yet (single pieces, and lazy iterators over a file's chunks, so
that a file of any size costs the same), what each lane has in flight, and the lanes' windows.
One lock guards all of it; lanes sleep on a condition of it, never poll. Who waits for something
else has a condition of its own, since a wake-up can cost more than a small file does.

Not here: what the work means (coordinator.py), how it travels (lane.py), a rate that lanes keep
to together (rate_limiter.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pscp.endpoint.session import Window
from pscp.transfer.plan import Ask, Chunk, Pack, Work

_WAITING_MAX = 32  # pieces or files put and not begun; the walk waits while there are more

_PACE_S = 1.0  # over which a lane's pace is measured
_SLACK_S = 0.2  # of work that a lane may hold beyond two round trips
_LEAST_BYTES = 2 * 1024 * 1024  # the window of an OpenSSH channel
_PATIENCE_S = 1.0  # with a chunk in flight elsewhere, before an idle lane takes it over
_ANSWER_S = 3.0  # to a question that takes a second; then another lane asks it as well
# A stream's chunks wait for each other: so many times as long as they take lately, at the least
# so long, and the first of them goes over another lane as well.
_OVERDUE, _OVERDUE_S = 2, 0.25
_FLIGHTS = 16  # chunks over which that time is averaged


class LaneShare:
    """A lane's share of the queue: what it has taken and not finished.

    Its window follows its pace, so that a lane that has become slow does not sit on work that
    others could do: at most what it lately did in two round trips and a bit.
    """

    def __init__(
        self, window_bytes: int, rtt_s: float, begins_small: bool = False, lane: int = 0
    ) -> None:
        """With `begins_small` the window grows by what lands, from the least, as TCP's does."""
        self.lane = lane  # the number of the lane whose share it is
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


class WorkQueue:
    """Use `changed` (a Condition) around every call but put(), take() and the waits."""

    def __init__(self, is_stream: bool = False) -> None:
        lock = threading.RLock()
        self._is_stream = is_stream
        self._flight_s = _PATIENCE_S / _OVERDUE  # of a chunk, lately
        self.changed = threading.Condition(lock)  # there may be work, or room for it in a window
        self.idle = threading.Condition(lock)  # there may be nothing in flight any more
        self._has_room = threading.Condition(lock)  # the walk may go on
        self._again: deque[Work] = deque()  # what a lane gave back, and what follows from answers
        self._waiting: deque[Work | Iterator[Work]] = deque()
        self._prompt: list[Ask] = []  # those that were not answered yet
        self._open = 0  # pieces taken and not finished
        self._shares: list[LaneShare] = []
        self._number = 0  # of the piece taken last
        self._reserve: Callable[[], Work | None] = lambda: None
        # What has to be asked before another lane may do what a lost one must not do late.
        self.revocation: Callable[[int, list[Work]], Ask] | None = None
        self.done_bytes = 0  # of all pieces that were brought to their end, by their cost
        self.done_pieces = 0
        self.error: BaseException | None = None  # why the copy stops
        self.is_finished = False

    # --- putting

    def wait_for_room(self) -> None:
        """The walk waits here while much is waiting already."""
        with self.changed:
            while len(self._waiting) + len(self._again) >= _WAITING_MAX and self.error is None:
                self._has_room.wait()

    def put(self, work: Work) -> None:
        """From the walk, once there is room."""
        with self.changed:
            self.wait_for_room()
            self._waiting.append(work)
            self.changed.notify_all()

    def add(self, work: Work | Iterator[Work]) -> None:
        """From an answer: goes before what the walk found; never waits."""
        if isinstance(work, Iterator):
            self._waiting.append(work)
        elif work.takers:  # another lane is still at it
            work.is_over = False
            self._open += 1
        else:
            if isinstance(work, Ask) and work.is_prompt:
                self._prompt.append(work)
            self._put_again(work)
        self.changed.notify_all()

    def _put_again(self, work: Work) -> None:
        work.is_over = False
        self._again.append(work)

    def when_idle(self, reserve: Callable[[], Work | None]) -> None:
        """Where to ask for work that is being collected, when there is no other."""
        self._reserve = reserve

    # --- taking

    def take(self, lane: Any, share: LaneShare) -> tuple[int, Work] | None:
        """The next piece for this lane, with its number, once there is room; None: end."""
        with self.changed:
            while True:
                if self.error is not None or self.is_finished or lane.is_lost:
                    return None
                taken = self.try_take(lane, share)
                if taken is not None:
                    return taken
                # with nothing in flight here, another lane's straggler may come into question
                is_idle = self._open and share.is_idle
                self.changed.wait(self._patience_s() / 2 if is_idle else None)

    def try_take(self, lane: Any, share: LaneShare) -> tuple[int, Work] | None:
        """As take(), without waiting."""
        if not share.window.has_room(1):
            return None
        if lane.is_parked:
            work = self._next_again(lane)
        else:
            first = self._unanswered(share) or self._overdue(share)
            work = first or self._next(lane) or self._straggler(share)
        return None if work is None else self._taken(share, work)

    def _taken(self, share: LaneShare, work: Work) -> tuple[int, Work]:
        self._number += 1
        work.takers += 1
        if work.takers == 1:
            self._open += 1
        elif isinstance(work, Chunk):
            work.job.was_shared = True
        if isinstance(work, Ask):
            work.asked_s = time.monotonic()
        share.take(self._number, work)
        if len(self._waiting) + len(self._again) <= _WAITING_MAX // 2:
            self._has_room.notify_all()
        return self._number, work

    def _unanswered(self, share: LaneShare) -> Ask | None:
        """A question that should have been answered: the lane that asked it stands still."""
        before_s = time.monotonic() - _ANSWER_S
        for ask in self._prompt:
            if ask.takers == 1 and ask.asked_s < before_s and ask not in share.work.values():
                return ask
        return None

    def _overdue(self, share: LaneShare) -> Chunk | None:
        """The chunk of a stream that all others wait for, if another lane is slow with it."""
        if not self._is_stream:
            return None
        found = [(each, each.oldest_chunk()) for each in self._shares]
        firsts = [(*oldest, each) for each, oldest in found if oldest is not None]
        number, chunk, holder = min(
            firsts, key=lambda first: first[1].offset, default=(0, None, share)
        )
        if chunk is None or holder is share or chunk.takers > 1 or chunk.is_over:
            return None
        return chunk if holder.age_s(number) > self._patience_s() else None

    def _patience_s(self) -> float:
        if not self._is_stream:
            return _PATIENCE_S
        return max(_OVERDUE * self._flight_s, _OVERDUE_S)

    def _straggler(self, share: LaneShare) -> Chunk | None:
        """With nothing else to do, a lane takes over what a slower one has held for long.

        Both send the same bytes to the same place; what comes second is ignored.
        """
        if not share.is_idle:
            return None
        before_s = time.monotonic() - self._patience_s()
        found = (each.held_since(before_s) for each in self._shares if each is not share)
        return next((chunk for chunk in found if chunk is not None), None)

    def join(self, share: LaneShare) -> None:
        """A lane comes; it leaves with give_back()."""
        self._shares.append(share)

    def in_flight_bytes(self) -> int:
        return sum(share.window.in_flight_bytes for share in self._shares)

    def _next(self, lane: Any) -> Work | None:
        again = self._next_again(lane)
        while again is None and self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Iterator):
                self._waiting.popleft()
                return first
            piece = next(first, None)
            if piece is not None:
                return piece
            self._waiting.remove(first)
            self.idle.notify_all()
            again = self._next_again(lane)  # its end may have added what follows from it
        return again or self._reserve()

    def _next_again(self, lane: Any) -> Work | None:
        """What was given back or follows from an answer. A parked lane does only its own."""
        for place, again in enumerate(self._again):
            pinned = again.lane if isinstance(again, Ask) else None
            is_free = pinned is None or pinned.is_lost
            if pinned is lane or (is_free and not lane.is_parked):
                del self._again[place]
                return again
        return None

    def has_work(self) -> bool:
        """Is there anything that no lane has taken?"""
        return bool(self._again or self._waiting)

    def pieces_known(self, left_bytes: int, chunk_bytes: int) -> int:
        """At most so many pieces are not done: in flight, waiting, and of files yet to be cut."""
        whole = sum(not isinstance(each, Iterator) for each in self._waiting)
        known = self._open + len(self._again) + whole
        if whole < len(self._waiting):
            known += -(-max(0, left_bytes - self.in_flight_bytes()) // chunk_bytes)
        return known

    # --- finishing

    def finish(self, share: LaneShare, number: int) -> bool:
        """A lane is done with this piece. False: it was given back, or another lane was first."""
        had_room, age_s = share.window.has_room(1), share.age_s(number)
        work = share.pop(number)
        if work is None:
            return False
        if isinstance(work, Chunk):
            self._flight_s += (age_s - self._flight_s) / _FLIGHTS
        if not had_room or share.is_idle:  # this lane may take more, if only from another
            self.changed.notify_all()
        work.takers -= 1
        if work.is_over:
            return False
        work.is_over = True
        if work in self._prompt:
            self._prompt.remove(work)
        self._open -= 1
        self.done_bytes += work.cost_bytes
        self.done_pieces += 1
        if not self._open:
            self.idle.notify_all()
        return True

    def give_back(self, share: LaneShare) -> None:
        """A lane has ended: what it had in flight goes to the others."""
        if share in self._shares:
            self._shares.remove(share)
        exclusive: list[Work] = []
        for number in list(share.work):
            work = share.pop(number)
            assert work is not None
            work.takers -= 1
            if isinstance(work, Chunk):
                work.job.was_shared = True
            if work.is_over or work.takers:
                continue
            self._open -= 1
            if isinstance(work, Ask) and work.lost is not None:
                work.lost()
            elif _is_exclusive(work) and self.revocation is not None:
                exclusive.append(work)
            else:
                self._put_again(work)
        if exclusive and self.revocation is not None:
            self.add(self.revocation(share.lane, exclusive))
        self.changed.notify_all()

    def is_idle(self) -> bool:
        """Is nothing waiting and nothing in flight?"""
        return not (self._again or self._waiting or self._open)

    def stop(self, error: BaseException) -> None:
        """The copy cannot go on: every lane ends."""
        with self.changed:
            if self.error is None:
                self.error = error
            for condition in (self.changed, self.idle, self._has_room):
                condition.notify_all()


def _is_exclusive(work: Work) -> bool:
    return isinstance(work, Pack) or (isinstance(work, Ask) and work.is_exclusive)
