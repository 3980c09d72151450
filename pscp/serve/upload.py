"""An upload's bytes on their way into its part: joined, hashed, and written by a thread.

A write is answered before it is on the disk; what fails is told by the next request of the file, at
the latest by its close.

Not here: how the part gets its name (landing.py). Read next: account.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pscp.serve.account import Account

Pieces = list[bytes | memoryview]
_JOINED_BYTES = 1 << 20  # of pieces that are written, and hashed, at once
_BLOCK_BYTES = 4 << 20  # what is read or copied at once
_MOST_OFFSET = (1 << 63) - 1  # off_t
_OFD_LOCK = struct.Struct("@hhqqi4x")  # struct flock (fcntl(2)): the whole file, of this descriptor
_PATIENCE_S = 0.005  # for which fewer wait for more
_FULL_BYTES = 8 << 20  # what may wait of a file before scp, or a request out of turn, waits
THREADS = 16  # which wait for disks


@dataclass
class Waiting:
    """The bytes of a session that came and are not written yet. The event loop alone uses it."""

    settle: Callable[[], None]
    pool: ThreadPoolExecutor
    bytes: int = 0
    sent_s: float = 0.0  # when the client was last sent of a file


class Content:
    """The bytes of a part: threads write it, one after the other."""

    def __init__(self, fd: int, account: Account, base: int | None, largest: int | None) -> None:
        self.fd, self.size_bytes = fd, os.fstat(fd).st_size
        self._account, self._largest = account, largest
        # The file that is changed, while nothing but its beginning has been written anew.
        self._base = base
        self._sha256, self._hashed_bytes = hashlib.sha256(), 0

    def write(self, offset: int, pieces: Pieces, size_bytes: int) -> None:
        """Write pieces that follow each other. Raises OSError."""
        if self._base is not None and offset > self.size_bytes:
            self.complete()
        if offset < self._hashed_bytes:  # what was hashed changes
            self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        is_next = offset == self._hashed_bytes
        with self._growing(offset + size_bytes):
            for block in joined(pieces):
                offset += _write_all(self.fd, block, offset)
                if is_next:
                    self._sha256.update(block)
        if is_next:
            self._hashed_bytes = offset

    def append(self, pieces: Pieces, size_bytes: int) -> None:
        """Write pieces at the end. Raises OSError."""
        self.complete()
        self.write(os.fstat(self.fd).st_size, pieces, size_bytes)

    @contextlib.contextmanager
    def _growing(self, size_bytes: int) -> Iterator[None]:
        """Count what the file grows by in this block, or less where it fails. Raises OSError.

        No other session changes its size meanwhile, or both would count, or give back, the same.
        """
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _OFD_LOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        try:
            reserved_bytes = self._reserve(size_bytes)
            try:
                yield
            except OSError:  # such as a full disk
                self.size_bytes = os.fstat(self.fd).st_size
                self._account.charge(min(self.size_bytes - reserved_bytes, 0))
                raise
        finally:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _OFD_LOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))

    def _reserve(self, size_bytes: int) -> int:
        """Count what the file grows by. Return the size that is counted. Raises OSError."""
        if size_bytes > _MOST_OFFSET:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if self._largest is not None and size_bytes > self._largest:
            raise OSError(errno.EFBIG, "the file is larger than is allowed")
        status = os.fstat(self.fd)  # another session may write, and cut, the same part
        if not status.st_nlink:  # it is not counted any more
            raise OSError(errno.ESTALE, "another upload of this name has taken its place")
        self._account.charge(max(size_bytes - status.st_size, 0))
        self.size_bytes = max(size_bytes, status.st_size)
        return self.size_bytes

    def read(self, offset: int, size_bytes: int) -> bytes:
        self.complete()
        return os.pread(self.fd, size_bytes, offset)

    def truncate(self, size_bytes: int) -> None:
        """Cut or lengthen the file. Raises OSError."""
        if size_bytes > self.size_bytes:
            self.complete()
        self.drop_base()
        if size_bytes < self._hashed_bytes:
            self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        with self._growing(size_bytes):
            before_bytes = os.fstat(self.fd).st_size
            os.ftruncate(self.fd, size_bytes)
            self._account.charge(min(size_bytes - before_bytes, 0))
        self.size_bytes = size_bytes

    def complete(self) -> None:
        """Copy what is left of the file that is changed. Raises OSError."""
        if self._base is None:
            return
        at, end = self.size_bytes, os.fstat(self._base).st_size
        with self._growing(max(at, end)):
            while at < end:
                block = os.pread(self._base, _BLOCK_BYTES, at)
                if not block:
                    break
                at += _write_all(self.fd, block, at)
        self.drop_base()

    def drop_base(self) -> None:
        if self._base is not None:
            self._account.release(self._base)
            self._base = None

    @property
    def whole_bytes(self) -> int:
        """The size that the file has for its user."""
        size_bytes = os.fstat(self.fd).st_size
        return size_bytes if self._base is None else max(size_bytes, os.fstat(self._base).st_size)

    def digest(self, anew: bool) -> str:
        """Return the SHA-256 of the whole, in hex; what was not hashed yet, or all, is read."""
        if anew:
            self._sha256, self._hashed_bytes = hashlib.sha256(), 0
        while block := os.pread(self.fd, _BLOCK_BYTES, self._hashed_bytes):
            self._sha256.update(block)
            self._hashed_bytes += len(block)
        return self._sha256.hexdigest()

    def close(self) -> None:
        self.drop_base()
        self._account.release(self.fd)


def joined(pieces: Pieces) -> Iterator[bytes | memoryview]:
    """Yield the pieces joined to blocks.

    A write, or a hash, of a piece alone would wait for Python's lock each time.
    """
    while pieces:
        size_bytes = count = 0
        while count < len(pieces) and size_bytes < _JOINED_BYTES:
            size_bytes, count = size_bytes + len(pieces[count]), count + 1
        yield b"".join(pieces[:count]) if count > 1 else pieces[0]
        del pieces[:count]


def _write_all(fd: int, block: bytes | memoryview, offset: int) -> int:
    """Write a block. Return its bytes. Raises OSError."""
    rest = memoryview(block)
    while rest:
        count = os.pwrite(fd, rest, offset)
        rest, offset = rest[count:], offset + count
    return len(block)


@dataclass
class _Run:
    """Writes that follow each other; the offset is None for those at the end."""

    offset: int | None
    pieces: Pieces = field(default_factory=list)
    size_bytes: int = 0


class Writer:
    """Has one thread at a time write what comes for a part. The event loop alone uses it."""

    def __init__(self, content: Content, waiting: Waiting, appends: bool) -> None:
        self.content = content
        self.came_bytes = 0
        self._waiting, self._appends = waiting, appends
        self._runs: list[_Run] = []
        self._waiting_bytes = 0
        self._error: OSError | None = None
        self._work: asyncio.Future[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def write(self, offset: int, pieces: Pieces, size_bytes: int) -> None:
        """Take a write. Raises OSError for it, or for one before."""
        if self._error is not None:
            raise self._error
        if offset + size_bytes > _MOST_OFFSET:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        last = self._runs[-1] if self._runs else None
        at = None if self._appends else offset
        if last is None or (at is not None and last.offset != at - last.size_bytes):
            self._runs.append(last := _Run(at))
        last.pieces += pieces
        last.size_bytes += size_bytes
        self.came_bytes += size_bytes
        self._waiting_bytes += size_bytes
        self._waiting.bytes += size_bytes
        self._begin()

    def _begin(self) -> None:
        """Start to write what waits, or wait a moment for more where it is little."""
        if self._work is None and self._runs:
            if self._waiting_bytes >= _JOINED_BYTES:
                self._start()
            elif self._later is None:
                self._later = asyncio.get_running_loop().call_later(_PATIENCE_S, self._start)

    def _start(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._work is None and self._runs:
            loop = asyncio.get_running_loop()
            runs, self._runs = self._runs, []
            size_bytes = sum(run.size_bytes for run in runs)
            self._work = loop.run_in_executor(self._waiting.pool, self._write, runs)
            self._work.add_done_callback(lambda work: self._written(work, size_bytes))

    def _write(self, runs: list[_Run]) -> None:
        for run in runs:
            if run.offset is None:
                self.content.append(run.pieces, run.size_bytes)
            else:
                self.content.write(run.offset, run.pieces, run.size_bytes)

    def _written(self, work: asyncio.Future[None], size_bytes: int) -> None:
        self._work = None
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            size_bytes += sum(run.size_bytes for run in self._runs)
            self._runs.clear()
        self._waiting_bytes -= size_bytes
        self._waiting.bytes -= size_bytes
        self._begin()
        self._waiting.settle()

    async def room(self) -> None:
        """Wait until little of the file waits to be written."""
        while self._waiting_bytes > _FULL_BYTES:
            self._start()
            if self._work is None:
                return
            await asyncio.wait([self._work])

    async def drain(self) -> None:
        """Wait until all that came is written. Raises OSError where it could not be."""
        while self._runs or self._work is not None:
            self._start()
            if self._work is not None:
                await asyncio.wait([self._work])
        if self._error is not None:
            raise self._error

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        with contextlib.suppress(OSError):
            await self.drain()
