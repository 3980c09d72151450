"""Keeps what a copy replaces or removes, under another name below its root (--backup).

What is about to lose its name gets its backup's as a second one first, so that it always has one.
A backup of the same name is replaced, but not where the file has the contents of what comes: then
the file is no older version, and the backup may be the last one of what was there first. So work of
a lost lane, and the same command once more, lose no backup.

Sent when a copy begins that keeps backups. Not here: when a name is about to be lost (commit.py,
sink.py).
"""

import contextlib
import errno
import os
import stat
import threading
from typing import Dict, List, Optional, Tuple

from ..frames import failures, system
from ..reading import files, xattrs
from ..reading.paths import Root, status_of
from . import placing, removal
from .parts import Compared, Part, Parts, file_to_replace

_ROOM_BYTES = 1 << 18
# The filesystem has no hard links, or the file has too many.
_NO_LINK = frozenset([errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])


def place(path: str, suffix: str, folder: str) -> str:
    """Return the path of the backup of what has this path; both are relative to the root."""
    return "%s/%s%s" % (folder, path, suffix) if folder else path + suffix


class Keeper:
    """Gives files and links the names of their backups."""

    def __init__(self, root: Root, parts: Parts, path: str, suffix: str, folder: str) -> None:
        """`path` is the root's; a folder that is not in it is as placing.beside() takes it."""
        self._root, self._parts, self._suffix, self._folder = root, parts, suffix, folder
        self._path = path
        self._outside = ""  # the whole path of a folder that is not below the root
        self._making = threading.Lock()  # held to set `_opened`: the settler's thread keeps as well
        self._opened: Optional[Root] = None
        self._links: Dict[str, Optional[Compared]] = {}  # by path: what is to be a name of a file
        if placing.is_beside(folder):
            self._outside, self._folder = placing.beside(path, folder), ""

    def folders(self, of: List[str]) -> List[Tuple[Root, str]]:
        """Return the folders elsewhere that have the backups of what is in these."""
        if not self._folder and self._opened is None:
            return []
        return [(self._there(), place(path, "", self._folder).rstrip("/")) for path in of]

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _there(self) -> Root:
        """Return the root that backups are below, made if need be. Raises OSError, Refusal."""
        if not (self._folder or self._outside):
            return self._root
        with self._making:
            if self._opened is None:  # a root of its own, in which no way is made for folders
                try:
                    os.makedirs(self._outside or self._path, 0o700)
                    is_new = True
                except FileExistsError:
                    is_new = False
                self._opened = Root(self._outside or self._path)
                if is_new:
                    _give_access(self._opened.fd, self._root.fd)
            return self._opened

    def compare(self, part: Part) -> Optional[Compared]:
        """Return whether a large part has the contents of the file that it replaces, and which file
        that is; None where that cannot be read, or is no file: keep() sees what it is.
        """
        return self._compare(part.entry.path, part.entry.size, part.fd)

    def compare_link(self, path: str, file: files.Place) -> None:
        """Do the same for a path that becomes a further name of this file: keep() knows it then."""
        with contextlib.suppress(OSError):
            file_fd = files.open_for_reading(file, False)
            with system.closing(file_fd):
                self._links[path] = self._compare(path, os.fstat(file_fd).st_size, file_fd)

    def _compare(self, path: str, size: int, other_fd: int) -> Optional[Compared]:
        with contextlib.suppress(OSError, failures.Refusal):
            place = self._root.at(path)
            with system.closing(files.open_for_reading(place, False)) as fd:
                status = os.fstat(fd)
                is_same = stat.S_ISREG(status.st_mode) and status.st_size == size
                return files.identity(status), is_same and _have_same_bytes(fd, other_fd)
        return None

    def keep(
        self,
        folder_fd: int,
        name: bytes,
        path: str,
        part: bytes,
        compared: Optional[Compared],
    ) -> None:
        """Give what has this name its backup's name as well, unless it is like the part that
        replaces it.

        The caller holds the fence. Raises OSError and Refusal.
        """
        before = status_of(folder_fd, name)
        if before is None:
            return
        if (compared or self._links.pop(path, None)) == (files.identity(before), True):
            return
        if not _are_alike(folder_fd, name, before, part):
            self._keep(folder_fd, name, path, before)

    def keep_removed(self, path: str, status: os.stat_result) -> None:
        """Give what has this path, and is about to be removed, its backup's name, durably. The
        caller holds the fence. Raises OSError and Refusal.

        Without hard links it has only that name afterwards.
        """
        folder_fd, name = self._root.at(path)
        self._keep(folder_fd, name, path, status)
        removal.sync_folder(folder_fd)

    def _keep(self, folder_fd: int, name: bytes, path: str, before: os.stat_result) -> None:
        """Give it its backup's name. Raises OSError, and Refusal that names a folder elsewhere in
        which this user may not do so.
        """
        try:
            self._link(folder_fd, name, path, before)
        except PermissionError as error:
            if not (self._folder or self._outside):
                raise
            where = self._outside or self._folder
            message = "cannot be kept in %s: %s" % (where, os.strerror(error.errno or 0))
            raise failures.Refusal(failures.DESTINATION, path, message)

    def _link(self, folder_fd: int, name: bytes, path: str, before: os.stat_result) -> None:
        backup = place(path, self._suffix, self._folder)
        is_elsewhere = bool(self._folder or self._outside)
        if is_elsewhere:
            self._make_folders(backup.rpartition("/")[0], path)
        there_fd, there = self._there().at(backup)
        if not is_elsewhere:
            file_to_replace(there_fd, there, backup)
        elif _is_folder(there_fd, there):
            raise self._is_taken(path, backup, "a folder")
        _check_sticky(folder_fd, before)
        _check_sticky(there_fd, before)
        temporary = self._parts.private_name(there)
        try:
            os.link(
                name, temporary, src_dir_fd=folder_fd, dst_dir_fd=there_fd, follow_symlinks=False
            )
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if _is_folder(folder_fd, name):  # by now, and of another lane
                raise system.os_error(errno.EISDIR)
            # For a moment it has only the backup's name.
            os.rename(name, there, src_dir_fd=folder_fd, dst_dir_fd=there_fd)
        else:
            try:
                os.rename(temporary, there, src_dir_fd=there_fd, dst_dir_fd=there_fd)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=there_fd)  # rename(2) left it if both are one file
        if is_elsewhere:  # else the folder is synced once all of a batch have their names
            removal.sync_folder(there_fd)

    def _make_folders(self, path: str, of_file: str) -> None:
        """Make the folders that are missing, as private as those whose files they take."""
        made, there = "", self._there()
        for name in path.split("/") if path else ():
            made = made + "/" + name if made else name
            try:
                there.folder(made)
            except FileNotFoundError:
                of = made[len(self._folder) + 1 :] if self._folder else made
                of_fd = self._root.folder(of)
                _give_access(there.folder(made, make=True), of_fd)
                removal.sync_folder(there.folder(made.rpartition("/")[0]))
            except failures.Refusal as refusal:
                if refusal.kind != failures.UNSAFE:
                    raise
                raise self._is_taken(of_file, made, "a file or link")

    def _is_taken(self, path: str, backup: str, by: str) -> failures.Refusal:
        where = os.path.join(self._outside, backup)
        message = "cannot be kept: %s, of an earlier backup, is %s; move it away" % (where, by)
        return failures.Refusal(failures.DESTINATION, path, message)


