"""What the server tells: a line of JSON for each event, and counters.

Not here: who reads the counters (server).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import os
import sys
import threading
import time
from typing import Any


class Events:
    """A log of JSON lines, and counters by name and user. Any thread may use it."""

    def __init__(self, path: str) -> None:
        """Write to this file, or to standard error for "". Raises OSError."""
        self._path, self._lock = path, threading.Lock()
        self.counters: collections.Counter[tuple[str, str]] = collections.Counter()
        self._fd = self._opened()

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
        try:
            with self._lock:
                append(self._fd, line)
        except OSError:
            self.count("log_failures", "")


def opened_to_append(path: str) -> int:
    """Open a file of lines, which is made where there is none. Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def append(fd: int, line: bytes) -> None:
    """Write a whole line, or nothing of it where the disk is full. Raises OSError.

    In one write, and one process at a time, so that lines of several processes stay whole.
    """
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        written = os.write(fd, line)
        if written < len(line):
            with contextlib.suppress(OSError):  # no file: a pipe, which keeps what it has
                os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR) - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
