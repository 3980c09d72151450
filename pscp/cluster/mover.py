"""A worker's side: does one task with lanes of its own, and keeps their connections for the next.

Not here: the records (tasks.py), who makes tasks (dispatcher.py), the lanes (../transfer/lanes/).
Read next: ../transfer/lane_pool.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pscp.cluster.tasks import (
    ChunkOutcome,
    Errand,
    Outcome,
    PackOutcome,
    Task,
    errand_of,
    pack,
    task_of,
)
from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.connections import Connections
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading.metadata import current_umask
from pscp.endpoint.reading.paths import to_text
from pscp.endpoint.serving.end import End
from pscp.endpoint.writing import seen, tries
from pscp.endpoint.writing.fence import TASK, TRY, fence_name
from pscp.ground.contexts import with_context
from pscp.ground.counters import LiveCounters
from pscp.ground.errors import Cancelled, CopyError, PscpError
from pscp.ground.log import Log
from pscp.options.arguments import version
from pscp.transfer import one_place
from pscp.transfer.copy import make_pool
from pscp.transfer.far_hosts import connections_to
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.lanes.lost_work import revoke_first
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Chunk, Failure, Pack, PlannedEntry, Work

_KEPT_S = 5.0  # for which connections wait for the next task
_LOOK_S = 0.1  # how often a task looks whether it is still wanted, and the next one may begin
# At the end of each task lanes are idle, and that is no reason to send chunks twice: the next task
# has work for this line. A lane that does so has answers to come, and gives no connection to it.
_TAKEOVER_S = 10.0
_AT_ONCE = 2  # tasks at work for each thread: one fills the line while the other begins or ends
OTHER_PLACE = "it does not see this copy's files"

_log = Log("cluster")
_numbers = itertools.count(1)  # of files, which all tasks of this process count
_kept_lock = threading.Lock()  # guards the next two
_last_end_s = 0.0  # when a task of this process ended
_kept: dict[bytes, _KeptConnections] = {}  # by the errand, and the worker's address


def name_here() -> str:
    """Return what people know this worker by."""
    return f"{socket.gethostname()} ({os.getpid()})"


def version_here() -> tuple[str, str]:
    return name_here(), version()


def ask_named(request: requests.Request) -> tuple[str, object]:
    """Return this worker's name, and its answer as ask_here() returns it."""
    return name_here(), ask_here(request)


def ask_here(request: requests.Request) -> object:
    """Return this machine's answer to a request that any end answers, or the failure's data."""
    found: list[object] = []
    End(current_umask()).answer(request, lambda answer, is_failed: found.append(answer))
    return found[0]


def place_here(
    of_source: requests.BeginSource, of_sink: requests.BeginSink, is_push: bool
) -> object:
    """Return what tells the files at the near end from those of another machine: their inodes."""
    if is_push:
        return ask_here(seen.Sources([top.path for top in of_source.tops]))
    looked = ask_here(seen.Look(of_sink.root, to_text(fence_name(of_sink.token))))
    return looked[:2] if isinstance(looked, list) else looked


def _sees_place(errand: Errand) -> bool:
    its = place_here(errand.of_source, errand.of_sink, errand.is_push)
    if errand.is_push:  # of sources, some may have been replaced meanwhile
        return not isinstance(its, dict) and one_place.has_any(its, errand.place)
    return its == errand.place


def move(version_there: str, errand: bytes, task: bytes) -> bytes:
    """Do a task, and return its outcome. Never raises for what a copy may meet."""
    began_s = time.monotonic()
    if version_there != version():
        what = f"this worker has pscp {version()}, and the coordinator {version_there}"
        return pack(Outcome(name_here(), {}, {}, CopyError(what), address=_address_here()))
    moving = _Moving(errand, task_of(task))
    problem: PscpError | None = None
    try:
        with shaped():
            moving.run()
    except PscpError as error:
        problem = error
    except OSError as error:
        problem = CopyError(f"{name_here()}: {error}")
    outcome = moving.outcome(problem, _seconds_since(began_s))
    return pack(outcome._replace(address=_address_here()))


