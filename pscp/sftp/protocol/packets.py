"""SFTP packets, version 3 (draft-ietf-secsh-filexfer-02) with OpenSSH's extensions: layout only.

A packet is a length of 4 bytes, a type, and the type's fields, of which the first is a request's
number, but for INIT and VERSION. Every length is bounded before it is used.

Not here: any input or output (event_loop.py), and which request is sent when (client.py).
Read next: tasks.py.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import NamedTuple

from pscp.endpoint.frames.wire import TRICKLE_BYTES
from pscp.endpoint.reading import tree

INIT, VERSION = 1, 2
OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT, SETSTAT, FSETSTAT = 3, 4, 5, 6, 7, 8, 9, 10
OPENDIR, READDIR, REMOVE, MKDIR, RMDIR, REALPATH, STAT = 11, 12, 13, 14, 15, 16, 17
RENAME, READLINK, SYMLINK, EXTENDED = 18, 19, 20, 200
STATUS, HANDLE, DATA, NAME, ATTRS, EXTENDED_REPLY = 101, 102, 103, 104, 105, 201
ANSWERS = frozenset([VERSION, STATUS, HANDLE, DATA, NAME, ATTRS, EXTENDED_REPLY])

OK, EOF, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE = 0, 1, 2, 3, 4, 5
OP_UNSUPPORTED = 8
_ERRNO = {
    NO_SUCH_FILE: errno.ENOENT,
    PERMISSION_DENIED: errno.EACCES,
    OP_UNSUPPORTED: errno.EOPNOTSUPP,
}

# Flags of OPEN.
FOR_READ, FOR_WRITE, CREATE, EXCLUSIVE = 0x01, 0x02, 0x08, 0x20

_HEADER = struct.Struct(">IBI")  # length, type, the request's number
INIT_PACKET = _HEADER.pack(5, INIT, 3)  # in which a version is in the number's place
_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
MAX_PACKET_BYTES = 512 * 1024  # OpenSSH's is 256 KiB; more was not asked for
MAX_HANDLE_BYTES = 256
MAX_NAMES = 65536  # in one answer
NO_SFTP_STATUS = 95  # a lane's program exits with it where no SFTP server answers
_WORDS_MAX_BYTES = 200  # of a server's, in an error
NANO = 1_000_000_000
OTHER = "other"  # a kind beside those of endpoint/reading/tree.py: the server tells none


class SftpError(OSError):
    """The server answered a request with a status that is not OK."""

    def __init__(self, code: int, message: str = "", number: int = 0) -> None:
        """`message` is the server's; `number` is an errno that tells more than the code does."""
        number = number or _ERRNO.get(code, 0)
        if number:
            super().__init__(number, os.strerror(number))
        else:
            super().__init__(message or f"SFTP status {code}")
        self.code = code


class BadPacket(Exception):
    """The server sent what is no SFTP packet."""


class NotSftp(BadPacket):
    """The server began with something else: a login's greeting, or a forced command's output."""

    def __init__(self, output: bytes) -> None:
        super().__init__(f"these bytes are no SFTP: {output!r}")
        self.output = output


class Attrs(NamedTuple):
    """The attributes of a file that a server tells, or is to set; None for what it does not."""

    size: int | None = None
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None  # with the kind of file
    atime: int | None = None  # seconds
    mtime: int | None = None

    @property
    def kind(self) -> str:
        """Return the kind as endpoint/reading/tree.py has it, or OTHER."""
        mode = self.mode or 0
        return tree.kind_of(mode) if stat.S_IFMT(mode) else OTHER

    @property
    def is_folder(self) -> bool:
        return self.kind == tree.FOLDER

    @property
    def is_link(self) -> bool:
        return self.kind == tree.LINK

    @property
    def is_file(self) -> bool:
        return self.kind == tree.FILE

    @property
    def mtime_ns(self) -> int:
        return (self.mtime or 0) * NANO


# --- out


