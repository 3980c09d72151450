"""From entries to work: which files go in packs, which in chunks, and which extents are left.

Pure: nothing here opens, reads or waits.

Not here: the walk that finds entries (endpoint/reading/tree.py), the places of sources with -R
(../terms/relative.py), whether a far end may send an entry (asked_for.py).
Read next: ../coordinator.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import files, paths, source, tree
from pscp.endpoint.reading.files import Extent

Failure = failures.Data
_T = TypeVar("_T")

PACK_BYTES, PACK_FILES = 256 * 1024, 64  # a pack's size, about, and its most entries
PACK_OVERHEAD_BYTES = 512  # what a file in a pack costs beside its bytes
# What a chunk, an entry or a request costs in a window beside its bytes. It takes 1 to 2 KB of
# memory here until it is acknowledged, and with eight lanes that must stay below 120 MiB.
MEMORY_BYTES = 4096
QUESTION_BYTES = 512 * 1024  # of entries in one request: half of what a frame may hold
QUESTION_ITEMS = 500
# The keys of an entry's extra whose values are short enough for PACK_OVERHEAD_BYTES.
_SHORT = frozenset(["a", "o", "linked", "sparse", "new"])


class PlannedEntry(NamedTuple):
    """An entry as its source knows it, and with the path it will have at the destination."""

    known: tree.Entry
    entry: tree.Entry


class Job(Protocol):
    """The file that a chunk belongs to: what a lane needs of it, and reports to it."""

    number: int
    item: PlannedEntry
    may_be_short: bool  # its end is known only when a chunk is short
    was_shared: bool  # two lanes had the same chunk of it, at once or one after the other

    @property
    def is_closed(self) -> bool: ...

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None: ...

    def mismatched(self, chunk: Chunk) -> None: ...

    def failed(self, chunk: Chunk, failure: Failure) -> None: ...


class Taker(Protocol):
    """A lane's share (../lanes/in_flight.py), as a request knows it."""

    is_over: bool  # the lane has ended


@dataclass(eq=False, kw_only=True)
class Piece:
    """A piece of work. The queue's lock guards these attributes."""

    takers: int = 0  # lanes that have it in flight: two when one took it over from a slower one
    is_over: bool = False  # one of them has finished it

    @property
    def is_progress(self) -> bool:
        """Return whether the copy has come on once this is finished."""
        return True


@dataclass(eq=False)
class Chunk(Piece):
    """An extent of one file: unit of scheduling, hashing, journaling and retry."""

    job: Job
    offset: int
    length: int
    mismatches: int = 0

    @property
    def cost_bytes(self) -> int:
        return self.length + MEMORY_BYTES

    def tell(self, digest: str | None, receipt: int, failure: Failure | None) -> None:
        """Report to the file what became of this; without a digest it has arrived damaged."""
        if failure is not None:
            self.job.failed(self, failure)
        elif digest is not None:
            self.job.landed(self, digest, receipt)
        else:
            self.job.mismatched(self)


@dataclass(eq=False)
class Pack(Piece):
    """Small files, folders and links that travel in one frame."""

    items: list[PlannedEntry]
    then: Packed
    is_again: bool = False
    lanes_given_up: int = 0  # that stood still at it
    expected: Mapping[str, str] = field(default_factory=dict)  # digests that files have to have
    rows: list[object] = field(default_factory=list)  # per item [size, hex digest] or a failure

    @property
    def files(self) -> list[tree.Entry]:
        return [item.known for item in self.items if item.entry.kind == tree.FILE]

    def take_rows(self, rows: object) -> None:
        """Keep the source's rows for its files; folders and links have none. Raises ValueError."""
        files = [item.entry.kind == tree.FILE for item in self.items]
        if not isinstance(rows, list) or sum(files) != len(rows):
            raise ValueError("a pack of other files than were asked for")
        left = iter(rows)
        self.rows = [next(left) if is_file else [0, ""] for is_file in files]
        for item, row in zip(self.items, self.rows, strict=True) if self.expected else ():
            wanted = self.expected.get(item.entry.path)
            if wanted is not None and item.entry.kind == tree.FILE and isinstance(row, list):
                row[1:] = [wanted]  # so the sink takes no other content for it

    @functools.cached_property
    def size_bytes(self) -> int:
        return sum([item.entry.size for item in self.items])

    @property
    def cost_bytes(self) -> int:
        return self.size_bytes + MEMORY_BYTES * len(self.items)


