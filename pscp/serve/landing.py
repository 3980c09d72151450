"""From a part to a file: an upload has a part's hidden name until it is complete and durable.

A part that a client left is continued by the next upload to the same name that does not begin anew.

Not here: how its bytes are written (content.py). Read next: content.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from asyncssh import FXF_APPEND, FXF_CREAT, FXF_EXCL, FXF_TRUNC

from pscp.endpoint.reading.paths import status_of
from pscp.endpoint.writing.removal import sync_folder
from pscp.serve.account import Account, entries, is_locked, is_same
from pscp.serve.content import Content, SessionLoad, Writer, alone, taken
from pscp.serve.folder import QUICK, Folder, rename
from pscp.serve.reading import Reading
from pscp.serve.rules import Rules, has_nonce, is_of_run, named_later, refused
from pscp.serve.settings import User

_MARK = "user.pscp-serve"  # whose a file is that has a temporary name: its user may rename it
# A part's mode says whether one session alone has written it, and whether what it changes is not
# all in it: that one has no second handle. Nothing that has landed has x, so then it is closed to
# who has it open still (content.py).
_ALONE, _SHARED, _CHANGES = 0o710, 0o711, 0o1710
# The same of a file that a copy by pscp makes for itself, until it gets its name.
_RUNS_ALONE, _RUNS_SHARED = 0o700, 0o701

Name = tuple[int, bytes]  # in an open folder


class LandedFile(NamedTuple):
    """A file that has its name."""

    status: os.stat_result
    sha256: str


class Tell(Protocol):
    """Is told of each file as it lands, by the file's path in the user's folder."""

    def lands(self, path: bytes, size_bytes: int, sha256: str) -> None:
        """Note a file that is whole and on the disk, before it gets its name. Raises OSError."""

    def landed(self, path: bytes, landed: LandedFile) -> None:
        """Note that a file has got its name."""


@dataclass
class Place:
    """The folder of a user, with the rules and the quota by which uploads get their names in it."""

    folder: Folder
    rules: Rules
    account: Account

    def begin(self, path: bytes, flags: int, load: SessionLoad) -> Upload:
        """Open the part of a file that a client is to write, by SFTP 3's flags. Raises OSError."""
        self.rules.check(self.rules.may_add, "upload")
        path = path if flags & FXF_EXCL else self.folder.real(path)
        self.rules.check_path(path)
        self.rules.check_name(path)
        with self.folder.parent(path) as (above, name), self.account.naming():
            folder_fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
            try:
                fd, base, is_alone = self._open(folder_fd, name, flags)
            except BaseException:
                os.close(folder_fd)
                raise
        content = Content(fd, self.account, base, self.rules.user.largest)
        writer = Writer(content, load, appends=bool(flags & FXF_APPEND))
        return Upload(self, path, folder_fd, is_alone, writer)

    def _open(self, folder_fd: int, name: bytes, flags: int) -> tuple[int, int | None, bool]:
        """Return the part's descriptor, that of the file which it changes, whether it is alone."""
        final, part, base = status_of(folder_fd, name), self.rules.part(name), None
        if part == name:
            return self._opened_of_run(folder_fd, name, flags)
        if final is not None:
            self._check_there(final, flags)
        elif not flags & FXF_CREAT and status_of(folder_fd, part) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not flags & (FXF_TRUNC | FXF_EXCL):
            held = _opened_part(folder_fd, part)
            if held is not None:
                is_alone = self.account.has_alone(held)
                is_locked(held, fcntl.LOCK_SH)
                if is_alone and not os.fstat(held).st_mode & stat.S_IXUSR:  # killed as it landed
                    os.fchmod(held, _SHARED)
                if is_alone or self._is_shared(held):
                    return held, None, is_alone
                # Another session has it, maybe one whose client is gone: it may not write this.
                base = self._taken(held)
            if base is None and final is not None:
                base = self.account.opened(name, folder_fd)
        return self._made(folder_fd, part, base), base, True

    def _opened_of_run(self, folder_fd: int, name: bytes, flags: int) -> tuple[int, None, bool]:
        """Do so for a file that a copy by pscp makes for itself, which is its own part."""
        if status_of(folder_fd, name) is None:
            if not flags & FXF_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return self._made(folder_fd, name, None), None, True
        if flags & (FXF_EXCL | FXF_TRUNC):  # no lane of pscp's begins anew what another may have
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        held = self.account.opened(name, folder_fd, os.O_RDWR)
        is_left = self.account.has_alone(held) and has_nonce(name)  # maybe killed as it landed
        is_locked(held, fcntl.LOCK_SH)
        with alone(held):
            status = os.fstat(held)
            may = is_runs(status) or (is_left and status.st_nlink == 1)
            if may:
                os.fchmod(held, _RUNS_SHARED)
        if not may:
            self.account.release(held)
            raise refused("what has this name is another's file")
        return held, None, False

    def _is_shared(self, held: int) -> bool:
        """Share a part with who has it open, where that may be. Return whether it may."""
        may = not self.rules.is_append_only and _mode(held) != _CHANGES
        if may:
            os.fchmod(held, _SHARED)
        return may

    def _taken(self, held: int) -> int | None:
        """Return the part of a session that loses its place, if another goes on with it."""
        if self.rules.is_append_only:
            return held
        self.account.release(held)
        return None

    def _made(self, folder_fd: int, part: bytes, base: int | None) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = _RUNS_ALONE if is_of_run(part) else _CHANGES if base is not None else _ALONE
        try:
            discard(self.account, folder_fd, part)
            with self.account.one_more():
                fd = os.open(part, flags, mode, dir_fd=folder_fd)
        except BaseException:
            if base is not None:
                self.account.release(base)
            raise
        is_locked(fd, fcntl.LOCK_SH)
        os.fchmod(fd, mode)
        return fd

    def _check_there(self, final: os.stat_result, flags: int) -> None:
        """Raises OSError where what has the name is in the way of an upload."""
        if stat.S_ISDIR(final.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if flags & FXF_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if not stat.S_ISREG(final.st_mode):
            raise refused("what has this name is no file")
        self.rules.check(not self.rules.is_append_only, "change what has landed")

    def give_name(self, source: Name, target: Name, replace: bool) -> None:
        """Give a name to what lies at another. Raises OSError."""
        part = self.rules.part(target[1])
        with self.account.naming():
            with self.account.losing(*target):
                rename(source, target, replace)
            if part != target[1]:
                discard(self.account, target[0], part)

    def rename_whole(
        self, source: Name, target: Name, replace: bool, landing: LandedFile, tell: Tell
    ) -> LandedFile | None:
        """Do so with a whole upload, as land() does."""
        is_part = is_runs(landing.status)
        fd = self.account.opened(source[1], source[0], os.O_RDWR if is_part else os.O_RDONLY)
        try:
            close = self.give_mode if is_part else None  # else it is closed already
            return self.land(fd, source, target, landing, tell, close=close, replace=replace)
        finally:
            self.account.release(fd)

    def land(
        self, fd: int, source: Name, target: Name, landing: LandedFile, tell: Tell, *,
        close: Callable[[int], None] | None, replace: bool,
    ) -> LandedFile | None:  # fmt: skip
        """Have an open file land, and told, once it is durable; `landing` is what is known of it.

        Return None where it has changed since, or somebody goes on with it. Raises OSError. `close`
        gives it the mode by which nobody writes it any more. No lock is held while a disk is waited
        for: who comes in meanwhile opens the part again, and then it gets no name.
        """
        path, naming = self.folder.path_of(*target), self.account.naming
        with naming(), alone(fd) if close is not None else contextlib.nullcontext():
            if not is_same(status_of(*source), landing.status):
                raise taken()
            if not is_unchanged(landing.status, os.fstat(fd)):
                return None
            if not replace and status_of(*target) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            if close is not None:
                close(fd)
        closed, is_named = os.fstat(fd), False
        try:
            os.fsync(fd)
            tell.lands(path, closed.st_size, landing.sha256)
            with naming():
                if not is_same(status_of(*source), closed):
                    raise taken()
                if os.fstat(fd).st_mode != closed.st_mode or self.folder.path_of(*target) != path:
                    return None
                self.give_name(source, target, replace)
                is_named = True
        finally:
            if not is_named:
                self._open_again(fd, source, closed, landing.status)
        sync_folder(target[0])
        landed = LandedFile(os.fstat(fd), landing.sha256)
        tell.landed(path, landed)
        return landed

    def _open_again(
        self, fd: int, source: Name, closed: os.stat_result, before: os.stat_result
    ) -> None:
        """Let a part that has not landed be gone on with."""
        with self.account.naming():
            is_still = is_same(status_of(*source), closed)
            if is_still and os.fstat(fd).st_mode == closed.st_mode != before.st_mode:
                os.fchmod(fd, stat.S_IMODE(before.st_mode))

    def give_mode(self, fd: int) -> None:
        """Give a file that lands its owner and its mode."""
        if self.rules.user.owner is not None:
            os.fchown(fd, *self.rules.user.owner)
        os.fchmod(fd, self.rules.user.mode)

    def reading(self, path: bytes) -> Reading:
        """Open a file to read it, also before it lands. Raises OSError.

        Who may not read may read what has not landed, and is no link to what has.
        """
        with self.account.naming():
            try:
                fd = self._opened_to_read(path)
            except FileNotFoundError:
                above, slash, name = path.rpartition(b"/")
                fd = self._opened_to_read(above + slash + self.rules.part(name))
            status = os.fstat(fd)
            may = self.rules.may_read or is_runs(status)
            if stat.S_ISREG(status.st_mode) and may:
                return Reading(self.account, fd)
        os.close(fd)
        self.rules.check(may, "read")
        is_folder = stat.S_ISDIR(status.st_mode)
        raise OSError(errno.EISDIR, "a folder") if is_folder else refused("no file")

    def _opened_to_read(self, path: bytes) -> int:
        if self.rules.may_read:
            return self.folder.open(path, os.O_RDONLY)
        with self.folder.parent(path) as (fd, name):
            return self.account.opened(name, fd)

    def unfinished(self, path: bytes) -> os.stat_result | None:
        """Return the status of this user's part of a file, if there is one.

        A folder or a link may have got the name meanwhile.
        """
        with contextlib.suppress(OSError), self.folder.parent(path) as (fd, name):
            final = status_of(fd, name)
            if final is None or stat.S_ISREG(final.st_mode):
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

    def status(self) -> os.stat_result:
        return os.fstat(self.content.fd)

    async def finish(self, load: SessionLoad, tell: Tell) -> LandedFile | None:
        """Have it land, and told, unless nothing of the file was to be changed. Raises OSError."""
        await self.writer.drain()
        if is_of_run(self._name):  # it lands when it is renamed
            return await load.in_thread(self._closed)
        base = self.content.base
        if base is not None and not self._place.rules.is_append_only:  # else it is a part
            self.discard()
            fd = self._folder_fd
            if self.times_ns is not None and is_same(status_of(fd, self._name), base):
                os.utime(self._name, ns=self.times_ns, dir_fd=fd, follow_symlinks=False)
            return None
        await self.writer.complete()
        return await load.in_tries(lambda: self._known(load), lambda known: self.land(known, tell))

    async def _known(self, load: SessionLoad) -> LandedFile | None:
        """Return what is known of the part; None where it has landed by another handle's close."""
        status = self.status()
        if not self._has_name(status):
            return LandedFile(status, await self._sha256(load))
        if self.times_ns is not None:
            os.utime(self.content.fd, ns=self.times_ns)
        return None

    def _closed(self) -> LandedFile | None:
        """Return what is known of the part of a copy by pscp, if it is. Raises OSError."""
        fd, digest = self.content.fd, self.content.digest
        with alone(fd):
            if self.times_ns is not None and is_runs(os.fstat(fd)):  # else it has landed meanwhile
                os.utime(fd, ns=self.times_ns)
            status = os.fstat(fd)
        is_mine = self._is_alone and stat.S_IMODE(status.st_mode) == _RUNS_ALONE
        is_known = is_mine and digest.bytes == status.st_size
        return LandedFile(status, digest.so_far) if is_known else None

    async def _sha256(self, load: SessionLoad) -> str:
        own, part = os.fstat(self.content.fd), self._place.rules.part(self._name)
        is_mine = self._is_alone and stat.S_IMODE(own.st_mode) in (_ALONE, _CHANGES)
        if not is_mine or not is_same(status_of(self._folder_fd, part), own):
            self.content.digest.restart()  # several sessions write it
        return await self.content.digest.whole(load)

    def land(self, landing: LandedFile, tell: Tell) -> LandedFile | None:
        """Give the part the file's name, as Place.land() does."""
        rules, fd = self._place.rules, self._folder_fd
        source, target = (fd, rules.part(self._name)), (fd, self._name)
        try:
            return self._place.land(
                self.content.fd, source, target, landing, tell, close=self._close,
                replace=not rules.is_append_only,
            )  # fmt: skip
        except OSError:
            if self._has_name(self.status()):
                return None
            raise

    def _has_name(self, status: os.stat_result) -> bool:
        return is_same(status_of(self._folder_fd, self._name), status)

    def _close(self, fd: int) -> None:
        rules = self._place.rules
        if rules.is_append_only and named_later(self._name) is not None:
            with contextlib.suppress(OSError):  # a filesystem without them: this session may rename
                os.setxattr(fd, _MARK, rules.key.encode())
        self._place.give_mode(fd)
        if self.times_ns is not None:
            os.utime(fd, ns=self.times_ns)

    def discard(self) -> None:
        """Remove the part, which nobody can resume."""
        part, own = self._place.rules.part(self._name), os.fstat(self.content.fd)
        account = self._place.account
        with account.naming():
            if is_same(status_of(self._folder_fd, part), own):
                discard(account, self._folder_fd, part)

    def close(self) -> None:
        """Close its descriptors; a part that has not landed stays."""
        self.content.close()
        os.close(self._folder_fd)


def is_runs(status: os.stat_result) -> bool:
    """Is it a file that a copy by pscp makes for itself, which has not landed?"""
    return status.st_mode in (stat.S_IFREG | _RUNS_ALONE, stat.S_IFREG | _RUNS_SHARED)


def is_unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    """Is it the same file, which nobody has written, or opened to write it, since then?"""
    facts = [(each.st_size, each.st_mode, each.st_ctime_ns) for each in (before, now)]
    return is_same(before, now) and facts[0] == facts[1]


def _opened_part(folder_fd: int, part: bytes) -> int | None:
    try:
        fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | QUICK | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refused("what has this name is no file")
    return fd


def _mode(fd: int) -> int:
    return stat.S_IMODE(os.fstat(fd).st_mode)


def _is_open(account: Account, folder_fd: int, part: bytes) -> bool:
    """Has a session a part open?"""
    fd = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | QUICK, dir_fd=folder_fd)
    try:
        return not account.has_alone(fd)
    finally:
        os.close(fd)


