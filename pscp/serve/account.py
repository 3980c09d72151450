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
from collections.abc import Callable, Iterator
from pathlib import Path

from pscp.serve.settings import User

_FORM = struct.Struct("<qqd")
_MOST_BYTES = (1 << 63) - 1  # of sparse files, which may add up to more
_MOST_AHEAD_S = 10.0  # the clock begins anew when the machine does
_BURST_S = 0.25  # the rate's bytes of so many seconds are sent at once


class Account:
    """The counters of one user. Any thread may use them."""

    def __init__(self, state: str, user: User) -> None:
        self._user, self._lock, self._naming = user, threading.Lock(), threading.Lock()
        self._fd, self._names_fd = _opened(state, "accounts", user), _opened(state, "names", user)
        self._has_quota = (user.quota_bytes, user.quota_files) != (None, None)
        if self._has_quota:
            self._count_once()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._names_fd)

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Let no other session of this user name or remove a part in this block."""
        with self._naming:
            fcntl.flock(self._names_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
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

    @property
    def used(self) -> tuple[int, int]:
        """The bytes and files that are counted."""
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

    def _count_once(self) -> None:
        """Count what lies in the folder when there are no counters yet."""
        with self._held():
            if os.fstat(self._fd).st_size:
                return
            size_bytes = files = 0
            for status in statuses(self._user.folder):
                size_bytes, files = size_bytes + status.st_size, files + 1
            self._put(size_bytes, files, 0.0)


def _opened(state: str, kind: str, user: User) -> int:
    """Open a user's file of this kind in the state folder."""
    folder = Path(state) / kind
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / urllib.parse.quote(user.name, safe="")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def statuses(
    folder: str, see: Callable[[int, str, os.stat_result], None] = lambda *_: None
) -> Iterator[os.stat_result]:
    """Yield the status of each file below a folder; `see` gets its folder's descriptor and name."""
    for _, _, names, fd in os.fwalk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    see(fd, name, status)
                    yield status
