"""From entries to work: which files go in packs, which in chunks, and which extents are left.

Pure: nothing here opens, reads or waits. A chunk is born here; the rest of its way is
coordinator.py (given to a lane, journaled once it landed), lane.py (becomes frames),
endpoint/files.py (pread, hash, pwrite), with endpoint/wire.py as the dictionary.

Not here: the walk that finds entries (endpoint/tree.py).
Read next: coordinator.py.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pscp.endpoint import failures, names, source, tree
from pscp.endpoint.files import Extent

Failure = dict[str, Any]  # endpoint/failures.py

PACK_OVERHEAD_BYTES = 512  # of a file in a pack: what it costs beside its bytes
# What a chunk, an entry or a question costs in a window beside its bytes. It takes 1 to 2 KB of
# memory here until it is acknowledged, and with eight lanes that must stay below 120 MiB.
MEMORY_BYTES = 4096
QUESTION_BYTES = 512 * 1024  # of entries in one question: half of what a frame may hold
QUESTION_ITEMS = 500
_SHORT = frozenset(["a", "o", "sparse", "new"])  # of an entry's extra: in PACK_OVERHEAD_BYTES


class Placed(NamedTuple):
    """An entry as its source knows it, and with the path it will have at the destination."""

    known: tree.Entry
    entry: tree.Entry


class Job(Protocol):
    """The file that a chunk is of: what a lane needs to know of it, and tells it."""

    number: int
    item: Placed
    is_closed: bool
    may_be_short: bool  # is the end of it found only when a chunk is short?

    def landed(self, chunk: Chunk, digest: str, inode: int) -> None: ...

    def mismatched(self, chunk: Chunk) -> None: ...

    def failed(self, chunk: Chunk, failure: Failure) -> None: ...


@dataclass(eq=False)
class Chunk:
    """An extent of one file: unit of scheduling, hashing, journaling and retry."""

    job: Job
    offset: int
    length: int
    mismatches: int = 0
    takers: int = 0  # lanes that have it in flight: two, when one took it over from a slower one
    is_over: bool = False  # one of them brought it to its end

    @property
    def cost_bytes(self) -> int:
        return self.length + MEMORY_BYTES


@dataclass(eq=False)
class Pack:
    """Small files, folders and links that travel in one frame."""

    items: list[Placed]
    then: Callable[[Pack, list[Any]], None]  # gets [place, failure] of those that failed
    is_again: bool = False
    rows: list[Any] = field(default_factory=list)  # per item [size, hex digest] or failure
    takers: int = 0  # as a chunk's
    is_over: bool = False

    @property
    def files(self) -> list[tree.Entry]:
        """What the source has to read."""
        return [item.known for item in self.items if item.entry.kind == tree.FILE]

    def take_rows(self, rows: list[Any]) -> None:
        """The source's rows for its files; folders and links have none. Raises ValueError."""
        left = iter(rows)
        files = [item.entry.kind == tree.FILE for item in self.items]
        if sum(files) != len(rows):
            raise ValueError("a pack of other files than were asked for")
        self.rows = [next(left) if is_file else [0, ""] for is_file in files]

    @functools.cached_property
    def cost_bytes(self) -> int:
        return sum(item.entry.size for item in self.items) + MEMORY_BYTES * len(self.items)


@dataclass(eq=False)
class Ask:
    """A question for one end of the copy. It may be asked again when a lane dies."""

    of_source: bool  # else of the sink
    question: dict[str, Any] | Callable[[Any], dict[str, Any]]  # or what makes it, for a lane
    then: Callable[[Any], None]
    failed: Callable[[Failure], None]
    lane: Any = None  # the lane that must ask it, while that one lives
    is_prompt: bool = False  # answered within a second, or its lane stands still
    asked_s: float = 0.0
    takers: int = 0  # as a chunk's
    is_over: bool = False
    cost_bytes: int = MEMORY_BYTES

    def question_for(self, lane: Any) -> dict[str, Any]:
        return self.question(lane) if callable(self.question) else self.question


Work = Chunk | Pack | Ask


