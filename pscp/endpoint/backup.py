"""Keeps what a copy replaces or removes, under another name below its root (--backup).

What is about to lose its name gets its backup's as a second one first, so that it always has one.
A backup of the same name is replaced. There is none of what this very run has put there: a lost
lane's work is done again by another one, whose files have the same contents.

Sent when a copy begins that keeps backups. Not here: when a name is about to be lost (commit.py,
sink.py).
"""

import contextlib
import errno
import os
import stat

from . import commit, files, source
from .parts import Parts
from .paths import Root

# The filesystem has no hard links, or the file has too many.
_NO_LINK = frozenset([errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])


def place(path: str, suffix: str, folder: str) -> str:
    """Return the path of the backup of what has this path; both are relative to the root."""
    return "%s/%s%s" % (folder, path, suffix) if folder else path + suffix


class Keeper:
    """Gives files and links the names of their backups."""

    def __init__(self, root: Root, parts: Parts, suffix: str, folder: str) -> None:
        self._root, self._parts, self._suffix, self._folder = root, parts, suffix, folder

    def keep(self, folder_fd: int, name: bytes, path: str, part: bytes = b"") -> None:
        """Give what has this name its backup's name as well, unless it is like the part that
        replaces it; b"": it is to be removed.

        The caller holds the fence and the root's lock; `folder_fd` may be closed afterwards. Raises
        OSError and Refusal.
        """
        try:
            before = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if part and _are_alike(folder_fd, name, before, part):
            return
        folder_fd = os.dup(folder_fd)  # the next at() may close it
        try:
            self._link(folder_fd, name, path)
        finally:
            os.close(folder_fd)

    def _link(self, folder_fd: int, name: bytes, path: str) -> None:
        backup = place(path, self._suffix, self._folder)
        if self._folder:
            self._make_folders(backup.rpartition("/")[0])
        there_fd, there = self._root.at(backup)
        commit.file_to_replace(there_fd, there, backup)
        temporary = self._parts.private_name(there)
        try:
            os.link(
                name, temporary, src_dir_fd=folder_fd, dst_dir_fd=there_fd, follow_symlinks=False
            )
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            # For a moment it has only the backup's name.
            os.rename(name, there, src_dir_fd=folder_fd, dst_dir_fd=there_fd)
            return
        try:
            os.rename(temporary, there, src_dir_fd=there_fd, dst_dir_fd=there_fd)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=there_fd)  # rename(2) left it if both are one file

    def _make_folders(self, path: str) -> None:
        """Make the folders that are missing, as private as those whose files they take."""
        made = ""
        for name in path.split("/"):
            made = made + "/" + name if made else name
            try:
                self._root.folder(made)
            except FileNotFoundError:
                mode = os.fstat(self._root.folder(made[len(self._folder) + 1 :])).st_mode
                os.fchmod(self._root.folder(made, make=True), mode & 0o777)


def _are_alike(folder_fd: int, name: bytes, before: os.stat_result, part: bytes) -> bool:
    """Is the part the same file, the same link, or a small file with the same contents?"""
    after = os.stat(part, dir_fd=folder_fd, follow_symlinks=False)
    if os.path.samestat(before, after):
        return True
    kind = stat.S_IFMT(before.st_mode)
    if kind != stat.S_IFMT(after.st_mode) or before.st_size != after.st_size:
        return False
    if kind == stat.S_IFLNK:
        old, new = (os.readlink(each, dir_fd=folder_fd) for each in (name, part))
        return old == new
    if kind != stat.S_IFREG or before.st_size > source.PACK_FILE_BYTES:
        return False
    old, new = (
        files.read_whole((folder_fd, each), files.identity(status), False)
        for each, status in ((name, before), (part, after))
    )
    return old == new
