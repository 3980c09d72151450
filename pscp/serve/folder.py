"""A user's folder: every path in it is resolved from the folder's descriptor, and never leads out.

Linux resolves a path beneath a descriptor in one call, links in it included (openat2(2)). Where it
cannot, each component is opened by itself, and a link is refused.

Not here: what a user may do there (rules.py), how uploads come to be there (landing.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import posixpath
from collections.abc import Iterator

from pscp.endpoint.there.moving import rename_alone

FOLDER = os.O_DIRECTORY | os.O_PATH
QUICK = os.O_NONBLOCK | os.O_NOCTTY  # whatever else lies there is not waited for
_OPENAT2 = 437  # its number on every architecture of Linux
_BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS
_LINKS = 8  # that lead to each other
_TRIES = 8  # the kernel gives up resolving where a folder on the way is being renamed


class _How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


_libc = ctypes.CDLL(None, use_errno=True)


def _open_beneath(root: int, path: bytes, flags: int) -> int:
    """Open a path below a descriptor by openat2(2). Raises OSError."""
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH)
    number = errno.EAGAIN
    for _ in range(_TRIES):
        fd: int = _libc.syscall(_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number))


def _open_each(root: int, path: bytes, flags: int) -> int:
    """Open a path below a descriptor component by component. Raises OSError, also for a link."""
    *folders, last = path.split(b"/")
    fd = os.dup(root)
    try:
        for name in folders:
            fd, above = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=fd), fd
            os.close(above)
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=fd)
    finally:
        os.close(fd)


def _has_openat2() -> bool:
    try:
        os.close(_open_beneath(_AT_FDCWD, b".", FOLDER))
    except OSError:  # an older kernel, a filter of system calls
        return False
    return True


_AT_FDCWD = -100
HAS_OPENAT2 = _has_openat2()


def relative(path: bytes) -> bytes:
    """Return a client's path without what is not needed in it, from the folder on; b"." is it.

    The folder is the client's "/", above which there is nothing. Raises OSError.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, "a name with a NUL")
    # lftp asks for "~" where that is "/"; of its mirror -R come paths such as a/b/~/a/b/new.
    above, tilde, below = path.rpartition(b"/~/")
    if path[:2] in (b"~", b"~/"):
        path = path[1:]
    elif tilde and below.startswith(above + b"/"):
        path = below
    return posixpath.normpath(b"/" + path).lstrip(b"/") or b"."


class Folder:
    """A user's folder, which no path leads out of. Paths are as relative() returns them."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, FOLDER)

    def close(self) -> None:
        os.close(self.fd)

    def open(self, path: bytes, flags: int) -> int:
        """Open what is at the path, links followed where they stay inside. Raises OSError."""
        resolve = _open_beneath if HAS_OPENAT2 else _open_each
        try:
            return resolve(self.fd, path, flags | QUICK * (not flags & FOLDER))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        raise PermissionError(errno.EACCES, "a link that leads out of the folder")

    @contextlib.contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the descriptor of the folder that holds the path, and the last name. Raises OSError.

        The name is to be used without following links.
        """
        above, name = posixpath.split(path)
        if name in (b"", b".", b".."):
            raise PermissionError(errno.EACCES, "the folder itself")
        fd = self.open(above or b".", FOLDER)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def stat(self, path: bytes, follow: bool = True) -> os.stat_result:
        """Return the status of what is at the path. Raises OSError."""
        if follow or path == b".":
            fd = self.open(path, os.O_PATH)
            try:
                return os.fstat(fd)
            finally:
                os.close(fd)
        with self.parent(path) as (fd, name):
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def real(self, path: bytes) -> bytes:
        """Return the path with a link at its end followed, as long as it leads inside."""
        with contextlib.suppress(OSError):
            for _ in range(_LINKS):
                with self.parent(path) as (fd, name):
                    path = self.target(self.path_of(fd, name), os.readlink(name, dir_fd=fd))
        return path

    def path_of(self, folder_fd: int, name: bytes) -> bytes:
        """Return the path, without links in it, of a name in an open folder. Raises OSError."""
        root, above = (os.readlink(b"/proc/self/fd/%d" % fd) for fd in (self.fd, folder_fd))
        return posixpath.relpath(posixpath.join(above, name), root)

    def target(self, path: bytes, to: bytes) -> bytes:
        """Return where a link at this path leads to. Raises OSError where that is outside.

        The path is as path_of() returns it: each ".." in the link's text leads one folder up.
        """
        if to.startswith(b"/"):
            return relative(to)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), to))
        if target.startswith(b"../") or target == b"..":
            raise PermissionError(errno.EACCES, "a link that leads out of the folder")
        return relative(target)

    def link_to(self, path: bytes, to: bytes) -> bytes:
        """Return what a link at this path that leads there is to hold, which never is absolute."""
        return posixpath.relpath(b"/" + to, b"/" + posixpath.dirname(path))


def rename(source: tuple[int, bytes], target: tuple[int, bytes], replace: bool) -> None:
    """Rename a name in one open folder to a name in another. Raises OSError.

    Without `replace`, what has the name already stays: FileExistsError.
    """
    if replace:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
    else:
        rename_alone(*source, *target)