def cut(extents: Iterable[Extent], chunk_bytes: int) -> Iterator[Extent]:
    """Cut extents into pieces of at most `chunk_bytes`, in order."""
    for offset, length in extents:
        for begin in range(offset, offset + length, chunk_bytes):
            yield begin, min(chunk_bytes, offset + length - begin)


def subtract(extents: Iterable[Extent], landed: Iterable[Extent]) -> Iterator[Extent]:
    """What of `extents` is not in `landed`; both in ascending order, neither overlapping."""
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
    """At most what an entry takes as JSON: a character may become six."""
    weight = PACK_OVERHEAD_BYTES + 6 * len(entry.path)
    return weight if entry.extra.keys() <= _SHORT else weight + 6 * len(repr(entry.extra))


def groups(entries: Iterable[tree.Entry]) -> Iterator[list[tree.Entry]]:
    """Entries in groups that fit into a question each."""
    group: list[tree.Entry] = []
    total = 0
    for entry in entries:
        weight = weight_bytes(entry)
        if group and (total + weight > QUESTION_BYTES or len(group) >= QUESTION_ITEMS):
            yield group
            group, total = [], 0
        group.append(entry)
        total += weight
    if group:
        yield group


def goes_in_pack(entry: tree.Entry) -> bool:
    """Small files travel whole; so do folders and links, which have no bytes."""
    return entry.size <= source.PACK_FILE_BYTES


@dataclass
class PackBuilder:
    """Collects items until they make a pack."""

    then: Callable[[Pack, list[Any]], None]
    _items: list[Placed] = field(default_factory=list)
    _bytes: int = 0

    def add(self, item: Placed) -> Pack | None:
        """The pack that is full with this item, if it is."""
        self._items.append(item)
        self._bytes += item.entry.size + weight_bytes(item.entry)
        if self._bytes >= source.PACK_BYTES or len(self._items) >= source.PACK_FILES:
            return self.flush()
        return None

    def flush(self) -> Pack | None:
        """What was collected so far, if anything."""
        if not self._items:
            return None
        pack, self._items, self._bytes = Pack(self._items, self.then), [], 0
        return pack


class Placement:
    """Where entries land: each source's name in the manifest, and its name at the destination."""

    def __init__(self, tops: list[source.Top], target_names: list[str]) -> None:
        self._tops, self._names = tops, target_names
        named = zip(tops, target_names, strict=True)
        self._taken = {target for top, target in named if top.name}  # by a source of its own

    def place(self, entry: tree.Entry) -> Placed:
        """Raises endpoint.failures.Refusal for an entry that lies outside of its source, or of
        the contents of a folder where another source lands.
        """
        path = self._path(entry.top, entry.path)
        if entry.kind == tree.HARDLINK:
            to = self._first_name(entry.extra["in"], entry.extra["to"])
            return Placed(entry, entry._replace(path=path, extra={**entry.extra, "to": to}))
        if path == entry.path:
            return Placed(entry, entry)
        moved = (*entry[:2], path, *entry[3:])
        return Placed(entry, tree.Entry._make(moved))  # _replace() takes three times as long

    def _first_name(self, top: Any, path: Any) -> str:
        """Where the file landed that a hard link is another name of, maybe from another source."""
        if not isinstance(top, int) or not isinstance(path, str):
            raise ValueError("a hard link of another shape")
        return self._path(top, path)

    def _path(self, top: int, path: str) -> str:
        """Raises ValueError for a path that is not of this source, Refusal for one of another."""
        name, rest = self._tops[top].name, path
        if not name and path.partition("/")[0] in self._taken:
            raise failures.Refusal(failures.DESTINATION, path, "another source has this name")
        if name:
            first, slash, rest = path.partition("/")
            if first != name or (slash and not rest):
                raise ValueError(f"{path!a} is not in the source {name!a}")
        if path and name + rest:
            names.check(path)
        target = self._names[top]
        return f"{target}/{rest}" if target and rest else target or rest


def expected_name(pattern: str, name: str) -> bool:
    """May a far end call this what was asked for? As scp checks it, without -T."""
    if "/" in name:
        return False
    wanted = pattern.rstrip("/").rpartition("/")[2]
    if wanted in ("", ".", "..") or wanted.startswith("~"):
        return True
    return name == wanted or fnmatch.fnmatchcase(name, wanted)
