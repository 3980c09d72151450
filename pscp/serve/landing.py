"""From a part to a file: an upload has a part's hidden name until it is complete and durable.

A part that a client left is continued by the next upload to the same name that does not begin anew.

Not here: how its bytes are written (upload.py). Read next: upload.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from typing import NamedTuple

from pscp.endpoint.writing.removal import sync_folder
from pscp.serve.account import Account, statuses
from pscp.serve.folder import QUICK, Folder, rename
from pscp.serve.rules import Rules, is_part, named_later, refused
from pscp.serve.settings import User
from pscp.serve.upload import Content, Waiting, Writer

_ALONE, _SHARED = 0o600, 0o620  # a part's mode says whether one session alone has written it


class Opening(NamedTuple):
    """How a client opens a file that it writes."""

    appends: bool = False
    truncates: bool = False
    makes: bool = False
    is_new: bool = False  # it fails where there is a file


class Landed(NamedTuple):
    """A file that has its name."""

    path: bytes
    status: os.stat_result
    sha256: str  # "" where it is not known yet


@dataclass
class Place:
    """Where a user's uploads land."""

    folder: Folder
    rules: Rules
    account: Account

    def begin(self, path: bytes, how: Opening, waiting: Waiting) -> Upload:
        """Open the part of a file that a client is to write. Raises OSError."""
        self.rules.check(self.rules.may_add, "upload")
        path = path if how.is_new else self.folder.real(path)
        self.rules.check_path(path)
        self.rules.check_name(path)
        with self.folder.parent(path) as (above, name):
            folder_fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
            try:
                fd, base, is_alone = self._open(folder_fd, name, how)
            except BaseException:
                os.close(folder_fd)
                raise
        content = Content(fd, self.account, base, self.rules.user.largest)
        return Upload(self, path, folder_fd, is_alone, Writer(content, waiting, how.appends))

    def _open(self, folder_fd: int, name: bytes, how: Opening) -> tuple[int, int | None, bool]:
        """Return the part's descriptor, that of the file which it changes, whether it is alone."""
        final, part = status_of(folder_fd, name), self.rules.part(name)
        if final is not None:
            self._check_there(final, how)
        held = None if how.truncates or how.is_new else _opened_part(folder_fd, part)
        if held is not None:
            is_alone = _is_locked(held)
            if is_alone and not _is_named(folder_fd, part, held):  # it has landed meanwhile
                os.close(held)
                return self._open(folder_fd, name, how)
            if is_alone or not self.rules.is_append_only:
                if not is_alone:
                    os.fchmod(held, _SHARED)
                return held, None, is_alone
            # Another session has it, maybe one whose client is gone: it may no longer write this.
        elif final is None and not how.makes and status_of(folder_fd, part) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        base = held
        if base is None and final is not None and not how.truncates:
            base = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | QUICK, dir_fd=folder_fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.account.naming():
            self.discard_held(folder_fd, part)
            self.account.charge(0, 1)
            fd = os.open(part, flags, _ALONE, dir_fd=folder_fd)
        return fd, base, _is_locked(fd)

    def _check_there(self, final: os.stat_result, how: Opening) -> None:
        """Raises OSError where what has the name is in the way of an upload."""
        if stat.S_ISDIR(final.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if how.is_new:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if not stat.S_ISREG(final.st_mode):
            raise refused("what has this name is no file")
        self.rules.check(not self.rules.is_append_only, "change what has landed")

    def discard(self, folder_fd: int, part: bytes) -> bool:
        """Remove a part, if it is there. Return whether it was. Raises OSError."""
        with self.account.naming():
            return self.discard_held(folder_fd, part)

    def discard_held(self, folder_fd: int, part: bytes) -> bool:
        """Do as discard() within Account.naming()."""
        status = status_of(folder_fd, part)
        if status is None:
            return False
        os.unlink(part, dir_fd=folder_fd)
        self.account.charge(-status.st_size, -1)
        return True

    def replaced(self, before: os.stat_result | None) -> None:
        """Give back what a name's file had of the quota. Links and folders have nothing of it."""
        if before is not None and before.st_nlink == 1 and stat.S_ISREG(before.st_mode):
            self.account.charge(-before.st_size, -1)

    def unfinished(self, path: bytes) -> os.stat_result | None:
        """Return the status of this user's part of a file, if there is one."""
        with contextlib.suppress(OSError), self.folder.parent(path) as (fd, name):
            return status_of(fd, self.rules.part(name))
        return None


class Upload:
    """A file that a client writes."""

    def __init__(
        self, place: Place, path: bytes, folder_fd: int, is_alone: bool, writer: Writer
    ) -> None:
        self.path, self.writer, self.content = path, writer, writer.content
        self.times_ns: tuple[int, int] | None = None  # that the client gave it
        self._place, self._folder_fd, self._is_alone = place, folder_fd, is_alone
        self._name = path.rpartition(b"/")[2]
        self._is_closed = False

    def status(self) -> os.stat_result:
        return os.fstat(self.content.fd)

    def land(self) -> Landed:
        """Make the part durable and give it the file's name. Raises OSError."""
        self.content.complete()
        sha256 = self._digest()
        user, fd = self._place.rules.user, self.content.fd
        if user.owner is not None:
            os.fchown(fd, *user.owner)
        os.fchmod(fd, user.mode)
        if self.times_ns is not None:
            os.utime(fd, ns=self.times_ns)
        os.fsync(fd)
        self._rename()
        sync_folder(self._folder_fd)
        return Landed(self.path, os.fstat(fd), sha256)

    def _digest(self) -> str:
        is_shared = stat.S_IMODE(os.fstat(self.content.fd).st_mode) != _ALONE
        if not self._is_alone or is_shared:
            # Several sessions write it; under a temporary name it is hashed once it gets its own.
            return "" if named_later(self._name) is not None else self.content.digest(anew=True)
        return self.content.digest(anew=False)

    def _rename(self) -> None:
        with self._place.account.naming():  # between the look at the part and its new name
            self._rename_own()

    def _rename_own(self) -> None:
        rules, fd = self._place.rules, self._folder_fd
        own, part = os.fstat(self.content.fd), rules.part(self._name)
        named, before = status_of(fd, part), status_of(fd, self._name)
        if named is None or named.st_ino != own.st_ino:
            if before is None or before.st_ino != own.st_ino:
                raise OSError(errno.ESTALE, "another upload of this name has taken its place")
            return  # another handle of it was closed first
        rename((fd, part), (fd, self._name), replace=not rules.is_append_only)
        self._place.replaced(before)

    def discard(self) -> None:
        """Remove the part, which nobody can resume."""
        part, own = self._place.rules.part(self._name), os.fstat(self.content.fd)
        with self._place.account.naming():
            named = status_of(self._folder_fd, part)
            if named is not None and named.st_ino == own.st_ino:
                self._place.discard_held(self._folder_fd, part)

    def close(self) -> None:
        """Close its descriptors; a part that has not landed stays."""
        if not self._is_closed:
            self._is_closed = True
            self.content.close()
            os.close(self._folder_fd)


def status_of(folder_fd: int, name: bytes) -> os.stat_result | None:
    """Return the status of a name in an open folder, links not followed, if it is there."""
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_named(folder_fd: int, name: bytes, fd: int) -> bool:
    """Has what is open this name?"""
    named, own = status_of(folder_fd, name), os.fstat(fd)
    return named is not None and (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)


def _opened_part(folder_fd: int, part: bytes) -> int | None:
    try:
        fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | QUICK | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refused("what has this name is no file")
    return fd


def _is_locked(fd: int) -> bool:
    """Lock a part for this session. Return whether no other has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sweep(user: User, account: Account, keep_s: float) -> int:
    """Remove what nobody has resumed for so many seconds below a user's folder.

    Return how many parts it were. Raises OSError.
    """
    before_s, swept = time.time() - keep_s, 0

    def see(folder_fd: int, name: str, status: os.stat_result) -> None:
        nonlocal swept
        if is_part(os.fsencode(name)) and status.st_mtime < before_s:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
            try:
                if _is_locked(fd):
                    os.unlink(name, dir_fd=folder_fd)
                    account.charge(-status.st_size, -1)
                    swept += 1
            finally:
                os.close(fd)

    for _ in statuses(user.folder, see):
        pass
    return swept
