"""Chunks that several copies of the same files read and hash once: those of a fan-out.

The copy that is the first to need a chunk reads and hashes it, and leaves its hashes here. The
others send the file's pages as they are, with these hashes. The bytes themselves are kept by
nobody but the kernel: so no copy waits for another one's connection, and memory stays the same
however far apart they are. The hashes are of the very file (path, size, mtime, inode), which each
copy opens and checks by itself; who asks for a chunk a second time reads it anew.

Not here: the copies (../../calls/deliveries.py), what one alone does
(../../endpoint/reading/source.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, hashes, system, wire
from pscp.endpoint.reading import files, source, tree
from pscp.endpoint.serving import end
from pscp.ground.contexts import holding

# Chunks whose hashes are kept: of 64 GiB in chunks of 4 MiB, with about 1 KB for each. With fewer
# copies at once than there are in all, the later ones still find them.
_CHUNKS_MOST = 16 * 1024

_NOTHING = memoryview(b"")

_reader: ContextVar[Reader | None] = ContextVar("reader", default=None)


class ChunkHashes(NamedTuple):
    """The hashes of one extent of a file."""

    checks: list[bytes]  # after each block
    digest: bytes | None  # None: the file is shorter


class Key(NamedTuple):
    """An extent of a file, and how it is hashed."""

    path: str
    identity: files.Identity
    extent: files.Extent
    algorithm: str
    block_bytes: int


@dataclass
class _Entry:
    """A chunk's hashes, or that it is being read. The lock of SharedReads guards it."""

    takers: set[Reader]  # who has them
    hashes: ChunkHashes | None = None  # None: it is being read


