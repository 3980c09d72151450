"""The requests of SFTP, answered in a user's folder.

Not here: how requests come (session.py), how uploads land (landing.py), and what
follows (after_upload.py). Read next: reading.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from posixpath import basename
from typing import TypeVar

import asyncssh
from asyncssh import constants

from pscp.endpoint.reading.paths import status_of
from pscp.serve.account import Account, is_same
from pscp.serve.after_upload import Told, Untold
from pscp.serve.content import Digest, SessionLoad, digest_of
from pscp.serve.folder import Folder, relative
from pscp.serve.landing import (
    LandedFile,
    Name,
    Place,
    Upload,
    discard,
    is_marked,
    is_runs,
    is_unchanged,
)
from pscp.serve.reading import Listing, Reading, attrs_of, flags_of, times_ns
from pscp.serve.rules import Rules, has_nonce, is_of_run, is_told, named_later
from pscp.serve.settings import Settings
from pscp.transports.libraries.asyncssh_server_internals import DATA_BYTES, Channel, room

_O = TypeVar("_O", "Reading", "Upload")
_REMEMBERED = 1000  # files that landed in this session


class Files(asyncssh.SFTPServer):
    """The files of one session. The event loop alone uses it."""

    def __init__(self, settings: Settings, told: Told, load: SessionLoad) -> None:
        """Raises OSError where the user's folder cannot be opened."""
        self.told, self.rules = told, Rules(told.user)
        folder = Folder(told.user.folder)
        self.place = Place(folder, self.rules, Account(settings.state, told.user))
        self.load, self.open_files = load, settings.open_files
        self._open: set[Reading | Upload] = set()
        self._listings: weakref.WeakSet[Listing] = weakref.WeakSet()
        self._landed: OrderedDict[tuple[int, int], LandedFile] = OrderedDict()
        self._untold = Untold(folder, told)

    def begin(self, chan: Channel, settle: Callable[[], None]) -> None:
        """Serve this channel; `settle` is called when bytes have been written."""
        super().__init__(chan)
        self.load.settle = settle

    async def ready(self) -> None:
        """Wait until what lies in the folder has been counted. Raises OSError."""
        await self.load.in_thread(self.place.account.count_once)

    def uploads(self) -> list[tuple[bytes, int]]:
        """Return the uploads that are open: their paths, and how many bytes each has."""
        found = [each for each in self._open if isinstance(each, Upload)]
        return [(each.path, each.content.size_bytes) for each in found]

    def lose(self) -> None:
        """Land nothing any more: what closes a file from now on is not the client."""
        self.load.is_lost = True

    async def exit(self) -> None:
        for each in [*self._open]:
            if isinstance(each, Upload):
                await each.writer.settled()
            self._close(each)
        for listing in [*self._listings]:
            listing.close()
        await self.load.in_thread(self._untold.tell_all)
        self.place.folder.close()
        self.place.account.close()

    # --- helpers

    def _path(self, path: bytes) -> bytes:
        found = relative(path)
        self.rules.check_path(found)
        return found

    def _opened(self, each: _O) -> _O:
        self._open.add(each)
        return each

    def _close(self, each: Reading | Upload) -> None:
        if each in self._open:
            self._open.remove(each)
            each.close()

    def _check_open(self) -> None:
        if len(self._open) + len(self._listings) >= self.open_files:
            raise OSError(errno.EMFILE, "too many open files")

    @contextlib.contextmanager
    def _telling(self, what: str, path: bytes, may: bool = True) -> Iterator[None]:
        """Tell of what is refused, as all of it is where the user may not do this."""
        try:
            self.rules.check(may, what)
            yield
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDQUOT, errno.EFBIG):
                self.told.refused(f"{what} {os.fsdecode(path)}", error)
            raise

    @contextlib.contextmanager
    def _changing(
        self, what: str, path: bytes, may: bool | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Give the open folder and the name that is to change, where the user may: who may write,
        if nothing is said.
        """
        found = self._path(path)
        with (
            self._telling(what, path, self.rules.may_write if may is None else may),
            self.place.folder.parent(found) as parent,
            self.place.account.naming(),
        ):
            yield parent

    # --- open files

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        self._check_open()
        if not pflags & (constants.FXF_WRITE | constants.FXF_APPEND):
            return self._opened_to_read(path)
        with self._telling("open", path):
            return self._opened(self.place.begin(self._path(path), pflags, self.load))

    async def _opened_to_read(self, path: bytes) -> Reading:
        """Open a file to read it, once what came for it in this session is written."""
        with self._telling("open", path):
            found = self._path(path)
            self._check_read(found)
            for each in [*self._open]:
                if isinstance(each, Upload) and each.path == found:
                    await each.writer.settled()
            return self._opened(self.place.reading(found))

    def open56(
        self, path: bytes, desired_access: int, flags: int, attrs: asyncssh.SFTPAttrs
    ) -> object:
        return self.open(path, flags_of(desired_access, flags), attrs)

    async def close(self, file_obj: object) -> None:
        if isinstance(file_obj, Upload):
            await self._finish(file_obj)
        elif isinstance(file_obj, Reading):
            self._close(file_obj)

    async def _finish(self, upload: Upload) -> None:
        """Have an upload land, unless the client is gone."""
        try:
            if self.load.is_lost:
                await upload.writer.settled()
                return
            with self._telling("close", upload.path):
                landed = await upload.finish(self.load, self.told)
            if landed is not None:
                self._remember(upload.path, landed)
        finally:
            self._close(upload)

    async def drop(self, upload: Upload) -> None:
        """Remove an upload that its client has given up."""
        await upload.writer.settled()
        upload.discard()
        self._close(upload)

    def _remember(self, path: bytes, landed: LandedFile) -> None:
        self._untold.add(path, landed)
        self._landed[landed.status.st_dev, landed.status.st_ino] = landed
        if len(self._landed) > _REMEMBERED:
            self._landed.popitem(last=False)

    async def read(self, file_obj: object, offset: int, size: int) -> bytes:
        await room(self.connection)
        data = await self._read(file_obj, offset, min(size, DATA_BYTES))
        self.load.moved_s = await self.place.account.paced(len(data))
        return data

    async def _read(self, file_obj: object, offset: int, size: int) -> bytes:
        if isinstance(file_obj, Upload):
            self._check_read(file_obj.path)
            await file_obj.writer.drain()
            return await self.load.in_thread(partial(file_obj.content.read, offset, size))
        assert isinstance(file_obj, Reading)
        return await file_obj.read(offset, size, self.load)

    async def digest(self, file_obj: object, name: str, offset: int, size_bytes: int) -> bytes:
        if isinstance(file_obj, Upload):
            self._check_read(file_obj.path)
            await file_obj.writer.drain()
            fd = file_obj.content.whole_fd
        else:
            assert isinstance(file_obj, Reading)
            fd = file_obj.fd
        return await digest_of(fd, name, offset, size_bytes, self.load)

    def _check_read(self, path: bytes) -> None:
        """Raises OSError where neither the file may be read, nor an upload that gets its name."""
        self.rules.check(self.rules.may_read_part(basename(path)), "read")

    async def write(self, file_obj: object, offset: int, data: bytes) -> int:
        if not isinstance(file_obj, Upload):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        await file_obj.writer.room()
        with self._telling("write", file_obj.path):
            file_obj.writer.write(offset, data)
        return len(data)

    async def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
        if not isinstance(file_obj, Upload):
            assert isinstance(file_obj, Reading)
            return attrs_of(os.fstat(file_obj.fd))
        await file_obj.writer.drain()
        attrs = attrs_of(file_obj.status())
        attrs.size = file_obj.content.whole_bytes
        return attrs

    async def fsetstat(self, file_obj: object, attrs: asyncssh.SFTPAttrs) -> None:
        if isinstance(file_obj, Upload):
            if attrs.size is not None:
                await file_obj.writer.truncate(attrs.size)
            file_obj.times_ns = times_ns(attrs) or file_obj.times_ns
        elif isinstance(file_obj, Reading) and (times := times_ns(attrs)) is not None:
            self._check_change(os.fstat(file_obj.fd))
            os.utime(file_obj.fd, ns=times)

    async def fsync(self, file_obj: object) -> None:
        if isinstance(file_obj, Upload):
            await file_obj.writer.drain()
            await self.load.in_thread(partial(os.fsync, file_obj.content.fd))

    # --- names

    def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return self._status(self._path(path), follow=True)

    def lstat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return self._status(self._path(path), follow=False)

    def _status(self, path: bytes, follow: bool) -> asyncssh.SFTPAttrs:
        return attrs_of(self.place.unfinished(path) or self.place.folder.stat(path, follow))

    async def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        found = self._path(path)
        if attrs.size is not None:
            is_fresh = self.place.unfinished(found) is None
            upload = self._opened(self.place.begin(found, 0, self.load))
            try:
                await self.fsetstat(upload, attrs)
            except BaseException:
                await self.drop(upload) if is_fresh else self._close(upload)
                raise
            await self._finish(upload)
        elif (times := times_ns(attrs)) is not None:
            fd = self.place.folder.open(found, os.O_RDONLY)
            try:
                self._check_change(os.fstat(fd))
                os.utime(fd, ns=times)
            finally:
                os.close(fd)

    def lsetstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        times = times_ns(attrs)
        with self.place.folder.parent(self._path(path)) as (fd, name):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if times is not None:
                self._check_change(status)
                os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)

    def _check_change(self, status: os.stat_result) -> None:
        """Raises OSError where the times of a file may not be set."""
        is_own = (status.st_dev, status.st_ino) in self._landed or stat.S_ISDIR(status.st_mode)
        self.rules.check(self.rules.may_write or (self.rules.may_add and is_own), "change it")

    def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        self._check_open()
        with self._telling("list", path, self.rules.may_read):
            listing = Listing(self.place.folder, self._path(path), self.rules)
        self._listings.add(listing)
        return listing

    def realpath(self, path: bytes) -> bytes:
        return b"/" + relative(path).removeprefix(b".")

    def remove(self, path: bytes) -> None:
        may = self.rules.may_remove(basename(self._path(path)))
        with self._changing("remove", path, may) as (fd, name):
            account = self.place.account
            was_part = discard(account, fd, self.rules.part(name))
            with account.losing(fd, name) as status:
                if status is not None or not was_part:
                    os.unlink(name, dir_fd=fd)
            if status is not None:
                self._landed.pop((status.st_dev, status.st_ino), None)
                self._untold.renamed(self._path(path))

    def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        self.rules.check(self.rules.may_add, "make folders")
        owner, mode = self.rules.user.owner, self.rules.folder_mode
        with (
            self._telling("make", path),
            self.place.folder.parent(self._path(path)) as (fd, name),
        ):
            with self.place.account.one_more():
                os.mkdir(name, mode, dir_fd=fd)
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            try:  # the umask has its say in what mkdir(2) makes
                os.fchmod(made, os.fstat(made).st_mode & stat.S_ISGID | mode)
                if owner is not None:
                    os.fchown(made, *owner)
            finally:
                os.close(made)

    def rmdir(self, path: bytes) -> None:
        with (
            self._changing("remove", path) as (fd, name),
            self.place.account.losing(fd, name),
        ):
            os.rmdir(name, dir_fd=fd)

    async def rename(self, oldpath: bytes, newpath: bytes) -> None:
        await self._rename(oldpath, newpath, False)

    async def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
        await self._rename(oldpath, newpath, self.rules.may_write)

    async def _rename(self, oldpath: bytes, newpath: bytes, replace: bool) -> None:
        old, new = self._path(oldpath), self._path(newpath)
        is_finished = named_later(basename(old)) is not None  # its client says so
        may = self.rules.may_write or (self.rules.may_add and is_finished)
        with (
            self._telling("rename", newpath, may),
            self.place.folder.parent(old) as source,
            self.place.folder.parent(new) as target,
        ):
            status = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
            self._check_rename(source, status, new)
            is_linked = is_same(status_of(*target), status)  # then nothing happens
            is_upload = is_finished and stat.S_ISREG(status.st_mode)
            if is_linked or is_of_run(target[1]) or not is_upload:
                self.place.give_name(source, target, replace)
                self._untold.renamed(old, new)
                return
            # Hashed first: a client that goes meanwhile leaves a part, and nothing untold.
            landed = await self.load.in_tries(
                lambda: self._landing(source),
                lambda its: self.place.rename_whole(source, target, replace, its, self.told),
            )
            self._untold.renamed(old)
            assert landed is not None
            self._remember(new, landed)

    def _check_rename(self, source: Name, status: os.stat_result, new: bytes) -> None:
        """Raises OSError where what lies at `source` may not get this name."""
        self.rules.check_renamed(source[1], basename(new))
        if not stat.S_ISDIR(status.st_mode):  # whose name says nothing of what is in it
            self.rules.check_name(new)
        if not stat.S_ISREG(status.st_mode):
            self.rules.check(self.rules.may_write, "rename")
        is_own = self.rules.may_write or self._is_own(*source, status)
        self.rules.check(is_own, "rename what is another's")

    def _is_own(self, folder_fd: int, name: bytes, status: os.stat_result) -> bool:
        """Has this user put it there, in this session or another?"""
        is_landed = (status.st_dev, status.st_ino) in self._landed
        return is_landed or has_nonce(name) or is_marked(folder_fd, name, self.rules)

    async def _landing(self, source: Name) -> LandedFile:
        """Return what is known of an upload that is about to get its name from a temporary one."""
        account = self.place.account
        reading = self._opened(Reading(account, account.opened(source[1], source[0])))
        try:
            status = os.fstat(reading.fd)
            known = self._landed.get((status.st_dev, status.st_ino))
            if known is not None and known.sha256 and is_unchanged(known.status, status):
                return known
            return LandedFile(status, await Digest(reading.fd).whole(self.load))
        finally:
            self._close(reading)

    # --- links

    def readlink(self, path: bytes) -> bytes:
        with self.place.folder.parent(self._path(path)) as (fd, name):
            return os.readlink(name, dir_fd=fd)

    def symlink(self, oldpath: bytes, newpath: bytes) -> None:
        folder = self.place.folder
        with self._changing("link", newpath) as (fd, name), self.place.account.one_more():
            path = folder.path_of(fd, name)
            to = folder.target(path, oldpath)
            self.rules.check_path(to)
            self.rules.check_name(name)
            os.symlink(folder.link_to(path, to), name, dir_fd=fd)

    def link(self, oldpath: bytes, newpath: bytes) -> None:
        with (
            self._changing("link", newpath) as target,
            self.place.folder.parent(self._path(oldpath)) as source,
            self.place.account.one_more(),
        ):
            self.rules.check_name(target[1])
            status = os.stat(source[1], dir_fd=source[0], follow_symlinks=False)
            is_part = is_runs(status) or (is_of_run(target[1]) and not has_nonce(target[1]))
            self.rules.check(is_told(source[1]) and not is_part, "give such names")
            fds = {"src_dir_fd": source[0], "dst_dir_fd": target[0]}
            os.link(source[1], target[1], **fds, follow_symlinks=False)

    # --- the filesystem, and words

    def statvfs(self, path: bytes) -> os.statvfs_result:
        self.place.folder.stat(self._path(path))
        return os.statvfs(self.place.folder.fd)

    def fstatvfs(self, file_obj: object) -> os.statvfs_result:
        return os.statvfs(self.place.folder.fd)

    def format_user(self, uid: int | None) -> str:
        return str(uid)  # no names of the machine's own accounts

    def format_group(self, gid: int | None) -> str:
        return str(gid)
