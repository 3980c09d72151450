"""Trees as data: what has which name; where links lead; read from a disk, and made on one.

Paths are bytes below a root, b"" the root itself.

Not here: what a copy makes of them (oracle.py), which are drawn (draws.py).
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FILE, LINK, FOLDER, SPECIAL = "file", "link", "folder", "special"


class Node(NamedTuple):
    """What has a name: `data` is a file's content, or its digest, or where a link leads."""

    kind: str
    data: bytes = b""
    size: int = 0
    mode: int = 0
    mtime_ns: int = 0
    inode: int = 0  # equal for the names of one file; 0: it has no other
    owner: tuple[int, int] = (0, 0)

    @property
    def what(self) -> tuple[str, bytes]:
        """What two of one content have in common, whatever their modes and times are."""
        return self.kind, self.data


Tree = Mapping[bytes, Node]


def join(above: bytes, name: bytes) -> bytes:
    return b"/".join(filter(None, (above, name)))


def children(tree: Tree, path: bytes) -> list[bytes]:
    """Names in a folder."""
    start = path + b"/" if path else b""
    below = (name[len(start) :] for name in tree if name.startswith(start) and name != path)
    return sorted(name for name in below if name and b"/" not in name)


def real(tree: Tree, path: bytes) -> bytes | None:
    """Return where a path leads when all links are followed; None: nowhere in the tree."""
    done, todo, hops = b"", path.split(b"/"), 0
    while todo:
        name = todo.pop(0)
        if name in (b"", b"."):
            continue
        done = done.rpartition(b"/")[0] if name == b".." else join(done, name)
        node = tree.get(done)
        if node is None or (hops := hops + (node.kind == LINK)) > 40:
            return None
        if node.kind == LINK:
            if node.data.startswith(b"/"):
                return None
            done, todo = done.rpartition(b"/")[0], node.data.split(b"/") + todo
    return done


# --- on a disk


def scan(root: bytes) -> dict[bytes, Node]:
    """Read a tree; files are known by their SHA-256, as theirs may be large."""
    found: dict[bytes, Node] = {}
    for path in _walk(root, b""):
        full = os.path.join(root, path) if path else root
        status = os.lstat(full)
        kind, data = _content(full, status)
        inode = status.st_ino if status.st_nlink > 1 and kind == FILE else 0
        owner = (status.st_uid, status.st_gid)
        mode, size = stat.S_IMODE(status.st_mode), status.st_size
        found[path] = Node(kind, data, size, mode, status.st_mtime_ns, inode, owner)
    return found


def _walk(root: bytes, below: bytes) -> Iterator[bytes]:
    yield below
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in found:
        if is_folder:
            yield from _walk(root, join(below, name))
        else:
            yield join(below, name)


def _content(full: bytes, status: os.stat_result) -> tuple[str, bytes]:
    if stat.S_ISREG(status.st_mode):
        with open(full, "rb") as file:
            return FILE, hashlib.file_digest(file, "sha256").digest()
    if stat.S_ISLNK(status.st_mode):
        return LINK, os.readlink(full)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return SPECIAL, b"%o %x" % (stat.S_IFMT(status.st_mode), status.st_rdev)
    return (FOLDER if stat.S_ISDIR(status.st_mode) else SPECIAL), b""


# --- made


class Made(NamedTuple):
    """A name that plant() makes: `mark` chooses a file's content, or the device (0: a FIFO)."""

    kind: str
    mark: int = 0
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    target: bytes = b""
    same_as: bytes = b""  # a file of which this is another name

    @property
    def content(self) -> bytes:
        """The same for the same mark and size; of two marks most pieces are alike."""
        block = bytes(range(251)) * 16
        data = bytearray((block * (self.size // len(block) + 1))[: self.size])
        if data:
            data[-1] = data[len(data) // 2] = self.mark
        if self.mark % 3 == 2 and self.size > 300_000:  # one with a hole
            data[40_000:290_000] = bytes(250_000)
        return bytes(data)


def plant(root: bytes, tree: Mapping[bytes, Made]) -> None:
    """Make what a tree says below a folder; what has such a name already goes."""
    for path, made in sorted(tree.items(), key=lambda each: (bool(each[1].same_as), each[0])):
        full = os.path.join(root, path)
        if os.path.lexists(full) and not os.path.isdir(full):
            os.unlink(full)
        if made.same_as:
            os.link(os.path.join(root, made.same_as), full, follow_symlinks=False)
        elif made.kind == FOLDER:
            os.makedirs(full, exist_ok=True)
        elif made.kind == LINK:
            os.symlink(made.target, full)
        elif made.kind == SPECIAL:
            _make_special(full, made.mark)
        else:
            _write(full, made.content)
    for path, made in sorted(tree.items(), reverse=True):
        full = os.path.join(root, path)
        if made.kind != LINK and not made.same_as:
            os.chmod(full, made.mode)
        if not made.same_as:
            os.utime(full, ns=(made.mtime_ns, made.mtime_ns), follow_symlinks=False)


def _make_special(full: bytes, mark: int) -> None:
    if mark:
        os.mknod(full, stat.S_IFCHR, os.makedev(1, mark))
    else:
        os.mkfifo(full)


@functools.cache
def may_make_devices() -> bool:
    """Is this root, and not in a container that forbids it?"""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _make_special(os.fsencode(folder) + b"/null", 3)
        except PermissionError:
            return False
    return True


def _write(full: bytes, content: bytes) -> None:
    with open(full, "wb") as file:
        for at in range(0, len(content), 4096):
            piece = content[at : at + 4096]
            if piece.count(0) < len(piece):
                file.seek(at)
                file.write(piece)
        file.truncate(len(content))
