"""A worker's side: does one task with lanes of its own, and keeps their connections for the next.

Not here: the records (tasks.py), who makes tasks (dispatcher.py), what a thread knows of its worker
(here.py), the lanes (../transfer/lanes/).
Read next: ../transfer/lane_pool.py.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pscp.cluster import here
from pscp.cluster.tasks import (
    ChunkOutcome,
    Errand,
    Login,
    Outcome,
    PackOutcome,
    errand_of,
    login_of,
    pack,
    task_of,
)
from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.first_login import worth_many
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading.metadata import current_umask
from pscp.endpoint.reading.paths import to_text
from pscp.endpoint.serving.end import End
from pscp.endpoint.writing import seen, tries
from pscp.endpoint.writing.fence import TASK, TRY, fence_name
from pscp.ground import stops
from pscp.ground.contexts import start_thread, with_context
from pscp.ground.counters import LiveCounters
from pscp.ground.errors import Cancelled, CopyError, PscpError
from pscp.ground.leaving import LET_GO_S
from pscp.ground.log import Log
from pscp.options.arguments import version
from pscp.options.options import Options
from pscp.transfer import one_place
from pscp.transfer.far_hosts import connections_to
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.lanes.lost_work import revoke_first
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Chunk, Failure, Pack, PlannedEntry, Work
from pscp.transfer.pools import make_pool

_KEPT_S = 5.0  # for which connections wait for the next task
_FIRST_S = 10.0  # and for the first one, while the coordinator logs in and asks
# At the end of each task lanes are idle, and that is no reason to send chunks twice: the next task
# has work for this line. A lane that does so has answers to come, and gives no connection to it.
# But a chunk that takes three times as long as others may have a lane that stands still.
_TAKEOVER_S, _TAKEOVER_MOST_S = 1.0, 10.0
_AT_ONCE = 2  # tasks at work for each thread: one fills the line while the other begins or ends
SAME = "install the same version on all of them"
OTHER_PLACE = "it does not see this copy's files"

_log = Log("cluster")
_numbers = itertools.count(1)  # of files, which all tasks of this process count
_kept_lock = threading.Lock()  # guards the next one, and what changes of each in it
_kept: dict[tuple[str, str], _KeptConnections] = {}  # by the copy, and the worker's address


def begin_login(
    version_there: str, login: bytes | None, dask_worker: Any = None
) -> tuple[str, str]:
    """Return this worker's name and version; where that is the coordinator's, begin to log in.

    On a thread: Dask, which passes `dask_worker`, calls this on one that serves all.
    """
    if login is not None and version_there == version():
        start_thread(None, _log_in, login_of(login), dask_worker)
    return here.name(), version()


def _log_in(login: Login, worker: Any) -> None:
    met_again = contextlib.suppress(PscpError, OSError)  # by the first task, which tells it
    with _KeptConnections.held(login, worker, _FIRST_S) as kept, met_again, shaped():
        kept.log_in(login.options)


def ask_named(request: requests.Request) -> tuple[str, object]:
    """Return this worker's name, and its answer as ask_here() returns it."""
    return here.name(), ask_here(request)


def ask_here(request: requests.Request) -> object:
    """Return this machine's answer to a request that any end answers, or the failure's data."""
    return answers.of_near(End(current_umask()), request)[0]


def place_here(
    of_source: requests.BeginSource, of_sink: requests.BeginSink, is_push: bool
) -> object:
    """Return what tells the files at the near end from those of another machine: their inodes."""
    if is_push:
        return ask_here(seen.Sources([top.path for top in of_source.tops]))
    looked = ask_here(seen.Look(of_sink.root, to_text(fence_name(of_sink.token))))
    return looked[:2] if isinstance(looked, list) else looked


def _sees_place(errand: Errand) -> bool:
    its = place_here(errand.of_source, errand.of_sink, errand.login.is_push)
    if errand.login.is_push:  # of sources, some may have been replaced meanwhile
        return not isinstance(its, dict) and one_place.has_any(its, errand.place)
    return its == errand.place


def close_connections(copy: str, dask_worker: Any = None) -> None:
    """Close this worker's connections for a copy that is over. Dask calls it as begin_login().

    A task that waits for its login then has some seconds to end by itself.
    """
    key = copy, here.address_of(dask_worker)
    with _kept_lock:
        kept = _kept.get(key)
    if kept is not None:
        start_thread(None, kept.end, key)


def move(version_there: str, errand: bytes, task: bytes) -> bytes:
    """Do a task, and return its outcome. Never raises for what a copy may meet."""
    address = here.address()
    problem: PscpError | None
    if version_there != version():
        problem = CopyError(f"{here.name()} has pscp {version()}, and not {version_there}", SAME)
        return pack(Outcome(here.name(), {}, {}, problem, address=address))
    moving, problem = _Moving(errand, task, address), None
    try:
        with shaped(), here.Wanted().here():
            moving.run()
    except PscpError as error:
        problem = error
    except OSError as error:
        problem = CopyError(f"{here.name()}: {error}")
    return pack(moving.outcome(problem))