def text(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def number(value: int) -> bytes:
    return _U32.pack(value)


def large(value: int) -> bytes:
    return _U64.pack(value)


def attrs(value: Attrs) -> bytes:
    """Return the ATTRS to set. Times before 1970 or after 2106 are bounded by these years."""
    flags, parts = 0, []
    if value.size is not None:
        flags |= 0x01
        parts.append(_U64.pack(value.size))
    if value.uid is not None and value.gid is not None:
        flags |= 0x02
        parts.append(_U32.pack(value.uid) + _U32.pack(value.gid))
    if value.mode is not None:
        flags |= 0x04
        parts.append(_U32.pack(value.mode & 0o7777))
    if value.atime is not None and value.mtime is not None:
        flags |= 0x08
        parts.append(_U32.pack(_second(value.atime)) + _U32.pack(_second(value.mtime)))
    return _U32.pack(flags) + b"".join(parts)


def _second(value: int) -> int:
    return min(max(value, 0), 0xFFFFFFFF)


def packet(type_: int, id_: int, payload: bytes, following: int = 0) -> bytes:
    """Return a packet, or the beginning of one to which `following` more bytes belong."""
    return _HEADER.pack(5 + len(payload) + following, type_, id_) + payload


# --- in


class Cursor:
    """Reads one payload from beginning to end. Raises BadPacket where it is cut short."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def _take(self, size_bytes: int) -> memoryview:
        if size_bytes > len(self._view) - self._at:
            raise BadPacket("a packet that is cut short")
        self._at += size_bytes
        return self._view[self._at - size_bytes : self._at]

    def number(self) -> int:
        found: int = _U32.unpack(self._take(4))[0]
        return found

    def large(self) -> int:
        found: int = _U64.unpack(self._take(8))[0]
        return found

    def view(self) -> memoryview:
        return self._take(self.number())

    def text(self) -> bytes:
        return bytes(self.view())

    def rest(self) -> bytes:
        return bytes(self._take(len(self._view) - self._at))

    @property
    def is_over(self) -> bool:
        return self._at == len(self._view)

    def attrs(self) -> Attrs:
        flags, found = self.number(), Attrs()
        if flags & 0x01:
            found = found._replace(size=self.large())
        if flags & 0x02:
            found = found._replace(uid=self.number(), gid=self.number())
        if flags & 0x04:
            found = found._replace(mode=self.number())
        if flags & 0x08:
            found = found._replace(atime=self.number(), mtime=self.number())
        if flags & 0x80000000:
            for _ in range(2 * min(self.number(), MAX_NAMES)):
                self.view()
        return found


def version(view: memoryview) -> tuple[int, dict[bytes, bytes]]:
    cursor = Cursor(view)
    number_, found = cursor.number(), {}
    while not cursor.is_over:
        name = cursor.text()
        found[name] = cursor.text()
    return number_, found


def failure(view: memoryview) -> SftpError | None:
    cursor = Cursor(view)
    code = cursor.number()
    message = b"" if cursor.is_over else cursor.text()[:_WORDS_MAX_BYTES]
    return None if code == OK else SftpError(code, message.decode(errors="replace"))


def names(view: memoryview) -> list[tuple[bytes, Attrs]]:
    cursor = Cursor(view)
    count = cursor.number()
    if count > MAX_NAMES:
        raise BadPacket("too many names in one answer")
    found = []
    for _ in range(count):
        name = cursor.text()
        cursor.view()  # the line of ls -l
        found.append((name, cursor.attrs()))
    return found


class Answer(NamedTuple):
    """A packet from the server. The payload is valid until the Decoder's next space()."""

    type: int
    id: int
    payload: memoryview


class Decoder:
    """Finds packets in a byte stream, without copying payloads: as wire.Decoder."""

    def __init__(self, capacity_bytes: int = 4 * MAX_PACKET_BYTES) -> None:
        self._view = memoryview(bytearray(max(capacity_bytes, MAX_PACKET_BYTES + 4)))
        self._start = self._end = 0
        self._is_new = True  # has found no packet yet

    def space(self) -> memoryview:
        """Return where the next bytes go. Answers returned before are invalid from here on."""
        kept = self._end - self._start
        if kept == 0:
            self._start = self._end = 0
        elif self._start and len(self._view) - self._start < MAX_PACKET_BYTES + 4:
            self._view[:kept] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, kept
        return self._view[self._end :]

    def filled(self, count: int) -> None:
        """Take note that so many bytes were read into space()."""
        self._end += count

    def is_trickling(self, count: int) -> bool:
        """Were so many bytes a small part of the DATA that is coming? As wire.Decoder's."""
        have = self._end - self._start
        if have < 5 or self._view[self._start + 4] != DATA:
            return False
        missing = 4 + int(_U32.unpack_from(self._view, self._start)[0]) - have
        return count < TRICKLE_BYTES < missing

    def next(self) -> Answer | None:
        """Return the next whole packet, or None. Raises BadPacket where there can never be one."""
        have = self._end - self._start
        if have < 5:
            return None
        length = _U32.unpack_from(self._view, self._start)[0]
        type_ = self._view[self._start + 4]
        if type_ not in ANSWERS or not 5 <= length <= MAX_PACKET_BYTES:
            error = NotSftp(bytes(self._view[self._start : self._end][:_WORDS_MAX_BYTES]))
            raise error if self._is_new else BadPacket(str(error))
        if have < 4 + length:
            return None
        self._is_new = False
        begin = self._start + 5
        self._start += 4 + length
        if type_ == VERSION:
            return Answer(type_, 0, self._view[begin : self._start])
        id_ = _U32.unpack_from(self._view, begin)[0]
        return Answer(type_, id_, self._view[begin + 4 : self._start])
