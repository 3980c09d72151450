"""The work queue, in which work waits until a lane takes it.

What is handed to the queue as a function runs with its lock held, between two changes: a piece's
outcome (settle()), a step of the copy's bookkeeping (run_alone()), a question (wait_until()),
iterators and the reserve. It may add, wake and stop; it calls no end and sends nothing. What it
writes may take long, as a journal on a slow server: LaterWrites does that without the lock.

Not here: what lanes have taken (in_flight.py), what the work means (../walk/items.py), how it
travels (lane.py), the rate limit (lane_context.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from pscp.transfer.lanes.in_flight import InFlight, LaneShare, Revocation
from pscp.transfer.pieces.plan import Ask, Pack, Work

_BACKLOG_MOST = 32  # pieces, or files not begun; the walk waits while there are so many
SIGNAL_S = 1.0  # a wait's length: Python handles a signal that came just before it only afterwards

_A_PACK = Pack([], lambda pack, failed: None)  # stands for any

_A = TypeVar("_A")
_T = TypeVar("_T")
_WRITES_MOST = 1000  # that wait; with more the walk, which causes them, waits until all are done


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
        if len(self._waiting) >= _WRITES_MOST:
            self.finish()

    def _write(self) -> None:
        while self._waiting:
            write = self._waiting.popleft()
            try:
                write()
            except Exception as error:
                self._failed(error)


class _Pieces(Iterator[Work]):
    """The pieces of an iterator, of which the next one can be looked at."""

    def __init__(self, pieces: Iterator[Work]) -> None:
        self._pieces = pieces
        self._next: Work | None = None

    def peek(self) -> Work | None:
        """Return the next piece, which stays; None after the last."""
        if self._next is None:
            self._next = next(self._pieces, None)
        return self._next

    def __next__(self) -> Work:
        piece, self._next = self.peek(), None
        if piece is None:
            raise StopIteration
        return piece


class Backlog:
    """Work that no lane has taken yet. The queue's lock guards it."""

    def __init__(self, iterator_ended: Callable[[], None]) -> None:
        self._iterator_ended = iterator_ended  # called when an iterator has no more chunks
        self._first: deque[Work] = deque()  # what lanes gave back, and what follows from answers
        self._waiting: deque[Work | _Pieces] = deque()
        self.reserve: Callable[[], Work | None] = lambda: None  # asked when nothing else waits

    def __len__(self) -> int:
        return len(self._waiting) + len(self._first)

    def put(self, work: Work | Iterator[Work]) -> None:
        """Add a piece, or an iterator over pieces, behind all that waits already."""
        self._waiting.append(_Pieces(work) if isinstance(work, Iterator) else work)

    def put_first(self, work: Work) -> None:
        """Add a piece that is taken before what the walk found."""
        work.is_over = False
        self._first.append(work)

    def next(self, share: LaneShare) -> Work | None:
        """Remove and return the next piece for this lane."""
        first, place = self.next_first(share), 0
        while first is None and place < len(self._waiting):
            waiting = self._waiting[place]
            piece = waiting.peek() if isinstance(waiting, _Pieces) else waiting
            if piece is None:
                del self._waiting[place]
                self._iterator_ended()
                first = self.next_first(share)  # its end may have added what follows from it
            elif share.wants is not None and not share.wants(piece):
                place += 1
            elif isinstance(waiting, _Pieces):
                return next(waiting)
            else:
                del self._waiting[place]
                return piece
        return first or self._collected(share)

    def _collected(self, share: LaneShare) -> Work | None:
        """Return what is being collected, where the lane wants packs."""
        return self.reserve() if share.wants is None or share.wants(_A_PACK) else None

    def next_first(
        self, share: LaneShare, *, is_own: bool = False, is_prompt: bool = False
    ) -> Work | None:
        """Remove and return the next piece that goes before what the walk found.

        With `is_own` only a request that must be this lane's own, with `is_prompt` only one that
        is answered at once.
        """
        for place, work in enumerate(self._first):
            if is_prompt and not (isinstance(work, Ask) and work.is_prompt):
                continue
            if share.wants is not None and not share.wants(work):
                continue
            pinned = work.share if isinstance(work, Ask) else None
            is_free = pinned is None or pinned.is_over
            if pinned is share or (is_free and not is_own):
                del self._first[place]
                return work
        return None

    def drop(self, is_needless: Callable[[Work], bool]) -> None:
        """Remove the pieces that nobody needs any more; iterators stay."""
        for queue in (self._first, self._waiting):
            kept = [each for each in queue if isinstance(each, _Pieces) or not is_needless(each)]
            queue.clear()
            queue.extend(kept)  # type: ignore[arg-type]

    def known_pieces(self, uncut_pieces: int) -> int:
        """Return how many pieces wait. The iterators, if any wait, have `uncut_pieces` together."""
        whole = sum(not isinstance(each, _Pieces) for each in self._waiting)
        return len(self._first) + whole + (uncut_pieces if whole < len(self._waiting) else 0)


