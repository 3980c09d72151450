"""Names: which are safe, how a part is called, and folders below a root reached without links.

Paths here are relative, "/" between components, as str with undecodable bytes as surrogates
(UTF-8, surrogateescape), whatever the locale. No component is ever resolved through a symbolic
link: each folder is opened relative to its parent's descriptor with O_NOFOLLOW.

Not here: what is done with a name (sink.py), the walk of a source (tree.py).
"""

import collections
import errno
import hashlib
import os
import re
import stat
import threading
from typing import Iterable, List, Tuple

from .failures import UNSAFE, Refusal

PART_SUFFIX = b".pscp-part"
NAME_MAX = 255  # bytes, on every filesystem that matters
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A component that is empty, "." or "..", or a NUL.
# part_name(), an older version's parts too, and a fence.
_OWN = re.compile(rb"\..+\.[0-9a-f]{8,22}\.pscp-part|\.[0-9a-f]{8}\.pscp-run", re.DOTALL)
_UNSAFE = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|\0")
# The mode of a folder that a copy makes, until all in it has landed: it is its owner's alone, and
# the sticky bit tells it from a private folder of the user's, so that a later run finishes it.
UNFINISHED = 0o1700
_FOLDERS_KEPT = 32  # open descriptors; a tree is walked folder by folder, so few are needed


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def check(path: str) -> bytes:
    """Return the path as bytes. Refusal when a component could lead elsewhere, or names nothing."""
    if _UNSAFE.search(path):
        raise Refusal(UNSAFE, path, "a name that could lead outside of the destination")
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Refusal(UNSAFE, path, "a name that is no file's")


def part_name(name: bytes, key: str) -> bytes:
    """What NAME is called while it is incomplete: .NAME.HASH.KEY.pscp-part, within NAME_MAX.

    The key tells one run's part from another's. The hash is of the exact name: a filesystem that
    folds case, or normalises names, takes two names for one.
    """
    digest = hashlib.sha256(name).hexdigest()[:16]
    suffix = (".%s.%s" % (digest, key)).encode("ascii") + PART_SUFFIX
    return b"." + name[: NAME_MAX - 1 - len(suffix)] + suffix


def is_unfinished(mode: int) -> bool:
    """Is it that of a folder that a copy made and did not finish? Setgid is inherited."""
    return stat.S_ISDIR(mode) and mode & 0o1777 == UNFINISHED


def is_pscps_own(name: bytes) -> bool:
    """Is this the name of a part or of a run's fence file? A walk leaves those out.

    By all of its form: what only ends like one is the user's.
    """
    return not without_own([name])


def without_own(names: Iterable[bytes]) -> List[bytes]:
    """Those names that are not pscp's own."""
    return [name for name in names if name[:1] != b"." or not _OWN.fullmatch(name)]


class Root:
    """A folder and what is below. Hold `lock` from at() until the descriptor it gave was used."""

    def __init__(self, path: str, follow: bool = True) -> None:
        # The root is the user's own word, so links in it are followed.
        self.fd = os.open(to_bytes(path), FOLDER_FLAGS & ~os.O_NOFOLLOW if follow else FOLDER_FLAGS)
        self.lock = threading.RLock()
        self._folders: collections.OrderedDict[str, int] = collections.OrderedDict()

    def at(self, path: str, make: bool = False) -> Tuple[int, bytes]:
        """The descriptor of the folder that holds `path`, and the last name.

        With `make`, folders that are missing on the way are made, UNFINISHED. Raises OSError,
        Refusal.
        """
        name = check(path).rpartition(b"/")[2]
        return self._folder(path.rpartition("/")[0], path, make), name

    def folder(self, path: str, make: bool = False) -> int:
        """The descriptor of the folder `path` itself; "" is the root."""
        if path:
            check(path)
        return self._folder(path, path, make)

    def _folder(self, folder: str, path: str, make: bool) -> int:
        """The descriptor of `folder`, on the way to `path`; "" is the root."""
        known = folder  # how much of the way is open already
        while known and known not in self._folders:
            known = known.rpartition("/")[0]
        fd = self._folders[known] if known else self.fd
        for name in folder[len(known) :].split("/") if known != folder else ():
            if name:
                fd = self._open(fd, to_bytes(name), path, make)
                known = known + "/" + name if known else name
                self._keep(known, fd)
        if folder:
            self._folders.move_to_end(folder)
        return fd

    def _open(self, parent: int, name: bytes, path: str, make: bool) -> int:
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, getattr(errno, "EMLINK", 0)):
                message = "%s is a link or a file there, not a folder" % ascii(to_text(name))
                raise Refusal(UNSAFE, path, message)
            raise
        try:
            os.mkdir(name, UNFINISHED, dir_fd=parent)
        except FileExistsError:  # another lane was first
            return self._open(parent, name, path, False)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=parent)
        if not os.fstat(fd).st_mode & stat.S_ISVTX:  # BSD's mkdir takes no sticky bit
            try:
                os.fchmod(fd, UNFINISHED)
            except OSError:
                pass  # not every filesystem has such modes
        return fd

    def _keep(self, key: str, fd: int) -> None:
        self._folders[key] = fd
        if len(self._folders) > _FOLDERS_KEPT:
            os.close(self._folders.popitem(last=False)[1])

    def close(self) -> None:
        with self.lock:
            for fd in self._folders.values():
                os.close(fd)
            self._folders.clear()
            os.close(self.fd)