def _give_access(fd: int, of_fd: int) -> None:
    """Give a new folder owner, group, ACL and mode of another one; what cannot be given lets nobody
    else in.
    """
    before = os.fstat(of_fd)
    mode = before.st_mode & (stat.S_ISGID | 0o777)
    for uid in (before.st_uid, -1):  # a group that we are in is ours to give
        with contextlib.suppress(PermissionError):
            os.chown(fd, uid, before.st_gid)
            break
    wanted = xattrs.of(of_fd) or {}
    wanted = {name: value for name, value in wanted.items() if name.startswith("system.")}
    xattrs.remove_others(fd, wanted)
    for name, value in wanted.items():
        with contextlib.suppress(OSError):
            os.setxattr(fd, name, value)
    if os.fstat(fd).st_gid != before.st_gid:  # other people are in the group now
        both = mode >> 3 & mode & 0o7
        mode = mode & 0o700 | both << 3 | both
    if wanted.keys() - (xattrs.of(fd) or {}).keys():
        mode &= 0o700
    os.fchmod(fd, mode)


def _is_folder(folder_fd: int, name: bytes) -> bool:
    found = status_of(folder_fd, name)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _check_sticky(folder_fd: int, file: os.stat_result) -> None:
    """Raise OSError where a further name of another user's file could not be removed again."""
    folder = os.fstat(folder_fd)
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, file.st_uid):
        raise system.os_error(errno.EPERM)


def _have_same_bytes(fd: int, other_fd: int) -> bool:
    """Have two files of one size the same contents?"""
    one, other = memoryview(bytearray(_ROOM_BYTES)), memoryview(bytearray(_ROOM_BYTES))
    offset = 0
    while True:
        count = files.read_at(fd, one, offset)
        if files.read_at(other_fd, other, offset) != count or one[:count] != other[:count]:
            return False
        if not count:
            return True
        offset += count


def _are_alike(folder_fd: int, name: bytes, before: os.stat_result, part: bytes) -> bool:
    """Is the part the same file, link, FIFO or device, or a small file with the same contents?"""
    after = os.stat(part, dir_fd=folder_fd, follow_symlinks=False)
    if os.path.samestat(before, after):
        return True
    kind = stat.S_IFMT(before.st_mode)
    if kind != stat.S_IFMT(after.st_mode) or before.st_size != after.st_size:
        return False
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        return before.st_rdev == after.st_rdev
    if kind == stat.S_IFLNK:
        old, new = (os.readlink(each, dir_fd=folder_fd) for each in (name, part))
        return old == new
    if before.st_size > files.PACK_FILE_BYTES:
        return False
    old, new = (
        files.read_whole((folder_fd, each), files.identity(status), False)
        for each, status in ((name, before), (part, after))
    )
    return old == new
