"""Work that lanes have taken and not finished: a lane's window and its share, the shares of
all, and which of it goes over another lane as well.

Not here: what waits, and who may look here and when (work_queue.py), what a lane does with its
share (lane.py), what of a lost lane's work is refused before it is repeated (lost_work.py).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator

from pscp.transfer.pieces.plan import Ask, Chunk, Pack, Work

_PATIENCE_S = 1.0  # for which a chunk is in flight before an idle lane takes it over
# For which a lane that another has overtaken may hold what no other may do meanwhile. It stands
# still, or nearly; to wait until it is silent takes a minute, and one that only ticks never is.
_STALLED_S = 10.0
# Where only packs are left none is overtaken: a lane crawls that has finished nothing for so long,
# and for so many times as long as the pack that it holds should take. If nobody knows how long that
# is, since no pack was finished yet, a minute is too long, which is 35 kbit/s. It may be the pack
# whose files are slow, as on a tape: each lane that was given up with it makes that so many times.
_CRAWLING = 10
_UNKNOWN_S = 60.0
_LONGER = 8.0
_ANSWER_S = 3.0  # for a request that takes a second; after it another lane makes it as well
# The later chunks of a stream wait for the first one. Once it takes so many times as long as chunks
# take lately, and at least so long, it goes over another lane as well.
_OVERDUE, _OVERDUE_S = 2, 0.25
_FLIGHTS = 16  # pieces over which that time is averaged
_SLOW = 3  # times as long as chunks take is slow, where how long that is decides

# Makes the request after which the lane of this number cannot do these pieces any more; if it was
# given up, it is made until that is so.
Revocation = Callable[[int, list[Work], bool], Ask]

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
        self._pace_bytes = 0  # of those together: of small files there are hundreds a second
        self._begun_s = time.monotonic()

    @property
    def has_room(self) -> bool:
        """Return whether the lane may take one more piece, of any size."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes < self.capacity_bytes

    @property
    def is_overfull(self) -> bool:
        """Return whether it has twice what the lane's pace allows, taken before that was known.

        TCP gathers speed for some eight round trips.
        """
        has_speed = time.monotonic() - self._begun_s > 2 * _PACE_S + 4 * self._span_s
        return has_speed and self.in_flight_bytes >= 2 * self.capacity_bytes

    def take(self, size_bytes: int) -> None:
        self.in_flight_bytes += size_bytes

    def credit(self, size_bytes: int) -> None:
        if size_bytes > self.in_flight_bytes:
            raise RuntimeError("more was acknowledged than was sent")
        self.in_flight_bytes -= size_bytes

    def follow_pace(self, size_bytes: int) -> None:
        """Count so many bytes as moved, and adapt the capacity to the lane's pace."""
        now_s = time.monotonic()
        self.moved_bytes += size_bytes
        self._moved.append((now_s, size_bytes))
        self._pace_bytes += size_bytes
        while self._moved[0][0] < now_s - _PACE_S:
            self._pace_bytes -= self._moved.popleft()[1]
        wanted_bytes = self.capacity_bytes + size_bytes
        if now_s - self._begun_s > 2 * _PACE_S:  # before that, the connection gathers speed
            bytes_per_s = self._pace_bytes / _PACE_S
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

    # Ends the lane, which stands still; its lane sets it. None: it is no lane's, but a task's.
    give_up: Callable[[], object] | None = None
    connection = ""  # whose channels this and other lanes are; "": its own alone
    wants: Callable[[Work], bool] | None = None  # says which work is for it; None: all is

    def __init__(self, window: Window, lane: int = 0, is_parked: IsParked = never) -> None:
        """`lane` is the lane's number. While `is_parked()` the lane gets no more work."""
        self.window, self.lane, self.is_parked = window, lane, is_parked
        self.is_over = False  # the lane has ended, and its work was given back
        self.was_given_up = False  # it is ended, though its agent may go on
        self.has_worked = False  # it has brought the copy on, or did for long what was asked
        self.work: dict[int, Work] = {}
        self._taken_s: dict[int, float] = {}  # by the lane's clock
        self._popped_s = 0.0  # when it finished a piece last, by that clock
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
            self._popped_s = self._now_s()
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

    def still_s(self, number: int) -> float:
        """Return for how long a piece has been in flight, and no other was finished."""
        return min(self.age_s(number), self._now_s() - self._popped_s)

    def oldest_chunk(self) -> tuple[int, Chunk] | None:
        """Return the chunk that was taken first, with its number."""
        chunks = ((n, each) for n, each in self.work.items() if isinstance(each, Chunk))
        return next(chunks, None)

    @property
    def is_idle(self) -> bool:
        """Return whether only requests are in flight; those of a stream may wait for very long."""
        return all(isinstance(work, Ask) for work in self.work.values())

    def held_for(self, least_s: float) -> Chunk | None:
        """Return the last chunk that only this lane has taken, if that is so long in flight.

        Of a stream it is the first such chunk, since all later ones wait for it.
        """
        first = next(iter(self.work.values()), None)
        is_stream = isinstance(first, Chunk) and first.job.may_be_short
        for number, work in self.work.items() if is_stream else reversed(self.work.items()):
            if isinstance(work, Chunk) and work.takers == 1 and not work.is_over:
                return work if self.age_s(number) > least_s else None
        return None


