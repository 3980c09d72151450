"""The parts of one run: how they are made, opened, locked, recognised and removed.

A part is an incomplete file, `.NAME.HASH.KEY.pscp-part` beside the place of the file. The key is
the copy's token and the run's nonce, so that no two runs write into one part. It is written only
under a shared flock(2) and while it has its name (Parts.written); it is renamed only under an
exclusive one (Parts.claimed). So a lane that still has it open after that can change nothing.

Not here: what is written (sink.py), which run may change final names (fence.py).
"""

import contextlib
import errno
import fcntl
import os
import stat
from typing import ContextManager, Dict, Iterator, List, Optional, Tuple

from ..frames import system, wire
from ..frames.failures import DESTINATION, SYSTEM, UNSAFE, Data, Refusal
from ..reading import files, tree
from ..reading.paths import Root, part_name, status_of
from . import fence

# A writer locks a part for one pwrite(2) of a chunk. One that is stopped is waited for so long.
_PATIENCE_S = 30.0
_NO_LOCKS = frozenset([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL])

Facts = Tuple[int, int, int, int]  # of a file: its kind, its owner, its links, others' rights
# In the mode of a part that was the file itself: an earlier version's --inplace renamed that, so
# that it may be the only copy of the old file.
WAS_FILE = stat.S_ISVTX


NAMELESS, PRIVATE, SHARED = 1, 2, 3  # whose name a part has: none, this lane's, the run's
Compared = Tuple[files.Identity, bool]  # of a file, and whether its contents are a part's


class Part:
    """A complete part, and the entry that it becomes."""

    def __init__(self, fd: int, entry: tree.Entry, strong: str, kind: int) -> None:
        self.fd, self.entry, self.strong, self.kind = fd, entry, strong, kind
        self.failure: Optional[Data] = None
        self.compared: Optional[Compared] = None  # with what it replaces, which is to be kept
        self.place: Optional[Tuple[int, bytes]] = None  # of the entry, once its folder is open
        self.old_fd = -1  # what it replaces, once it does: to free that may take a second

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def free_old(self) -> None:
        fd, self.old_fd = self.old_fd, -1
        if fd >= 0:
            os.close(fd)