class WorkQueue:
    """The work of one copy, or of one stream.

    Any thread may call any method, but for those that say for which function they are: the queue
    runs that with its lock held.
    """

    def __init__(self, is_stream: bool = False) -> None:
        self._lock = lock = threading.RLock()  # guards all that follows, and all shares
        # Three conditions, since a wake-up can cost more than a small file does.
        self._changed = threading.Condition(lock)  # for lanes: there may be work, or room for it
        self._news = threading.Condition(lock)  # for threads in wait_until()
        self._has_room = threading.Condition(lock)  # for the walk, which may go on
        self._is_running = False  # a function that was handed in runs
        self._backlog = Backlog(self._iterator_ended)
        self._in_flight = InFlight(is_stream)
        self._writes = LaterWrites(self.stop)  # has a lock of its own
        # Other threads may read these.
        self.error: BaseException | None = None  # why the copy stops
        self.is_finished = False  # no more work comes

    # --- putting

    def run_with_room(self, step: Callable[[_A], object], argument: _A) -> None:
        """Run a step as run_alone() does, once less waits to be sent and written. For the walk."""
        self._writes.keep_short()
        with self._lock:
            while len(self._backlog) >= _BACKLOG_MOST and self.error is None:
                self._has_room.wait()
            self._run(step, argument)
        self._writes.start()

    def put(self, work: Work) -> None:
        """Add a piece that the walk found, once there is room."""
        self.run_with_room(self._put, work)

    def _put(self, work: Work) -> None:
        self._backlog.put(work)
        self._changed.notify_all()

    def add(self, work: Work | Iterator[Work]) -> None:
        """Add a piece before all that waits, an iterator's behind it. Never waits as put() does."""
        with self._lock:
            if isinstance(work, Iterator):
                self._backlog.put(work)
            elif work.takers:
                self._in_flight.reopen(work)
            else:
                self._backlog.put_first(work)
            self._changed.notify_all()

    def drop(self, is_needless: Callable[[Work], bool]) -> None:
        """Remove what waits and is not needed any more; what a lane has taken goes on."""
        with self._lock:
            self._backlog.drop(is_needless)
            self._wake_all()

    def when_idle(self, reserve: Callable[[], Work | None]) -> None:
        """Set the function that returns work being collected, for when there is no other."""
        self._backlog.reserve = reserve

    def when_lost(self, revocation: Revocation) -> None:
        """Set the function that returns what goes before a lost lane's exclusive work."""
        self._in_flight.revocation = revocation

    def take_over_after(self, least_s: float, most_s: float) -> None:
        """Set after how long, at least and at most, an idle lane sends another one's chunk too."""
        self._in_flight.takeover_s = least_s, most_s

    # --- taking

    def join(self, share: LaneShare) -> None:
        """Add the share of a lane that begins; give_back() removes it. For run_alone()."""
        self._in_flight.join(share)

    def take(self, share: LaneShare) -> tuple[int, Work] | None:
        """Wait for this lane's next piece, and return it with its number; None when all is over."""
        while True:
            with self._lock:
                while self.error is None and not (self.is_finished or share.is_over):
                    taken = self.try_take(share)
                    if taken is not None:
                        return taken
                    give_up = self._in_flight.lane_to_give_up(share)
                    if give_up is not None:
                        break
                    # An idle lane looks again, since another one's chunk may be overdue by then.
                    may_help = self._in_flight.pieces and share.is_idle
                    self._changed.wait(self._in_flight.patience_s() / 2 if may_help else None)
                else:
                    return None
            give_up()  # not with the lock held: it ends a channel

    def try_take(self, share: LaneShare) -> tuple[int, Work] | None:
        """Take this lane's next piece without waiting; None also if there is none now."""
        with self._lock:
            backlog, in_flight = self._backlog, self._in_flight
            if not share.window.has_room:  # as of a stream whose command writes nothing
                work = backlog.next_first(share, is_prompt=True)
            elif share.is_parked() or in_flight.is_behind(share):
                work = backlog.next_first(share, is_own=True)
            else:
                first = in_flight.request_to_repeat(share) or in_flight.first_to_repeat(share)
                work = first or backlog.next(share) or in_flight.chunk_to_repeat(share)
            if work is None:
                return None
            if len(backlog) <= _BACKLOG_MOST // 2:
                self._has_room.notify_all()
            return in_flight.take(share, work)

    def _iterator_ended(self) -> None:
        self._news.notify_all()
        self._has_room.notify_all()

    # --- finishing

    def settle(self, share: LaneShare, number: int, outcome: Callable[[], object]) -> bool:
        """Finish a lane's piece of work, and run its outcome before anybody sees it finished.

        Returns False, and runs nothing, if it was given back meanwhile or another lane was first.
        What `outcome` raises stops the copy, since nobody would do this piece again.
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

    def _finish(self, share: LaneShare, number: int) -> bool:
        had_room, times = share.window.has_room, (share.age_s(number), share.still_s(number))
        work = share.pop(number)
        if work is None:
            return False
        if not had_room or work.is_over or share.is_idle:
            self._changed.notify_all()  # this lane may take more, or take over a chunk
        if not self._in_flight.finish(work, *times):
            self._news.notify_all()  # is_quiet() may be so
            return False
        share.note_finished(work)
        if not self._in_flight.pieces:
            self._news.notify_all()
        return True

    def run_alone(self, step: Callable[[], _T]) -> _T:
        """Run a step of the copy's bookkeeping while no outcome and no other step runs."""
        with self._lock:
            result = self._run(step)
        self._writes.start()
        return result

    def _run(self, given: Callable[..., _T], *arguments: object) -> _T:
        """Run a function that was handed in, which must not have the queue run another one."""
        if self._is_running:
            raise RuntimeError("a step of the work queue within another")
        self._is_running = True
        try:
            return given(*arguments)
        finally:
            self._is_running = False

    def write_later(self, write: Callable[[], object]) -> None:
        """Have this written once the lock is released, after all earlier writes.

        For functions that the queue runs. What `write` raises stops the copy.
        """
        self._writes.add(write)

    def finish_writing(self) -> None:
        """Wait until all is written that was handed to write_later() before."""
        self._writes.finish()

    def give_back(self, share: LaneShare) -> None:
        """End a lane, and let the others do what it had in flight. For run_alone()."""
        if not share.is_over:
            share.is_over = True
            for work in self._in_flight.leave(share):
                self._backlog.put_first(work)
            self.wake(lanes=True)

    # --- the end

    def stop(self, error: BaseException) -> None:
        """End every lane and every wait, since the copy cannot go on."""
        with self._lock:
            if self.error is None:
                self.error = error
            self._wake_all()

    def close(self) -> None:
        """End every lane and every wait, since no more work comes. After stop() nothing changes."""
        with self._lock:
            self.is_finished = self.error is None
            self._wake_all()

    def check(self) -> None:
        """Raise the error that stops the copy, if there is one."""
        if self.error is not None:
            raise self.error

    def _wake_all(self) -> None:
        for condition in (self._changed, self._news, self._has_room):
            condition.notify_all()

    # --- waiting, and what is asked

    def wait_until(
        self, is_so: Callable[[], bool], patience_s: float | None = None, *, is_lane: bool = False
    ) -> bool:
        """Wait until `is_so()`. Return False if the queue ended before, or that took too long.

        `is_so` is called again when the queue becomes idle, when a lane ends, and after wake();
        with `is_lane` each second as well, and whenever there may be more work.
        """
        condition = self._changed if is_lane else self._news
        until_s = math.inf if patience_s is None else time.monotonic() + patience_s
        looks = is_lane or threading.current_thread() is threading.main_thread()
        with self._lock:
            while self.error is None and not self.is_finished:
                if self._run(is_so):
                    return True
                if (left_s := until_s - time.monotonic()) <= 0:
                    return False
                condition.wait(min(left_s, SIGNAL_S if looks else threading.TIMEOUT_MAX))
        return False

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`. Raises the error that stops the copy."""
        self.wait_until(is_so)
        self.check()

    def wake(self, *, lanes: bool = False) -> None:
        """Have wait_until() call its question again; with `lanes` also those who look for work."""
        with self._lock:
            self._news.notify_all()
            if lanes:
                self._changed.notify_all()

    def is_idle(self) -> bool:
        """Return whether nothing waits and nothing is in flight."""
        with self._lock:
            return not (self._in_flight.pieces or self._backlog)

    def is_quiet(self) -> bool:
        """Return whether no lane is at anything, not even at what is over. For wait_until()."""
        return self._in_flight.is_quiet

    def has_work(self) -> bool:
        """Return whether there is anything that no lane has taken."""
        return bool(self._backlog)

    def is_held_up(self) -> bool:
        """Return whether a lane stands still with work that others wait for. For wait_until()."""
        return self._in_flight.is_held_up()

    def is_slow(self) -> bool:
        """Return whether one more lane would take over what others hold. For wait_until()."""
        return self._in_flight.is_slow()

    def done(self) -> tuple[int, int]:
        """Return how many bytes and how many pieces of work are finished."""
        return self._in_flight.done_bytes, self._in_flight.done_pieces

    def in_flight_bytes(self) -> int:
        with self._lock:
            return self._in_flight.window_bytes

    def pieces_known(self, left_bytes: int, chunk_bytes: int) -> int:
        """Return how many pieces at most are not done, `left_bytes` in all. For wait_until().

        They are in flight, waiting, or in files that are yet to be cut into chunks.
        """
        uncut_bytes = max(0, left_bytes - self._in_flight.window_bytes)
        waiting = self._backlog.known_pieces(-(-uncut_bytes // chunk_bytes))
        return self._in_flight.pieces + waiting
