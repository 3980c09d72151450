"""A cluster of Dask's in the copy's process: each task is tried by threads, as its fate is drawn.

A worker that seems lost, and whose task another one has got, goes on: at the same time, before the
other begins, once that is over, or when the whole copy is; what it says nobody hears. It may stand
still meanwhile: no clock is waited for, since the scheduler here gives it up at that very moment.
Where a worker is gone that alone may do a task, the dispatcher gives the task's work to others.

Not here: what becomes of the copy (whole.py), workers that are processes of Dask's
(../faults/test_cluster.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from core.link import Bench
from dask_client import DaskClient, worker_at

from pscp.cluster import dispatcher, here, mover, place
from pscp.cluster.tasks import Outcome, errand_of, pack
from pscp.ground.errors import CopyError
from pscp.transfer import far_hosts

# What a first try does, of which nothing is heard.
NONE, BEFORE, BESIDE = "none", "all of it before", "all of it meanwhile"
BEGUN, AMID = "stands still once it has begun", "stands still amid its work"
AFTER = "begins when that is over"
OUTLIVES = "all of it by a process that outlives this one"  # the first such task alone
FIRSTS = NONE, BEFORE, BESIDE, BEGUN, AMID, AFTER
# What the dispatcher hears of the task.
DONE, FAILED, NOTHING = "done", "given up", "nothing done"
SHUT_OUT = "shut out by a try of which nothing is heard"
GONE = "its worker is gone"  # if no other may do it, nothing: the dispatcher takes it back
DROPPED, UNHEARD = "dropped by the scheduler", "done, and lost with the worker that had the result"
TOLD = DONE, FAILED, NOTHING, SHUT_OUT, GONE, DROPPED, UNHEARD
FRUITLESS = FAILED, NOTHING, DROPPED, UNHEARD  # of three such tasks the copy ends
SILENT, ELSEWHERE = "silent at first", "silent at first, and sees other files"


class Fate(NamedTuple):
    """What becomes of a task."""

    first: str = NONE
    told: str = DONE
    to_the_end: bool = False  # the first try stands still, or does not begin, until all is over

    def __str__(self) -> str:
        return f"{self.told}, first {self.first}{', to the end' * self.to_the_end}"


ONCE, TOGETHER, LATE = Fate(), Fate(BESIDE), Fate(AFTER)
LOST, LOST_LATE = Fate(BESIDE, FAILED), Fate(AFTER, FAILED)
TAKEN_OVER = Fate(BESIDE, GONE)
_ENDING_S = 10.0
# What takes seconds over a network, and tasks of some chunks.
QUICK: tuple[tuple[Any, str, Any], ...] = (
    (mover, "_KEPT_S", 0.02),
    (mover, "_FIRST_S", 0.02),
    (place, "_ANSWER_S", 0.0),  # who answers does so at once
    (dispatcher, "_LOOK_S", 0.02),
    (dispatcher, "_COLLECT_S", 0.005),
    (dispatcher, "_FIRST_BYTES", 96 * 1024),
)
HURRY_S = 0.001  # until an idle lane of a task sends another one's chunk as well
_here = threading.local()  # of a try's thread: the worker's address, and the try's gate


class Gate:
    """Where a try stands still, if it comes there."""

    def __init__(self, first: str) -> None:
        self._first = first
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_by(self, first: str) -> None:
        if first == self._first and not self.reached.is_set():
            self.reached.set()
            self.opened.wait()


class Standing(mover._Moving):
    """A task at a worker, which may stand still."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._gate: Gate | None = getattr(_here, "gate", None)

    def _work(self, *given: Any) -> None:
        self._pass_by(BEGUN)
        super()._work(*given)

    def note_refusal(self, *given: Any) -> bool:
        self._pass_by(AMID)  # a piece is done, which the outcome has not yet
        return super().note_refusal(*given)

    def _pass_by(self, first: str) -> None:
        if self._gate is not None:
            self._gate.pass_by(first)


