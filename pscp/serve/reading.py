"""What a client reads: open files, the names in a folder, and what SFTP says in other words.

Not here: how a folder is opened (folder.py), who may list it (files.py). Read next: landing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import stat
from functools import partial

import asyncssh
from asyncssh import constants

from pscp.endpoint.reading.paths import status_of
from pscp.serve.account import Account, is_locked
from pscp.serve.content import SessionLoad
from pscp.serve.folder import Folder
from pscp.serve.rules import Rules, is_part

_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
_NANO = 10**9
_TYPES = {
    stat.S_IFREG: constants.FILEXFER_TYPE_REGULAR,
    stat.S_IFDIR: constants.FILEXFER_TYPE_DIRECTORY,
    stat.S_IFLNK: constants.FILEXFER_TYPE_SYMLINK,
}
# What SFTP 5 and 6 ask for by their dispositions, in the flags of SFTP 3.
_CREATE, _TRUNCATE = constants.FXF_CREAT, constants.FXF_TRUNC
_DISPOSITIONS = {
    constants.FXF_CREATE_NEW: _CREATE | constants.FXF_EXCL,
    constants.FXF_CREATE_TRUNCATE: _CREATE | _TRUNCATE,
    constants.FXF_OPEN_EXISTING: 0,
    constants.FXF_OPEN_OR_CREATE: _CREATE,
    constants.FXF_TRUNCATE_EXISTING: _TRUNCATE,
}
_TURN = 64  # names that are looked at before other sessions have theirs


class Reading:
    """A file that a client reads."""

    def __init__(self, account: Account, fd: int) -> None:
        self.fd, self._account = fd, account
        is_locked(fd, fcntl.LOCK_SH)

    async def read(self, offset: int, size_bytes: int, load: SessionLoad) -> bytes:
        block = bytearray(size_bytes)
        try:  # what is in memory costs no thread
            count = os.preadv(self.fd, [block], offset, _NO_WAIT)
        except OSError:
            return await load.in_thread(partial(os.pread, self.fd, size_bytes, offset))
        return bytes(memoryview(block)[:count])

    def close(self) -> None:
        self._account.release(self.fd)


class Listing:
    """The names in a folder, with an unfinished upload under the name that it will get."""

    _fd, _looked_at = -1, 0

    def __init__(self, folder: Folder, path: bytes, rules: Rules) -> None:
        """Raises OSError."""
        fd = folder.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._fd, self._rules = fd, rules
        self._names = os.scandir(fd)

    def __aiter__(self) -> Listing:
        return self

    async def __anext__(self) -> asyncssh.SFTPName:
        for entry in self._names:
            self._looked_at += 1
            if self._looked_at % _TURN == 0:
                await asyncio.sleep(0)
            name = os.fsencode(entry.name)
            later = self._rules.lands_as(name) if is_part(name) else name
            with contextlib.suppress(OSError):  # it is gone meanwhile
                if later is not None and (later == name or not status_of(self._fd, later)):
                    attrs = attrs_of(entry.stat(follow_symlinks=False))
                    return asyncssh.SFTPName(later, attrs=attrs)
        raise StopAsyncIteration

    def close(self) -> None:
        """Close the folder."""
        if self._fd >= 0:
            self._names.close()
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # asyncssh only forgets it


def attrs_of(status: os.stat_result) -> asyncssh.SFTPAttrs:
    """Return what SFTP says of a file. Owners have numbers alone: names of the machine's accounts
    are no client's business, and to look them up may take long.
    """
    atime, mtime, ctime = (
        divmod(each, _NANO) for each in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    )
    return asyncssh.SFTPAttrs(
        type=_TYPES.get(stat.S_IFMT(status.st_mode), constants.FILEXFER_TYPE_SPECIAL),
        size=status.st_size, permissions=status.st_mode, nlink=status.st_nlink,
        uid=status.st_uid, gid=status.st_gid, owner=str(status.st_uid), group=str(status.st_gid),
        atime=atime[0], atime_ns=atime[1], crtime=mtime[0], crtime_ns=mtime[1],
        mtime=mtime[0], mtime_ns=mtime[1], ctime=ctime[0], ctime_ns=ctime[1],
    )  # fmt: skip


def times_ns(attrs: asyncssh.SFTPAttrs) -> tuple[int, int] | None:
    """Return the access and modification times that a client gives, if it gives them."""
    if attrs.mtime is None:
        return None
    mtime_ns = int(attrs.mtime) * _NANO + (attrs.mtime_ns or 0)
    if attrs.atime is None:
        return mtime_ns, mtime_ns
    return int(attrs.atime) * _NANO + (attrs.atime_ns or 0), mtime_ns


def flags_of(desired_access: int, flags: int) -> int:
    """Return what an OPEN of SFTP 5 or 6 asks for in the flags of SFTP 3."""
    pflags = _DISPOSITIONS.get(flags & constants.FXF_ACCESS_DISPOSITION, 0)
    if desired_access & constants.ACE4_WRITE_DATA:
        pflags |= constants.FXF_WRITE
    if desired_access & constants.ACE4_APPEND_DATA or flags & constants.FXF_APPEND_DATA:
        pflags |= constants.FXF_APPEND
    return pflags
