"""Names: which are safe, those of parts, and folders below a root reached without links.

A path here is relative, with "/" between its components, and a str in UTF-8 whatever the locale
(surrogateescape keeps bytes that are none). No component is ever resolved through a symbolic link:
each folder is opened relative to its parent's descriptor with O_NOFOLLOW.

Not here: the files that get these names (../writing/sink.py), the walk of a source (tree.py).
"""

import collections
import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
from typing import Callable, ContextManager, Iterable, List, Optional, Tuple, Union

from ..frames import system
from ..frames.failures import UNSAFE, Refusal
from . import files

PART_SUFFIX = b".pscp-part"
NAME_MAX = 255  # bytes, on every filesystem that matters
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A name that part_name() makes, or made in an older version, or a fence's.
_OWN = re.compile(rb"\..+\.[0-9a-f]{8,22}\.pscp-part|\.[0-9a-f]{8}\.pscp-run", re.DOTALL)
# The mode of a folder that a copy makes, until all in it has landed: for its owner alone. The
# sticky bit tells it from a private folder of the user's, so that a later run finishes it.
UNFINISHED = 0o1700
_ENTERED = stat.S_IRUSR | stat.S_IXUSR  # what a folder's owner needs to list it and look in it
_FOLDERS_KEPT = 32  # open descriptors; a tree is walked folder by folder, so few are needed


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def check(path: str) -> bytes:
    """Return the path as bytes. Raises Refusal where it could lead elsewhere, or names nothing."""
    # A component that is empty, "." or "..", or a NUL: in a tenth of the time of an expression.
    way = "/%s/" % path
    if "//" in way or "/./" in way or "/../" in way or "\0" in way:
        raise Refusal(UNSAFE, path, "a name that could lead outside of the destination")
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refusal(UNSAFE, path, "a name that is no file's")


def part_name(name: bytes, key: str) -> bytes:
    """Return a file's name while it is incomplete: .NAME.HASH.KEY.pscp-part, within NAME_MAX.

    The key tells one run's part from another's. The hash is of the exact name, for a filesystem
    that folds case, or normalises names, takes two names for one.
    """
    digest = hashlib.sha256(name).hexdigest()[:16]
    suffix = (".%s.%s" % (digest, key)).encode("ascii") + PART_SUFFIX
    return b"." + name[: NAME_MAX - 1 - len(suffix)] + suffix


def private_parts(names: Iterable[bytes], token: str, nonces: Iterable[str]) -> List[bytes]:
    """Return those names that lanes of these runs gave to parts which no other lane knows."""
    keys = {(".%s%s" % (token, nonce)).encode("ascii") for nonce in nonces}
    parts = [name for name in names if name[:1] == b"." and name.endswith(PART_SUFFIX)]
    return [name for name in parts if name[: -len(PART_SUFFIX) - 6][-17:] in keys]


def alike_names(token: str, nonce: str) -> List[bytes]:
    """Return names of a part's form that differ by case, by an accent's form, by a ligature's."""
    end = ".%s%s000000" % (token, nonce)
    words = ("a\xe9\ufb01", "A\xe9\ufb01", "ae\u0301\ufb01", "a\xe9fi")
    return [to_bytes("." + word + end) + PART_SUFFIX for word in words]


def marker_name(token: str) -> bytes:
    """Return the name of a copy's marker (Root.mark): of a part's form, but no file's part."""
    return b".made." + token.encode("ascii") + PART_SUFFIX


def is_unfinished(mode: int) -> bool:
    """Is it the mode of a folder that a copy made and did not finish? Setgid does not count."""
    return stat.S_ISDIR(mode) and mode & 0o1777 == UNFINISHED


def is_pscps_own(name: bytes) -> bool:
    """Is it the whole name of a part or a fence? A walk leaves those out, but not what only ends
    like one.
    """
    return not without_own([name])


def without_own(names: Iterable[bytes]) -> List[bytes]:
    """Return those names that are not pscp's own."""
    return [name for name in names if name[:1] != b"." or not _OWN.fullmatch(name)]


def names_in(fd: int) -> List[bytes]:
    """Return the names in an open folder, all encoded at once, in a fourth of the time."""
    names = os.listdir(fd)
    return os.fsencode("\0".join(names)).split(b"\0") if names else []