def worker_here() -> Any:
    """Return the worker that this thread is one of."""
    address = getattr(_here, "address", None)
    return worker_at(address) if address is not None else None


class Future(concurrent.futures.Future[bytes]):
    """A task, as the dispatcher sees it."""

    @property
    def status(self) -> str:
        if self.cancelled():
            return "cancelled"
        if not self.done():
            return "pending"
        is_error = not isinstance(self.exception(), (type(None), concurrent.futures.CancelledError))
        return "error" if is_error else "finished"


class Given(NamedTuple):
    """A task that the dispatcher has handed out."""

    call: Callable[..., bytes]
    args: tuple[Any, ...]
    future: Future
    workers: Sequence[str] | None  # those that may do it; None: all

    def tell(self, outcome: bytes) -> None:
        if self.future.set_running_or_notify_cancel():  # else it was taken back
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def wait(self) -> None:
        """Wait until it is taken back."""
        is_over = threading.Event()
        self.future.add_done_callback(lambda _: is_over.set())
        is_over.wait()


class Tries(DaskClient):
    """The client of a cluster. The fates are those of the first tasks; the others have none.

    Args:
        looks: how the last worker meets the copy: "", SILENT or ELSEWHERE.
        elsewhere: folders that it has in place of those that the copy is of, where it is ELSEWHERE.
    """

    def __init__(
        self, bench: Bench, fates: Sequence[Fate], looks: str, elsewhere: Mapping[str, str]
    ) -> None:
        self._numbers = itertools.count()
        # One that is elsewhere does nothing, and another one may seem to on a busy machine.
        super().__init__([self._address() for _ in range(3 if looks == ELSEWHERE else 2)])
        self._bugs, self._fates = bench.bugs, itertools.chain(fates, itertools.repeat(ONCE))
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()  # guards what follows, and the workers
        self._gates: list[Gate] = []
        self.lent: socket.socket | None = None  # to a process that does a task as well
        self.when_begun: Callable[[], object] = lambda: None  # called before the first task
        self._silent = self.workers[-1] if looks else ""
        self._elsewhere = elsewhere if looks == ELSEWHERE else {}

    async def run(
        self, call: Callable[..., object], *args: object, workers: Sequence[str], on_error: str
    ) -> dict[str, object]:
        if self._silent in workers:
            await asyncio.Event().wait()
        return await super().run(call, *args, workers=workers, on_error=on_error)

    def submit(
        self, call: Callable[..., bytes], *args: Any, workers: Any = None, **more: object
    ) -> Future:
        begun, self.when_begun = self.when_begun, lambda: None
        begun()
        task = Given(call, args, Future(), workers)
        if call is mover.move:
            self._start(partial(self._do, next(self._fates), task))
        else:  # it hashes, and changes nothing
            self._start(lambda: task.tell(call(*args)))
        return task.future

    def cancel(self, futures: Sequence[Future], *, force: bool) -> None:
        """Forget these tasks. Their tries go on, as of workers that were cut off."""
        for future in futures:
            future.cancel()

    def finish(self) -> None:
        """Have all go on that stand still, and wait for what comes late."""
        for gate in self._gates:
            gate.opened.set()
        until_s = time.monotonic() + _ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    # --- a task, on a thread of its own

    def _do(self, fate: Fate, task: Given) -> None:
        address = self._choose(task)
        if address is None:  # Dask keeps it until the dispatcher takes it back
            return
        gate = self._begin_first(fate, task, address)
        if fate.told == GONE:
            self._lose(address)
        other = self._choose(task, but=address)
        if fate.told not in (DONE, GONE):
            self._tell(fate.told, task, address)
        elif other is not None:
            task.tell(self._try(task, other))
        else:
            task.wait()
        if not fate.to_the_end:
            gate.opened.set()
        if fate.first == AFTER:
            gate.opened.wait()
            self._try(task, address)

    def _tell(self, told: str, task: Given, address: str) -> None:
        """Have the dispatcher hear of a task with which it can do nothing."""
        if told == SHUT_OUT:
            nothing = CopyError("another try has begun")
            task.tell(pack(Outcome("one", {}, {}, nothing, is_shut_out=True, address=address)))
        elif told == NOTHING:
            task.tell(pack(Outcome("one", {}, {}, CopyError("no network"), address=address)))
        elif told == FAILED:
            task.fail(RuntimeError("a worker died four times"))
        elif told == UNHEARD:
            self._try(task, address)
            task.fail(concurrent.futures.CancelledError())
        else:
            task.future.cancel()

    def _begin_first(self, fate: Fate, task: Given, address: str) -> Gate:
        """Have the try that nobody hears of come where it is to stand still."""
        gate = Gate(fate.first)
        self._gates.append(gate)

        def act() -> None:
            try:
                self._try(task, address, gate)
            finally:
                gate.reached.set()

        if fate.first == BEFORE:
            act()
        elif fate.first == OUTLIVES and self.lent is not None:
            lent, self.lent = self.lent, None
            with lent, lent.makefile("wb") as file:
                pickle.dump(task.args, file)
        elif fate.first in (BESIDE, BEGUN, AMID):
            self._start(act)
            if fate.first != BESIDE:
                gate.reached.wait()
        return gate

    def _try(self, task: Given, address: str, gate: Gate | None = None) -> bytes:
        _here.address, _here.gate = address, gate
        version, errand, work = task.args
        if address == self._silent and self._elsewhere:
            errand = _as_elsewhere(errand, self._elsewhere)
        return task.call(version, errand, work)

    def _choose(self, task: Given, but: str = "") -> str | None:
        """Return a worker for a task, another one if there is any; None where none may do it."""
        with self._lock:
            may = [each for each in self.workers if task.workers is None or each in task.workers]
            self.workers = [*self.workers[1:], *self.workers[:1]]  # in turn
        return next((each for each in may if each != but), may[0] if may else None)

    def _lose(self, address: str) -> None:
        """Have Dask take a worker for lost; another one begins in its place."""
        with self._lock:
            others = [each for each in self.workers if each != address]
            self.workers = [*others, self._address()]

    def _address(self) -> str:
        return f"inproc://model/{next(self._numbers)}"

    def _start(self, act: Callable[[], object]) -> None:
        def run() -> None:
            try:
                act()
            except BaseException:
                self._bugs.append(traceback.format_exc())

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()


