"""A cluster of Dask's in the copy's process: each task is tried by threads, as its fate is drawn.

A worker that seems lost, and whose task another one has got, goes on: at the same time, before the
other begins, or once that is over; what it says nobody hears.

Not here: what becomes of the copy (whole.py), workers that are processes
(../faults/test_cluster.py).
"""

from __future__ import annotations

import concurrent.futures
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from core.link import Bench, MemoryOpener
from dask_client import DaskClient

from pscp.cluster import dispatcher, mover
from pscp.cluster.tasks import Outcome, pack
from pscp.connect.connections import Connections
from pscp.connect.one_host import OneHost
from pscp.ground.errors import CopyError
from pscp.ground.locations import Location
from pscp.transfer import far_hosts

ONCE = "once"
TOGETHER, UNTOLD, LATE = "two tries at once", "done, and told to nobody", "a try when it is over"
LOST, LOST_LATE = "given up amid a try", "given up, and a try then"
SHUT_OUT = "shut out by a try of which nothing is heard"
FATES = ONCE, TOGETHER, UNTOLD, LATE, LOST, LOST_LATE, SHUT_OUT
GIVEN_UP = LOST, LOST_LATE  # where nothing comes of three tasks, the copy ends
_ENDING_S = 10.0
# What takes seconds over a network, and tasks of some chunks.
QUICK: tuple[tuple[Any, str, Any], ...] = (
    (mover, "_KEPT_S", 0.02),
    (dispatcher, "_COLLECT_S", 0.005),
    (dispatcher, "_FIRST_BYTES", 96 * 1024),
)


class Future(concurrent.futures.Future[bytes]):
    """A task, as the dispatcher sees it."""

    @property
    def status(self) -> str:
        if not self.done():
            return "pending"
        return "error" if self.exception() is not None else "finished"


class Tries(DaskClient):
    """The client of a cluster. The fates are those of the first tasks; the others have none."""

    def __init__(self, bench: Bench, fates: Sequence[str]) -> None:
        super().__init__([f"inproc://model/{number}" for number in range(2)])
        self._bugs, self._fates = bench.bugs, itertools.chain(fates, itertools.repeat(ONCE))
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., bytes], *args: Any, **more: object) -> Future:
        future = Future()
        self._start(partial(self._do, next(self._fates), partial(call, *args), future))
        return future

    def cancel(self, futures: Sequence[Future], *, force: bool) -> None:
        """Let them go on, as workers that were cut off."""

    def finish(self) -> None:
        """Wait for what comes late."""
        until_s = time.monotonic() + _ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _do(self, fate: str, attempt: Callable[[], bytes], future: Future) -> None:
        if fate in (TOGETHER, LOST):
            self._start(attempt)
        if fate == UNTOLD:
            attempt()
        if fate == SHUT_OUT:
            nothing = CopyError("another try has begun")
            future.set_result(pack(Outcome("one", {}, {}, nothing, is_shut_out=True)))
        elif fate in GIVEN_UP:
            future.set_exception(RuntimeError("a worker died four times"))
        else:
            future.set_result(attempt())
        if fate in (LATE, LOST_LATE):
            attempt()

    def _start(self, act: Callable[[], object]) -> None:
        def run() -> None:
            try:
                act()
            except BaseException:
                self._bugs.append(traceback.format_exc())

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()


def connect_over(bench: Bench) -> None:
    """Have the workers, and several hosts, connect over links of this bench."""

    def connections(place: Location) -> Connections:
        return OneHost(place, MemoryOpener(bench))

    vars(far_hosts)["OneHost"] = connections
