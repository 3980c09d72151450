"""What a user has used of quota and rate, over all processes of the server.

It is a small file in the state folder, locked for each change: bytes, files, and until when the
rate is used up.

Not here: who asks (landing.py, windows.py). Nothing else is shared by the processes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from pscp.endpoint.reading.paths import status_of
from pscp.serve.folder import QUICK
from pscp.serve.programs import none_starting
from pscp.serve.settings import User

_FORM = struct.Struct("<qqd")
_MOST_BYTES = (1 << 63) - 1  # of sparse files, which may add up to more
_MOST_AHEAD_S = 10.0  # the clock begins anew when the machine does
_BURST_S = 0.25  # the rate's bytes of so many seconds are sent at once


class Account:
    """The counters of one user. Any thread may use them."""

    def __init__(self, state: str, user: User) -> None:
        self._state, self._user, self._lock = state, user, threading.Lock()
        self._naming, self._depth = threading.RLock(), 0
        self._fd, self._names_fd = _opened(state, "accounts", user), _opened(state, "names", user)
        self._has_quota = (user.quota_bytes, user.quota_files) != (None, None)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._names_fd)

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Let no other session of this user make, rename or remove a name in this block."""
        with self._naming:
            fcntl.flock(self._names_fd, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    fcntl.flock(self._names_fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _held(self) -> Iterator[tuple[int, int, float]]:
        with self._lock:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                found = os.pread(self._fd, _FORM.size, 0)
                yield _FORM.unpack(found) if len(found) == _FORM.size else (0, 0, 0.0)
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _put(self, size_bytes: int, files: int, until_s: float) -> None:
        size_bytes = min(max(size_bytes, 0), _MOST_BYTES)
        os.pwrite(self._fd, _FORM.pack(size_bytes, max(files, 0), until_s), 0)

    def charge(self, size_bytes: int, files: int = 0) -> None:
        """Count bytes and files, or give them back below 0. Raises OSError: EDQUOT if too many."""
        if not self._has_quota or not (size_bytes or files):
            return
        user = self._user
        with self._held() as (has_bytes, has_files, until_s):
            for more, has, most in (
                (size_bytes, has_bytes, user.quota_bytes), (files, has_files, user.quota_files)
            ):  # fmt: skip
                if most is not None and more > 0 and has + more > most:
                    raise OSError(errno.EDQUOT, "the quota is used up")
            self._put(has_bytes + size_bytes, has_files + files, until_s)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a name that is made in this block. Raises OSError: EDQUOT if it is too many."""
        self.charge(0, 1)
        try:
            yield
        except BaseException:
            self.charge(0, -1)
            raise

    @contextlib.contextmanager
    def losing(self, folder_fd: int, name: bytes) -> Iterator[os.stat_result | None]:
        """Give back what has a name that may go in this block. Give its status, if it is there.

        The bytes of a file that somebody has open are given back when it is closed: release().
        """
        with self.naming():
            before = status_of(folder_fd, name)
            if before is None:
                yield None
                return
            fd = self.opened(name, folder_fd) if stat.S_ISREG(before.st_mode) else None
            try:
                yield before
                if not is_same(status_of(folder_fd, name), before):
                    self.charge(0, -1)
            finally:
                if fd is not None:
                    self.release(fd)

    def opened(self, name: bytes, folder_fd: int, how: int = os.O_RDONLY) -> int:
        """Open a file in an open folder; release() is to close it. Raises OSError."""
        with self.naming():
            flags = how | os.O_NOFOLLOW | QUICK | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder_fd)
            is_locked(fd, fcntl.LOCK_SH)
        return fd

    def release(self, fd: int) -> None:
        """Close a file that this session has locked, and give back its bytes if it is gone so."""
        with self.naming():
            status = os.fstat(fd)
            if not status.st_nlink and self.has_alone(fd):
                self.charge(-status.st_size)
            os.close(fd)

    def has_alone(self, fd: int) -> bool:
        """Lock a file for this session alone. Return whether no other has it open."""
        with none_starting(self._state):
            return is_locked(fd, fcntl.LOCK_EX)

    @property
    def used(self) -> tuple[int, int]:
        """The bytes and names that are counted."""
        with self._held() as (size_bytes, files, _):
            return size_bytes, files

    def delay_s(self, size_bytes: int) -> float:
        """Count bytes against the rate. Return for how long no more are to come, in seconds."""
        if not self._user.rate:
            return 0.0
        now_s = time.monotonic()
        with self._held() as (has_bytes, has_files, until_s):
            until_s = max(min(until_s, now_s + _MOST_AHEAD_S), now_s) + size_bytes / self._user.rate
            self._put(has_bytes, has_files, until_s)
        return until_s - now_s

    async def paced(self, size_bytes: int) -> float:
        """Wait until bytes may be sent. Return the time, in the monotonic clock's seconds."""
        await asyncio.sleep(max(self.delay_s(size_bytes) - _BURST_S, 0.0))
        return time.monotonic()

    def count_once(self) -> None:
        """Count what lies in the folder if there are no counters yet, which may take long."""
        if not self._has_quota:
            return
        with self._held():
            if os.fstat(self._fd).st_size:
                return
            size_bytes = files = 0
            linked = set[tuple[int, int]]()
            for _, _, status in entries(self._user.folder):
                files += 1
                key = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and key not in linked:
                    size_bytes += status.st_size
                    if status.st_nlink > 1:
                        linked.add(key)
            self._put(size_bytes, files, 0.0)


def _opened(state: str, kind: str, user: User) -> int:
    """Open a user's file of this kind in the state folder."""
    folder = Path(state) / kind
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / urllib.parse.quote(user.name, safe="")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def entries(folder: str) -> Iterator[tuple[int, bytes, os.stat_result]]:
    """Yield each name below a folder: the descriptor of where it is, itself, its status."""
    for _, folders, names, fd in os.fwalk(os.fsencode(folder)):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                yield fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False)


def is_same(one: os.stat_result | None, other: os.stat_result) -> bool:
    """Is it the same file?"""
    return one is not None and os.path.samestat(one, other)


def is_locked(fd: int, how: int) -> bool:
    """Lock a file for who has opened it, LOCK_SH or LOCK_EX. Return whether nobody prevents it."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
