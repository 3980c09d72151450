"""The parts of one run: how they are made, opened, locked, recognised and removed.

A part is a file that is incomplete: `.NAME.HASH.KEY.pscp-part` beside its place, where the key is
the copy's token and the run's nonce, so that no two runs write into one file. It is written only
under a shared flock(2), while it has its name (`written`); it gets another name, or none, only
under an exclusive one (`claimed`). So whoever still has it open after that can change nothing.

Not here: what is written (sink.py), which run may change final names (fence.py).
"""

import contextlib
import errno
import fcntl
import os
import stat
from typing import Dict, Iterator, List, Optional, Tuple

from . import fence, files, system, wire
from .failures import SYSTEM, UNSAFE, Refusal
from .paths import Root, part_name

# A writer holds a part for one pwrite of a chunk. A stopped one is waited for so long.
_PATIENCE_S = 30.0
_NO_LOCKS = frozenset([errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL])


Facts = Tuple[int, int, int, int]  # of a file: what it is, whose, how many names, others' rights


class Parts:
    """Below one root. Take `root.lock` around nothing here: each method does it itself."""

    def __init__(self, root: Root, the_fence: fence.AnyFence, token: str, nonce: str) -> None:
        self._root, self._fence = root, the_fence
        self._token, self._nonce = token, nonce
        self._private = "%s%s%s" % (token, nonce, os.urandom(3).hex())
        # By device: do inode numbers tell files apart; what is a new private file like?
        self._stable: Dict[int, bool] = {}
        self._made: Dict[int, Optional[Facts]] = {}

    def name(self, name: bytes, nonce: str = "") -> bytes:
        """What the part of this file is called; of an earlier run, with that run's nonce."""
        return part_name(name, self._token + (nonce or self._nonce))

    def private_name(self, name: bytes) -> bytes:
        """A name for a part that no other lane knows."""
        return part_name(name, self._private)

    def open(self, path: str, nonce: str = "", receipt: int = 0) -> int:
        """The descriptor of a part that is there: of the one with this receipt, if that is known.

        Raises OSError, and Refusal for another's file.
        """
        with self._root.lock:
            fd, folder_fd = self._opened(path, nonce)
            try:
                is_known = receipt and receipt == self.receipt(fd)
                # One that is known may have its final mode already.
                if not is_known and not self._is_ours(folder_fd, os.fstat(fd)):
                    raise Refusal(UNSAFE, path, "what has its part's name is not ours")
            except BaseException:
                os.close(fd)
                raise
            return fd

    def _opened(self, path: str, nonce: str) -> Tuple[int, int]:
        """What has the part's name, and the descriptor of its folder. With the root's lock held."""
        folder_fd, name = self._root.at(path)
        return os.open(self.name(name, nonce), files.PART_FLAGS, dir_fd=folder_fd), folder_fd

    def make(self, path: str) -> int:
        """Make the part of this run, or open it where another lane was first."""
        with self._fence.held():
            with self._root.lock:
                folder_fd, name = self._root.at(path, make=True)
                flags = files.PART_FLAGS | os.O_CREAT | os.O_EXCL
                with contextlib.suppress(FileExistsError):
                    return os.open(self.name(name), flags, 0o600, dir_fd=folder_fd)
            return self.open(path)

    def receipt(self, fd: int) -> int:
        """What tells this part from others: its inode, where the filesystem has reliable ones."""
        status = os.fstat(fd)
        if status.st_dev not in self._stable:
            self._stable[status.st_dev] = system.has_stable_inodes(status.st_dev)
        return status.st_ino if self._stable[status.st_dev] else wire.SOME_PART

    @contextlib.contextmanager
    def written(self, fd: int, path: str) -> Iterator[None]:
        """While this is held the part has its name. Raises Refusal when it has not any more."""
        with self._locked(fd, path, fcntl.LOCK_SH):
            with self._root.lock:
                folder_fd, name = self._root.at(path)
                is_named = fence.is_named(fd, folder_fd, self.name(name))
            if not is_named:
                with self._fence.held():  # raises where another run removed it
                    raise Refusal(SYSTEM, path, "its part was replaced meanwhile")
            yield

    @contextlib.contextmanager
    def claimed(self, fd: int, path: str) -> Iterator[None]:
        """While this is held nobody else writes the part, renames or removes it."""
        with self._locked(fd, path, fcntl.LOCK_EX):
            yield

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
            beside = self._one_for_all()
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

    def _one_for_all(self) -> int:
        """Where a filesystem has no locks: a file on this machine, for all parts of the copy."""
        folder_fd = fence.private_folder(True)
        try:
            name = b".%s.pscp-lock" % self._token.encode("ascii")
            return os.open(name, files.PART_FLAGS | os.O_CREAT, 0o600, dir_fd=folder_fd)
        finally:
            os.close(folder_fd)

    # --- what earlier runs left

    def left(self, folder_fd: int, name: bytes, nonces: List[str]) -> List[str]:
        """The runs of which the file has a part. With the root's lock held."""
        found = []
        for nonce in nonces:
            with contextlib.suppress(OSError):
                os.stat(self.name(name, nonce), dir_fd=folder_fd, follow_symlinks=False)
                found.append(nonce)
        return found

    def inherit(self, path: str, size: int, nonce: str) -> bool:
        """Make an earlier run's part this run's own. False where that must not, or cannot, be.

        Raises Refusal where another process holds it, or the run is superseded.
        """
        try:
            fd = self.open(path, nonce)
        except (OSError, Refusal):
            return self._has_own(path, size)
        try:
            status = os.fstat(fd)
            if not _is_private(status) or status.st_size != size:
                return False
            is_free = self._locked(fd, path, fcntl.LOCK_EX, 0.0)  # nobody writes it now
            with is_free, self._fence.held(), self._root.lock:
                folder_fd, name = self._root.at(path)
                before = self.name(name, nonce)
                if not fence.is_named(fd, folder_fd, before):
                    return self._has_own(path, size)
                os.rename(before, self.name(name), src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
                return True
        finally:
            os.close(fd)

    def _has_own(self, path: str, size: int) -> bool:
        """Was it inherited already, by a lane that died before it could say so?"""
        try:
            fd = self.open(path)
        except (OSError, Refusal):
            return False
        try:
            return os.fstat(fd).st_size == size
        finally:
            os.close(fd)

    def remove(self, path: str, nonce: str = "") -> bool:
        """Remove a file's part, if it has one, whoever holds it: what is written then is nowhere.

        That is also one which has its final owner and mode already, but not its final name. False
        where it does not open, or cannot be removed.
        """
        try:
            with self._root.lock:
                fd = self._opened(path, nonce)[0]
        except FileNotFoundError:
            return True
        except (OSError, Refusal):
            return False
        try:
            with contextlib.suppress(OSError, Refusal), self._root.lock:
                folder_fd, name = self._root.at(path)
                if fence.is_named(fd, folder_fd, self.name(name, nonce)):
                    os.unlink(self.name(name, nonce), dir_fd=folder_fd)
                return True
            return False
        finally:
            os.close(fd)

    def _is_ours(self, folder_fd: int, status: os.stat_result) -> bool:
        """Is it a part as this user makes them, with no other name and nobody else's access?"""
        if _is_private(status):
            return True
        if status.st_dev not in self._made:
            self._made[status.st_dev] = _as_made_here(folder_fd, self.private_name(b"probe"))
        return self._made[status.st_dev] == _facts(status)


def _is_private(status: os.stat_result) -> bool:
    return _facts(status) == (stat.S_IFREG, os.geteuid(), 1, 0)


def _facts(status: os.stat_result) -> Facts:
    mode = status.st_mode
    return stat.S_IFMT(mode), status.st_uid, status.st_nlink, mode & 0o077


def _as_made_here(folder_fd: int, name: bytes) -> Optional[Facts]:
    """What a new private file is like on a filesystem that keeps no owners, or no modes."""
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
