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
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pscp.serve.account import Account

_K = TypeVar("_K")
_T = TypeVar("_T")
Pieces = list[bytes | memoryview]
_JOINED_BYTES = 1 << 20  # of pieces that are written, and hashed, at once
_BLOCK_BYTES = 4 << 20  # what is read or copied at once
_STEP_BYTES = 64 << 20  # after which another has the thread
_MOST_OFFSET = (1 << 63) - 1  # off_t
_OFD_LOCK = struct.Struct("@hhqqi4x")  # struct flock (fcntl(2)): the whole file, of this descriptor
_PATIENCE_S = 0.005  # for which fewer wait for more
_FULL_BYTES = 8 << 20  # what may wait of a file before scp, or a request out of turn, waits
_TRIES = 4  # to hash an upload that others may write
THREADS = 16  # which wait for disks


@dataclass
class SessionLoad:
    """The bytes of one SFTP or scp session that are not written yet, and its work in threads.

    The event loop alone uses it.
    """

    pool: ThreadPoolExecutor
    long: asyncio.Lock = field(default_factory=asyncio.Lock)  # of its user: one long work at a time
    bytes: int = 0
    busy: int = 0  # works whose end it waits for
    # When bytes came last, or were sent of a file, or a work came to its end.
    moved_s: float = field(default_factory=time.monotonic)
    is_lost: bool = False  # what closes a file from now on is not the client
    settle: Callable[[], None] = lambda: None  # until Files.begin()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Have nobody take the session for idle in this block."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.moved_s = time.monotonic()

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Have a thread do this."""
        with self.working():
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def in_tries(
        self, known: Callable[[], Awaitable[_K | None]], land: Callable[[_K], _T | None]
    ) -> _T | None:
        """Have a thread let a file land by what is known of it, and again where that has changed.

        Return None where nothing is known. Raises OSError.
        """
        for _ in range(_TRIES):
            found = await known()
            if found is None:
                return None
            landed = await self.in_thread(partial(land, found))
            if landed is not None:
                return landed
        raise OSError(errno.EBUSY, "another session writes it")

    async def in_steps(self, step: Callable[[], bool]) -> None:
        """Have threads do what may take long, one step after the other until it returns True.

        A client can ask for more of it than it sends. Raises OSError where the client is gone.
        """
        with self.working():
            async with self.long:
                while not await self.in_thread(step):
                    if self.is_lost:
                        raise OSError(errno.ECONNABORTED, "the client is gone")


class Digest:
    """The SHA-256 of an open file, as far as it has been hashed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.restart()

    def restart(self) -> None:
        self._sha256, self.bytes = hashlib.sha256(), 0

    def update(self, block: bytes | memoryview) -> None:
        self._sha256.update(block)
        self.bytes += len(block)

    @property
    def so_far(self) -> str:
        """The SHA-256, in hex, of what has been hashed."""
        return self._sha256.hexdigest()

    async def whole(self, load: SessionLoad) -> str:
        """Return the SHA-256 of the whole file, in hex, once the rest is read. Raises OSError."""
        if self.bytes != os.fstat(self._fd).st_size:
            await load.in_steps(self._step)
        return self.so_far

    def _step(self) -> bool:
        end = self.bytes + _STEP_BYTES
        while self.bytes < end:
            block = os.pread(self._fd, _BLOCK_BYTES, self.bytes)
            if not block:
                return True
            self.update(block)
        return False


async def digest_of(fd: int, name: str, offset: int, size_bytes: int, load: SessionLoad) -> bytes:
    """Return the digest of an extent of an open file, as far as it is there; with `size_bytes` 0 to
    its end. Raises OSError.
    """
    hasher, end = hashlib.new(name), offset + size_bytes if size_bytes else _MOST_OFFSET
    if max(offset, end) > _MOST_OFFSET:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def step() -> bool:
        nonlocal offset
        until = min(offset + _STEP_BYTES, end)
        while offset < until:
            block = os.pread(fd, min(_BLOCK_BYTES, until - offset), offset)
            if not block:
                return True
            hasher.update(block)
            offset += len(block)
        return offset >= end

    await load.in_steps(step)
    return hasher.digest()


