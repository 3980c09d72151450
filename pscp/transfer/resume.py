"""What is at the destination already: which files are right, which can go on, which start over.

A file of the same size is hashed at both ends, and not sent when it is the same: so running a
command again costs reading, not sending. A part is taken up where its journal left it.

Not here: the copying of what is missing (file_job.py, coordinator.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pscp.endpoint import failures, hashes, requests, source, tree, wire
from pscp.endpoint.files import Extent
from pscp.options import Options
from pscp.transfer.file_job import CHECK_BYTES, checked_extents
from pscp.transfer.journal import AnyJournal, Landed
from pscp.transfer.plan import MEMORY_BYTES, Ask, Placed, batches, cut, goes_in_pack
from pscp.transfer.work_queue import WorkQueue

LOOK_ITEMS = 256  # in one question


class Copy(Protocol):
    """What the look at the destination needs of the copy."""

    queue: WorkQueue
    journal: AnyJournal
    options: Options
    algorithm: str
    algorithms: set[str]  # that both ends have
    chunk_bytes: int

    def send(self, item: Placed, landed: Landed | None = None, compare: bool = False) -> None: ...

    def skipped(self, item: Placed) -> None: ...

    def unwanted(self, path: str, nonces: list[str]) -> None: ...

    def already_there(self, items: list[Placed], digests: list[str], size: int) -> None: ...


class Look:
    """Decides for each entry of a destination that is not new."""

    def __init__(self, copy: Copy) -> None:
        self._copy, self._queue = copy, copy.queue

    def request(self, items: list[Placed]) -> Ask:
        """The request that begins it, for at most LOOK_ITEMS items."""
        paths = [item.entry.path for item in items]

        def then(answer: Any) -> None:
            self._decide(items, answer)

        ask = Ask(False, requests.Look(paths), then, self._bug)
        ask.cost_bytes = len(items) * MEMORY_BYTES
        return ask

    def _bug(self, failure: failures.Data) -> None:
        raise ValueError(failure["message"])

    def _decide(self, items: list[Placed], seen: list[Any]) -> None:
        same_size: list[Placed] = []
        for item, (kind, size, mtime_ns, left) in zip(items, seen, strict=True):
            entry = item.entry
            if left and not self._goes_on(item, kind, size, mtime_ns):
                self._copy.unwanted(entry.path, left)
            if entry.kind != tree.FILE:
                self._copy.send(_as_new(item) if kind == "" else item)
            elif self._is_not_wanted(entry, kind, size, mtime_ns):
                self._copy.skipped(item)
            elif self._may_be_same(entry, kind, size):
                same_size.append(item)
            else:
                self._send(item, left)
        for item in [each for each in same_size if self._by_data(each)]:
            self._compare_data(item)
        for group in _groups([each for each in same_size if not self._by_data(each)]):
            self._compare(group)

    def _is_not_wanted(self, entry: tree.Entry, kind: str, size: int, mtime_ns: int) -> bool:
        """--update: what is newer there, or as new and as large, stays."""
        if not self._copy.options.update or kind != tree.FILE:
            return False
        return mtime_ns > entry.mtime_ns or (mtime_ns, size) == (entry.mtime_ns, entry.size)

    def _may_be_same(self, entry: tree.Entry, kind: str, size: int) -> bool:
        """Worth hashing at both ends?"""
        return (kind, size) == (tree.FILE, entry.size) and self._copy.options.resume

    def _by_data(self, item: Placed) -> bool:
        """A sparse file: holes that both ends have are not hashed. With -s the whole file is."""
        is_large = not goes_in_pack(item.entry)
        return is_large and "sparse" in item.entry.extra and not self._copy.options.strong

    def _goes_on(self, item: Placed, kind: str, size: int, mtime_ns: int) -> bool:
        """Will _send() see to what earlier runs left of this file?"""
        is_sent = item.entry.kind == tree.FILE and not goes_in_pack(item.entry)
        return is_sent and not (
            self._is_not_wanted(item.entry, kind, size, mtime_ns)
            or self._may_be_same(item.entry, kind, size)
        )

    def _send(self, item: Placed, left: list[str]) -> None:
        """Copy a file, going on with what the last of the runs in `left` has left of it."""
        if not left or goes_in_pack(item.entry) or self._copy.options.dry_run:
            self._copy.send(item)
            return
        file = item.entry.path, source.identity(item.known)
        is_anothers = self._copy.journal.knows_another(*file)
        landed = self._copy.journal.landed(*file)
        if landed is not None and landed.algorithm not in self._copy.algorithms:
            landed = None  # an end cannot check it any more
        # Nothing looks at what lies in its holes, so the part has to be one of this very file.
        is_sparse = "sparse" in item.entry.extra
        is_unknown = is_sparse and (landed is None or left[-1] not in landed.runs)
        if not self._copy.options.resume or is_anothers or is_unknown:
            self._discard(item, left)
            self._copy.send(item)
            return
        self._discard(item, left[:-1])
        self._inherit(item, left[-1], landed)

    def _discard(self, item: Placed, left: list[str]) -> None:
        path = item.entry.path

        def then(is_gone: Any) -> None:
            if not is_gone:  # once more when the copy is complete
                self._copy.unwanted(path, left)

        if left:
            discard = requests.Discard(path, left)
            self._queue.add(Ask(False, discard, then, lambda _: None))

    def _inherit(self, item: Placed, nonce: str, landed: Landed | None) -> None:
        """Have the sink make an earlier run's part this run's own, and send what it lacks."""

        def then(is_ours: Any) -> None:
            if not is_ours:
                self._discard(item, [nonce])
                self._copy.send(item)
            elif landed is not None:
                self._copy.send(item, landed)
            else:
                self._copy.send(item, compare=True)

        inherit = requests.Inherit(item.entry, nonce)
        self._queue.add(Ask(False, inherit, then, lambda _: then(False), is_exclusive=True))

    # --- files of the same size: hashed at both ends

    def _compare(self, group: list[Placed], offset: int = 0) -> None:
        """Either several small files, or a stretch of one large file."""
        strong = self._copy.options.strong
        chunk_bytes = wire.MAX_OFFSET if strong else self._copy.chunk_bytes
        extents = [_stretch(item, offset, chunk_bytes) for item in group]
        algorithm = hashes.STRONG if strong else self._copy.algorithm

        def decide(here: list[Any], there: list[Any]) -> None:
            self._decide_same(group, offset, extents, here, there)

        self._hash_both(group, extents, algorithm, decide)

    def _hash_both(
        self, group: list[Placed], extents: list[list[Extent]], algorithm: str,
        decide: Callable[[list[Any], list[Any]], None],
    ) -> None:  # fmt: skip
        def ask(of_source: bool, request: requests.Request, then: Callable[[Any], None]) -> None:
            cost_bytes = len(group) * MEMORY_BYTES
            self._queue.add(Ask(of_source, request, then, self._bug, cost_bytes=cost_bytes))

        def then_source(there: list[Any]) -> None:
            known = [(source.listed(item.known), each) for item, each in pairs]
            ask(True, requests.Digests(known, algorithm), lambda here: decide(here, there))

        pairs = list(zip(group, extents, strict=True))
        placed = [(False, item.entry.path, each) for item, each in pairs]
        ask(False, requests.DigestsThere(placed, algorithm), then_source)

    def _decide_same(
        self, group: list[Placed], offset: int, extents: list[list[Extent]],
        here: list[Any], there: list[Any],
    ) -> None:  # fmt: skip
        same: list[Placed] = []
        digests: list[str] = []
        for item, stretch, mine, theirs in zip(group, extents, here, there, strict=True):
            end = sum(stretch[-1])
            if not _are_same(mine, theirs):
                self._send(item, [])
            elif end < item.entry.size:
                self._compare([item], end)
            else:
                same.append(item)
                digests.append(mine[0])
        if same:
            size = sum(item.entry.size for item in same)
            self._copy.already_there(same, digests, size)

    # --- sparse files: hashed where either end has data

    def _compare_data(self, item: Placed, offset: int = 0, before: int = 0) -> None:
        """What lies from `offset` on; `before` that there were so many bytes, all the same."""

        def ask(of_source: bool, request: requests.Request, then: Callable[[Any], None]) -> None:
            self._queue.add(Ask(of_source, request, then, lambda _: self._send(item, [])))

        def then_source(there: Any) -> None:
            def then(here: Any) -> None:
                extents, end = data_of_both([here, there], offset, item.entry.size)
                pieces = batches(cut(extents, self._copy.chunk_bytes), CHECK_BYTES)
                self._compare_pieces(item, pieces, end, before)

            ask(True, requests.Extents(source.listed(item.known), offset), then)

        ask(False, requests.ExtentsThere(item.entry.path, offset), then_source)

    def _compare_pieces(
        self, item: Placed, pieces: Iterator[list[Extent]], end: int, before: int
    ) -> None:
        """Piece after piece; then what comes after `end`, as long as all is the same."""
        piece = next(pieces, None)
        if piece is None and end < item.entry.size:
            self._compare_data(item, end, before)
        elif piece is None:
            self._copy.already_there([item], [""], before)
        else:
            same = before + sum(length for _, length in piece)

            def decide(here: list[Any], there: list[Any]) -> None:
                if _are_same(here[0], there[0]):
                    self._compare_pieces(item, pieces, end, same)
                else:
                    self._send(item, [])

            self._hash_both([item], [piece], self._copy.algorithm, decide)


def data_of_both(answers: list[Any], offset: int, size: int) -> tuple[list[Extent], int]:
    """Where either end has data from `offset` on, and up to where both have told."""
    told = [(checked_extents(found, offset, size), is_last) for found, is_last in answers]
    end = min([size, *(sum(found[-1]) for found, is_last in told if not is_last)])
    union: list[Extent] = []
    for begin, length in sorted(itertools.chain(*(found for found, _ in told))):
        first, last = max(begin, offset), min(begin + length, end)
        if first < last:
            union.append((first, last - first))
            offset = last
    return union, end


def _are_same(mine: Any, theirs: Any) -> bool:
    """Digests of the same extents at both ends; or why there are none."""
    return not isinstance(mine, dict) and None not in mine and mine == theirs


def _as_new(item: Placed) -> Placed:
    """Marked as not at the destination before this copy: its mode is ours to set."""
    return Placed(item.known, item.entry._replace(extra={**item.entry.extra, "new": 1}))


def _groups(items: list[Placed]) -> list[list[Placed]]:
    """Small files together, each large one alone."""
    small = [item for item in items if goes_in_pack(item.entry)]
    return ([small] if small else []) + [[i] for i in items if not goes_in_pack(i.entry)]


def _stretch(item: Placed, offset: int, chunk_bytes: int) -> list[Extent]:
    left = [(offset, item.entry.size - offset)] if item.entry.size > offset else []
    return next(batches(cut(left, chunk_bytes), CHECK_BYTES), [(offset, 0)])
