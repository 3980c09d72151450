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
import threading
from typing import List, Tuple

from .failures import UNSAFE, Refusal

PART_SUFFIX = b".pscp-part"
NAME_MAX = 255  # bytes, on every filesystem that matters
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDERS_KEPT = 32  # open descriptors; a tree is walked folder by folder, so few are needed


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def components(path: str) -> List[bytes]:
    """The path's names, each checked. Refusal when one could lead elsewhere or name nothing."""
    try:
        names = to_bytes(path).split(b"/")
    except UnicodeEncodeError:
        raise Refusal(UNSAFE, path, "a name that is no file's")
    for name in names:
        if name in (b"", b".", b"..") or b"\0" in name:
            raise Refusal(UNSAFE, path, "a name that could lead outside of the destination")
    return names


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
        self._folders: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def at(self, path: str, make: bool = False) -> Tuple[int, bytes]:
        """The descriptor of the folder that holds `path`, and the last name.

        With `make`, folders that are missing on the way are made. Raises OSError, Refusal.
        """
        names = components(path)
        return self._folder(names[:-1], path, make), names[-1]

    def folder(self, path: str) -> int:
        """The descriptor of the folder `path` itself; "" is the root."""
        return self._folder(components(path), path, False) if path else self.fd

    def _folder(self, names: List[bytes], path: str, make: bool) -> int:
        known = len(names)  # how much of the way is open already
        while known and b"/".join(names[:known]) not in self._folders:
            known -= 1
        fd = self._folders[b"/".join(names[:known])] if known else self.fd
        for depth in range(known + 1, len(names) + 1):
            fd = self._open(fd, names[depth - 1], path, make)
            self._keep(b"/".join(names[:depth]), fd)
        if names:
            self._folders.move_to_end(b"/".join(names))
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

    def _keep(self, key: bytes, fd: int) -> None:
        self._folders[key] = fd
        if len(self._folders) > _FOLDERS_KEPT:
            os.close(self._folders.popitem(last=False)[1])

    def close(self) -> None:
        with self.lock:
            for fd in self._folders.values():
                os.close(fd)
            self._folders.clear()
            os.close(self.fd)
