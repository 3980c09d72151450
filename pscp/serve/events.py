"""What the server tells: a line of JSON for each event, and counters.

Not here: who reads the counters (server).
"""

from __future__ import annotations

import collections
import errno
import fcntl
import json
import os
import stat
import sys
import threading
import time
from typing import Any

_LINE_MAX = 64 * 1024  # bytes: a path of 4 KiB, with escapes


class Events:
    """A log of JSON lines, and counters by name and user. Any thread may use it."""

    def __init__(self, path: str) -> None:
        """Write to this file, or to standard error for "". Raises OSError."""
        self._path, self._lock = path, threading.Lock()
        self.counters: collections.Counter[tuple[str, str]] = collections.Counter()
        self._fd = self._opened()
        self._is_torn = False  # does it end within a line?

    def _opened(self) -> int:
        if not self._path:
            return sys.stderr.fileno()
        return opened_to_append(self._path)

    def reopen(self) -> None:
        """Open the file anew, as after it was rotated; the old one stays where that fails."""
        try:
            fd = self._opened()
        except OSError as error:
            self.tell("log", "", "", "log_failures", ok=False, why=str(error))
            return
        with self._lock:
            fd, self._fd = self._fd, fd
        if self._path:
            os.close(fd)

    def count(self, name: str, user: str, number: float = 1) -> None:
        with self._lock:
            self.counters[name, user] += number  # type: ignore[assignment]  # bytes and numbers

    def tell(self, event: str, user: str, address: str, counts: str = "", **more: Any) -> None:
        """Write a line: when, what, who from where, and what else there is to say.

        `counts` is the counter of such events, if there is one. A full disk keeps nobody from what
        he does: what is not written is counted.
        """
        if counts:
            self.count(counts, user)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        said = {"time": now, "event": event, "user": user, "address": address, **more}
        line = json.dumps(said).encode("ascii") + b"\n"
        with self._lock:
            line = b"\n" * self._is_torn + line
            try:  # one write, so that lines of several processes stay whole
                written = os.write(self._fd, line)
            except OSError:
                written = 0
            self._is_torn = written < len(line) if written else self._is_torn
        if written < len(line):
            self.count("log_failures", "")


def opened_to_append(path: str, access: int = os.O_WRONLY) -> int:
    """Open a file of lines, which is made where there is none. Raises OSError."""
    return os.open(path, access | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def append(path: str, line: bytes, lock: str) -> None:
    """Write a whole line that is on the disk then, or nothing of it. Raises OSError.

    `lock` is a file that others may not open, by which one process does so at a time.
    """
    fd = opened_to_append(path, os.O_RDWR)
    try:
        with open(lock, "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            size_bytes = _cut_torn(fd)
            written = os.write(fd, line)
            if written < len(line):
                os.ftruncate(fd, size_bytes)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if size_bytes >= 0:
            os.fsync(fd)
    finally:
        os.close(fd)


def _cut_torn(fd: int) -> int:
    """Remove a line that was not written to its end, as by who was killed. Return the size, or -1
    for what is no file.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return -1
    if os.pread(fd, 1, max(0, status.st_size - 1)) in (b"", b"\n"):
        return status.st_size
    end = os.pread(fd, _LINE_MAX, max(0, status.st_size - _LINE_MAX))
    torn = len(end) - (end.rfind(b"\n") + 1)
    if torn:
        os.ftruncate(fd, status.st_size - torn)
    return status.st_size - torn
