"""The work queue: where work waits, and from where lanes take it.

The queue takes its one lock in its own methods, and nobody else can take it. What must happen
between two changes of the queue is handed to it as a function: what comes of a piece (settle()),
a step of the copy's bookkeeping (run_alone()), a question (wait_until()), iterators and the
reserve. Such a function may add, wake and stop; it calls no end, sends nothing, and what it wants
written is written once the lock was let go (later_writes.py).

Lanes sleep on a condition. Who waits for something else has a condition of its own, since a
wake-up can cost more than a small file does.

Not here: what waits (backlog.py), what lanes have taken (in_flight.py), what the work means
(coordinator.py), how it travels (lane.py), a rate that lanes keep to together (rate_limiter.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from pscp.transfer.backlog import Backlog
from pscp.transfer.in_flight import InFlight, Revocation
from pscp.transfer.lane_share import LaneShare
from pscp.transfer.later_writes import LaterWrites
from pscp.transfer.plan import Work

_WAITING_MAX = 32  # pieces or files put and not begun; the walk waits while there are more
SIGNAL_S = 1.0  # Python sees a signal that came just before a wait when that is over

_A = TypeVar("_A")
_T = TypeVar("_T")


class WorkQueue:
    """The work of one copy, or of one stream. Any thread may call any method."""

    def __init__(self, is_stream: bool = False) -> None:
        self._lock = lock = threading.RLock()  # guards all that follows, and all shares
        self._changed = threading.Condition(lock)  # lanes: there may be work, or room for it
        self._news = threading.Condition(lock)  # for who waits in wait_until()
        self._has_room = threading.Condition(lock)  # the walk may go on
        self._is_running = False  # something that was handed in
        self._backlog = Backlog(self._iterator_ended)
        self._in_flight = InFlight(is_stream)
        self._writes = LaterWrites(self.stop)  # it takes care of itself
        # Others may read these.
        self.error: BaseException | None = None  # why the copy stops
        self.is_finished = False  # no more work comes

    # --- putting

    def run_with_room(self, step: Callable[[_A], object], argument: _A) -> None:
        """As run_alone(), once less waits: to be sent, and to be written. For the walk."""
        self._writes.keep_short()
        with self._lock:
            while len(self._backlog) >= _WAITING_MAX and self.error is None:
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
        """Add what follows from an answer: it goes before what the walk found. Never waits."""
        with self._lock:
            if isinstance(work, Iterator):
                self._backlog.put(work)
            elif work.takers:
                self._in_flight.reopen(work)
            else:
                self._backlog.put_first(work)
            self._changed.notify_all()

    def when_idle(self, reserve: Callable[[], Work | None]) -> None:
        """Have this asked for work that is being collected, when there is no other."""
        self._backlog.reserve = reserve

    def when_lost(self, revocation: Revocation) -> None:
        """Have this asked for what goes before the work of a lost lane that must come once."""
        self._in_flight.revocation = revocation

    # --- taking

    def join(self, share: LaneShare) -> None:
        """Add the share of a lane that begins; give_back() removes it."""
        with self._lock:
            self._in_flight.join(share)

    def take(self, share: LaneShare) -> tuple[int, Work] | None:
        """Wait for the next piece for this lane, and return it with its number; None: end."""
        with self._lock:
            while not (self._is_ended() or share.is_over):
                taken = self.try_take(share)
                if taken is not None:
                    return taken
                # with nothing in flight here, another lane's straggler may come into question
                may_help = self._in_flight.pieces and share.is_idle
                self._changed.wait(self._in_flight.patience_s() / 2 if may_help else None)
            return None

    def try_take(self, share: LaneShare) -> tuple[int, Work] | None:
        """Take the next piece without waiting; None as well if there is none for this lane."""
        with self._lock:
            if not share.window.has_room:
                return None
            backlog, in_flight = self._backlog, self._in_flight
            if share.is_parked():
                work: Work | None = backlog.next_first(share)
            else:
                first = in_flight.unanswered(share) or in_flight.overdue(share)
                work = first or backlog.next(share) or in_flight.straggler(share)
            if work is None:
                return None
            if len(backlog) <= _WAITING_MAX // 2:
                self._has_room.notify_all()
            return in_flight.take(share, work)

    def _iterator_ended(self) -> None:
        self._news.notify_all()
        self._has_room.notify_all()

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

    def _finish(self, share: LaneShare, number: int) -> bool:
        had_room, age_s = share.window.has_room, share.age_s(number)
        work = share.pop(number)
        if work is None:
            return False
        if not had_room or share.is_idle:  # this lane may take more, if only from another
            self._changed.notify_all()
        if not self._in_flight.finish(work, age_s):
            return False
        share.has_worked = True
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
        """Run what was handed in, which does not have the queue run something else."""
        if self._is_running:
            raise RuntimeError("a step of the work queue within another")
        self._is_running = True
        try:
            return given(*arguments)
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

    def give_back(self, share: LaneShare) -> None:
        """End a lane: what it had in flight goes to the others."""
        with self._lock:
            if not share.is_over:
                share.is_over = True
                for work in self._in_flight.leave(share):
                    self._backlog.put_first(work)
                self._changed.notify_all()
                self._news.notify_all()

    # --- the end

    def stop(self, error: BaseException) -> None:
        """End every lane and every wait, since the copy cannot go on."""
        with self._lock:
            if self.error is None:
                self.error = error
            self._wake_all()

    def close(self) -> None:
        """End every lane and every wait, since no more work comes. Nothing after stop()."""
        with self._lock:
            self.is_finished = self.error is None
            self._wake_all()

    def check(self) -> None:
        """Raise why the copy stops, if it does."""
        if self.error is not None:
            raise self.error

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
        return self._wait(self._news, is_so, patience_s)

    def wait_to_begin(self, may_begin: Callable[[], bool]) -> bool:
        """Wait until a worker may begin. False: the queue was stopped or closed.

        It is asked again whenever there may be more work, and after wake_lanes().
        """
        return self._wait(self._changed, may_begin)

    def wait_for_end(self, patience_s: float) -> None:
        """Wait until the queue is stopped or closed, for so long at most."""
        self._wait(self._changed, lambda: False, patience_s)

    def _wait(
        self, condition: threading.Condition, is_so: Callable[[], bool],
        patience_s: float | None = None,
    ) -> bool:  # fmt: skip
        until_s = math.inf if patience_s is None else time.monotonic() + patience_s
        is_main = threading.current_thread() is threading.main_thread()
        look_s = SIGNAL_S if is_main else threading.TIMEOUT_MAX
        with self._lock:
            while not self._is_ended():
                if self._run(is_so):
                    return True
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                condition.wait(min(left_s, look_s))
        return False

    def wake(self) -> None:
        """Have wait_until() look again."""
        with self._lock:
            self._news.notify_all()

    def wake_lanes(self) -> None:
        """Have lanes look for work again, and workers whether they may begin."""
        with self._lock:
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Return whether nothing waits and nothing is in flight."""
        with self._lock:
            return not (self._in_flight.pieces or self._backlog)

    def has_work(self) -> bool:
        """Return whether there is anything that no lane has taken."""
        return bool(self._backlog)

    def done(self) -> tuple[int, int]:
        """Return how many bytes and how many pieces of work have come to their end."""
        with self._lock:
            return self._in_flight.done_bytes, self._in_flight.done_pieces

    def in_flight_bytes(self) -> int:
        with self._lock:
            return self._in_flight.window_bytes

    def pieces_known(self, left_bytes: int, chunk_bytes: int) -> int:
        """Return how many pieces at most are not done.

        Those are in flight, waiting, or of files that are yet to be cut into chunks; of all these,
        `left_bytes` are not done.
        """
        with self._lock:
            uncut_bytes = max(0, left_bytes - self._in_flight.window_bytes)
            return self._in_flight.pieces + self._backlog.known_pieces(
                -(-uncut_bytes // chunk_bytes)
            )
