"""A folder for one input at a time, and the constants that would make an input slow or lasting.

Not here: what is done in it (readers.py, ends.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from pscp.endpoint.frames import system
from pscp.endpoint.writing import fence

_here = Path("/nowhere")


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Make the folder, as the home of this process; and remove it. Nothing is synced meanwhile."""
    global _here
    before, base = _here, "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    _here = Path(tempfile.mkdtemp(prefix="pscp-fuzz-", dir=base))
    environment = {"XDG_STATE_HOME": f"{_here}/state", "HOME": f"{_here}/home"}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(os, "fsync"),
        mock.patch.object(fence, "PATIENCE_S", 0.05),
        mock.patch.object(fence, "private_folder", _no_folder),
        mock.patch.object(system, "holders", return_value=[]),  # they would be ended: it is us
    ):
        try:
            yield _here
        finally:
            shutil.rmtree(_here, ignore_errors=True)
            _here = before


def _no_folder(make: bool) -> int:
    raise FileNotFoundError


def folder() -> Path:
    """Return an empty folder."""
    found = _here / "work"
    if found.exists():
        shutil.rmtree(found)
    found.mkdir()
    return found


def state_folder() -> Path:
    """Return the folder of journals and memories, made where it is missing."""
    found = _here / "state" / "pscp"
    found.mkdir(parents=True, exist_ok=True)
    return found


def outside() -> Path:
    """Return the folder that stands for all else on this machine."""
    found = _here / "outside"
    found.mkdir(exist_ok=True)
    return found
