"""Writes a file that a reader finds whole: as it was before, or as it is now.

Not here: what is written (report.py, metrics.py, page.py).
"""

from __future__ import annotations

import contextlib
import os
import stat

_DEVICES = ("/dev/", "/proc/")  # /dev/stdout leads to a file where a shell has redirected it


def write_whole(path: str, text: str) -> None:
    """Replace what a file holds in one step, also at a power loss; its links stay.

    What is no regular file is written to as it is, without waiting for a reader. Raises OSError.
    """
    data = text.encode("utf-8", "backslashreplace")
    if path.startswith(_DEVICES) or _is_other_than_file(path):
        with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), "wb", 0) as file:
            _write(file.fileno(), data)
        return
    path = os.path.realpath(path)
    new = os.path.join(os.path.dirname(path), f".pscp-run-{os.urandom(6).hex()}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _is_other_than_file(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
