"""The work queue: where work waits, and from where lanes take it.

It holds what no lane has taken yet (single pieces, and lazy iterators over a file's chunks, so
that a file of any size costs the same), and each lane's share (lane_share.py).

The queue takes its one lock in its own methods, and nobody else can take it. What must happen
between two changes of the queue is handed to it as a function: what comes of a piece (settle()),
a step of the copy's bookkeeping (run_alone()), a question (wait_until()), iterators and the
reserve. Such a function may add, wake and stop; it calls no end, sends nothing, and what it wants
written is written once the lock was let go (later_writes.py).

Lanes sleep on a condition. Who waits for something else has a condition of its own, since a
wake-up can cost more than a small file does.

Not here: what the work means (coordinator.py), how it travels (lane.py), a rate that lanes keep
to together (rate_limiter.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from pscp.transfer.lane_share import LaneShare
from pscp.transfer.later_writes import LaterWrites
from pscp.transfer.plan import Ask, Chunk, Pack, Work

_WAITING_MAX = 32  # pieces or files put and not begun; the walk waits while there are more
_PATIENCE_S = 1.0  # with a chunk in flight elsewhere, before an idle lane takes it over
_ANSWER_S = 3.0  # to a question that takes a second; then another lane asks it as well
# A stream's chunks wait for each other: so many times as long as they take lately, at the least
# so long, and the first of them goes over another lane as well.
_OVERDUE, _OVERDUE_S = 2, 0.25
_FLIGHTS = 16  # chunks over which that time is averaged
SIGNAL_S = 1.0  # Python sees a signal that came just before a wait when that is over

_T = TypeVar("_T")


class WorkQueue:
    """The work of one copy, or of one stream. Any thread may call any method."""

    def __init__(self, is_stream: bool = False) -> None:
        self._lock = lock = threading.RLock()  # guards what follows, and all shares
        self._is_running = False  # something that was handed in
        self._writes = LaterWrites(self.stop)
        self._is_stream = is_stream
        self._flight_s = _PATIENCE_S / _OVERDUE  # of a chunk, lately
        self._changed = threading.Condition(lock)  # lanes: there may be work, or room for it
        self._news = threading.Condition(lock)  # for who waits in wait_until()
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
        # Others read these.
        self.done_bytes = 0  # of all pieces that were brought to their end, by their cost
        self.done_pieces = 0
        self.error: BaseException | None = None  # why the copy stops
        self.is_finished = False  # no more work comes

    # --- putting

    def wait_for_room(self) -> None:
        """The walk waits here while much is waiting already, or is still to be written."""
        self._writes.keep_short()
        with self._lock:
            while len(self._waiting) + len(self._again) >= _WAITING_MAX and self.error is None:
                self._has_room.wait()

    def put(self, work: Work) -> None:
        """From the walk, once there is room."""
        self.wait_for_room()
        with self._lock:
            self._waiting.append(work)
            self._changed.notify_all()

    def add(self, work: Work | Iterator[Work]) -> None:
        """From an answer: goes before what the walk found; never waits."""
        with self._lock:
            if isinstance(work, Iterator):
                self._waiting.append(work)
            elif work.takers:  # another lane is still at it
                work.is_over = False
                self._open += 1
            else:
                if isinstance(work, Ask) and work.is_prompt:
                    self._prompt.append(work)
                self._put_again(work)
            self._changed.notify_all()

    def _put_again(self, work: Work) -> None:
        work.is_over = False
        self._again.append(work)

    def when_idle(self, reserve: Callable[[], Work | None]) -> None:
        """Where to ask for work that is being collected, when there is no other."""
        self._reserve = reserve

    # --- taking

    def join(self, share: LaneShare) -> None:
        """A lane comes; it leaves with give_back()."""
        with self._lock:
            self._shares.append(share)

    def take(self, share: LaneShare) -> tuple[int, Work] | None:
        """The next piece for this lane, with its number, once there is room; None: end."""
        with self._lock:
            while not (self._is_ended() or share.is_over):
                taken = self.try_take(share)
                if taken is not None:
                    return taken
                # with nothing in flight here, another lane's straggler may come into question
                is_idle = self._open and share.is_idle
                self._changed.wait(self._patience_s() / 2 if is_idle else None)
            return None

    def try_take(self, share: LaneShare) -> tuple[int, Work] | None:
        """As take(), without waiting."""
        with self._lock:
            if not share.window.has_room(1):
                return None
            if share.is_parked():
                work = self._next_again(share)
            else:
                first = self._unanswered(share) or self._overdue(share)
                work = first or self._next(share) or self._straggler(share)
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

    def _next(self, share: LaneShare) -> Work | None:
        again = self._next_again(share)
        while again is None and self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Iterator):
                self._waiting.popleft()
                return first
            piece = next(first, None)
            if piece is not None:
                return piece
            self._waiting.remove(first)
            self._news.notify_all()
            again = self._next_again(share)  # its end may have added what follows from it
        return again or self._reserve()

    def _next_again(self, share: LaneShare) -> Work | None:
        """What was given back or follows from an answer. A parked lane does only its own."""
        for place, again in enumerate(self._again):
            pinned = again.share if isinstance(again, Ask) else None
            is_free = pinned is None or pinned.is_over
            if pinned is share or (is_free and not share.is_parked()):
                del self._again[place]
                return again
        return None

    # --- finishing

    def settle(self, share: LaneShare, number: int, outcome: Callable[[], object]) -> bool:
        """End a piece of work of a lane, and run what comes of it before anybody sees it ended.

        False, and nothing is run: it was given back meanwhile, or another lane was first. What
        `outcome` raises stops the copy, since nobody would do this piece again.
        """
        with self._lock:
            if not self._finish(share, number):
                return False
            try:
                self._run(outcome)
            except BaseException as error:
                self.stop(error)
        self._writes.start()
        return True

    def run_alone(self, step: Callable[[], _T]) -> _T:
        """Run a step of the copy's bookkeeping while no outcome and no other step runs."""
        with self._lock:
            result = self._run(step)
        self._writes.start()
        return result

    def _run(self, given: Callable[[], _T]) -> _T:
        """Run what was handed in, which does not have the queue run something else."""
        if self._is_running:
            raise RuntimeError("a step of the work queue within another")
        self._is_running = True
        try:
            return given()
        finally:
            self._is_running = False

    def write_later(self, write: Callable[[], object]) -> None:
        """Have this done once the lock was let go, after all that was to be written before.

        For what the queue runs. What `write` raises stops the copy.
        """
        self._writes.add(write)

    def finish_writing(self) -> None:
        """Wait until all is written that write_later() got before."""
        self._writes.finish()

    def _finish(self, share: LaneShare, number: int) -> bool:
        had_room, age_s = share.window.has_room(1), share.age_s(number)
        work = share.pop(number)
        if work is None:
            return False
        if isinstance(work, Chunk):
            self._flight_s += (age_s - self._flight_s) / _FLIGHTS
        if not had_room or share.is_idle:  # this lane may take more, if only from another
            self._changed.notify_all()
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
            self._news.notify_all()
        return True

    def give_back(self, share: LaneShare) -> None:
        """A lane has ended: what it had in flight goes to the others."""
        with self._lock:
            if not share.is_over:
                share.is_over = True
                self._give_back(share)
                self.wake_lanes()
                self.wake()

    def _give_back(self, share: LaneShare) -> None:
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

    # --- the end

    def stop(self, error: BaseException) -> None:
        """The copy cannot go on: every lane ends, and every wait."""
        with self._lock:
            if self.error is None:
                self.error = error
            self._wake_all()

    def close(self) -> None:
        """No more work comes: every lane ends, and every wait. Nothing, where the copy stops."""
        with self._lock:
            self.is_finished = self.error is None
            self._wake_all()

    def _is_ended(self) -> bool:
        return self.error is not None or self.is_finished

    def _wake_all(self) -> None:
        for condition in (self._changed, self._news, self._has_room):
            condition.notify_all()

    # --- waiting, and what is asked

    def wait_until(self, is_so: Callable[[], bool], patience_s: float | None = None) -> bool:
        """Wait until `is_so()`. False: the queue was stopped or closed, or that took too long.

        It is asked again when the queue becomes idle, when a lane ends, and after wake().
        """
        with self._lock:
            return self._wait(self._news, is_so, patience_s)

    def wait_to_begin(self, may_begin: Callable[[], bool]) -> bool:
        """Wait until a worker may begin. False: the queue was stopped or closed.

        It is asked again whenever there may be more work, and after wake_lanes().
        """
        with self._lock:
            return self._wait(self._changed, may_begin)

    def wait_for_end(self, patience_s: float) -> None:
        """Wait until the queue is stopped or closed, for so long at most."""
        with self._lock:
            self._wait(self._changed, lambda: False, patience_s)

    def _wait(
        self, condition: threading.Condition, is_so: Callable[[], bool],
        patience_s: float | None = None,
    ) -> bool:  # fmt: skip
        until_s = math.inf if patience_s is None else time.monotonic() + patience_s
        while not self._is_ended():
            if self._run(is_so):
                return True
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            condition.wait(min(left_s, SIGNAL_S))
        return False

    def wake(self) -> None:
        """Something that wait_until() waits for may be so now."""
        with self._lock:
            self._news.notify_all()

    def wake_lanes(self) -> None:
        """A lane may take work now, or a worker begin."""
        with self._lock:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise why the copy stops, if it does."""
        if self.error is not None:
            raise self.error

    def is_idle(self) -> bool:
        """Is nothing waiting and nothing in flight?"""
        with self._lock:
            return not (self._again or self._waiting or self._open)

    def has_work(self) -> bool:
        """Is there anything that no lane has taken?"""
        return bool(self._again or self._waiting)

    def in_flight_bytes(self) -> int:
        with self._lock:
            return sum(share.window.in_flight_bytes for share in self._shares)

    def pieces_known(self, left_bytes: int, chunk_bytes: int) -> int:
        """At most so many pieces are not done: in flight, waiting, and of files yet to be cut."""
        with self._lock:
            whole = sum(not isinstance(each, Iterator) for each in self._waiting)
            known = self._open + len(self._again) + whole
            if whole < len(self._waiting):
                known += -(-max(0, left_bytes - self.in_flight_bytes()) // chunk_bytes)
            return known


def _is_exclusive(work: Work) -> bool:
    return isinstance(work, Pack) or (isinstance(work, Ask) and work.is_exclusive)