def is_marked(folder_fd: int, name: bytes, rules: Rules) -> bool:
    """Has this user, who may only add, put a file there under a temporary name?"""
    path = b"/proc/self/fd/%d/%s" % (folder_fd, name)
    try:
        return os.getxattr(path, _MARK, follow_symlinks=False) == rules.key.encode()
    except OSError:
        return False


def discard(account: Account, folder_fd: int, part: bytes) -> bool:
    """Remove a part, if it is there. Return whether it was. Raises OSError."""
    with account.losing(folder_fd, part) as status:
        if status is not None:
            os.unlink(part, dir_fd=folder_fd)
        return status is not None


def sweep(user: User, account: Account, keep_s: float) -> int:
    """Remove what a user has not resumed for so many seconds.

    Return how many parts it were. Raises OSError.
    """
    account.count_once()
    rules, before_s, swept = Rules(user), time.time() - keep_s, 0
    for folder_fd, name, status in entries(user.folder):
        is_own, is_runs_own = rules.lands_as(name) is not None, has_nonce(name)
        # A part of pscp's has its source's times in the end.
        last_s = max(status.st_mtime, status.st_ctime) if is_runs_own else status.st_mtime
        if (is_own or (is_runs_own and stat.S_ISREG(status.st_mode))) and last_s < before_s:
            with account.naming(), contextlib.suppress(FileNotFoundError):
                if not _is_open(account, folder_fd, name):
                    swept += discard(account, folder_fd, name)
    return swept
