"""What shows whether several hosts see one file system: a file that one of them makes, changes and
locks while the others look, and what each sees of a copy's sources.

Not here: what follows from what was seen (../../transfer/one_place.py).
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import stat
from typing import ContextManager, Dict, List, NamedTuple, Optional, Tuple

from ..asking import answers
from ..frames import system
from ..reading import files
from ..reading.paths import PART_SUFFIX, open_named, to_bytes, to_text
from . import fence

_NONCE_CHARS = 8  # of a run, at the end of the name of what it shows
_NAMES_MOST = 64  # of a source's folder
_BYTES_MOST = 1 << 20


class Nearest(NamedTuple):
    """Which folder of a path is there already. Answer: its whole path."""

    path: str  # as typed


class Show(NamedTuple):
    """Make a file, and hold it locked; or write it anew. Answer: as to Look, but for the lock."""

    folder: str
    name: str
    text: str  # "": the file is removed


class Look(NamedTuple):
    """See what a file is. Answer: `[user, inode, device, text, whether it is locked]`; null where
    there is none.
    """

    folder: str
    name: str


class Sources(NamedTuple):
    """See what sources are. Answer: `[user, ...]`, and per source its inode and what is in it,
    `["", ""]` for none.
    """

    paths: List[str]


_held: Dict[str, Tuple[int, int]] = {}  # open files and their folders, by their names


def _nearest(of: object, request: Nearest) -> str:
    full = os.path.realpath(os.path.expanduser(to_bytes(request.path)) or b".")
    while not os.path.isdir(full):
        full = os.path.dirname(full)
    return to_text(full)


def _show(of: object, request: Show) -> Optional[List[object]]:
    folder, name, text = request
    if not text:
        _remove(name, open_named(to_bytes(folder)))
        return None
    if name not in _held:
        folder_fd = open_named(to_bytes(folder))
        with fence.keeping_times(folder_fd):
            _remove_dead(to_bytes(name)[: -len(PART_SUFFIX) - _NONCE_CHARS], folder_fd)
            flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
            _held[name] = os.open(to_bytes(name), flags, 0o600, dir_fd=folder_fd), folder_fd
    fd = _held[name][0]
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.pwrite(fd, text.encode("ascii"), 0)
    os.fsync(fd)
    return [*_facts(os.fstat(fd)), text]


def _remove_dead(begin: bytes, folder_fd: int) -> None:
    """Remove what runs of this copy that were killed meanwhile have left: nobody locks it."""
    for name in map(os.fsencode, os.listdir(folder_fd)):
        if not (name.startswith(begin) and name.endswith(PART_SUFFIX)):
            continue
        with contextlib.suppress(OSError), _opened(name, folder_fd) as fd:
            if fence.lock(fd, fcntl.LOCK_EX, 0.0):
                os.unlink(name, dir_fd=folder_fd)


def _opened(name: bytes, folder_fd: int) -> "ContextManager[int]":
    return system.closing(os.open(name, files.PART_FLAGS, dir_fd=folder_fd))


def _remove(name: str, folder_fd: int) -> None:
    """Remove the file, if it is there, and close the folder. The file is closed before: NFS and
    FUSE keep one that is open, by another name. One that is held is removed only while the name is
    its own: a host that was lost may come to this late, when another one shows.
    """
    held = _held.pop(name, None)
    is_others = held is not None and not fence.is_named(*held, to_bytes(name))
    for fd in held or ():
        if fd != folder_fd:
            os.close(fd)
    if is_others:
        os.close(folder_fd)
        return
    with contextlib.suppress(FileNotFoundError), fence.keeping_times(folder_fd):
        os.unlink(to_bytes(name), dir_fd=folder_fd)
    os.close(folder_fd)


@atexit.register
def _remove_all() -> None:
    """Leave nothing behind where the connection ends meanwhile."""
    for name, (_, folder_fd) in list(_held.items()):
        _remove(name, folder_fd)


def _look(of: object, request: Look) -> Optional[List[object]]:
    try:
        with system.closing(open_named(to_bytes(request.folder))) as folder_fd:
            fd = os.open(to_bytes(request.name), files.PART_FLAGS, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    with system.closing(fd):
        is_locked = not fence.lock(fd, fcntl.LOCK_SH, 0.0)
        text = os.pread(fd, _BYTES_MOST, 0).decode("ascii", "replace")
        return [*_facts(os.fstat(fd)), text, is_locked]


def _facts(status: os.stat_result) -> List[int]:
    return [os.geteuid(), status.st_ino, status.st_dev]


def _sources(of: object, request: Sources) -> List[object]:
    return [os.geteuid(), *(_source(to_bytes(path)) for path in request.paths)]


def _source(path: bytes) -> List[str]:
    """Return a source's inode, and what tells all from others of it, or of a folder a part."""
    try:
        status = os.stat(path)
        names = sorted(os.listdir(path))[:_NAMES_MOST] if stat.S_ISDIR(status.st_mode) else []
        inodes = [(name, os.lstat(os.path.join(path, name)).st_ino) for name in names]
    except OSError:
        return ["", ""]
    is_folder = stat.S_ISDIR(status.st_mode)
    # Two file systems made alike have one inode number and time for it, but not for its ctime.
    times = status.st_mtime_ns, status.st_ctime_ns
    facts = [status.st_mode, is_folder or status.st_size, times, inodes]
    return ["%d" % status.st_ino, hashlib.sha256(repr(facts).encode("ascii")).hexdigest()]


answers.add(answers.ITSELF, {Nearest: _nearest, Show: _show, Look: _look, Sources: _sources})