class _Mean:
    """The mean of the last _FLIGHTS values, about."""

    def __init__(self, first: float, count: int = 0) -> None:
        """Begin as if `count` values had been `first`."""
        self.value, self.count = first, count

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, _FLIGHTS)
        self.value += (value - self.value) / self.count


class InFlight:
    """The shares of all lanes, and what they have finished. The queue's lock guards it."""

    def __init__(self, is_stream: bool) -> None:
        self.pieces = 0  # taken and not finished
        self.done_bytes = 0  # the cost of all pieces that were finished
        self.done_pieces = 0  # those that brought the copy on
        self.revocation: Revocation | None = None
        # After it an idle lane sends another one's chunk as well: at least, and at most.
        self.takeover_s = _PATIENCE_S, _PATIENCE_S
        self._is_stream = is_stream
        self._shares: list[LaneShare] = []
        self._numbers = itertools.count(1)
        self._prompt: dict[Ask, float] = {}  # when each request was made that is answered at once
        # How long chunks were in flight lately; and packs with nothing else finished meanwhile, for
        # each byte that they cost.
        self._chunk_s = _Mean(_PATIENCE_S / _OVERDUE, _FLIGHTS if is_stream else 0)
        self._pack_s_per_byte = _Mean(0.0)

    def join(self, share: LaneShare) -> None:
        self._shares.append(share)

    @property
    def window_bytes(self) -> int:
        return sum(share.window.in_flight_bytes for share in self._shares)

    @property
    def is_quiet(self) -> bool:
        """Return whether no lane is at anything, not even at what another one has finished."""
        return not any(share.work for share in self._shares)

    # --- taking and finishing

    def take(self, share: LaneShare, work: Work) -> tuple[int, Work]:
        number = next(self._numbers)
        work.takers += 1
        if work.takers == 1:
            self.pieces += 1
        elif isinstance(work, Chunk):
            work.job.was_shared = True
        if isinstance(work, Ask) and work.is_prompt:
            self._prompt[work] = time.monotonic()
        share.take(number, work)
        return number, work

    def reopen(self, work: Work) -> None:
        """Count a piece as not finished after all, since another lane is still at it."""
        work.is_over = False
        self.pieces += 1

    def finish(self, work: Work, age_s: float, still_s: float) -> bool:
        """Count a piece as finished by one lane. Return False if another one was first."""
        if isinstance(work, Chunk):
            self._chunk_s.add(age_s)
        elif isinstance(work, Pack):
            self._pack_s_per_byte.add(still_s / work.cost_bytes)
        work.takers -= 1
        if work.is_over:
            return False
        work.is_over = True
        self.pieces -= 1
        if isinstance(work, Ask):
            self._prompt.pop(work, None)
        self.done_bytes += work.cost_bytes
        self.done_pieces += work.is_progress
        return True

    def leave(self, share: LaneShare) -> list[Work]:
        if share in self._shares:
            self._shares.remove(share)
        again: list[Work] = []
        exclusive: list[Work] = []
        held_up = next((work for work in share.work.values() if isinstance(work, Pack)), None)
        if held_up is not None:
            held_up.lanes_given_up += share.was_given_up  # the others wait behind it
        for number in list(share.work):
            work = share.pop(number)
            assert work is not None
            work.takers -= 1
            if isinstance(work, Chunk):
                work.job.was_shared = True
            if work.is_over or work.takers:
                continue
            self.pieces -= 1
            if isinstance(work, Ask) and work.lost is not None:
                work.lost()
            elif _is_exclusive(work) and self.revocation is not None:
                exclusive.append(work)
            else:
                again.append(work)
        if exclusive and self.revocation is not None:
            again.append(self.revocation(share.lane, exclusive, share.was_given_up))
        return again

    # --- what goes over another lane as well

    def patience_s(self) -> float:
        """Return how long a chunk may be in flight before another lane takes it over."""
        if self._is_stream:
            return max(_OVERDUE * self._chunk_s.value, _OVERDUE_S)
        least_s, most_s = self.takeover_s
        slow_s = _SLOW * self._chunk_s.value
        return min(max(slow_s, least_s), most_s) if self._chunk_s.count else most_s

    def is_behind(self, share: LaneShare) -> bool:
        """Return whether another lane has finished what this one still has in flight.

        It may stand still, and a request, which may take long, would wait for it. In a stream a
        lane's first chunk goes over others as soon as it is slow, so there it says little.
        """
        return not self._is_stream and any(work.is_over for work in share.work.values())

    def lane_to_give_up(self, share: LaneShare) -> Callable[[], object] | None:
        """Return what gives up a lane on whose work all wait, if this one is idle.

        That lane stands still, or nearly.
        """
        if not share.is_idle:
            return None
        for each in self._shares:
            is_apart = not each.connection or each.connection != share.connection
            if each is not share and is_apart and self._is_stalled(each):
                each.was_given_up = True
                return each.give_up
        return None

    def is_held_up(self) -> bool:
        """Return whether a lane stands still, or nearly, and none is idle that would give it up, or
        take over its chunks.
        """
        stands_still = any(
            self._is_stalled(share) or self._has_still_chunk(share) for share in self._shares
        )
        return stands_still and not any(
            share.is_idle or share.was_given_up for share in self._shares
        )

    def is_slow(self) -> bool:
        """Return whether a lane has taken much more than it can do soon, and none is idle that
        would take over its last chunks.
        """
        overfull = [share for share in self._shares if share.window.is_overfull]
        if not overfull or self._is_stream or any(share.is_idle for share in self._shares):
            return False
        least_s = self.patience_s()
        return any(share.held_for(least_s) is not None for share in overfull)

    def _has_still_chunk(self, share: LaneShare) -> bool:
        """Return whether a lane has finished nothing for long while it holds a file's chunk."""
        oldest = None if self._is_stream else share.oldest_chunk()
        return oldest is not None and share.still_s(oldest[0]) > _UNKNOWN_S

    def _is_stalled(self, share: LaneShare) -> bool:
        """Return whether a lane has held for long what it alone may do, and is too slow."""
        first = next(iter(share.work), None)
        if share.give_up is None or first is None or share.age_s(first) <= _STALLED_S:
            return False
        is_behind = self.is_behind(share)
        return any(
            is_behind or self._crawls(share, number, work)
            for number, work in share.work.items()
            if not work.is_over and _is_exclusive(work) and share.age_s(number) > _STALLED_S
        )

    def _crawls(self, share: LaneShare, number: int, work: Work) -> bool:
        """Return whether a lane has finished nothing for too long while it holds this pack."""
        if not isinstance(work, Pack):
            return False
        mean = self._pack_s_per_byte
        usual_s = _CRAWLING * mean.value * work.cost_bytes if mean.count else _UNKNOWN_S
        return share.still_s(number) > max(_STALLED_S, usual_s) * _LONGER**work.lanes_given_up

    def request_to_repeat(self, share: LaneShare) -> Ask | None:
        """Return an overdue request of another lane, which seems to stand still."""
        before_s = time.monotonic() - _ANSWER_S
        for ask, asked_s in self._prompt.items():
            is_overdue = ask.takers == 1 and asked_s < before_s
            is_for_it = share.wants is None or share.wants(ask)
            if is_overdue and is_for_it and ask not in share.work.values():
                return ask
        return None

    def first_to_repeat(self, share: LaneShare) -> Chunk | None:
        """Return the chunk of a stream that others wait for, if another lane is slow with it."""
        if not self._is_stream:
            return None
        found = [(each, each.oldest_chunk()) for each in self._shares]
        firsts = [(*oldest, each) for each, oldest in found if oldest is not None]
        number, chunk, holder = min(
            firsts, key=lambda first: first[1].offset, default=(0, None, share)
        )
        if chunk is None or holder is share or chunk.takers > 1 or chunk.is_over:
            return None
        return chunk if holder.age_s(number) > self.patience_s() else None

    def chunk_to_repeat(self, share: LaneShare) -> Chunk | None:
        """Return a chunk that another lane has held for long, if this lane is idle.

        Both send the same bytes to the same place; what comes second is ignored.
        """
        if not share.is_idle or share.wants is not None:
            return None
        least_s = self.patience_s()
        found = (each.held_for(least_s) for each in self._shares if each is not share)
        return next((chunk for chunk in found if chunk is not None), None)


def _is_exclusive(work: Work) -> bool:
    return isinstance(work, Pack) or (isinstance(work, Ask) and work.is_exclusive)