class _KeptConnections:
    """The connections of one run's tasks on this worker, closed once none has come for a while."""

    def __init__(self, login: Login, worker: Any) -> None:
        self._login = login
        self.connections = connections_to(login.host)
        threads = worker.state.nthreads if worker is not None else 1 << 16  # no worker, no limit
        self._turns = threading.Semaphore(_AT_ONCE * threads)
        self._users = 0
        self._stops: list[stops.Stop] = []  # of the tasks
        self._timer: threading.Timer | None = None
        self._last_end_s = 0.0  # when a task ended

    @classmethod
    @contextlib.contextmanager
    def held(cls, login: Login, worker: Any, kept_s: float) -> Iterator[_KeptConnections]:
        """Run a block with the connections of a copy, which are kept so long afterwards."""
        key = login.copy, here.address_of(worker)  # a process may have several workers
        with _kept_lock:
            kept = _kept.get(key) or _kept.setdefault(key, cls(login, worker))
            kept._users += 1
            if kept._timer is not None:
                kept._timer.cancel()
        try:
            yield kept
        finally:
            with _kept_lock:
                kept._users -= 1
                if not kept._users:
                    kept._timer = threading.Timer(kept_s, with_context(kept.close), [key])
                    kept._timer.daemon = True
                    kept._timer.start()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Run a block while no more than so many tasks use the connections of this copy.

        One that has to wait does not log in: it goes on with those of the first that ends.
        """
        while not self._turns.acquire(timeout=here.LOOK_S):
            if here.is_cancelled():
                raise Cancelled("the task was taken back")
        stop = stops.current() or stops.Stop()
        self._stops.append(stop)
        try:
            yield
        finally:
            self._stops.remove(stop)
            self._turns.release()

    def log_in(self, options: Options) -> bool:
        """Have ssh begin to log in, if it has not. Return False where there are connections."""
        if self.connections.idle.keep_only(list):
            return False
        for begin in (self.connections.start_logins, self.connections.check_logins):
            begin(options, is_push=self._login.is_push, worth=worth_many)
        return True

    @property
    def is_alone(self) -> bool:
        """Return whether one task alone has them."""
        return self._users == 1

    def seconds_since(self, began_s: float) -> float:
        """Return how long a task took that ends now, without the time that one before it took too.

        So a worker's bytes over its seconds are its pace, though two tasks are at work at once.
        """
        with _kept_lock:
            before_s, self._last_end_s = self._last_end_s, time.monotonic()
            return self._last_end_s - max(began_s, before_s)

    def end(self, key: tuple[str, str]) -> None:
        """End what its tasks wait for, as the copy is over, and close the connections."""
        until_s = time.monotonic() + LET_GO_S
        while self._users and time.monotonic() < until_s:
            time.sleep(here.LOOK_S)
        for stop in list(self._stops):
            stop.stop(Cancelled("its copy is over"))
        self.close(key)

    def close(self, key: tuple[str, str]) -> None:
        """Close the connections, unless a task has them: then they are closed after it."""
        with _kept_lock:
            if self._users or _kept.get(key) is not self:
                return
            del _kept[key]
            if self._timer is not None:
                self._timer.cancel()
        self.connections.close()


class _File:
    """A large file of a task, as its lanes know it (../transfer/pieces/plan.py, Job)."""

    may_be_short = False

    def __init__(self, moving: _Moving, item: PlannedEntry, chunks: int) -> None:
        self.number, self.item, self.was_shared = next(_numbers), item, False
        self._moving, self._left = moving, chunks

    @property
    def is_closed(self) -> bool:
        return not self._left

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self._over(chunk, ChunkOutcome(digest, receipt))

    def mismatched(self, chunk: Chunk) -> None:
        self._over(chunk, ChunkOutcome())

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        self._over(chunk, ChunkOutcome(failure=failure))

    def _over(self, chunk: Chunk, outcome: ChunkOutcome) -> None:
        self._left -= 1
        if not self._moving.note_refusal(outcome.failure):
            self._moving.chunks[self._moving.places[chunk]] = outcome


class _Moving:
    """One task, from its first connection to its outcome."""

    def __init__(self, errand: bytes, task: bytes, address: str) -> None:
        self._counters = LiveCounters(started_s=time.monotonic())
        self._errand, self._task, self._address = errand_of(errand), task_of(task), address
        self.places: dict[Chunk, tuple[int, int]] = {}
        self.chunks: dict[tuple[int, int], ChunkOutcome] = {}
        self._packs: dict[int, PackOutcome] = {}
        self._notes: dict[str, None] = {}
        self._seconds = 0.0
        self._lanes = 0  # at once at most
        self._is_retry = False
        self._was_refused = False  # by the destination: another try, or run, has begun
        limit = self._task.limit_kbit_s
        # With a limit, of which each thread has its share, the next one waits for the end.
        self._has_let_begin = bool(limit)
        self._login = self._errand.login
        self._options = replace(self._login.options, limit_kbit_s=limit)

    def outcome(self, problem: PscpError | None) -> Outcome:
        if self._was_refused and problem is None:
            problem = CopyError(f"{here.name()}: another try of its task has begun")
        return Outcome(
            here.name(), self.chunks, self._packs, problem, self._seconds,
            self._lanes, self._counters.connections_lost, self._is_retry, self._was_refused,
            tuple(self._notes), self._address,
        )  # fmt: skip

    def note_refusal(self, *given: Failure | None) -> bool:
        """Return whether one of these failures says that another try, or run, has begun."""
        refused = any(each is not None and each["kind"] == failures.SUPERSEDED for each in given)
        self._was_refused = self._was_refused or refused
        return refused

    def run(self) -> None:
        """Move all of it. Raises PscpError, OSError, and what answers of another shape do."""
        errand = self._errand
        if not _sees_place(errand):
            raise CopyError(f"{here.name()}: {OTHER_PLACE}")
        held = _KeptConnections.held(self._login, here.worker(), _KEPT_S)
        with held as kept, kept.turn():
            kept.connections.admission = kept.connections.admission or errand.admission
            try:
                self._move_over(kept)
            finally:
                self._seconds = kept.seconds_since(self._counters.started_s)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _move_over(self, kept: _KeptConnections) -> None:
        connections = kept.connections
        if kept.log_in(self._options) and not kept.is_alone:
            self._let_next_begin()  # it may find connections, while this one logs in
        agents = connections.take(self._options, self._note)
        pool: LanePool | None = None
        try:
            agents = connections.admitted(agents)
            first = self._begin_try(agents[0])
            self._is_retry = first > self._task.number * TASK + 2 * TRY  # of the first try
            pool = make_pool(
                connections, self._options, self._counters, agents[0],
                is_push=self._login.is_push, note=self._note,
            )  # fmt: skip
            pool.context.numbers_from = first + 1
            self._work(pool, agents, kept)
        finally:
            if pool is not None:
                agents += pool.kept
                self._lanes = pool.most_alive
            connections.give(agents)
        connections.remember(self._options, self._login.is_push, pool.lesson())

    def _begin_try(self, far: RemoteAgent) -> int:
        """Return the number below those of this try's lanes."""
        of_sink = self._errand.of_sink
        begin = tries.BeginTry(of_sink.root, of_sink.token, of_sink.nonce, self._task.number)
        if not self._login.is_push:
            far.ask(requests.Ping())  # which measures the path, as each question does
            return answers.integer(_checked(ask_here(begin)))
        far.ask_early(requests.Learn(copy_modules(["tries"])))
        answer, is_failed = far.ask(begin)
        return answers.integer(_checked(answer) if is_failed else answer)

    def _work(self, pool: LanePool, agents: list[RemoteAgent], kept: _KeptConnections) -> None:
        queue, errand = pool.queue, self._errand
        queue.when_lost(
            partial(revoke_first, queue.add, lambda why: queue.stop(answers.as_copy_error(why)))
        )
        queue.take_over_after(_TAKEOVER_S, _TAKEOVER_MOST_S)
        works: list[Work] = [*self._all_packs(), *self._all_chunks()]
        half_bytes = sum(work.cost_bytes for work in works) / 2
        # In a pull the first lane asks for all that its window allows, at once.
        pool.context.first_window_bytes = int(half_bytes / max(pool.layout.count, len(agents)))
        for work in works:
            queue.add(work)
        try:
            pool.begin(errand.of_source, errand.of_sink, agents)
            while not queue.wait_until(queue.is_idle, here.LOOK_S):
                queue.check()
                if here.is_cancelled():
                    queue.stop(Cancelled("the task was taken back"))
                elif kept.is_alone or not queue.has_work() or queue.done()[0] >= half_bytes:
                    self._let_next_begin()
        finally:
            pool.end()
        queue.check()

    def _let_next_begin(self) -> None:
        """Have Dask begin this worker's next task, once: two fill the line while one ends."""
        from distributed import secede
        from distributed.worker import thread_state

        if not self._has_let_begin and hasattr(thread_state, "key"):  # else no worker runs it
            secede()
        self._has_let_begin = True

    def _all_chunks(self) -> list[Chunk]:
        for place, (item, extents) in enumerate(self._task.files):
            file = _File(self, item, len(extents))
            for at, extent in enumerate(extents):
                self.places[Chunk(file, *extent)] = place, at
        return list(self.places)

    def _all_packs(self) -> list[Pack]:
        def packed(place: int, pack: Pack, failed: list[tuple[int, Failure]]) -> None:
            if not self.note_refusal(*(failure for _, failure in failed)):
                self._packs[place] = PackOutcome(pack.rows, failed)

        pairs = zip(self._task.packs, self._task.expected, strict=True)
        return [
            Pack(items, partial(packed, place), expected=expected)
            for place, (items, expected) in enumerate(pairs)
        ]


def _checked(answer: object) -> object:
    """Return an answer. Raises CopyError for a failure's data."""
    if isinstance(answer, dict):
        raise answers.as_copy_error(failures.parse_failure(answer))
    return answer