def open_named(folder: bytes) -> int:
    """Open a folder whose path a user has named, so that links in it are followed."""
    return os.open(folder, FOLDER_FLAGS & ~os.O_NOFOLLOW)


def status_of(folder_fd: int, name: bytes) -> Optional[os.stat_result]:
    """Return the status of what has this name in a folder, a link's its own; None for nothing."""
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def mount_id(folder_fd: int, name: bytes = b".") -> bytes:
    """Return which mount a folder belongs to; b"" where the system does not say (proc(5))."""
    try:
        fd = os.open(name, FOLDER_FLAGS | os.O_PATH, dir_fd=folder_fd)
        with system.closing(fd), open("/proc/self/fdinfo/%d" % fd, "rb") as file:
            return b"".join(line for line in file if line.startswith(b"mnt_id:"))
    except (OSError, AttributeError):
        return b""


def mount_of(fd: int) -> Tuple[int, bytes]:
    """Return what tells the mount of an open folder from others."""
    return os.fstat(fd).st_dev, mount_id(fd)


class _Folder(int):
    """The descriptor of an open folder, which is closed once nobody has it any more."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self)


def unlink_in(fd: int, folder: bytes, name: bytes) -> None:
    """Remove a name of ours in a folder below an open one, which may have its final mode and times
    already: it keeps them. Raises OSError, FileNotFoundError also where it is no folder.
    """
    before = os.stat(folder, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISDIR(before.st_mode):
        raise FileNotFoundError
    path = folder + b"/" + name
    try:
        os.unlink(path, dir_fd=fd)
    except PermissionError:
        mode = stat.S_IMODE(before.st_mode)
        os.chmod(folder, mode | 0o700, dir_fd=fd)
        try:
            os.unlink(path, dir_fd=fd)
        finally:
            os.chmod(folder, mode, dir_fd=fd)
    with contextlib.suppress(OSError):
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns), dir_fd=fd)


class Root:
    """A folder and what is below it. Any thread may use it, and the descriptors that it returns."""

    def __init__(self, path: str, follow: bool = True) -> None:
        full = to_bytes(path)
        self.fd = open_named(full) if follow else os.open(full, FOLDER_FLAGS)
        self._lock = threading.RLock()  # guards `_folders`; held again within make_way()
        self._folders: collections.OrderedDict[str, _Folder] = collections.OrderedDict()
        self.marked, self._marker = "", b""
        # Removes the file or link at this path, in whose place a folder comes.
        self.make_way: Optional[Callable[[str], None]] = None
        self.replaced: Tuple[str, ...] = ()  # paths that begin so have way made for them
        # What to hold while a closed folder of ours is opened up. For folders below that get their
        # source's modes at the end of the copy; else None.
        self.opens_up: Optional[Callable[[], ContextManager[None]]] = None
        self._is_as_is = False  # with the lock held: closed folders stay so
        # The mount that all folders are on, where other hosts write there too; None: any.
        self.mount: Optional[Tuple[int, bytes]] = None

    def mark(self, folder: str, marker: bytes) -> None:
        """From now on, put this marker into the folder at the root when it is made.

        The marker shows the copy's next runs that the copy made this folder, until it is complete.
        """
        self.marked, self._marker = folder, marker

    def unmark(self) -> bool:
        """Remove the marker. Return whether it was there. Raises OSError."""
        try:
            unlink_in(self.fd, to_bytes(self.marked), self._marker)
        except FileNotFoundError:  # also for "": no folder is marked
            return False
        return True

    def rmdir(self, path: str) -> None:
        """Remove a folder, in which nothing but its marker may be. Raises OSError, Refusal."""
        was_marked = path == self.marked and self.unmark()
        folder_fd, name = self.at(path)
        try:
            os.rmdir(name, dir_fd=folder_fd)
        except OSError:
            if was_marked:
                self._put_marker(self.folder(path))
            raise

    def _put_marker(self, fd: int) -> None:
        """Put the marker into a folder that is unfinished. Where it cannot be made, none is."""
        if is_unfinished(os.fstat(fd).st_mode):
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(self._marker, flags, 0o600, dir_fd=fd))
                os.fsync(fd)

    def at(self, path: str, make: bool = False) -> Tuple[int, bytes]:
        """Return the descriptor of the folder that holds `path`, and the last name.

        With `make`, makes folders that are missing on the way, UNFINISHED, and has us write in
        this one. Raises OSError, Refusal.
        """
        name = check(path).rpartition(b"/")[2]
        above = path.rpartition("/")[0]
        with self._lock:
            fd = self._folders.get(above) or self._folder(above, path, make)
        if make:
            self.open_up(fd)
        return fd, name

    def folder(self, path: str, make: bool = False) -> int:
        """Return the descriptor of the folder `path` itself; "" is the root."""
        if path:
            check(path)
        with self._lock:
            return self._folder(path, path, make)

    def folder_as_is(self, path: str) -> int:
        """Return what folder() does, but open no closed folder up: it may have its final mode.

        Raises OSError, Refusal.
        """
        with self._lock:
            self._is_as_is = True
            try:
                return self.folder(path)
            finally:
                self._is_as_is = False

    def _folder(self, folder: str, path: str, make: bool) -> int:
        """Return the descriptor of `folder`, which is on the way to `path`; "" is the root."""
        known = folder  # the longest part of the way that is open already
        while known and known not in self._folders:
            known = known.rpartition("/")[0]
        fd: int = self._folders[known] if known else self.fd
        for name in folder[len(known) :].split("/") if known != folder else ():
            if name:
                known = known + "/" + name if known else name
                try:
                    fd = self._open(fd, to_bytes(name), path, make)
                except Refusal:
                    if self.make_way is None or not known.startswith(self.replaced):
                        raise
                    if not make:
                        raise FileNotFoundError(errno.ENOENT, "")
                    self.make_way(known)
                    fd = self._open(fd, to_bytes(name), path, make)
                fd = _Folder(fd)
                self._enter(fd, path)
                if make and known == self.marked:
                    self._put_marker(fd)
                self._folders[known] = fd
                if len(self._folders) > _FOLDERS_KEPT:
                    self._folders.popitem(last=False)
        if folder:
            self._folders.move_to_end(folder)
        return fd

    def _open(self, parent: int, name: bytes, path: str, make: bool) -> int:
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except PermissionError:
            if self.opens_up is None or self._is_as_is:
                raise
            with files.unopened((parent, name), False) as known:
                self._add_mode(known, _ENTERED)
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
                message = "%s is a link or a file there, not a folder" % ascii(to_text(name))
                raise Refusal(UNSAFE, path, message)
            raise
        self.open_up(parent)
        try:
            os.mkdir(name, UNFINISHED, dir_fd=parent)
        except FileExistsError:  # another lane made it first
            return self._open(parent, name, path, False)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        if not os.fstat(fd).st_mode & stat.S_ISVTX:  # BSD's mkdir takes no sticky bit
            with contextlib.suppress(OSError):  # not every filesystem has such modes
                os.fchmod(fd, UNFINISHED)
        return fd

    def _enter(self, fd: int, path: str) -> None:
        if self.mount is not None and self.mount != mount_of(fd):
            raise Refusal(UNSAFE, path, "another file system is mounted on the way")
        if not self._is_as_is:
            self.open_up(fd, _ENTERED)

    def open_up(self, fd: int, wanted: int = stat.S_IWUSR) -> None:
        """Have the owner write in a read-only folder of ours, or do what else is `wanted`, until it
        gets its source's mode. Raises OSError, Refusal.
        """
        if self.opens_up is not None and fd != self.fd:
            self._add_mode(fd, wanted)

    def _add_mode(self, folder: Union[int, str], wanted: int) -> None:
        """Give a folder of ours these bits of a mode. `folder` is open, or as of unopened()."""
        status = os.stat(folder)
        if status.st_uid == os.geteuid() and status.st_mode & wanted != wanted:
            assert self.opens_up is not None
            if stat.S_ISDIR(status.st_mode):
                with self.opens_up():
                    os.chmod(folder, stat.S_IMODE(status.st_mode) | wanted)

    def close(self) -> None:
        self._folders.clear()
        os.close(self.fd)