Packed = Callable[[Pack, list[tuple[int, Failure]]], None]  # gets (place, failure) of what failed


@dataclass(eq=False)
class Ask(Piece):
    """A request to one end of the copy. If its lane is lost it is made again, or `lost` called."""

    of_source: bool  # else of the sink
    request: requests.Request | Callable[[Taker | None], requests.Request]  # or a function for it
    then: Callable[[object], None]  # gets the answer
    failed: Callable[[Failure], None]
    share: Taker | None = None  # of the lane that must make it while that lane is alive
    lost: Callable[[], None] | None = None
    is_prompt: bool = False  # answered within a second, unless its lane stands still
    is_exclusive: bool = False  # a lost lane must not do it late, after another one has done it
    cost_bytes: int = MEMORY_BYTES

    @property
    def is_progress(self) -> bool:
        """Each of many lanes may be asked what is prompt, and be lost over the same next piece."""
        return not self.is_prompt

    def request_for(self, share: Taker | None) -> requests.Request:
        return self.request(share) if callable(self.request) else self.request


Work = Chunk | Pack | Ask


def cut(extents: Iterable[Extent], chunk_bytes: int) -> Iterator[Extent]:
    """Cut extents into pieces of at most `chunk_bytes`, in order."""
    for offset, length in extents:
        for begin in range(offset, offset + length, chunk_bytes):
            yield begin, min(chunk_bytes, offset + length - begin)


def subtract(extents: Iterable[Extent], landed: Iterable[Extent]) -> Iterator[Extent]:
    """Yield the parts of `extents` that are not in `landed`. Both ascend without overlaps."""
    taken = iter(landed)
    gap = next(taken, None)
    for offset, length in extents:
        end = offset + length
        while gap is not None and gap[0] < end:
            if gap[0] + gap[1] > offset:
                if gap[0] > offset:
                    yield offset, gap[0] - offset
                offset = gap[0] + gap[1]
                if offset >= end:
                    break
            gap = next(taken, None)
        if offset < end:
            yield offset, end - offset