class SharedReads:
    """The hashes of the chunks that so many copies share. Any thread may use it."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._changed = threading.Condition()  # guards what follows
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()

    def take(self, key: Key, taker: Reader, read: Callable[[], ChunkHashes]) -> ChunkHashes:
        """Return the hashes that another copy has left; if there are none, `read` and leave them.

        A read that is under way is waited for: it waits for nothing but the disk. Raises what
        `read` does; then the next one reads for itself.
        """
        with self._changed:
            while (entry := self._entries.get(key)) is not None:
                if entry.hashes is None:
                    self._changed.wait()
                    continue
                if taker in entry.takers:  # what it had did not arrive, or did not match
                    break
                entry.takers.add(taker)
                if len(entry.takers) == self._copies:
                    del self._entries[key]
                return entry.hashes
            own = self._entries[key] = _Entry({taker})
        try:
            own.hashes = read()
        finally:
            with self._changed:
                if own.hashes is None and self._entries.get(key) is own:
                    del self._entries[key]
                while len(self._entries) > _CHUNKS_MOST:
                    self._entries.popitem(last=False)
                self._changed.notify_all()
        return own.hashes


class Reader:
    """One copy of those that share their reads, and what it has cost here. Its lanes use it."""

    def __init__(self, shared: SharedReads, at_once: int) -> None:
        """`at_once` is how many of the copies are under way at a time."""
        self._shared, self.at_once = shared, at_once
        self._lock = threading.Lock()  # guards what follows
        self.bytes_read = 0  # read and hashed for this copy
        self.cpu_s = 0.0  # of the threads that read, hashed and sent for it

    def here(self) -> AbstractContextManager[None]:
        """Run a block in which the copies that this thread begins are this one."""
        return holding(_reader, self)

    def hashes(self, key: Key, read: Callable[[], ChunkHashes]) -> ChunkHashes:
        """Return an extent's hashes, as SharedReads.take(), and count what had to be read."""

        def counted() -> ChunkHashes:
            found = read()
            with self._lock:
                self.bytes_read += key.extent[1]
            return found

        return self._shared.take(key, self, counted)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count the CPU time of this thread in a block."""
        begun_s = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self.cpu_s += time.thread_time() - begun_s


def reader_here() -> Reader | None:
    """Return the copy that this thread begins, if its reads are shared."""
    return _reader.get()


class SharingEnd(end.End):
    """The near end of a lane whose copy shares its reads."""

    def __init__(self, umask: int, reader: Reader) -> None:
        super().__init__(umask)
        self._reader = reader

    def _new_source(self, request: requests.BeginSource) -> source.Source:
        if request.test:
            return super()._new_source(request)
        return SharingSource(request, self._reader)


class SharingSource(source.Source):
    """A source that reads and hashes only what no other copy has read."""

    def __init__(self, request: requests.BeginSource, reader: Reader) -> None:
        tops, rules, algorithm = request.tops, request.rules, request.hash
        super().__init__(tops, rules, algorithm, request.block_bytes, request.strong)
        self._reader = reader

    def send_chunk(self, id_: int, offset: int, length: int, send: wire.Send) -> None:
        """Send a chunk's blocks and its digest, or the failure to read it."""
        value, counted = self._entry(id_), wire.COUNT.pack(length)
        with self._reader.at_work():
            try:
                file = cast(files.FileSource, self._open.get(id_, value))
                known = self._hashes(value, file, (offset, length))
                self._send_blocks(id_, file, (offset, length), known, send)
                file.check()
            except (OSError, failures.FileChanged) as error:
                failure = failures.from_exception(error, value.path)
                payload = counted + wire.to_json(failure)
                send(wire.DIGEST, id_, offset + length, payload, wire.FAILED)
                return
            # blocks() raises FileChanged for a file that is shorter.
            assert known.digest is not None
            send(wire.DIGEST, id_, offset, counted + known.digest)

    def _send_blocks(
        self,
        id_: int,
        file: files.FileSource,
        extent: files.Extent,
        known: ChunkHashes,
        send: wire.Send,
    ) -> None:
        offset, length = extent
        for at, check in zip(range(0, length, len(self._room)), known.checks, strict=True):
            size_bytes = min(len(self._room), length - at)
            block = _block(file.fd, offset + at, size_bytes, self._room)
            block.check = check
            send(wire.DATA, id_, offset + at, block, wire.CHECKED)

    def _hashes(
        self, value: tree.Entry, file: files.FileSource, extent: files.Extent
    ) -> ChunkHashes:
        def read() -> ChunkHashes:
            hasher = hashes.new(self._algorithm)
            checks = []
            for block in file.blocks(*extent, self._room):
                hasher.update(block.view)
                checks.append(wire.check_of(hasher.digest()))
            return ChunkHashes(checks, hasher.digest())

        return self._reader.hashes(self._key(value, extent, self._algorithm), read)

    def digests(
        self, value: tree.Entry, extents: list[files.Extent], algorithm: str
    ) -> list[str | None]:
        def read(extent: files.Extent) -> ChunkHashes:
            return ChunkHashes([], files.digest_of(file.fd, extent, algorithm, self._room))

        file, found = self._read(value), list[str | None]()
        try:
            file.check()
            with self._reader.at_work():
                for extent in extents:
                    key = self._key(value, extent, f"{algorithm} alone")
                    digest = self._reader.hashes(key, partial(read, extent)).digest
                    found.append(None if digest is None else digest.hex())
            file.check()
            return found
        finally:
            file.close()

    def _key(self, value: tree.Entry, extent: files.Extent, algorithm: str) -> Key:
        path = f"{self.tops[value.top].path}\0{value.path}"
        return Key(path, source.identity(value), extent, algorithm, len(self._room))


class _Pages:
    """A stretch of a file, which is read only where the kernel cannot send its pages."""

    def __init__(self, fd: int, offset: int, size_bytes: int) -> None:
        self._fd, self._offset, self._bytes = fd, offset, size_bytes

    def __len__(self) -> int:
        return self._bytes

    def __getitem__(self, part: slice) -> memoryview:
        begin, end_, _ = part.indices(self._bytes)
        if begin >= end_:
            return _NOTHING
        view = memoryview(bytearray(end_ - begin))
        with contextlib.suppress(OSError):  # zeros end the frame; they do not match, and are resent
            files.read_at(self._fd, view, self._offset + begin)
        return view


def _block(fd: int, offset: int, size_bytes: int, room: memoryview) -> system.Block:
    """Return a block of a file: its pages where the system sends those, else its bytes."""
    if hasattr(os, "splice"):
        return system.Block(cast(memoryview, _Pages(fd, offset, size_bytes)), fd, offset)
    view = room[:size_bytes]
    if files.read_at(fd, view, offset) != size_bytes:
        raise failures.FileChanged
    return system.Block(view, fd, offset)