class Parts:
    """The parts of one run below one root."""

    def __init__(self, root: Root, the_fence: fence.AnyFence, token: str, nonce: str) -> None:
        self._root, self._fence = root, the_fence
        self._token, self._nonce = token, nonce
        self._private = "%s%s%s" % (token, nonce, os.urandom(3).hex())
        self._stable: Dict[int, bool] = {}  # by device: whether inode numbers tell files apart
        self._made: Dict[int, Optional[Facts]] = {}  # by device: a new private file's facts

    def name(self, name: bytes, nonce: str = "") -> bytes:
        """Return the name of this file's part; an earlier run's with that run's nonce."""
        return part_name(name, self._token + (nonce or self._nonce))

    def private_name(self, name: bytes) -> bytes:
        """Return a name for this file's part that no other lane uses."""
        return part_name(name, self._private)

    def open(self, path: str, nonce: str = "", receipt: int = 0) -> int:
        """Open a part that is there, and return its descriptor.

        Raises OSError, and Refusal for a file that is not as this user makes parts, unless it has
        this receipt.
        """
        fd, folder_fd = self._open(path, nonce)
        try:
            is_known = receipt and receipt == self.receipt(fd)
            # A part that is known may have its final owner and mode already.
            if not is_known and not self._is_ours(folder_fd, os.fstat(fd)):
                raise Refusal(UNSAFE, path, "what has its part's name is not ours")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open(self, path: str, nonce: str) -> Tuple[int, int]:
        """Open what has the part's name; return its descriptor and the folder's."""
        folder_fd, name = self._root.at(path)
        return os.open(self.name(name, nonce), files.PART_FLAGS, dir_fd=folder_fd), folder_fd

    def make(self, path: str) -> int:
        """Make the part of this run, or open it where another lane was first."""
        with self._fence.held():
            folder_fd, name = self._root.at(path, make=True)
            flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
            # A lane that comes late may make one when the folder has its final times.
            with contextlib.suppress(FileExistsError), fence.keeping_times(folder_fd):
                return os.open(self.name(name), flags, 0o600, dir_fd=folder_fd)
            return self.open(path)

    def receipt(self, fd: int) -> int:
        """Return the part's inode number, SOME_PART where the filesystem has no reliable ones."""
        status = os.fstat(fd)
        if status.st_dev not in self._stable:
            self._stable[status.st_dev] = system.has_stable_inodes(status.st_dev)
        return status.st_ino if self._stable[status.st_dev] else wire.SOME_PART

    @contextlib.contextmanager
    def lock_for_writing(self, fd: int, path: str) -> Iterator[None]:
        """Keep the part from being renamed meanwhile. Raises Refusal where it lost its name."""
        with self._locked(fd, path, fcntl.LOCK_SH):
            folder_fd, name = self._root.at(path)
            if not fence.is_named(fd, folder_fd, self.name(name)):
                with self._fence.held():  # raises where another run removed it
                    raise Refusal(SYSTEM, path, "its part was replaced")
            yield

    def lock_for_renaming(
        self, fd: int, path: str, patience_s: float = _PATIENCE_S
    ) -> ContextManager[None]:
        """Keep everybody else from writing and renaming the part meanwhile."""
        return self._locked(fd, path, fcntl.LOCK_EX, patience_s)

    @contextlib.contextmanager
    def _locked(
        self, fd: int, path: str, kind: int, patience_s: float = _PATIENCE_S
    ) -> Iterator[None]:
        beside = -1
        try:
            is_locked = fence.lock(fd, kind, patience_s)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            beside = self._open_common_lock()
            is_locked = fence.lock(beside, kind, patience_s)
        try:
            if not is_locked:
                raise Refusal(SYSTEM, path, "its part is held by another process")
            yield
        finally:
            if beside >= 0:
                os.close(beside)
            else:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def _open_common_lock(self) -> int:
        """Open a file of this machine that stands for all parts of the copy, where those have no
        locks.
        """
        with system.closing(fence.private_folder(True)) as folder_fd:
            name = b".%s.pscp-lock" % self._token.encode("ascii")
            return os.open(name, files.PART_FLAGS | os.O_CREAT, 0o600, dir_fd=folder_fd)

    # --- what earlier runs left

    def left(self, folder_fd: int, name: bytes, nonces: List[str]) -> List[str]:
        """Return those runs that left a part of the file."""
        runs = []
        for nonce in nonces:
            with contextlib.suppress(OSError):
                os.stat(self.name(name, nonce), dir_fd=folder_fd, follow_symlinks=False)
                runs.append(nonce)
        return runs

    def remove(self, path: str, nonce: str = "") -> Optional[bool]:
        """Remove a file's part, if it has one. False where it does not open or cannot be removed.

        It may be held, for what is written to it then is in no file; and it may have its final
        owner and mode already, if not its final name. None: it was the file itself, and stays as
        long as no other file has its name.
        """
        try:
            fd = self._open(path, nonce)[0]
        except FileNotFoundError:
            return True
        except (OSError, Refusal):
            return False
        with system.closing(fd), contextlib.suppress(OSError, Refusal):
            folder_fd, name = self._root.at(path)
            if os.fstat(fd).st_mode & WAS_FILE and not _is_file(folder_fd, name):
                return None
            if fence.is_named(fd, folder_fd, self.name(name, nonce)):
                with fence.keeping_times(folder_fd):  # which may be its final ones already
                    os.unlink(self.name(name, nonce), dir_fd=folder_fd)
            return True
        return False

    def unlink_private(self, path: str) -> None:
        """Remove the part of a small file that only this lane knows, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            folder_fd, name = self._root.at(path)
            os.unlink(self.private_name(name), dir_fd=folder_fd)

    def _is_ours(self, folder_fd: int, status: os.stat_result) -> bool:
        """Is it like a part that this user makes: with one name, and private?"""
        if is_private(status):
            return True
        if status.st_dev not in self._made:
            self._made[status.st_dev] = _as_made_here(folder_fd, self.private_name(b"probe"))
        return self._made[status.st_dev] == _facts(status)


def is_private(status: os.stat_result) -> bool:
    return _facts(status) == (stat.S_IFREG, os.geteuid(), 1, 0)


def _facts(status: os.stat_result) -> Facts:
    mode = status.st_mode
    return stat.S_IFMT(mode), status.st_uid, status.st_nlink, mode & (0o077 | WAS_FILE)


def file_to_replace(folder_fd: int, name: bytes, path: str) -> Optional[os.stat_result]:
    """Return the status of the file that has this name, if one has. Raises Refusal for a folder
    or a special file.
    """
    status = status_of(folder_fd, name)
    if status is None or stat.S_ISLNK(status.st_mode):
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    what = "a folder" if stat.S_ISDIR(status.st_mode) else "a special file"
    raise Refusal(DESTINATION, path, "is %s at the destination" % what)


def _is_file(folder_fd: int, name: bytes) -> bool:
    found = status_of(folder_fd, name)
    return found is not None and stat.S_ISREG(found.st_mode)


def _as_made_here(folder_fd: int, name: bytes) -> Optional[Facts]:
    """Return the facts of a new private file, which a filesystem may give others' owner or mode."""
    flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
    try:
        fd = os.open(name, flags, 0o600, dir_fd=folder_fd)
    except OSError:
        return None
    try:
        return _facts(os.fstat(fd))
    finally:
        os.close(fd)
        os.unlink(name, dir_fd=folder_fd)
