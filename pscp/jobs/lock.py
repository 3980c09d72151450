"""One run of a job at a time, and where a job's state is kept.

A run holds flock(2) on a file of the state folder, which is never removed: so a crash leaves no
lock behind, and no two runs lock two files of one name. What the run starts does not inherit it.

Not here: what becomes of a job that is locked (runner.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator

from pscp import errors, state, stops

_LABEL_MAX = 48  # characters of a file's name, which may have 255 bytes
_LOOK_S = 1.0  # between two looks whether the other run has ended


def state_name(config_path: str, job: str = "") -> str:
    """Return the name, in the state folder, of what is kept of a config file, or of a job in it.

    Jobs of one name in two files are two jobs; one file by two names is one.
    """
    path = os.path.realpath(config_path)
    return os.path.join(
        "run", _file_name(os.path.basename(path), path), job and _file_name(job, job)
    )


def state_path(config_path: str, job: str = "") -> str:
    """Return the path of what state_name() names."""
    return os.path.join(state.folder(), state_name(config_path, job))


@contextlib.contextmanager
def locked(path: str, *, waits: bool = False) -> Iterator[None]:
    """Hold the lock of this path, with ".lock" at its end, in a block.

    Raises CopyRunning where another run holds it, unless `waits`; CopyError where none can be had.
    """
    fd = _open(f"{path}.lock")
    try:
        while not _is_taken(fd):
            if not waits:
                who = state.holder(f"{path}.lock")
                raise errors.CopyRunning(f"another run of this job is under way{who}")
            stops.pause(_LOOK_S)
        yield
    finally:
        os.close(fd)


def _open(path: str) -> int:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # closed in what is started (PEP 446)
    except OSError as error:
        raise errors.CopyError(
            f"{path}: {error.strerror}", "without a lock nothing runs; XDG_STATE_HOME names another"
        ) from None


def _is_taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        why = f"{state.folder()} cannot be locked: {error.strerror}"
        raise errors.CopyError(why, "XDG_STATE_HOME names another folder") from None
    return True


def _file_name(label: str, key: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9@-]", "_", label)[:_LABEL_MAX]
    return f"{readable}-{hashlib.sha256(ascii(key).encode()).hexdigest()[:16]}"
