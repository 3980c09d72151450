"""Compares the files of a tree with a manifest: what is missing, or has another size or content.

Not here: how files are read (hashing.py), what is there and not listed (../calls/verifying.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Extent
from pscp.endpoint.there.sameness import is_same_time
from pscp.manifests.formats import Manifest, Record
from pscp.manifests.hashing import Hashing, is_file
from pscp.manifests.trees import Tree
from pscp.progress.progress import LiveCounters, format_bytes
from pscp.transfer.pieces.plan import Failure, cut
from pscp.transfer.walk.decide import There

_KEPT_BYTES = 64 * 1024 * 1024  # memory for differences: some hundred thousand

What = Literal["missing", "size", "content", "target", "time", "unreadable", "not listed"]


@dataclass(frozen=True)
class Difference:
    """A file that is not as the manifest says."""

    path: str
    what: What
    message: str  # for people
    chunks: tuple[int, ...] = ()  # those that differ, from 0, where the manifest has their digests


class Differences:
    """Collects what differs. Counts what it has no room for."""

    def __init__(self, counters: LiveCounters) -> None:
        self.found: list[Difference] = []
        self.count = 0
        self._bytes = 0
        self.counters = counters

    def add(self, path: str, what: What, message: str, chunks: tuple[int, ...] = ()) -> None:
        self.count += 1
        self.counters.add(files_failed=1)
        self._bytes += 200 + sum(map(sys.getsizeof, (path, message, chunks)))
        if self._bytes < _KEPT_BYTES or not self.found:
            self.found.append(Difference(path, what, message, chunks))


class _Compared:
    """A file of the manifest."""

    def __init__(self, record: Record, chunk_bytes: int, found: Differences, times: bool) -> None:
        self.path, self._record, self._found = record.path, record, found
        self._chunk_bytes, self._times = chunk_bytes, times
        self._read_bytes = 0

    def extents(self, there: There) -> Iterable[Extent] | None:
        whole = [(0, there.size_bytes)]
        if there.failure is not None:
            return None
        if not there.kind:
            return [(0, 1)]  # why it is not to be seen, its opening tells
        if not is_file(there) or self._record.kind != tree.FILE:
            return None
        if self._record.size_bytes not in (None, there.size_bytes):
            return None
        return cut(whole, self._chunk_bytes) if self._record.chunks else whole

    def read(self, there: There, read_bytes: int) -> None:
        self._read_bytes += read_bytes
        self._found.counters.add(bytes_done=read_bytes)

    def done(self, there: There, digests: list[str | None], failure: Failure | None) -> None:
        self._judge(there, digests, failure)
        size_bytes = there.size_bytes if digests and is_file(there) else 0
        self._found.counters.add(files_done=1, bytes_done=size_bytes - self._read_bytes)

    def _judge(self, there: There, digests: list[str | None], failure: Failure | None) -> None:
        add, record = self._found.add, self._record
        if there.failure is not None:
            add(self.path, "unreadable", there.failure["message"])
        elif not there.kind:
            is_missing = failure is None or failure["errno"] == 2
            what: What = "missing" if is_missing else "unreadable"
            add(self.path, what, "missing" if failure is None else failure["message"])
        elif there.kind != record.kind:
            add(self.path, "missing", f"is a {_name(there.kind)} there, not a {_name(record.kind)}")
        elif there.target != record.target:
            leads = "leads to {}, not to {}" if record.kind == tree.LINK else "is {}, not {}"
            add(self.path, "target", leads.format(there.target, record.target))
        elif record.kind != tree.FILE:
            self._compare_time(there, "leads to the same, and has another time")
        elif record.size_bytes not in (None, there.size_bytes):
            sizes = f"{there.size_bytes} bytes, not {record.size_bytes}"
            add(self.path, "size", f"has another size: {sizes}")
        elif failure is not None:
            add(self.path, "unreadable", f"cannot be read: {failure['message']}")
        else:
            self._compare(there, digests)

    def _compare(self, there: There, digests: list[str | None]) -> None:
        wanted = self._record.chunks or (self._record.digest,)
        differing = tuple(
            place
            for place, (mine, theirs) in enumerate(zip(wanted, digests, strict=True))
            if mine != theirs
        )
        if differing and self._record.chunks:
            self._found.add(self.path, "content", self._where(differing, len(wanted)), differing)
        elif differing:
            self._found.add(self.path, "content", "has another content")
        else:
            self._compare_time(there, "has the same content, and another time")

    def _compare_time(self, there: There, message: str) -> None:
        wanted_ns = self._record.mtime_ns if self._times else None
        if wanted_ns is not None and not is_same_time(wanted_ns, there.mtime_ns, there.unit_ns):
            self._found.add(self.path, "time", message)

    def _where(self, differing: tuple[int, ...], count: int) -> str:
        shown = ", ".join(map(str, differing[:8])) + (", ..." if len(differing) > 8 else "")
        noun = "chunk" if len(differing) == 1 else "chunks"
        size = format_bytes(self._chunk_bytes)
        return f"has another content in {noun} {shown} of {count} ({size} each, from 0)"


def _name(kind: str) -> str:
    return {tree.FIFO: "FIFO", tree.SPECIAL: "special file"}.get(kind, kind)


def compare(
    tree: Tree,
    manifest: Manifest,
    counters: LiveCounters,
    *,
    times: bool,
    only: set[str] | None = None,
) -> Differences:
    """Compare the tree's files with the manifest, or `only` those; raise what stops it."""
    found = Differences(counters)
    Hashing(tree).run(
        _Compared(record, manifest.chunk_bytes, found, times)
        for record in manifest.records()
        if only is None or record.path in only
    )
    return found
