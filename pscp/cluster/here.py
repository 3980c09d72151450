"""What a thread knows of the worker that it is of: its names, and whether its task is wanted still.

Not here: what a task does (mover.py). Read next: mover.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

from pscp.ground import stops
from pscp.ground.errors import Cancelled

LOOK_S = 0.1  # how often a task looks whether it is wanted still


def name() -> str:
    """Return what people know this worker by."""
    return f"{socket.gethostname()} ({os.getpid()})"


def address() -> str:
    """Return by what Dask knows the worker whose thread this is; empty where it is no worker's."""
    return address_of(worker())


def address_of(dask_worker: Any) -> str:
    return str(dask_worker.address) if dask_worker is not None else ""


def worker() -> Any:
    """Return Dask's worker whose thread this is; None where it is no worker's."""
    from distributed import get_worker

    with contextlib.suppress(ValueError):
        return get_worker()
    return None


def is_cancelled() -> bool:
    """Return whether nobody waits for this task any more: the run is over, or was ended."""
    from distributed.worker import thread_state

    key = getattr(thread_state, "key", None)
    if key is None:
        return False
    state = worker().state.tasks.get(key)
    return state is None or state.state == "cancelled"


class Wanted(stops.Stop):
    """Ends the pauses between a task's attempts to connect, once nobody waits for the task."""

    def check(self) -> None:
        super().check()
        if is_cancelled():
            raise Cancelled("the task was taken back")

    def pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        super().pause(min(seconds, LOOK_S))
        while (left_s := until_s - time.monotonic()) > 0:
            super().pause(min(left_s, LOOK_S))
