"""The walk of a source at the far end, answer by answer, over whichever lane lives.

Not here: how a folder is walked there (endpoint/reading/tree.py), what becomes of the entries
(plan_walk.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pscp.endpoint.asking import requests
from pscp.endpoint.asking.entries import entry as checked_entry
from pscp.endpoint.reading import tree
from pscp.endpoint.there import listings
from pscp.endpoint.there.listed_paths import ABOVE, ALL, Row, WalkPaths
from pscp.ground import errors
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Failure, Taker
from pscp.transfer.terms.copy_terms import folders_of

# Entries in the first answer, and the most in one. A long first one would keep the lanes of a far
# path waiting: 2,000 entries took 235 ms of a copy of 2.1 s at 50 ms.
_WALK_FIRST, _WALK_MOST = 200, 2000
# Names that listings have in one answer. They are compared here while the far end lists the next
# ones, which takes it longer than the round trip until it is asked: 100,000 unchanged files took
# 0.75 s so, and 0.83 s where each answer had 200 folders and more.
_NAMES_MOST, _NAMES_A_S = 8192, 1.6e6
_NAMES_USUAL = 100  # in a folder, as long as none is known

WalkRequest = type[requests.Walk] | type[listings.WalkFolders]


def from_far(value: object) -> tree.Entry:
    """Return an entry that a far source has sent. Raises WireError."""
    entry = checked_entry(value)
    entry.extra.pop("new", None)  # what is new at the destination is not for it to say
    return entry


class FarWalk:
    """The walk of a source at the far end.

    While a request is under way only what the queue runs changes it, and otherwise the walk's
    thread.
    """

    def __init__(
        self,
        queue: WorkQueue,
        kind: WalkRequest,
        is_long: Callable[[], None] = lambda: None,
        rtt_s: float = 0.0,
    ) -> None:
        """`is_long` is called if one answer is not all of it."""
        self._queue, self._kind, self._is_long = queue, kind, is_long
        self._batch: list[tree.Entry] | None = None
        self._is_last = False
        self._after: tuple[int, str] | None = None  # the last entry that came: its source and path
        self._share: Taker | None = None  # of the lane whose agent walks
        self._names_most = _NAMES_MOST + int(rtt_s * _NAMES_A_S)
        self._most = _WALK_FIRST
        if kind is listings.WalkFolders:
            self._most = min(self._names_most // _NAMES_USUAL, _WALK_FIRST)

    def entries(self) -> Iterator[tree.Entry]:
        self._ask()
        while True:
            if not self._queue.wait_until(lambda: self._batch is not None):
                return
            batch, self._batch = self._batch or [], None  # until _ask(), no answer comes
            if self._goes_on():
                self._ask()  # the next answer comes while this one is worked on
            yield from batch
            if self._is_last and self._batch is None:
                return

    def _goes_on(self) -> bool:
        """Return whether there is something to ask for. No request is under way."""
        return not self._is_last

    def _ask(self) -> None:
        ask = Ask(True, self._request, self._then, self._failed)
        ask.share = self._share
        self._queue.add(ask)

    def _request(self, share: Taker | None) -> requests.Request:
        restart = share is not self._share
        self._share = share
        return self._kind(self._after, restart, self._most)

    def _then(self, answer: object) -> None:
        listed, is_last = answers.items(answer)
        batch = [from_far(value) for value in answers.items(listed)]
        if not is_last and self._after is None:
            self._is_long()
        if batch:
            self._after = batch[-1].top, batch[-1].path
        self._batch, self._is_last = batch, bool(is_last)
        self._most = self._next_most(batch)
        if not batch and not self._is_last:
            raise ValueError("a walk that goes on without an entry")
        self._queue.wake()

    def _next_most(self, batch: list[tree.Entry]) -> int:
        """Return how many entries the next answer may have, which are like these."""
        listed = (each.extra["list"] for each in batch if "list" in each.extra)
        if names := sum(listings.listing(value).files for value in listed):
            return min(max(self._names_most * len(batch) // names, 1), _WALK_MOST)
        return min(4 * self._most, _WALK_MOST)

    def _failed(self, failure: Failure) -> None:
        self._queue.stop(errors.CopyError(f"{failure['path']}: {failure['message']}"))


class FarPathsWalk(FarWalk):
    """The entries of listed paths at the far end, one group of paths after the other."""

    def __init__(self, queue: WorkQueue, batches: Iterator[list[Row]]) -> None:
        super().__init__(queue, requests.Walk)
        self._batches = batches
        self._rows: list[Row] = []
        self._is_begun = True  # some lane was asked for these rows
        self._is_last = True

    def entries(self) -> Iterator[tree.Entry]:
        return super().entries() if self._goes_on() else iter(())

    def _goes_on(self) -> bool:
        if self._is_last:
            rows = next(self._batches, None)
            if rows is None:
                return False
            self._rows, self._is_begun, self._is_last, self._after = rows, False, False, None
        return True

    def _request(self, share: Taker | None) -> requests.Request:
        restart = share is not self._share or not self._is_begun
        self._share, self._is_begun = share, True
        return WalkPaths(self._rows, self._after, restart, self._most)

    def _then(self, answer: object) -> None:
        super()._then(answer)
        asked = dict(self._rows)
        for entry in self._batch or ():
            if not _was_asked_for(entry, asked):
                raise ValueError(f"an entry of {entry.path!a}, which is not in the list")


def _was_asked_for(entry: tree.Entry, asked: dict[str, int]) -> bool:
    path = entry.path.removesuffix("/")  # of a folder that cannot be read
    if path in asked:
        return asked[path] != ABOVE or entry.kind in (tree.FOLDER, tree.ERROR)
    return any(asked.get(above) == ALL for above in folders_of(path))