def _as_elsewhere(errand: bytes, folders: Mapping[str, str]) -> bytes:
    """Return an errand as a worker means it that has other folders under the same paths."""

    def there(path: str) -> str:
        for own, other in folders.items():
            if path == own or path.startswith(own + "/"):
                return other + path[len(own) :]
        return path

    its = errand_of(errand)
    if its.login.is_push:
        tops = [top._replace(path=there(top.path)) for top in its.of_source.tops]
        return pack(its._replace(of_source=its.of_source._replace(tops=tops)))
    return pack(its._replace(of_sink=its.of_sink._replace(root=there(its.of_sink.root))))


def do_lent_task(lent: socket.socket) -> None:
    """Do the task that a run lends, if it does before it ends."""
    with lent, lent.makefile("rb") as file:
        if not file.peek():
            return
        args = pickle.load(file)
    _here.address = "inproc://model/other"
    mover.move(*args)


def connect_over(bench: Bench) -> None:
    """Have the workers, and several hosts, connect over links of this bench."""
    vars(far_hosts)["OneHost"] = bench.one_host


def hurry() -> None:
    """Have idle lanes of tasks do at once what others are at."""
    vars(mover).update(_TAKEOVER_S=HURRY_S, _TAKEOVER_MOST_S=HURRY_S)


def stand_in() -> None:
    """Have this process's tasks be of workers that are threads, and may stand still."""
    for module, name, value in QUICK:
        setattr(module, name, value)
    vars(here)["worker"] = worker_here
    vars(mover)["_Moving"] = Standing
