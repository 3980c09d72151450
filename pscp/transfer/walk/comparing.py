"""Hashes files at both ends, which do that at the same time, to see whether they are the same.

Small files go together, a large one by stretches. The first stretch goes alone, as most changed
files differ in it; of what is the same ever more stretches are hashed at once, so that it takes as
long as reading, however far the other end is. Of a sparse file only that counts where either end
has data.

Not here: which files are hashed (lookups.py, decide.py), the copying of what differs (file_job.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes, wire
from pscp.endpoint.reading import source
from pscp.endpoint.reading.files import Extent
from pscp.endpoint.there import lookup
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import unexpected
from pscp.transfer.pieces.plan import (
    MEMORY_BYTES,
    Ask,
    Failure,
    PlannedEntry,
    batches,
    cut,
    goes_in_pack,
    small_together,
)
from pscp.transfer.walk.file_job import CHECK_BYTES
from pscp.transfer.walk.items import Items

_AT_ONCE_MOST = 8  # stretches of one file: of so many the answers outweigh a round trip of 0.3 s

FileAnswer = answers.Digests | Failure
# Gets both ends' answers, one for each file: the source's, the sink's.
Compared = Callable[[list[FileAnswer], list[FileAnswer]], None]


class Stretches:
    """The comparison of one large file: the extents that are still to be hashed, and how many of
    its bytes were the same so far.
    """

    def __init__(
        self, item: PlannedEntry, waiting: Iterator[list[Extent]], then: Callable[[], None]
    ) -> None:
        """`then` is called once all stretches are the same."""
        self.item, self.waiting, self.then = item, waiting, then
        self.in_flight, self.at_once = 0, 1
        self.same_bytes = 0
        self.digest = ""  # of the last extent of a stretch: with -s there is one, the whole file
        self.differs = False  # what is still in flight says nothing more


class Comparison:
    """Compares files of the same size. Only the queue runs it."""

    def __init__(self, items: Items, differing: Callable[[PlannedEntry], None]) -> None:
        """`differing` is called once with each file that is not the same at both ends."""
        self._items, self._terms, self._queue = items, items.terms, items.terms.queue
        self._differing = differing

    def begin(self, items: list[PlannedEntry]) -> None:
        small = [item for item in items if goes_in_pack(item.entry)]
        for group in small_together(small, lambda item: item.entry):
            self._compare_small(group)
        for item in items:
            if not goes_in_pack(item.entry):
                self._begin_large(item)

    @property
    def _algorithm(self) -> str:
        return hashes.STRONG if self._terms.options.strong else self._terms.algorithm

    def _compare_small(self, group: list[PlannedEntry]) -> None:
        def compared(here: list[FileAnswer], there: list[FileAnswer]) -> None:
            same: list[tuple[PlannedEntry, str]] = []
            for item, mine, theirs in zip(group, here, there, strict=True):
                if isinstance(mine, dict) or not _are_same(mine, theirs):
                    self._differing(item)
                else:
                    same.append((item, answers.text(mine[0])))
            self._take_same(same)

        wholes = [[(0, item.entry.size)] for item in group]
        self._hash_both(group, wholes, self._algorithm, compared)

    def _take_same(self, files: list[tuple[PlannedEntry, str]]) -> None:
        """Count these, with the digest of each, unless another one is expected."""
        good = [each for each in files if self._expected_or_failed(*each)]
        if good:
            items = [item for item, _ in good]
            size_bytes = sum(item.entry.size for item in items)
            self._items.already_there(items, [digest for _, digest in good], size_bytes)

    def _expected_or_failed(self, item: PlannedEntry, digest: str) -> bool:
        is_so = self._terms.job.is_expected(item.entry.path, digest)
        if not is_so:
            self._items.results.fail_expected(item.entry.path)
        return is_so

    # --- large files

    def _begin_large(self, item: PlannedEntry) -> None:
        entry, is_strong = item.entry, self._terms.options.strong
        self._terms.counters.begin_file(id(item), entry.path, entry.size, is_hashed=True)
        if "sparse" in entry.extra and not is_strong:  # holes are not hashed
            self._compare_data(item)
            return
        chunk_bytes = wire.MAX_OFFSET if is_strong else self._terms.chunk_bytes
        waiting = batches(cut([(0, entry.size)], chunk_bytes), CHECK_BYTES)

        def then() -> None:
            self._terms.counters.end_file(id(item))
            self._take_same([(item, stretches.digest)])

        stretches = Stretches(item, waiting, then)
        self._go_on(stretches)

    def _go_on(self, stretches: Stretches) -> None:
        """Have the next stretches hashed, as many as may be at once."""
        while stretches.in_flight < stretches.at_once:
            extents = next(stretches.waiting, None)
            if extents is None:
                break
            stretches.in_flight += 1
            then = partial(self._compared, stretches, extents)
            self._hash_both([stretches.item], [extents], self._algorithm, then)
        if not stretches.in_flight:
            stretches.then()

    def _compared(
        self,
        stretches: Stretches,
        extents: list[Extent],
        here: list[FileAnswer],
        there: list[FileAnswer],
    ) -> None:
        stretches.in_flight -= 1
        [mine], [theirs] = here, there
        if stretches.differs:
            return
        if isinstance(mine, dict) or not _are_same(mine, theirs):
            stretches.differs = True
            self._differs(stretches.item)
            return
        length = sum(length for _, length in extents)
        self._terms.counters.add_to_file(id(stretches.item), length)
        stretches.same_bytes += length
        stretches.digest = answers.text(mine[-1])
        stretches.at_once = min(2 * stretches.at_once, _AT_ONCE_MOST)
        self._go_on(stretches)

    def _differs(self, item: PlannedEntry) -> None:
        self._terms.counters.end_file(id(item))
        self._differing(item)

    # --- sparse files: hashed where either end has data

    def _compare_data(self, item: PlannedEntry, offset: int = 0, same_bytes: int = 0) -> None:
        """Hash the data from `offset` on. So far `same_bytes` were hashed and are the same."""

        def failed(_: Failure) -> None:
            self._differs(item)

        def then_source(there: object) -> None:
            def then(here: object) -> None:
                extents, end = data_of_both([here, there], offset, item.entry.size)
                waiting = batches(cut(extents, self._terms.chunk_bytes), CHECK_BYTES)
                stretches = Stretches(item, waiting, lambda: self._after_data(stretches, end))
                stretches.same_bytes = same_bytes
                self._go_on(stretches)

            request = requests.Extents(source.listed(item.known), offset)
            self._queue.add(Ask(True, request, then, failed))

        request = lookup.ExtentsThere(item.entry.path, offset)
        self._queue.add(Ask(False, request, then_source, failed))

    def _after_data(self, stretches: Stretches, end: int) -> None:
        item, same_bytes = stretches.item, stretches.same_bytes
        if end < item.entry.size:
            self._compare_data(item, end, same_bytes)
            return
        self._terms.counters.end_file(id(item))
        self._items.already_there([item], [""], same_bytes)

    # --- both ends

    def _hash_both(
        self,
        group: list[PlannedEntry],
        extents: list[list[Extent]],
        algorithm: str,
        compared: Compared,
    ) -> None:
        """Have both ends hash these extents of each file."""
        pairs, cost_bytes = list(zip(group, extents, strict=True)), len(group) * MEMORY_BYTES
        found: dict[bool, list[FileAnswer]] = {}  # by whether it is the source's

        def take(is_source: bool, answer: object) -> None:
            found[is_source] = answers.digests(answer, extents)
            if len(found) == 2:
                compared(found[True], found[False])

        def ask(request: requests.Request, *, of_source: bool) -> Ask:
            then = partial(take, of_source)
            return Ask(of_source, request, then, unexpected, cost_bytes=cost_bytes)

        placed = [(False, item.entry.path, each) for item, each in pairs]
        known = [(source.listed(item.known), each) for item, each in pairs]
        asks = [
            ask(lookup.DigestsThere(placed, algorithm), of_source=False),
            ask(requests.Digests(known, algorithm), of_source=True),
        ]
        # The far end is asked first: a lane answers for the near end before it sends more.
        for each in asks if self._terms.is_source_here else reversed(asks):
            self._queue.add(each)


def data_of_both(both: Sequence[object], offset: int, size_bytes: int) -> tuple[list[Extent], int]:
    """Return where either end has data from `offset` on, and up to where both have answered."""
    answered = [answers.extents(answer, offset, size_bytes) for answer in both]
    end = min([size_bytes, *(sum(found[-1]) for found, is_last in answered if not is_last)])
    union: list[Extent] = []
    for begin, length in sorted(itertools.chain(*(found for found, _ in answered))):
        first, last = max(begin, offset), min(begin + length, end)
        if first < last:
            union.append((first, last - first))
            offset = last
    return union, end


def _are_same(mine: answers.Digests, theirs: FileAnswer) -> bool:
    return None not in mine and mine == theirs