def _seconds_since(began_s: float) -> float:
    """Return how long a task took that ends now, without the time for which one before it did too.

    So a worker's bytes over its seconds are its pace, though two tasks are at work at once.
    """
    global _last_end_s
    with _kept_lock:
        before_s, _last_end_s = _last_end_s, time.monotonic()
        return _last_end_s - max(began_s, before_s)


class _KeptConnections:
    """The connections of one run's tasks in this process, closed once none has come for a while."""

    def __init__(self, errand: Errand) -> None:
        self.connections = connections_to(errand.host)
        self.connections.admit = errand.admission
        self._turns = threading.Semaphore(_AT_ONCE * _threads_here())
        self._users = 0
        self._timer: threading.Timer | None = None

    @classmethod
    def taken(cls, key: bytes, errand: Errand) -> _KeptConnections:
        """Return those of this run, which stay until as many release() calls."""
        with _kept_lock:
            kept = _kept.get(key) or _kept.setdefault(key, cls(errand))
            kept._users += 1
            if kept._timer is not None:
                kept._timer.cancel()
                kept._timer = None
            return kept

    @contextlib.contextmanager
    def turn(self) -> Iterator[Connections]:
        """Run a block while no more than so many tasks use the connections.

        One that has to wait does not log in: it goes on with those of the first that ends.
        """
        while not self._turns.acquire(timeout=_LOOK_S):
            if _is_cancelled():
                raise Cancelled("the task was taken back")
        try:
            yield self.connections
        finally:
            self._turns.release()

    @property
    def is_alone(self) -> bool:
        """Return whether one task alone has them."""
        return self._users == 1

    def release(self, key: bytes) -> None:
        with _kept_lock:
            self._users -= 1
            if not self._users:
                self._timer = threading.Timer(_KEPT_S, with_context(self._close), [key])
                self._timer.daemon = True
                self._timer.start()

    def _close(self, key: bytes) -> None:
        with _kept_lock:
            if self._users or _kept.get(key) is not self:
                return
            del _kept[key]
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
        if not self._moving.is_refused(outcome.failure):
            self._moving.chunks[self._moving.places[chunk]] = outcome