class Content:
    """The bytes of a part: threads write it, one after the other."""

    def __init__(self, fd: int, account: Account, base: int | None, largest: int | None) -> None:
        status = os.fstat(fd)
        self.fd, self.size_bytes = fd, status.st_size
        # Whether the filesystem keeps the mode of a part (landing.py), which it loses as it lands.
        self._is_marked = bool(status.st_mode & stat.S_IXUSR)
        self._account, self._largest = account, largest
        # The file that is changed, while nothing but its beginning has been written anew.
        self._base = base
        self.digest = Digest(fd)

    def write(self, offset: int | None, pieces: Pieces, size_bytes: int) -> None:
        """Write pieces that follow each other, at the end for None. Raises OSError."""
        if offset is None:
            offset = os.fstat(self.fd).st_size
        if offset < self.digest.bytes:  # what was hashed changes
            self.digest.restart()
        is_next = offset == self.digest.bytes
        with self._growing(offset + size_bytes):
            for block in joined(pieces):
                offset += _write_all(self.fd, block, offset)
                if is_next:
                    self.digest.update(block)

    @contextlib.contextmanager
    def _growing(self, size_bytes: int) -> Iterator[None]:
        """Count what the file grows by in this block, or less where it fails. Raises OSError.

        No other session changes its size meanwhile, or both would count, or give back, the same.
        """
        with alone(self.fd):
            reserved_bytes = self._reserve(size_bytes)
            try:
                yield
            except OSError:  # such as a full disk
                self.size_bytes = os.fstat(self.fd).st_size
                self._account.charge(min(self.size_bytes - reserved_bytes, 0))
                raise

    def _reserve(self, size_bytes: int) -> int:
        """Count what the file grows by. Return the size that is counted. Raises OSError."""
        if size_bytes > _MOST_OFFSET:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if self._largest is not None and size_bytes > self._largest:
            raise OSError(errno.EFBIG, "the file is larger than is allowed")
        status = os.fstat(self.fd)  # another session may write, and cut, the same part
        if not status.st_nlink:  # it is not counted any more
            raise taken()
        if self._is_marked and not status.st_mode & stat.S_IXUSR:
            raise OSError(errno.ESTALE, "the file has its name, and changes no more")
        self._account.charge(max(size_bytes - status.st_size, 0))
        self.size_bytes = max(size_bytes, status.st_size)
        return self.size_bytes

    def read(self, offset: int, size_bytes: int) -> bytes:
        found = os.pread(self.fd, size_bytes, offset)
        if self._base is not None and len(found) < size_bytes:
            offset += len(found)
            found += os.pread(self._base, size_bytes - len(found), offset)
        return found

    def truncate(self, size_bytes: int) -> None:
        """Cut or lengthen the file. Raises OSError."""
        self.drop_base()
        if size_bytes < self.digest.bytes:
            self.digest.restart()
        with self._growing(size_bytes):
            before_bytes = os.fstat(self.fd).st_size
            os.ftruncate(self.fd, size_bytes)
            self._account.charge(min(size_bytes - before_bytes, 0))
        self.size_bytes = size_bytes

    def lacks(self, offset: int | None) -> bool:
        """Has what is left of the file that is changed to be copied before this is written?"""
        return self._base is not None and (offset is None or offset > self.size_bytes)

    def copy(self, until: int) -> bool:
        """Copy more of the file that is changed. Return whether it is all until there, or whole.

        Raises OSError.
        """
        assert self._base is not None
        at, size_bytes = self.size_bytes, os.fstat(self._base).st_size
        end = min(at + _STEP_BYTES, until, size_bytes)
        if at < end:
            with self._growing(end):
                while at < end and (block := os.pread(self._base, min(_BLOCK_BYTES, end - at), at)):
                    at += _write_all(self.fd, block, at)
        if at >= size_bytes or at < end:  # whole, or it was cut meanwhile
            self.drop_base()
        return self._base is None or at >= until

    @property
    def base(self) -> os.stat_result | None:
        """The status of the file that is changed, if nothing of it is changed yet."""
        return None if self._base is None or self.size_bytes else os.fstat(self._base)

    @property
    def whole_fd(self) -> int:
        """The descriptor of the part. Raises OSError where not all that the user sees is in it."""
        if self._base is not None:
            raise OSError(errno.EOPNOTSUPP, "a file that is being changed")
        return self.fd

    def drop_base(self) -> None:
        if self._base is not None:
            self._account.release(self._base)
            self._base = None

    @property
    def whole_bytes(self) -> int:
        """The size that the file has for its user."""
        size_bytes = os.fstat(self.fd).st_size
        return size_bytes if self._base is None else max(size_bytes, os.fstat(self._base).st_size)

    def close(self) -> None:
        self.drop_base()
        self._account.release(self.fd)


