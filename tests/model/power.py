"""A power cut: what was not synced is lost, or a drawn part of it.

While a copy runs, each change of a name and each write is written into a log, with what undoes it.
At a cut, names that changed in a folder after its last fsync go back to what they were, all or
some of them; files that were not synced since they were written hold zeros, wholly or in part.

Not here: which calls are written down (calls.py). Read next: whole.py.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from typing import Any, TypeAlias

Row: TypeAlias = list[Any]
_MADE, _GONE, _MOVED, _SYNCED, _WRITTEN = "made", "gone", "moved", "synced", "written"
_PAGE_BYTES = 4096
_pread = os.pread  # before another one takes its place


class Log:
    """Written line by line by the process that copies, which may be killed at any moment."""

    def __init__(self, path: bytes, kept: bytes) -> None:
        """`kept` is a folder for what loses its last name."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._write, self._kept, self._count = os.write, kept, 0

    def close(self) -> None:
        os.close(self._fd)

    def note(self, kind: str, *what: Any) -> None:
        shown = [each.decode("latin-1") if isinstance(each, bytes) else each for each in what]
        self._write(self._fd, json.dumps([kind, *shown]).encode() + b"\n")

    def around(
        self,
        name: str,
        path: bytes,
        real: Callable[..., Any],
        args: Any,
        more: Any,
        path_of: Callable[..., bytes | None],
    ) -> Any:
        """Make a call, and note what it changed."""
        if name in ("pwrite", "write", "ftruncate", "fsync"):
            status = os.fstat(args[0])
            # What a lane writes late is what is there, and synced: no disk loses that.
            if name == "pwrite" and _pread(args[0], len(args[1]), args[2]) == bytes(args[1]):
                return real(*args, **more)
            done = real(*args, **more)
            kind = _SYNCED if name == "fsync" else _WRITTEN
            is_folder = stat.S_ISDIR(status.st_mode)
            self.note(kind, path if is_folder else b"", status.st_ino)
            return done
        if name in ("unlink", "rmdir"):
            saved = self._saved(path)
            done = real(*args, **more)
            self.note(_GONE, path, saved)
            return done
        if name == "rename":
            return self._renamed(path, real, args, more)
        is_new = name in ("open", "mkdir", "link", "symlink") and not os.path.lexists(path)
        done = real(*args, **more)
        if is_new and not (name == "open" and os.fstat(done).st_nlink == 0):
            self.note(_MADE, path)
        return done

    def _renamed(self, path: bytes, real: Callable[..., Any], args: Any, more: Any) -> Any:
        to = os.fsencode(args[1])
        if not to.startswith(b"/"):
            fd = more.get("dst_dir_fd")
            to = (os.readlink(b"/proc/self/fd/%d" % fd) if fd is not None else b".") + b"/" + to
        is_same = os.path.lexists(to) and os.path.samestat(os.lstat(path), os.lstat(to))
        saved = self._saved(to)
        done = real(*args, **more)
        if not is_same:  # rename(2) does nothing with two names of one file
            self.note(_MOVED, path, to, saved)
        return done

    def _saved(self, path: bytes) -> bytes:
        """Keep a copy of what will lose its name; b"" where there is nothing."""
        if not os.path.lexists(path):
            return b""
        self._count += 1
        to = b"%s/%d-%d" % (self._kept, os.getpid(), self._count)
        _copy(path, to)
        return to


def _copy(path: bytes, to: bytes) -> None:
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        os.makedirs(to)
        shutil.copystat(path, to)
    elif stat.S_ISREG(status.st_mode):
        shutil.copy2(path, to)
        os.chown(to, status.st_uid, status.st_gid)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(path), to)
    else:
        os.mkfifo(to)


