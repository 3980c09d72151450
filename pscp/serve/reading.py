"""What a client reads: open files, the names in a folder, and what SFTP says in other words.

Not here: how a folder is opened (folder.py), who may list it (files.py). Read next: landing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from functools import partial

import asyncssh
from asyncssh import constants

from pscp.serve.account import Account, is_locked, status_of
from pscp.serve.content import SessionLoad
from pscp.serve.folder import Folder
from pscp.serve.rules import Rules, is_part

_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
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
                    attrs = asyncssh.SFTPAttrs.from_local(entry.stat(follow_symlinks=False))
                    return asyncssh.SFTPName(later, attrs=attrs)
        raise StopAsyncIteration

    def close(self) -> None:
        """Close the folder."""
        if self._fd >= 0:
            self._names.close()
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # asyncssh only forgets it


def times_ns(attrs: asyncssh.SFTPAttrs) -> tuple[int, int] | None:
    """Return the access and modification times that a client gives, if it gives them."""
    if attrs.mtime is None:
        return None
    mtime_ns = int(attrs.mtime) * 10**9 + (attrs.mtime_ns or 0)
    if attrs.atime is None:
        return mtime_ns, mtime_ns
    return int(attrs.atime) * 10**9 + (attrs.atime_ns or 0), mtime_ns


# What SFTP 5 and 6 ask for by their dispositions, in the flags of SFTP 3.
_CREATE, _TRUNCATE = constants.FXF_CREAT, constants.FXF_TRUNC
_DISPOSITIONS = {
    constants.FXF_CREATE_NEW: _CREATE | constants.FXF_EXCL,
    constants.FXF_CREATE_TRUNCATE: _CREATE | _TRUNCATE,
    constants.FXF_OPEN_EXISTING: 0,
    constants.FXF_OPEN_OR_CREATE: _CREATE,
    constants.FXF_TRUNCATE_EXISTING: _TRUNCATE,
}


def flags_of(desired_access: int, flags: int) -> int:
    """Return what an OPEN of SFTP 5 or 6 asks for in the flags of SFTP 3."""
    pflags = _DISPOSITIONS.get(flags & constants.FXF_ACCESS_DISPOSITION, 0)
    if desired_access & constants.ACE4_WRITE_DATA:
        pflags |= constants.FXF_WRITE
    if desired_access & constants.ACE4_APPEND_DATA or flags & constants.FXF_APPEND_DATA:
        pflags |= constants.FXF_APPEND
    return pflags