def taken() -> OSError:
    return OSError(errno.ESTALE, "another upload of this name has taken its place")


@contextlib.contextmanager
def alone(fd: int) -> Iterator[None]:
    """Let nobody else write an open file in this block, or change what it is."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _OFD_LOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _OFD_LOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))


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

    def __init__(self, content: Content, load: SessionLoad, appends: bool) -> None:
        self.content = content
        self._load, self._appends = load, appends
        self._runs: list[_Run] = []
        self._waiting_bytes = 0
        self._error: OSError | None = None
        self._work: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Take a write. Raises OSError for it, or for one before."""
        if self._error is not None:
            raise self._error
        size_bytes = len(data)
        if offset + size_bytes > _MOST_OFFSET:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        last = self._runs[-1] if self._runs else None
        at = None if self._appends else offset
        if last is None or (at is not None and last.offset != at - last.size_bytes):
            self._runs.append(last := _Run(at))
        last.pieces.append(data)
        last.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        self._load.bytes += size_bytes
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
            self._work = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        runs, self._runs = self._runs, []
        size_bytes = sum(run.size_bytes for run in runs)
        try:
            while runs:
                if self.content.lacks(runs[0].offset):
                    await self._complete()
                await self._load.in_thread(partial(self._write_some, runs))
        except Exception as error:
            self._error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            size_bytes += sum(run.size_bytes for run in self._runs)
            self._runs.clear()
        self._work = None
        self._waiting_bytes -= size_bytes
        self._load.bytes -= size_bytes
        self._begin()
        self._load.settle()

    def _write_some(self, runs: list[_Run]) -> None:
        while runs and not self.content.lacks(runs[0].offset):
            run = runs.pop(0)
            self.content.write(run.offset, run.pieces, run.size_bytes)

    async def _complete(self, until: int = _MOST_OFFSET) -> None:
        """Copy what is left, until there, of the file that is changed. Raises OSError."""
        if self.content.lacks(until):
            await self._load.in_steps(partial(self.content.copy, until))

    async def complete(self, until: int = _MOST_OFFSET) -> None:
        """Do so once all that came is written."""
        await self.drain()
        await self._complete(until)

    async def truncate(self, size_bytes: int) -> None:
        """Cut or lengthen the file. Raises OSError."""
        await self.complete(size_bytes)
        await self._load.in_thread(partial(self.content.truncate, size_bytes))

    async def room(self) -> None:
        """Wait until little of the file waits to be written."""
        while self._waiting_bytes > _FULL_BYTES:
            await self._turn()

    async def drain(self) -> None:
        """Wait until all that came is written. Raises OSError where it could not be."""
        while self._runs or self._work is not None:
            await self._turn()
        if self._error is not None:
            raise self._error

    async def _turn(self) -> None:
        """Wait for the thread that writes, which begins now if there is none."""
        self._start()
        if self._work is not None:
            await asyncio.wait([self._work])

    async def settled(self) -> None:
        """Wait until nothing is being written."""
        with contextlib.suppress(OSError):
            await self.drain()
