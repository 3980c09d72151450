"""Counts ahead of the walk what the sources hold, for who watches the copy.

The walk waits while much waits to be sent, since a file that was seen long ago may be another one
by the time it is read. So only at the end of a long copy would it be known how long it is. What is
counted is about right, and the walk's own numbers take its place.

Not here: how the far end counts (endpoint/there/counting.py), what is shown (../../progress/).
"""

from __future__ import annotations

import time

from pscp.endpoint.there.counting import Bounds, Count, SizesWalk, StopCounting, Tally
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Taker
from pscp.transfer.terms.copy_terms import CopyTerms

# Most walks are over within the first second of a copy, or, after a slow login, half a second.
_COPY_S, _WALK_S = 1.0, 0.5


class CountAhead:
    """The count of one copy, if somebody wants to know. A failure is ignored."""

    def __init__(self, terms: CopyTerms, bounds: Bounds) -> None:
        self._terms, self._queue, self._bounds = terms, terms.queue, bounds
        self._share: Taker | None = None  # of the lane whose agent counts

    def count_here(self) -> None:
        """Count a source at this end, unless the walk is over soon. For the main thread."""
        terms = self._terms
        if not (terms.counts_ahead and terms.is_source_here):
            return
        self._queue.wait_until(self._is_needless, self._after_s())
        tally = Tally(self._bounds)
        walk = terms.context.near_source_entries(lambda near: near.entries(kind=SizesWalk))
        for entry in walk:
            if self._is_needless() or self._queue.error is not None:
                return
            tally.add(entry)
        self._counted(tally.files, tally.bytes)

    def _after_s(self) -> float:
        return max(self._terms.counters.started_s + _COPY_S - time.monotonic(), _WALK_S)

    def _is_needless(self) -> bool:
        return self._terms.counters.plan_complete

    def _counted(self, files: int, size_bytes: int) -> None:
        self._terms.counters.set(files_counted=files, bytes_counted=size_bytes)

    # --- at the far end; the queue runs these

    def ask(self) -> None:
        """Have the far end count. Asked before any data is, as the answer comes behind that."""
        if self._terms.counts_ahead:
            self._queue.add(Ask(True, self._request, self._then, answers.ignored))

    def _request(self, share: Taker | None) -> Count | StopCounting:
        self._share = share
        if self._is_needless():
            return StopCounting()
        return Count(self._bounds, int(self._after_s() * 1000))

    def _then(self, answer: object) -> None:
        self._share = None
        if answer is not None:
            files, size_bytes = answers.items(answer)
            self._counted(answers.integer(files), answers.integer(size_bytes))

    def stop(self) -> None:
        """End the count at the far end, since the walk is over."""
        if self._share is not None:
            ask = Ask(True, StopCounting(), answers.ignored, answers.ignored)
            ask.share = self._share
            self._queue.add(ask)