class _Moving:
    """One task, from its first connection to its outcome."""

    def __init__(self, errand: bytes, task: Task) -> None:
        self._key = errand + _address_here().encode()  # a process may have several workers
        self._errand, self._task = errand_of(errand), task
        self.places: dict[Chunk, tuple[int, int]] = {}
        self.chunks: dict[tuple[int, int], ChunkOutcome] = {}
        self._packs: dict[int, PackOutcome] = {}
        self._notes: dict[str, None] = {}
        self._lanes = 0  # at once at most
        self._is_retry = False
        self._was_refused = False  # by the destination: another try, or run, has begun
        # With a limit, of which each thread has its share, the next one waits for the end.
        self._has_let_begin = bool(task.limit_kbit_s)
        self._counters = LiveCounters(started_s=time.monotonic())
        options = self._errand.options
        self._options = replace(options, limit_kbit_s=task.limit_kbit_s)

    def outcome(self, problem: PscpError | None, seconds: float) -> Outcome:
        if self._was_refused and problem is None:
            problem = CopyError(f"{name_here()}: another try of its task has begun")
        return Outcome(
            name_here(), self.chunks, self._packs, problem, seconds,
            self._lanes, self._counters.connections_lost, self._is_retry, self._was_refused,
            tuple(self._notes),
        )  # fmt: skip

    def is_refused(self, *given: Failure | None) -> bool:
        """Return whether one of these failures says that another try, or run, has begun."""
        refused = any(each is not None and each["kind"] == failures.SUPERSEDED for each in given)
        self._was_refused = self._was_refused or refused
        return refused

    def run(self) -> None:
        """Move all of it. Raises PscpError, OSError, and what answers of another shape do."""
        errand = self._errand
        if not _sees_place(errand):
            raise CopyError(f"{name_here()}: {OTHER_PLACE}")
        kept = _KeptConnections.taken(self._key, errand)
        try:
            with kept.turn() as connections:
                self._move_over(connections, kept)
        finally:
            kept.release(self._key)

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _move_over(self, connections: Connections, kept: _KeptConnections) -> None:
        if not connections.idle.has_any(list):
            for begin in (connections.start_logins, connections.check_logins):
                begin(self._options, is_push=self._errand.is_push, is_small=False)
            if not kept.is_alone:  # the next one may find connections, while this one logs in
                self._let_next_begin()
        agents = connections.take(self._options, self._note)
        pool: LanePool | None = None
        try:
            agents = connections.admitted(agents)
            first = self._begin_try(agents[0])
            self._is_retry = first > self._task.number * TASK + 2 * TRY  # of the first try
            pool = make_pool(
                connections, self._options, self._counters, agents[0],
                is_push=self._errand.is_push, note=self._note,
            )  # fmt: skip
            pool.context.numbers_from = first + 1
            self._work(pool, agents, kept)
        finally:
            if pool is not None:
                agents += pool.kept
                self._lanes = pool.most_alive
            connections.give(agents)
        connections.remember(self._options, self._errand.is_push, pool.lesson())

    def _begin_try(self, far: RemoteAgent) -> int:
        """Return the number below those of this try's lanes."""
        of_sink = self._errand.of_sink
        begin = tries.BeginTry(of_sink.root, of_sink.token, of_sink.nonce, self._task.number)
        if not self._errand.is_push:
            far.ask(requests.Ping())  # which measures the path, as each question does
            return answers.integer(_checked(ask_here(begin)))
        far.ask_early(requests.Learn(copy_modules(["tries"])))
        answer, is_failed = far.ask(begin)
        return answers.integer(_checked(answer) if is_failed else answer)

    def _work(self, pool: LanePool, agents: list[RemoteAgent], kept: _KeptConnections) -> None:
        queue, errand = pool.queue, self._errand
        queue.when_lost(partial(revoke_first, queue.add, lambda failure: queue.stop(_as(failure))))
        queue.take_over_after(_TAKEOVER_S)
        works: list[Work] = [*self._all_packs(), *self._all_chunks()]
        for work in works:
            queue.add(work)
        try:
            pool.begin(errand.of_source, errand.of_sink, agents)
            while not queue.wait_until(queue.is_idle, _LOOK_S):
                queue.check()
                if _is_cancelled():
                    queue.stop(Cancelled("the task was taken back"))
                elif kept.is_alone or _is_half_done(queue, works):
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
            if not self.is_refused(*(failure for _, failure in failed)):
                self._packs[place] = PackOutcome(pack.rows, failed)

        pairs = zip(self._task.packs, self._task.expected, strict=True)
        return [
            Pack(items, partial(packed, place), expected=expected)
            for place, (items, expected) in enumerate(pairs)
        ]


def _is_half_done(queue: WorkQueue, works: list[Work]) -> bool:
    """Return whether half of a task is done, or nothing waits for its lanes any more."""
    done_bytes, _ = queue.done()
    return not queue.has_work() or 2 * done_bytes >= sum(work.cost_bytes for work in works)


def _checked(answer: object) -> object:
    """Return an answer. Raises CopyError for a failure's data."""
    if isinstance(answer, dict):
        raise _as(failures.parse_failure(answer))
    return answer


def _as(failure: Failure) -> PscpError:
    return answers.as_copy_error(failure)


def _address_here() -> str:
    """Return the address by which Dask knows this worker; an empty one where it is no worker."""
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:
        return ""


def _threads_here() -> int:
    """Return how many threads this worker has for tasks; very many where it is no worker."""
    from distributed import get_worker

    try:
        return int(get_worker().state.nthreads)
    except ValueError:
        return 1 << 16


def _is_cancelled() -> bool:
    """Return whether nobody waits for this task any more: the run is over, or was ended."""
    from distributed import get_worker
    from distributed.worker import thread_state

    key = getattr(thread_state, "key", None)
    if key is None:
        return False
    state = get_worker().state.tasks.get(key)
    return state is None or state.state == "cancelled"
