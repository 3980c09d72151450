"""The walk of a source at the far end, answer by answer, over whichever lane lives.

Not here: the walk itself (endpoint/tree.py), what becomes of an entry (coordinator.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from pscp import errors
from pscp.endpoint import requests, tree
from pscp.endpoint.entries import entry as checked_entry
from pscp.transfer import answers
from pscp.transfer.plan import Ask, Failure, Taker
from pscp.transfer.work_queue import WorkQueue

# Entries in the far walk's first answer, and the most in one. A long first one would keep the
# lanes of a far path waiting: 2,000 entries took 235 ms of a copy of 2.1 s at 50 ms.
_WALK_FIRST, _WALK_MOST = 200, 2000


class FarWalk:
    """The walk at the far end. What the queue runs changes it while a request is under way, and
    the walk's thread otherwise.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._batch: list[tree.Entry] | None = None
        self._is_last = False
        self._after: tuple[int, str] | None = None
        self._share: Taker | None = None  # of the lane whose agent walks
        self._most = _WALK_FIRST

    def entries(self) -> Iterator[tree.Entry]:
        self._ask()
        while True:
            if not self._queue.wait_until(lambda: self._batch is not None):
                return
            batch, self._batch = self._batch or [], None  # until _ask(), no answer comes
            if not self._is_last:
                self._ask()  # the next answer comes while this one is worked on
            yield from batch
            if self._is_last and self._batch is None:
                return

    def _ask(self) -> None:
        ask = Ask(True, self._request, self._then, self._failed)
        ask.share = self._share
        self._queue.add(ask)

    def _request(self, share: Taker | None) -> requests.Walk:
        restart = share is not self._share
        self._share = share
        return requests.Walk(self._after, restart, self._most)

    def _then(self, answer: object) -> None:
        listed, is_last = answers.items(answer)
        batch = [checked_entry(value) for value in answers.items(listed)]
        for entry in batch:
            entry.extra.pop("new", None)  # what is new at the destination is not for it to say
        if batch:
            self._after = batch[-1].top, batch[-1].path
        self._batch, self._is_last = batch, bool(is_last)
        self._most = min(4 * self._most, _WALK_MOST)
        if not batch and not self._is_last:
            raise ValueError("a walk that goes on without an entry")
        self._queue.wake()

    def _failed(self, failure: Failure) -> None:
        self._queue.stop(errors.CopyError(f"{failure['path']}: {failure['message']}"))