def joined(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Yield the extents, those that follow each other without a gap as one. They ascend."""
    begin = end = 0
    for offset, length in extents:
        if offset != end:
            if end > begin:
                yield begin, end - begin
            begin = offset
        end = offset + length
    if end > begin:
        yield begin, end - begin


def batches(extents: Iterable[Extent], batch_bytes: int) -> Iterator[list[Extent]]:
    """Group extents so that each group has at most about `batch_bytes`."""
    group: list[Extent] = []
    total = 0
    for extent in extents:
        group.append(extent)
        total += extent[1]
        if total >= batch_bytes:
            yield group
            group, total = [], 0
    if group:
        yield group


def weight_bytes(entry: tree.Entry) -> int:
    """Return the most bytes that an entry takes as JSON, where a character may become six."""
    weight = PACK_OVERHEAD_BYTES + 6 * len(entry.path)
    return weight if entry.extra.keys() <= _SHORT else weight + 6 * len(repr(entry.extra))


def groups(entries: Iterable[tree.Entry]) -> Iterator[list[tree.Entry]]:
    """Group entries so that each group fits into a request."""
    return grouped(entries, weight_bytes, QUESTION_BYTES, QUESTION_ITEMS)


def grouped(
    items: Iterable[_T], weigh: Callable[[_T], int], most_bytes: int, most_items: int
) -> Iterator[list[_T]]:
    """Group items so that each group has at most so many, and weighs at most so much if it can."""
    group: list[_T] = []
    total_bytes = 0
    for item in items:
        item_bytes = weigh(item)
        if group and (total_bytes + item_bytes > most_bytes or len(group) >= most_items):
            yield group
            group, total_bytes = [], 0
        group.append(item)
        total_bytes += item_bytes
    if group:
        yield group


def as_new(item: PlannedEntry) -> PlannedEntry:
    """Return the item, marked as new at the destination: its mode is this copy's to set."""
    return PlannedEntry(item.known, item.entry._replace(extra={**item.entry.extra, "new": 1}))


def goes_in_pack(entry: tree.Entry) -> bool:
    """Return whether an entry travels whole: a small file, or what has no content."""
    return entry.size <= files.PACK_FILE_BYTES


def small_together(things: list[_T], entry_of: Callable[[_T], tree.Entry]) -> list[list[_T]]:
    """Group what is about small files together, and what is about a large one alone."""
    small = [each for each in things if goes_in_pack(entry_of(each))]
    large = [[each] for each in things if not goes_in_pack(entry_of(each))]
    return ([small] if small else []) + large


@dataclass
class PackBuilder:
    """Collects items until they make a pack."""

    then: Packed
    expected: Mapping[str, str] = field(default_factory=dict)
    _items: list[PlannedEntry] = field(default_factory=list)
    _bytes: int = 0

    def add(self, item: PlannedEntry) -> bool:
        """Add an item. Return whether the pack is full with it."""
        self._items.append(item)
        self._bytes += item.entry.size + weight_bytes(item.entry)
        return self._bytes >= PACK_BYTES or len(self._items) >= PACK_FILES

    def flush(self) -> Pack | None:
        """Return what was collected so far as a pack, if there is anything."""
        if not self._items:
            return None
        pack = Pack(self._items, self.then, expected=self.expected)
        self._items, self._bytes = [], 0
        return pack


class Placement:
    """The places of entries: each source's name in the manifest, and that at the destination."""

    def __init__(self, tops: Sequence[source.Top], target_names: list[str]) -> None:
        self._tops, self._names = tops, target_names
        named = zip(tops, target_names, strict=True)
        self.taken = {target for top, target in named if top.name}  # by a source of its own

    def place(self, entry: tree.Entry) -> PlannedEntry:
        """Return the entry with its path at the destination.

        Raises ValueError for an entry outside of its source, and Refusal for one that would land
        where another source does.
        """
        path = self._path(entry.top, entry.path)
        if entry.kind == tree.HARDLINK:
            top, first = entry.extra["in"], entry.extra["to"]  # of its file; maybe another source
            if not isinstance(top, int) or not isinstance(first, str):
                raise ValueError("a hard link of another shape")
            to = self._path(top, first)
            return PlannedEntry(entry, entry._replace(path=path, extra={**entry.extra, "to": to}))
        if path == entry.path:
            return PlannedEntry(entry, entry)
        moved = (*entry[:2], path, *entry[3:])
        return PlannedEntry(entry, tree.Entry._make(moved))  # _replace() takes three times as long

    def known(self, top: int, path: str) -> str:
        """Return what a path at the destination is called in the manifest of this source."""
        name, target = self._tops[top].name, self._names[top]
        rest = path[len(target) :].lstrip("/") if target else path
        return f"{name}/{rest}" if name and rest else name or rest

    def _path(self, top: int, path: str) -> str:
        """Return where a path lands. Raises ValueError and Refusal as place() does."""
        name, rest = self._tops[top].name, path
        if not (name or self._names[top]) and path.partition("/")[0] in self.taken:
            raise failures.Refusal(failures.DESTINATION, path, "another source has this name")
        if name:
            first, slash, rest = path.partition("/")
            if first != name or (slash and not rest):
                raise ValueError(f"{path!a} is not in the source {name!a}")
        if path and name + rest:
            paths.check(path)
        target = self._names[top]
        return f"{target}/{rest}" if target and rest else target or rest


def source_path(top: source.Top, path: str) -> str:
    """Return the path of a file at its source's end, from its path in the manifest."""
    rest = path.partition("/")[2] if top.name else path
    return os.path.join(top.path, rest) if rest else top.path


def last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
