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
from typing import IO

from pscp import errors, state, stops

_LABEL_MAX = 48  # characters of a file's name, which may have 255 bytes
_LOOK_S = 1.0  # between two looks whether the other run has ended


def state_path(config_path: str, job: str = "") -> str:
    """Return where that lies, in the state folder, which is kept of a config file or a job in it.

    Jobs of one name in two files are two jobs; one file by two names is one.
    """
    path = os.path.realpath(config_path)
    names = _file_name(os.path.basename(path), path), job and _file_name(job, job)
    return os.path.join(state.folder(), "run", *names)


@contextlib.contextmanager
def locked(path: str, *, waits: bool = False) -> Iterator[None]:
    """Hold the lock of this path, with ".lock" at its end, in a block.

    Raises CopyRunning where another run holds it, unless `waits`; CopyError where none can be had.
    """
    name = f"{path}.lock"
    with contextlib.ExitStack() as held:
        with _told(name):
            os.makedirs(os.path.dirname(name), exist_ok=True, mode=0o700)
            file = held.enter_context(open(name, "ab"))  # closed in what is started (PEP 446)
        while not _is_taken(file):
            if not waits:
                who = state.holder(name)
                raise errors.CopyRunning(f"another run of this job is under way{who}")
            stops.pause(_LOOK_S)
        yield


def _is_taken(file: IO[bytes]) -> bool:
    with _told(file.name), contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "without a lock nothing runs; XDG_STATE_HOME names another folder"
        raise errors.CopyError(f"{name}: {error.strerror}", hint) from None


def _file_name(label: str, key: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9@-]", "_", label)[:_LABEL_MAX]
    return f"{readable}-{hashlib.sha256(ascii(key).encode()).hexdigest()[:16]}"
