"""One run of a job at a time, and where a job's state is kept.

A run holds flock(2) on a file of the state folder, which is never removed: so a crash leaves no
lock behind, and no two runs lock two files of one name.

Not here: what becomes of a job that is locked (../runner.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from typing import IO

from pscp.ground import errors, state, stops

_LABEL_MAX = 48  # characters of a file's name, which may have 255 bytes
_LOOK_S = 1.0  # between two looks whether the other run has ended


def state_path(config_path: str, job: str = "") -> str:
    """Return where that lies, in the state folder, which is kept of a config file or a job in it.

    Jobs of one name in two files are two jobs; one file by two names is one.
    """
    path = os.path.realpath(config_path)
    names = _file_name(os.path.basename(path), path), job and _file_name(job, job)
    return os.path.join(state.folder(), "run", *names)


def locked(path: str, *, waits: bool = False) -> IO[bytes]:
    """Return the lock of this path, with ".lock" at its end: a context manager, which lets go.

    Raises CopyRunning where another run holds it, unless `waits`; CopyError where none can be had.
    """
    while True:
        try:
            return state.lock(f"{path}.lock")
        except BlockingIOError:
            if not waits:
                what = f"another run of this job is under way{state.holder(f'{path}.lock')}"
                raise errors.CopyRunning(what) from None
        except OSError as error:
            hint = "without a lock nothing runs; XDG_STATE_HOME names another folder"
            raise errors.CopyError(f"{path}.lock: {error.strerror}", hint) from None
        stops.pause(_LOOK_S)


def is_locked(path: str) -> bool:
    """Return whether a run has the lock of this path, also where its process is not to be seen."""
    with contextlib.suppress(OSError), open(f"{path}.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _file_name(label: str, key: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9@-]", "_", label)[:_LABEL_MAX]
    return f"{readable}-{hashlib.sha256(ascii(key).encode()).hexdigest()[:16]}"
