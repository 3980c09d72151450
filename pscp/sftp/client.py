"""The client's side of SFTP: any number of requests in flight, each a Promise of its answer.

The server answers in its own time; a request's number says which answer is whose. Where the
server has OpenSSH's extensions they are used, else what comes nearest.

Not here: the layout of packets (packets.py), what is asked for a copy (sink.py, source.py).
Read next: digests.py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from typing import Any

from pscp.sftp import packets
from pscp.sftp.event_loop import In, Loop, Out
from pscp.sftp.packets import Answer, Attrs, Cursor, SftpError
from pscp.sftp.tasks import Budget, Promise

POSIX_RENAME, STATVFS = b"posix-rename@openssh.com", b"statvfs@openssh.com"
HARDLINK, FSYNC = b"hardlink@openssh.com", b"fsync@openssh.com"
LSETSTAT, LIMITS, CHECK_FILE = b"lsetstat@openssh.com", b"limits@openssh.com", b"check-file"

_PAGE_BYTES = 4096
_MANY_BYTES = 2 * 1024 * 1024  # being written: then nothing waits for the next answer
_NAME_MAX, _PATH_MAX = 255, 1024  # of the systems with the shortest
_PLAIN_BYTES = 32 * 1024  # of a READ or WRITE that every server takes
_MOST_BYTES = 256 * 1024  # of one that is worth it
_HANDLES, _HANDLES_MOST = 64, 400  # open at once: where the server does not say; and in any case
_PAUSE_S, _TURN_S = 0.01, 60.0  # for a file that another lane has open: first, in all
_PAUSE_MOST_S = 0.1
# Why a RENAME fails other than by what has the name: that is not removed for it.
_NOT_IN_THE_WAY = (packets.NO_SUCH_FILE, packets.PERMISSION_DENIED, packets.OP_UNSUPPORTED)
IN_FLIGHT_BYTES = 16 * 1024 * 1024  # read and not handed on: as lane.WINDOW_BYTES

Landed = Callable[["memoryview | None", "SftpError | None"], None]


class Client:
    """One channel's SFTP."""

    def __init__(self, read_fd: int, write_fd: int, loop: Loop) -> None:
        self._loop, self.out = loop, Out(write_fd)
        self.is_single = False  # the server opens a file once at a time
        self._decoder = packets.Decoder()
        self.incoming = In(read_fd, self._decoder, self._take_all, self._may_rest)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self.version: Promise[None] = Promise()
        self.extensions: dict[bytes, bytes] = {}
        self.read_bytes = self.write_bytes = _PLAIN_BYTES
        self.handles = Budget(_HANDLES)
        # What chunks are read into, and apart from it, since chunks wait for that: what is read to
        # be hashed, and small files.
        self.reading, self.checking = Budget(IN_FLIGHT_BYTES), Budget(IN_FLIGHT_BYTES)
        self._writing_bytes = 0
        self.syncing = 0  # requests that may take the server very long
        self.out.put(packets.init())

    def has(self, extension: bytes) -> bool:
        return extension in self.extensions

    # --- in

    def _may_rest(self, count: int) -> bool:
        """Is this a small part of what is on its way: of a READ, or of answers to WRITEs?"""
        return self._decoder.is_trickling(count) or self._writing_bytes > _MANY_BYTES

    def _take_all(self) -> None:
        while (answer := self._decoder.next()) is not None:
            if answer.type == packets.VERSION:
                self._take_version(answer)
                continue
            take = self._waiting.pop(answer.id, None)
            if take is None:
                raise packets.BadPacket("an answer to nothing that was asked")
            take(answer)

    def _take_version(self, answer: Answer) -> None:
        if self.version.is_settled:
            raise packets.BadPacket("a second VERSION")
        number, self.extensions = packets.version(answer.payload)
        if number < 3:
            raise packets.BadPacket(f"SFTP version {number}; pscp needs 3")
        self.version.keep(None)

    # --- out

    def _send(self, type_: int, payload: bytes, take: Callable[[Answer], None], view: Any) -> None:
        id_ = next(self._numbers) & 0xFFFFFFFF
        self._waiting[id_] = take
        self.out.put(packets.packet(type_, id_, payload, len(view)), view)

    def ask(
        self, type_: int, payload: bytes, wanted: int = packets.STATUS,
        read: Callable[[memoryview], Any] = lambda view: None, view: Any = b"",
    ) -> Promise[Any]:  # fmt: skip
        """A request; its answer is of the type that is wanted, or a STATUS that says why not."""
        promise: Promise[Any] = Promise()

        def take(answer: Answer) -> None:
            if answer.type == packets.STATUS:
                error = packets.failure(answer.payload)
                if error is not None:
                    promise.fail(_of_length(error, payload))
                elif wanted == packets.STATUS:
                    promise.keep(None)
                else:
                    raise packets.BadPacket("a status where something else was asked for")
            elif answer.type == wanted:
                promise.keep(read(answer.payload))
            else:
                raise packets.BadPacket("an answer of another type than was asked for")

        self._send(type_, payload, take, view)
        return promise

    async def get_limits(self) -> None:
        """How much a READ and a WRITE may hold here, and how many files may be open."""
        if not self.has(LIMITS):
            return
        try:
            limits = await self.extended(LIMITS, b"", packets.EXTENDED_REPLY, _four_numbers)
        except SftpError:
            return
        packet, read, write, handles = limits
        room = max(packet - 1024, _PLAIN_BYTES)
        self.read_bytes = _in_pages(min(read or room, room, _MOST_BYTES))
        self.write_bytes = _in_pages(min(write or room, room, _MOST_BYTES))
        if handles:
            self.handles = Budget(max(1, min(handles // 2, _HANDLES_MOST)))

    # --- files

    def open(self, path: bytes, flags: int, mode: int | None = None) -> Promise[bytes]:
        payload = packets.text(path) + packets.number(flags) + packets.attrs(Attrs(mode=mode))
        return self.ask(packets.OPEN, payload, packets.HANDLE, _handle)

    async def open_in_turn(self, path: bytes, flags: int, mode: int | None = None) -> bytes:
        """As open(). Where a file opens once at a time, another lane may have it for a while."""
        pause_s, left_s = _PAUSE_S, _TURN_S if self.is_single else 0.0
        while True:
            try:
                return await self.open(path, flags, mode)
            except SftpError as error:
                is_taken = error.code in (packets.FAILURE, packets.PERMISSION_DENIED)
                if not is_taken or left_s <= 0:
                    raise
            await self._loop.pause(pause_s)
            left_s -= pause_s
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def give_way(self) -> None:
        """Let another lane have the file that this one has closed."""
        await self._loop.pause(2 * _PAUSE_MOST_S)

    def close(self, handle: bytes) -> Promise[None]:
        return self.ask(packets.CLOSE, packets.text(handle))

    def read(self, handle: bytes, offset: int, length: int, landed: Landed) -> None:
        """`landed` gets the bytes (a view, valid during the call), or why there are none."""

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

    def write(self, handle: bytes, offset: int, view: Any) -> list[Promise[None]]:
        """In as many requests as it takes. The view is lent until it is written."""
        count = -(-len(view) // self.write_bytes)
        step = -(-len(view) // max(count, 1) // _PAGE_BYTES) * _PAGE_BYTES
        step = min(max(step, 1), self.write_bytes)
        asked = []
        for begin in range(0, len(view), step):
            piece = view[begin : begin + step]
            where = packets.text(handle) + packets.large(offset + begin)
            payload = where + packets.number(len(piece))
            asked.append(self.ask(packets.WRITE, payload, view=piece))
        total = len(view)
        if total:
            self._writing_bytes += total
            asked[-1].then(lambda: self._wrote(total))
        return asked

    def _wrote(self, count: int) -> None:
        self._writing_bytes -= count

    def fstat(self, handle: bytes) -> Promise[Attrs]:
        return self.ask(packets.FSTAT, packets.text(handle), packets.ATTRS, _attrs)

    def fsetstat(self, handle: bytes, attrs: Attrs) -> Promise[None]:
        return self.ask(packets.FSETSTAT, packets.text(handle) + packets.attrs(attrs))

    async def fsync(self, handle: bytes) -> None:
        """To the disk, where the server can."""
        if not self.has(FSYNC):
            return
        self.syncing += 1
        try:
            await self.extended(FSYNC, packets.text(handle))
        except SftpError as error:
            if error.code != packets.OP_UNSUPPORTED:
                raise
        finally:
            self.syncing -= 1

    # --- names

    def lstat(self, path: bytes) -> Promise[Attrs]:
        return self.ask(packets.LSTAT, packets.text(path), packets.ATTRS, _attrs)

    def stat(self, path: bytes) -> Promise[Attrs]:
        return self.ask(packets.STAT, packets.text(path), packets.ATTRS, _attrs)

    def setstat(self, path: bytes, attrs: Attrs) -> Promise[None]:
        return self.ask(packets.SETSTAT, packets.text(path) + packets.attrs(attrs))

    def set_of_link(self, path: bytes, attrs: Attrs) -> Promise[None]:
        return self.extended(LSETSTAT, packets.text(path) + packets.attrs(attrs))

    def remove(self, path: bytes) -> Promise[None]:
        return self.ask(packets.REMOVE, packets.text(path))

    def mkdir(self, path: bytes, mode: int | None = None) -> Promise[None]:
        return self.ask(packets.MKDIR, packets.text(path) + packets.attrs(Attrs(mode=mode)))

    def realpath(self, path: bytes) -> Promise[bytes]:
        return self.ask(packets.REALPATH, packets.text(path), packets.NAME, _one_name)

    def readlink(self, path: bytes) -> Promise[bytes]:
        return self.ask(packets.READLINK, packets.text(path), packets.NAME, _one_name)

    def symlink(self, target: bytes, path: bytes) -> Promise[None]:
        """In OpenSSH's order, which is not the draft's, and which all others follow."""
        return self.ask(packets.SYMLINK, packets.text(target) + packets.text(path))

    def opendir(self, path: bytes) -> Promise[bytes]:
        return self.ask(packets.OPENDIR, packets.text(path), packets.HANDLE, _handle)

    def readdir(self, handle: bytes) -> Promise[list[tuple[bytes, Attrs]]]:
        return self.ask(packets.READDIR, packets.text(handle), packets.NAME, _names)

    async def rename(self, path: bytes, to: bytes) -> None:
        """Replaces what is there: at once where the server can; else with a moment in between."""
        both = packets.text(path) + packets.text(to)
        if self.has(POSIX_RENAME):
            await self.extended(POSIX_RENAME, both)
            return
        try:
            await self.rename_once(path, to)
        except SftpError as error:
            if error.code in _NOT_IN_THE_WAY:
                raise
            with contextlib.suppress(SftpError):  # the next error tells more
                await self.remove(to)
            await self.rename_once(path, to)

    def rename_once(self, path: bytes, to: bytes) -> Promise[None]:
        """Fails where something has the name already, with most servers."""
        return self.ask(packets.RENAME, packets.text(path) + packets.text(to))

    # --- extensions

    def extended(
        self, name: bytes, payload: bytes, wanted: int = packets.STATUS,
        read: Callable[[memoryview], Any] = lambda view: None,
    ) -> Promise[Any]:  # fmt: skip
        return self.ask(packets.EXTENDED, packets.text(name) + payload, wanted, read)

    def hardlink(self, path: bytes, to: bytes) -> Promise[None]:
        return self.extended(HARDLINK, packets.text(path) + packets.text(to))

    async def free_bytes(self, path: bytes) -> int | None:
        """What a user may still write there; None where the server does not tell."""
        if not self.has(STATVFS):
            return None
        try:
            found = await self.extended(STATVFS, packets.text(path), packets.EXTENDED_REPLY, _free)
        except SftpError:
            return None
        return int(found)

    async def explained(self, error: Exception, path: bytes, count: int = 1) -> Exception:
        """A "Failure" by its likely reason: SFTP has no word for a full disk."""
        if isinstance(error, SftpError) and error.code == packets.FAILURE:
            free = await self.free_bytes(path)
            if free is not None and free < count:
                return SftpError(error.code, number=errno.ENOSPC)
        return error


def _of_length(error: SftpError, payload: bytes) -> SftpError:
    """OpenSSH's word for a path that is too long is that for other bad arguments as well."""
    longest = max(map(len, payload.split(b"/")))
    if error.code == packets.BAD_MESSAGE and (longest > _NAME_MAX or len(payload) > _PATH_MAX):
        return SftpError(error.code, number=errno.ENAMETOOLONG)
    return error


def _in_pages(count: int) -> int:
    return max(count // _PAGE_BYTES * _PAGE_BYTES, _PAGE_BYTES)


def _handle(view: memoryview) -> bytes:
    found = Cursor(view).text()
    if len(found) > packets.MAX_HANDLE_BYTES:
        raise packets.BadPacket("a handle that is too long")
    return found


def _attrs(view: memoryview) -> Attrs:
    return Cursor(view).attrs()


def _names(view: memoryview) -> list[tuple[bytes, Attrs]]:
    return list(packets.names(view))


def _one_name(view: memoryview) -> bytes:
    for name, _ in packets.names(view):
        return name
    raise packets.BadPacket("no name where one was asked for")


def _four_numbers(view: memoryview) -> list[int]:
    cursor = Cursor(view)
    return [cursor.large() for _ in range(4)]


def _free(view: memoryview) -> int:
    """f_frsize times f_bavail; nothing where there are inodes (f_files), and no more (f_favail)."""
    found = Cursor(view)
    _, fragment, _, _, blocks, inodes, _, free_inodes = (found.large() for _ in range(8))
    return 0 if inodes and not free_inodes else fragment * blocks
