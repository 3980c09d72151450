"""What waits for a lane, what lanes have taken and not finished, and which of it goes over another
lane as well.

Not here: one lane's share (lane_share.py), who may look here and when (work_queue.py).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator

from pscp.transfer.lanes.lane_share import LaneShare
from pscp.transfer.pieces.plan import Ask, Chunk, Pack, Work

_PATIENCE_S = 1.0  # for which a chunk is in flight before an idle lane takes it over
# For which a lane that another has overtaken may hold what no other may do meanwhile. It stands
# still, or nearly; to wait until it is silent takes a minute, and one that only ticks never is.
_STALLED_S = 10.0
_ANSWER_S = 3.0  # for a request that takes a second; after it another lane makes it as well
# The later chunks of a stream wait for the first one. Once it takes so many times as long as chunks
# take lately, and at least so long, it goes over another lane as well.
_OVERDUE, _OVERDUE_S = 2, 0.25
_FLIGHTS = 16  # chunks over which that time is averaged

# Makes the request after which the lane of this number cannot do these pieces any more.
Revocation = Callable[[int, list[Work]], Ask]


class Backlog:
    """What no lane has taken yet. The queue's lock guards it."""

    def __init__(self, iterator_ended: Callable[[], None]) -> None:
        self._iterator_ended = iterator_ended  # called when an iterator has no more chunks
        self._first: deque[Work] = deque()  # what lanes gave back, and what follows from answers
        self._waiting: deque[Work | Iterator[Work]] = deque()
        self.reserve: Callable[[], Work | None] = lambda: None  # asked when nothing else waits

    def __len__(self) -> int:
        """Return how many pieces and iterators wait."""
        return len(self._waiting) + len(self._first)

    def put(self, work: Work | Iterator[Work]) -> None:
        """Add a piece, or an iterator over pieces, behind all that waits already."""
        self._waiting.append(work)

    def put_first(self, work: Work) -> None:
        """Add a piece that is taken before what the walk found."""
        work.is_over = False
        self._first.append(work)

    def next(self, share: LaneShare) -> Work | None:
        """Remove and return the next piece for this lane."""
        first = self.next_first(share)
        while first is None and self._waiting:
            waiting = self._waiting[0]
            if not isinstance(waiting, Iterator):
                self._waiting.popleft()
                return waiting
            piece = next(waiting, None)
            if piece is not None:
                return piece
            self._waiting.remove(waiting)
            self._iterator_ended()
            first = self.next_first(share)  # its end may have added what follows from it
        return first or self.reserve()

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
            pinned = work.share if isinstance(work, Ask) else None
            is_free = pinned is None or pinned.is_over
            if pinned is share or (is_free and not is_own):
                del self._first[place]
                return work
        return None

    def drop(self, is_needless: Callable[[Work], bool]) -> None:
        """Remove the pieces that nobody needs any more; iterators stay."""
        for queue in (self._first, self._waiting):
            kept = [each for each in queue if isinstance(each, Iterator) or not is_needless(each)]
            queue.clear()
            queue.extend(kept)  # type: ignore[arg-type]

    def known_pieces(self, uncut_pieces: int) -> int:
        """Return how many pieces wait. The iterators, if any wait, have `uncut_pieces` together."""
        whole = sum(not isinstance(each, Iterator) for each in self._waiting)
        return len(self._first) + whole + (uncut_pieces if whole < len(self._waiting) else 0)


class InFlight:
    """The shares of all lanes, and what they have finished. The queue's lock guards it."""

    def __init__(self, is_stream: bool) -> None:
        self.pieces = 0  # taken and not finished
        self.done_bytes = 0  # the cost of all pieces that were finished
        self.done_pieces = 0  # those that brought the copy on
        self.revocation: Revocation | None = None
        self._is_stream = is_stream
        self._shares: list[LaneShare] = []
        self._numbers = itertools.count(1)
        self._prompt: dict[Ask, float] = {}  # when each request was made that is answered at once
        self._flight_s = _PATIENCE_S / _OVERDUE  # that a chunk was in flight lately, on average

    def join(self, share: LaneShare) -> None:
        self._shares.append(share)

    @property
    def window_bytes(self) -> int:
        """The bytes that all lanes together have in flight."""
        return sum(share.window.in_flight_bytes for share in self._shares)

    # --- taking and finishing

    def take(self, share: LaneShare, work: Work) -> tuple[int, Work]:
        """Count a piece as taken by this lane; return it with its number there."""
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

    def finish(self, work: Work, age_s: float) -> bool:
        """Count a piece as finished by one lane. Return False if another one was first."""
        if isinstance(work, Chunk):
            self._flight_s += (age_s - self._flight_s) / _FLIGHTS
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
        """Forget a lane that has ended; return what others have to do in its place."""
        if share in self._shares:
            self._shares.remove(share)
        again: list[Work] = []
        exclusive: list[Work] = []
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
            again.append(self.revocation(share.lane, exclusive))
        return again

    # --- what goes over another lane as well

    def patience_s(self) -> float:
        """Return how long a chunk may be in flight before another lane takes it over."""
        if not self._is_stream:
            return _PATIENCE_S
        return max(_OVERDUE * self._flight_s, _OVERDUE_S)

    def is_behind(self, share: LaneShare) -> bool:
        """Return whether another lane has finished what this one still has in flight.

        It may stand still, and a request, which may take long, would wait for it. In a stream a
        lane's first chunk goes over others as soon as it is slow, so there it says little.
        """
        return not self._is_stream and any(work.is_over for work in share.work.values())

    def stalled(self, share: LaneShare) -> LaneShare | None:
        """Return a lane that stands still, and on whose work all wait, if this one is idle."""
        if not share.is_idle:
            return None
        for each in self._shares:
            held_s = (each.age_s(n) for n, work in each.work.items() if _is_awaited(work))
            if each is not share and self.is_behind(each) and max(held_s, default=0) > _STALLED_S:
                return each
        return None

    def unanswered(self, share: LaneShare) -> Ask | None:
        """Return an overdue request of another lane, which seems to stand still."""
        before_s = time.monotonic() - _ANSWER_S
        for ask, asked_s in self._prompt.items():
            if ask.takers == 1 and asked_s < before_s and ask not in share.work.values():
                return ask
        return None

    def overdue(self, share: LaneShare) -> Chunk | None:
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

    def straggler(self, share: LaneShare) -> Chunk | None:
        """Return a chunk that another lane has held for long, if this lane is idle.

        Both send the same bytes to the same place; what comes second is ignored.
        """
        if not share.is_idle:
            return None
        least_s = self.patience_s()
        found = (each.held_for(least_s) for each in self._shares if each is not share)
        return next((chunk for chunk in found if chunk is not None), None)


def _is_awaited(work: Work) -> bool:
    return _is_exclusive(work) and not work.is_over


def _is_exclusive(work: Work) -> bool:
    return isinstance(work, Pack) or (isinstance(work, Ask) and work.is_exclusive)