def cut(
    log: bytes,
    rng: random.Random,
    roots: list[bytes],
    fold: Callable[[bytes], bytes] = lambda path: path,
) -> int:
    """Undo what a power cut may; all of it, or a part that is drawn. Returns how much that is.

    It meets one of the machines that have these roots, or all of them. Paths are one that `fold`
    makes alike.
    """
    rows = list(_rows(log))
    roots = rng.choice([roots, *([each] for each in roots)])
    takes_all = rng.random() < 0.5
    count = _zero(rows, roots, rng, takes_all)
    undone = []
    for group in _pending(rows, roots, fold):
        kept = 0 if takes_all else rng.randrange(len(group) + 1)
        undone += group[kept:]
    for at in sorted(undone, reverse=True):
        _undo(rows[at])
    return count + len(undone)


def _pending(
    rows: list[Row], roots: list[bytes], fold: Callable[[bytes], bytes]
) -> list[list[int]]:
    """Return the changes of names that are not synced: those of the same names together, in order.

    POSIX promises no order of different names, of one folder or of several.
    """
    last = {folder: at for at, row in enumerate(rows) if (folder := _synced_folder(row))}
    groups: list[tuple[set[bytes], list[int]]] = []
    for at, row in enumerate(rows):
        if _is_pending(row, at, last) and _is_below(row[1], roots):
            names = set(map(fold, row[1:3] if row[0] == b"moved" else row[1:2]))
            places = [at]
            for group in [each for each in groups if each[0] & names]:
                names |= group[0]
                places = group[1] + places
                groups.remove(group)
            groups.append((names, sorted(places)))
    return [places for _, places in groups]


def _is_below(path: bytes, roots: list[bytes]) -> bool:
    return any(path.startswith(root + b"/") for root in roots)


def disturbances(log: bytes) -> int:
    """Return how often what was drawn did happen."""
    return sum(row[0] == b"disturbed" for row in _rows(log))


def _rows(log: bytes) -> list[Row]:
    if not os.path.exists(log):
        return []
    with open(log, "rb") as lines:
        found = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [[each.encode("latin-1") if isinstance(each, str) else each for each in row]
            for row in found]  # fmt: skip


def _synced_folder(row: Row) -> bytes:
    return bytes(row[1]) if row[0] == b"synced" else b""


def _folder(row: Row) -> bytes:
    path: bytes = row[2] if row[0] == b"moved" else row[1]
    return os.path.dirname(path)


def _is_pending(row: Row, at: int, last: dict[bytes, int]) -> bool:
    if row[0] not in (b"made", b"gone", b"moved"):
        return False
    return last.get(_folder(row), -1) < at


def _undo(row: Row) -> None:
    kind, path = row[:2]
    try:
        if kind == b"made":
            _remove(path)
        elif kind == b"gone":
            if not os.path.lexists(path):
                _back(row[2], path)
        elif os.path.lexists(row[2]):
            if os.path.isdir(os.path.dirname(path)):
                os.rename(row[2], path)
            else:
                _remove(row[2])
            _back(row[3], row[2])
    except FileNotFoundError:  # the folder above is gone, and all in it
        pass


def _remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _back(saved: bytes, path: bytes) -> None:
    if saved:
        _copy(saved, path)


def _zero(rows: list[Row], roots: list[bytes], rng: random.Random, takes_all: bool) -> int:
    """Have files hold zeros, wholly or here and there, that were written and not synced since."""
    dirty: dict[int, None] = {}
    for row in rows:
        if row[0] == b"written":
            dirty[row[2]] = None
        elif row[0] == b"synced":
            dirty.pop(row[2], None)
    lost = {inode for inode in dirty if takes_all or rng.random() < 0.5}
    count = 0
    for root in roots if lost else ():
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                if status.st_ino in lost and stat.S_ISREG(status.st_mode) and status.st_size:
                    _write_zeros(path, status, rng if rng.random() < 0.5 else None)
                    count += 1
    return count


def _write_zeros(path: bytes, status: os.stat_result, rng: random.Random | None) -> None:
    """Have zeros in place of all pages of a file, or of some that are drawn."""
    with open(path, "r+b") as file:
        if rng is None:
            file.truncate(0)
            file.truncate(status.st_size)
        for at in range(0, status.st_size if rng else 0, _PAGE_BYTES):
            if rng is not None and rng.random() < 0.5:
                file.seek(at)
                file.write(bytes(min(_PAGE_BYTES, status.st_size - at)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
