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
import threading
from typing import Tuple

from .failures import UNSAFE, Refusal

PART_SUFFIX = b".pscp-part"
NAME_MAX = 255  # bytes, on every filesystem that matters
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A component that is empty, "." or "..", or a NUL.
_UNSAFE = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)|\0")
_FOLDERS_KEPT = 32  # open descriptors; a tree is walked folder by folder, so few are needed


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def check(path: str) -> None:
    """Refusal when a component could lead elsewhere, or names nothing."""
    if _UNSAFE.search(path):
        raise Refusal(UNSAFE, path, "a name that could lead outside of the destination")
    try:
        to_bytes(path)
    except UnicodeEncodeError:
        raise Refusal(UNSAFE, path, "a name that is no file's")


def part_name(name: bytes, token: str) -> bytes:
    """What NAME is called while it is incomplete: .NAME.TOKEN.pscp-part, within NAME_MAX.

    The token tells one copy's part from another's, so that two copies to the same name, from
    different sources, never write into one file.
    """
    suffix = b"." + token.encode("ascii") + PART_SUFFIX
    part = b"." + name + suffix
    if len(part) <= NAME_MAX:
        return part
    short = hashlib.sha256(name).hexdigest()[:16].encode("ascii")
    return b"." + name[: NAME_MAX - len(suffix) - len(short) - 2] + b"." + short + suffix


class Root:
    """A destination folder. Hold `lock` from at() until the descriptor it gave was used."""

    def __init__(self, path: str) -> None:
        # The root is the user's own word, so links in it are followed.
        self.fd = os.open(to_bytes(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.lock = threading.RLock()
        self._folders: collections.OrderedDict[str, int] = collections.OrderedDict()

    def at(self, path: str, make: bool = False) -> Tuple[int, bytes]:
        """The descriptor of the folder that holds `path`, and the last name.

        With `make`, folders that are missing on the way are made. Raises OSError, Refusal.
        """
        check(path)
        folder, _, name = path.rpartition("/")
        return self._folder(folder, path, make), to_bytes(name)

    def folder(self, path: str) -> int:
        """The descriptor of the folder `path` itself; "" is the root."""
        if path:
            check(path)
        return self._folder(path, path, False)

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
            return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, getattr(errno, "EMLINK", 0)):
                raise Refusal(UNSAFE, path, "%s is a link or a file there, not a folder"
                              % ascii(to_text(name)))  # fmt: skip
            raise
        try:
            os.mkdir(name, 0o777, dir_fd=parent)
        except FileExistsError:  # another lane was first
            pass
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)

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
