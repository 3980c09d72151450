"""The client's side of SFTP: any number of requests in flight, each a Future of its answer.

A request that the server refuses raises SftpError. OpenSSH's extensions are used where the server
has them, else what comes nearest.

Not here: the layout of packets (packets.py), what a copy requests (../sink.py, ../source.py).
Read next: ../digests.py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from pscp.sftp.protocol import packets
from pscp.sftp.protocol.event_loop import Buffer, Loop, ReadBuffer, WriteBuffer
from pscp.sftp.protocol.packets import Answer, Attrs, Cursor, SftpError
from pscp.sftp.protocol.tasks import Budget, Future, gather, outcomes

POSIX_RENAME, STATVFS = b"posix-rename@openssh.com", b"statvfs@openssh.com"
HARDLINK, FSYNC = b"hardlink@openssh.com", b"fsync@openssh.com"
LSETSTAT, LIMITS, CHECK_FILE = b"lsetstat@openssh.com", b"limits@openssh.com", b"check-file"
OWN_MODES = b"own-modes@pscp"  # pscp-serve's: modes and owners are the server's, whatever is set

_READ_ONLY = 1  # SSH2_FXE_STATVFS_ST_RDONLY (OpenSSH's PROTOCOL, 4.7)
_PAGE_BYTES = 4096
_MANY_BYTES = 2 * 1024 * 1024  # being written: then no answer is urgent
_NAME_MAX_BYTES, _PATH_MAX_BYTES = 255, 1024  # on the systems with the shortest
_PLAIN_BYTES = 32 * 1024  # of a READ or WRITE that every server takes
_MOST_BYTES = 256 * 1024  # of a READ or WRITE: more gains nothing
# Small files at once: where the server has no limits@; and at most. Each has a handle to write, and
# one to be read again; large files, folders and markers have some beside these.
_HANDLES, _HANDLES_MOST, _HANDLES_BESIDE = 64, 400, 32
# The pauses before a file that another lane has open is tried again: the first, the longest, all.
_PAUSE_S, _PAUSE_MOST_S, _TURN_S = 0.01, 0.1, 60.0
# With these codes a RENAME did not fail because the new name exists, so that is not removed.
_NOT_IN_THE_WAY = (packets.NO_SUCH_FILE, packets.PERMISSION_DENIED, packets.OP_UNSUPPORTED)
IN_FLIGHT_BYTES = 16 * 1024 * 1024  # requested, or read and not handed on: as a lane's window

T = TypeVar("T")
Read = Callable[[memoryview], T]  # reads an answer's payload
TakeRead = Callable[[memoryview | None, SftpError | None], None]  # gets the bytes, or why not


class Filesystem(NamedTuple):
    """A filesystem, as the server tells (OpenSSH's PROTOCOL, 4.7)."""

    free_bytes: int  # that a user may still write
    is_read_only: bool
    number: int


class Client:
    """The SFTP client of one channel."""

    def __init__(self, read_fd: int, write_fd: int, loop: Loop) -> None:
        self._loop, self.out = loop, WriteBuffer(write_fd, may_break=True)
        self.is_single = False  # does the server open a file only once at a time?
        self._decoder = packets.Decoder()
        self.incoming = ReadBuffer(read_fd, self._decoder, self._take_all, self._may_rest)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[Answer], None]] = {}  # by a request's number
        self.version: Future[None] = Future()  # done when the server has sent its version
        self.extensions: dict[bytes, bytes] = {}
        self.read_bytes = self.write_bytes = _PLAIN_BYTES
        self.handles, self._read_handles = Budget(_HANDLES), Budget(_HANDLES)
        # Bytes in flight: of chunks; and of what chunks wait for, files read to be hashed, and of
        # small files.
        self.reading, self.checking = Budget(IN_FLIGHT_BYTES), Budget(IN_FLIGHT_BYTES)
        self._writing_bytes = 0
        self.syncing = 0  # requests under way that may take the server very long
        self.out.put(packets.INIT_PACKET)

    def _may_rest(self, count: int) -> bool:
        """May more gather before the next read, of an answer to a READ or of those to WRITEs?"""
        return self._decoder.is_trickling(count) or self._writing_bytes > _MANY_BYTES

    def _take_all(self) -> None:
        while (answer := self._decoder.next()) is not None:
            if answer.type != packets.VERSION:
                take = self._waiting.pop(answer.id, None)
                if take is None:
                    raise packets.BadPacket("an answer to nothing that was asked")
                take(answer)
                continue
            if self.version.done():
                raise packets.BadPacket("a second VERSION")
            number, self.extensions = packets.version(answer.payload)
            if number < 3:
                raise packets.BadPacket(f"SFTP version {number}; pscp needs 3")
            self.version.set_result(None)

    def _send(
        self, type_: int, payload: bytes, take: Callable[[Answer], None], view: Buffer = b""
    ) -> None:
        id_ = next(self._numbers) & 0xFFFFFFFF
        self._waiting[id_] = take
        self.out.put(packets.packet(type_, id_, payload, len(view)), view)

    def _ask(
        self, type_: int, payload: bytes, wanted: int, read: Read[T], view: Buffer = b""
    ) -> Future[T]:
        """Send a request; return what `read` makes of its answer, which has the type `wanted`."""
        future: Future[T] = Future()

        def take(answer: Answer) -> None:
            is_status = answer.type == packets.STATUS
            error = packets.failure(answer.payload) if is_status else None
            if error is not None:
                future.set_exception(_of_length(error, payload))
            elif answer.type == wanted:
                future.set_result(read(answer.payload))
            elif is_status:
                raise packets.BadPacket("a status where something else was asked for")
            else:
                raise packets.BadPacket("an answer of another type than was asked for")

        self._send(type_, payload, take, view)
        return future

    def _change(self, type_: int, payload: bytes, view: Buffer = b"") -> Future[None]:
        """Send a request that is answered by a STATUS alone."""
        return self._ask(type_, payload, packets.STATUS, lambda view: None, view)

    def extended(self, name: bytes, payload: bytes, read: Read[T]) -> Future[T]:
        """Send a request of an extension (SSH_FXP_EXTENDED), which is answered with data."""
        payload = packets.text(name) + payload
        return self._ask(packets.EXTENDED, payload, packets.EXTENDED_REPLY, read)

    def _change_by_extension(self, name: bytes, payload: bytes) -> Future[None]:
        return self._change(packets.EXTENDED, packets.text(name) + payload)

    async def get_limits(self) -> None:
        """Ask the server how large a READ and a WRITE may be, and how many files may be open."""
        if LIMITS not in self.extensions:
            return
        try:
            limits = await self.extended(LIMITS, b"", lambda view: _numbers(view, 4))
        except SftpError:
            return
        packet, read, write, handles = limits
        room = max(packet - 1024, _PLAIN_BYTES)
        self.read_bytes = _in_pages(min(read or room, room, _MOST_BYTES))
        self.write_bytes = _in_pages(min(write or room, room, _MOST_BYTES))
        if handles:
            each = max(1, min((handles - _HANDLES_BESIDE) // 2, _HANDLES_MOST))
            self.handles, self._read_handles = Budget(each), Budget(each)

    # --- files

    def open(self, path: bytes, flags: int, mode: int | None = None) -> Future[bytes]:
        payload = packets.text(path) + packets.number(flags) + packets.attrs(Attrs(mode=mode))
        return self._ask(packets.OPEN, payload, packets.HANDLE, _handle)

    async def open_in_turn(self, path: bytes, flags: int, mode: int | None = None) -> bytes:
        """Open a file; where it opens only once at a time, wait while another lane has it."""
        pause_s, left_s = _PAUSE_S, _TURN_S if self.is_single else 0.0
        while True:
            try:
                return await self.open(path, flags, mode)
            except SftpError as error:
                is_taken = error.code in (packets.FAILURE, packets.PERMISSION_DENIED)
                if not is_taken or left_s <= 0:
                    raise
            await self._loop.sleep(pause_s)
            left_s -= pause_s
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    @contextlib.asynccontextmanager
    async def opened(self, path: bytes) -> AsyncIterator[bytes]:
        """Open a file in turn, to read it, and close it at the end. Of such files there are as many
        at once as of those for which a caller takes from `handles`.
        """
        async with self._read_handles.taken(1):
            handle = await self.open_in_turn(path, packets.FOR_READ)
            try:
                yield handle
            finally:
                await self.close(handle)

    async def give_way(self) -> None:
        """Wait, so that another lane can open the file that this one has closed."""
        await self._loop.sleep(2 * _PAUSE_MOST_S)

    def close(self, handle: bytes) -> Future[None]:
        return self._change(packets.CLOSE, packets.text(handle))

    def read(self, handle: bytes, offset: int, length: int, landed: TakeRead) -> None:
        """Read an extent; `landed` gets the bytes, valid only during the call, or the error."""

        def take(answer: Answer) -> None:
            if answer.type == packets.DATA:
                view = Cursor(answer.payload).view()
                if not 0 < len(view) <= length:
                    raise packets.BadPacket("more bytes, or fewer, than were asked for")
                landed(view, None)
            elif answer.type == packets.STATUS:
                error = packets.failure(answer.payload)
                landed(None, error or SftpError(packets.FAILURE, "OK, without any bytes"))
            else:
                raise packets.BadPacket("an answer of another type than was asked for")

        where = packets.text(handle) + packets.large(offset) + packets.number(length)
        self._send(packets.READ, where, take, b"")

    def write(self, handle: bytes, offset: int, view: memoryview) -> list[Future[None]]:
        """Write a view, which is lent until it is sent, in as many requests as it takes."""
        count = -(-len(view) // self.write_bytes)
        step = -(-len(view) // max(count, 1) // _PAGE_BYTES) * _PAGE_BYTES
        step = min(max(step, 1), self.write_bytes)
        changes = []
        for begin in range(0, len(view), step):
            piece = view[begin : begin + step]
            where = packets.text(handle) + packets.large(offset + begin)
            payload = where + packets.number(len(piece))
            changes.append(self._change(packets.WRITE, payload, piece))
        self._count_writing(len(view))
        if changes:
            changes[-1].add_done_callback(partial(self._count_writing, -len(view)))
        return changes

    def _count_writing(self, more_bytes: int) -> None:
        self._writing_bytes += more_bytes

    def fstat(self, handle: bytes) -> Future[Attrs]:
        return self._ask(packets.FSTAT, packets.text(handle), packets.ATTRS, _attrs)

    def fsetstat(self, handle: bytes, attrs: Attrs) -> Future[None]:
        return self._change(packets.FSETSTAT, packets.text(handle) + packets.attrs(attrs))

    async def fsync(self, handle: bytes) -> None:
        """Bring the file to the disk, where the server can."""
        if FSYNC not in self.extensions:
            return
        self.syncing += 1
        try:
            await self._change_by_extension(FSYNC, packets.text(handle))
        except SftpError as error:
            if error.code != packets.OP_UNSUPPORTED:
                raise
        finally:
            self.syncing -= 1

    # --- names

    def lstat(self, path: bytes) -> Future[Attrs]:
        return self._ask(packets.LSTAT, packets.text(path), packets.ATTRS, _attrs)

    def stat(self, path: bytes) -> Future[Attrs]:
        return self._ask(packets.STAT, packets.text(path), packets.ATTRS, _attrs)

    def setstat(self, path: bytes, attrs: Attrs) -> Future[None]:
        return self._change(packets.SETSTAT, packets.text(path) + packets.attrs(attrs))

    def lsetstat(self, path: bytes, attrs: Attrs) -> Future[None]:
        return self._change_by_extension(LSETSTAT, packets.text(path) + packets.attrs(attrs))

    def remove(self, path: bytes) -> Future[None]:
        return self._change(packets.REMOVE, packets.text(path))

    def mkdir(self, path: bytes, mode: int | None = None) -> Future[None]:
        return self._change(packets.MKDIR, packets.text(path) + packets.attrs(Attrs(mode=mode)))

    def rmdir(self, path: bytes) -> Future[None]:
        return self._change(packets.RMDIR, packets.text(path))

    def realpath(self, path: bytes) -> Future[bytes]:
        return self._ask(packets.REALPATH, packets.text(path), packets.NAME, _one_name)

    def readlink(self, path: bytes) -> Future[bytes]:
        return self._ask(packets.READLINK, packets.text(path), packets.NAME, _one_name)

    def symlink(self, target: bytes, path: bytes) -> Future[None]:
        """Make a link. All servers take OpenSSH's order of the names, which is not the draft's."""
        return self._change(packets.SYMLINK, packets.text(target) + packets.text(path))

    def opendir(self, path: bytes) -> Future[bytes]:
        return self._ask(packets.OPENDIR, packets.text(path), packets.HANDLE, _handle)

    def readdir(self, handle: bytes) -> Future[list[tuple[bytes, Attrs]]]:
        return self._ask(packets.READDIR, packets.text(handle), packets.NAME, packets.names)

    async def rename(self, path: bytes, to: bytes) -> None:
        """Rename, replacing a file; where the server cannot, that is removed a moment before."""
        both = packets.text(path) + packets.text(to)
        if POSIX_RENAME in self.extensions:
            await self._change_by_extension(POSIX_RENAME, both)
            return
        try:
            await self.rename_if_free(path, to)
        except SftpError as error:
            if error.code in _NOT_IN_THE_WAY:
                raise
            await outcomes(self.remove(to))  # if that fails, the next error tells more
            await self.rename_if_free(path, to)

    def rename_if_free(self, path: bytes, to: bytes) -> Future[None]:
        """Rename; most servers refuse this where the new name exists."""
        return self._change(packets.RENAME, packets.text(path) + packets.text(to))

    # --- extensions

    def hardlink(self, path: bytes, to: bytes) -> Future[None]:
        return self._change_by_extension(HARDLINK, packets.text(path) + packets.text(to))

    async def filesystem(self, path: bytes) -> Filesystem | None:
        """Return what the server tells of the filesystem that a path is in, if anything."""
        if STATVFS not in self.extensions:
            return None
        try:
            return await self.extended(STATVFS, packets.text(path), _filesystem)
        except SftpError:
            return None

    async def are_apart(self, path: bytes, other: bytes) -> bool | None:
        """Return whether these paths are in two filesystems; None where the server does not tell.

        Where it tells for one of them only, they count as apart.
        """
        found = await gather(self.filesystem(path), self.filesystem(other))
        numbers = [each.number if each else None for each in found]
        return None if numbers == [None, None] else numbers[0] != numbers[1]

    async def explain(self, error: Exception, path: bytes, wanted_bytes: int) -> Exception:
        """Return the error, or what a mere "Failure" means: a full disk, or a read-only one.

        SFTP has a status for neither. A disk is full where fewer bytes are free than wanted.
        """
        if isinstance(error, SftpError) and error.code == packets.FAILURE:
            found = await self.filesystem(path)
            if found is not None and found.is_read_only:
                return SftpError(error.code, number=errno.EROFS)
            if found is not None and found.free_bytes < wanted_bytes:
                return SftpError(error.code, number=errno.ENOSPC)
        return error


def _of_length(error: SftpError, payload: bytes) -> SftpError:
    """Return ENAMETOOLONG in place of OpenSSH's "bad message" about a path that is too long."""
    longest_bytes = max(map(len, payload.split(b"/")))
    is_too_long = longest_bytes > _NAME_MAX_BYTES or len(payload) > _PATH_MAX_BYTES
    if error.code == packets.BAD_MESSAGE and is_too_long:
        return SftpError(error.code, number=errno.ENAMETOOLONG)
    return error


def _in_pages(size_bytes: int) -> int:
    return max(size_bytes // _PAGE_BYTES * _PAGE_BYTES, _PAGE_BYTES)


def _handle(view: memoryview) -> bytes:
    found = Cursor(view).text()
    if len(found) > packets.MAX_HANDLE_BYTES:
        raise packets.BadPacket("a handle that is too long")
    return found


def _attrs(view: memoryview) -> Attrs:
    return Cursor(view).attrs()


def _one_name(view: memoryview) -> bytes:
    found = packets.names(view)
    if not found:
        raise packets.BadPacket("no name where one was asked for")
    return found[0][0]


def _numbers(view: memoryview, count: int) -> list[int]:
    cursor = Cursor(view)
    return [cursor.large() for _ in range(count)]


def _filesystem(view: memoryview) -> Filesystem:
    """Return what a struct statvfs says.

    Free are f_frsize times f_bavail, and 0 where there are inodes (f_files), but none is free.
    """
    _, fragment, _, _, blocks, inodes, _, free_inodes, number, flags = _numbers(view, 10)
    free_bytes = 0 if inodes and not free_inodes else fragment * blocks
    return Filesystem(free_bytes, bool(flags & _READ_ONLY), number)
