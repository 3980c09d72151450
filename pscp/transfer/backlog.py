"""Work that waits for a lane: pieces, and iterators over the chunks of files.

Not here: what lanes have taken (in_flight.py), who may look here and when (work_queue.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pscp.transfer.lane_share import LaneShare
from pscp.transfer.plan import Ask, Work


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

    def known_pieces(self, uncut_pieces: int) -> int:
        """Return how many pieces wait. The iterators, if any wait, have `uncut_pieces` together."""
        whole = sum(not isinstance(each, Iterator) for each in self._waiting)
        return len(self._first) + whole + (uncut_pieces if whole < len(self._waiting) else 0)
