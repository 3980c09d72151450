"""A folder on a file system that takes names for one which differ by case, or by the form of an
accent, as on macOS, Windows' file systems, or ZFS with `casesensitivity` or `normalization`.

The folder lies on one that takes each name for itself. The functions of `os` that get a name below
it, are given the one that is there already for it, so that a file keeps the spelling with which it
was made. All calls within the folder are made one at a time.

Not here: what a copy must do there (oracle.py), calls that fail (model/calls.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from tree_data import FILE, FOLDER, Made, plant

# What gets one name, or two, and the keyword of the folder that each is in.
_FIRST = (
    "open", "stat", "lstat", "mkdir", "mknod", "mkfifo", "unlink", "rmdir", "readlink", "chmod",
    "chown", "utime", "access", "listdir", "scandir", "listxattr", "getxattr", "setxattr",
    "removexattr",
)  # fmt: skip
_BOTH = {"link": ("src_dir_fd", "dst_dir_fd"), "rename": ("src_dir_fd", "dst_dir_fd"),
         "symlink": ("", "dir_fd")}  # fmt: skip
_listdir, _lstat, _readlink = os.listdir, os.lstat, os.readlink  # before they are replaced

Fold = Callable[[bytes], bytes]


def fold(name: bytes) -> bytes:
    """Return what all spellings of a name, or of a path, have in common."""
    text = unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape"))
    return text.casefold().encode("utf-8", "surrogateescape")


ALIKE = (b"A", b"a"), (b"caf\xc3\xa9", b"cafe\xcc\x81")
_BETWEEN = (b"B", b"M", b"b", b"cb")  # so that a listing of a few names has one of two alike
_AS_THEY_ARE = {b"new", b"far", b"down", b"today", b"yesterday"}  # that a DEST is spelt with


def draw_alike(rng: random.Random, place: bytes, now_ns: int) -> dict[bytes, Made]:
    """Draw names that may be one at the destination, others between them, and second names."""
    made = {place + name: _file(rng, now_ns) for name in _BETWEEN if rng.random() < 0.5}
    for names in ALIKE:
        are_same, own, most = rng.random() < 0.3, _file(rng, now_ns), rng.choice((0.0, 0.3, 1.0))
        for name in names if rng.random() < 0.8 else ():
            path = place + name
            if rng.random() < most:
                made |= {path: Made(FOLDER, mode=0o755, mtime_ns=now_ns), path + b"/x": own}
                made |= {} if are_same else {path + b"/" + name.hex().encode(): _file(rng, now_ns)}
            else:
                made[path] = own if are_same else _file(rng, now_ns)
                made |= {path + b"2": Made(FILE, same_as=path)} if rng.random() < 0.3 else {}
    return made


def plant_in(root: bytes, made: Mapping[bytes, Made]) -> None:
    """Make them, and the folders that they are in."""
    for path in made:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    plant(root, made)


def _file(rng: random.Random, now_ns: int) -> Made:
    return Made(FILE, rng.randrange(3), rng.choice((40, 5000)), mtime_ns=now_ns)


def make_one(rng: random.Random, root: bytes) -> None:
    """Leave one of the names that are one, often with another spelling than it had."""
    for folder, folders, names in os.walk(root):
        status, kept = os.lstat(folder), dict[bytes, bytes]()
        for name in sorted({*folders, *names}):
            if kept.setdefault(fold(name), name) != name:
                _remove(os.path.join(folder, name))
        for key, name in kept.items():
            other = _other(rng, name)
            if fold(other) == key and name not in _AS_THEY_ARE:
                os.rename(os.path.join(folder, name), os.path.join(folder, other))
                kept[key] = other
        folders[:] = [name for name in kept.values() if fold(name) in map(fold, folders)]
        os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def _other(rng: random.Random, name: bytes) -> bytes:
    """Return a name as it is, or in another spelling."""
    forms: tuple[Literal["NFC", "NFD"], ...] = "NFC", "NFD"
    text = unicodedata.normalize(rng.choice(forms), name.decode("utf-8", "surrogateescape"))
    other = text.swapcase() if rng.random() < 0.3 else text
    return other.encode("utf-8", "surrogateescape")


def _remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


class Folding:
    """The functions of `os` in this process, once install() was called."""

    def __init__(self, root: bytes, lock: contextlib.AbstractContextManager[Any]) -> None:
        """`lock` is what calls below take (model/calls.py): they look at names, too."""
        self._below, self._lock = root + b"/", lock

    def install(self, put: Callable[[Any, str, Any], None] = setattr) -> None:
        """Have them take their place; `put` is what gives a module's function another one."""
        for name in _FIRST:
            put(os, name, self._first(getattr(os, name)))
        for name, folders in _BOTH.items():
            put(os, name, self._both(getattr(os, name), *folders))
        put(os, "replace", os.rename)

    def _first(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            with self._held(path, more.get("dir_fd")) as found:
                return real(found, *args, **more)

        return call

    def _both(self, real: Callable[..., Any], old_folder: str, folder: str) -> Callable[..., Any]:
        def call(old: Any, new: Any, *args: Any, **more: Any) -> Any:
            with self._held(new, more.get(folder)) as to:
                if not old_folder:
                    return real(old, to, *args, **more)
                with self._held(old, more.get(old_folder)) as found:
                    return real(found, to, *args, **more)

        return call

    @contextlib.contextmanager
    def _held(self, path: Any, folder_fd: int | None) -> Iterator[Any]:
        """Give the path as the folder has it; nothing below that changes meanwhile."""
        whole = b"" if isinstance(path, int) else _whole(os.fsencode(path), folder_fd)
        if not whole.startswith(self._below):
            yield path
            return
        with self._lock:
            found = self._there(os.fsencode(path), whole)
            yield found if isinstance(path, bytes) else os.fsdecode(found)

    def _there(self, path: bytes, whole: bytes) -> bytes:
        above = whole[: len(whole) - len(path)] if not path.startswith(b"/") else self._below
        found = above
        for name in whole[len(above) :].split(b"/"):
            found = os.path.join(found, self._spelling(found, name))
        return found if path.startswith(b"/") else found[len(above) :]

    def _spelling(self, folder: bytes, name: bytes) -> bytes:
        """Return the name by which a folder has this one; the same where it has none."""
        if name in (b"", b".", b"..") or _is_there(os.path.join(folder, name)):
            return name
        try:
            names = _listdir(folder)
        except OSError:
            return name
        return next((each for each in names if fold(each) == fold(name)), name)


def _is_there(path: bytes) -> bool:
    try:
        return bool(_lstat(path))
    except OSError:
        return False


def _whole(path: bytes, folder_fd: int | None) -> bytes:
    if path.startswith(b"/"):
        return path
    if folder_fd is None:
        return os.getcwdb() + b"/" + path
    try:
        return _readlink(b"/proc/self/fd/%d" % folder_fd) + b"/" + path
    except OSError:
        return path
