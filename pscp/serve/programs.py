"""Starts other programs. Between fork(2) and execve(2) such a process has all files open that its
worker has: then nobody can tell from a file's locks whether a session has it.

Not here: which programs (after_upload.py, server/logins.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def none_starting(state: str) -> Iterator[None]:
    """Have no process of the server start a program in this block."""
    with open(os.path.join(state, "starting"), "w", opener=_private) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def run(
    state: str, argv: Sequence[str], *, timeout_s: float | None = None, **how: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a program without input, and return its output. Raises OSError, TimeoutExpired."""
    with none_starting(state):
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **how)
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)
