"""The coordinator's side: makes tasks of waiting work, hands them to Dask, and takes the outcomes.

A task has a share of the work queue, as a lane has: what it holds is in flight, what it did is
settled, and what it did not do goes back. Dask chooses the worker, and another one where that is
lost.

Not here: what a worker does (mover.py), which of them get tasks (standing.py), which cluster it is
(clusters.py), the work (../transfer/lanes/work_queue.py). Read next: mover.py.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from pscp.cluster.mover import move
from pscp.cluster.place import of_scheduler, workers_of
from pscp.cluster.standing import Standing
from pscp.cluster.tasks import ChunkOutcome, Errand, Outcome, Task, outcome_of, pack
from pscp.endpoint.asking import requests
from pscp.endpoint.writing.fence import TASK
from pscp.ground.contexts import with_context
from pscp.ground.counters import by_worker
from pscp.ground.errors import RUN_AGAIN, ConnectionLost, CopyError, PscpError
from pscp.ground.log import Log
from pscp.ground.terminal_text import printable
from pscp.ground.values import MIB
from pscp.options.arguments import version
from pscp.progress.progress import WorkerTotals, count, of_worker
from pscp.transfer.lanes.in_flight import LaneShare, Window
from pscp.transfer.pieces.answers import ignored
from pscp.transfer.pieces.plan import Ask, Chunk, Job, Pack, Work, last_name
from pscp.transfer.terms.copy_terms import CopyTerms

if TYPE_CHECKING:
    from distributed import Client, Future

    from pscp.cluster.batch import Jobs

_TASK_S = 4.0  # of work in a task: little is done twice where a worker is lost
# With many workers tasks are longer: each costs some 5 ms of Dask's one thread, and 3 of this one.
_TASKS_A_S = 50.0
_FIRST_BYTES, _MOST_BYTES = 8 * MIB, 16384 * MIB
_QUEUED = 3  # tasks for each thread of a worker: one that ends, one that began, and the next one
_COLLECT_S = 0.05  # for which a task waits for more work than the first piece
_LOOK_S = 1.0  # how often the workers are counted
_PATIENCE_S = 10.0  # until people are told that no worker is there

_log = Log("cluster")


def no_worker(jobs: Jobs | None) -> str:
    """Return what people are told while no worker is there."""
    waiting = f" {jobs.waiting}" if jobs is not None else ""
    return f"no worker of the cluster is there: waiting{waiting}"


def is_request(work: Work) -> bool:
    """Return whether this work is the coordinator's own."""
    return isinstance(work, Ask)


def _moves_bytes(work: Work) -> bool:
    return not isinstance(work, Ask)


class _Given:
    """A task that was handed to Dask, and the work that its places stand for."""

    def __init__(self, number: int, share: LaneShare) -> None:
        self.number, self.share = number, share
        self.future: Future | None = None
        self.workers: list[str] | None = None  # the only ones that may do it; None: all
        self._files: dict[Job, list[tuple[int, Chunk]]] = {}
        self._packs: list[tuple[int, Pack]] = []
        self.bytes = 0

    def add(self, number: int, work: Work) -> None:
        self.bytes += work.cost_bytes
        if isinstance(work, Chunk):
            self._files.setdefault(work.job, []).append((number, work))
            # A try of it that seemed lost may make a part late.
            work.job.was_shared = True
        elif isinstance(work, Pack):
            self._packs.append((number, work))

    def is_stranded(self, present: Container[str]) -> bool:
        """Return whether all workers that may do it are lost: Dask would keep it forever."""
        is_given = self.future is not None and self.workers
        return bool(is_given) and not any(each in present for each in self.workers or ())

    @property
    def label(self) -> str:
        """Return what the dashboard calls it."""
        first = next(iter(self._files), None)
        name = last_name(first.item.entry.path) if first is not None else ""
        if first is None or len(self._files) > 1 or self._packs:
            files = len(self._files) + sum(len(each.items) for _, each in self._packs)
            name = f"{name} and others" if name else count(files, "file")
        return f"{printable(name)} {self.bytes // MIB} MiB"  # Dask takes no surrogates

    def task(self, limit_kbit_s: int | None) -> Task:
        files = [
            (job.item, [(chunk.offset, chunk.length) for _, chunk in chunks])
            for job, chunks in self._files.items()
        ]
        packs = [each.items for _, each in self._packs]
        expected = [
            {path: each.expected[path] for path in _paths(each) if path in each.expected}
            for _, each in self._packs
        ]
        return Task(self.number, files, packs, expected, limit_kbit_s)

    def chunks(self, outcome: Outcome) -> Iterator[tuple[int, Chunk, ChunkOutcome]]:
        """Yield the chunks of which the outcome tells what became."""
        for place, chunks in enumerate(self._files.values()):
            for at, (number, chunk) in enumerate(chunks):
                found = outcome.chunks.get((place, at))
                if found is not None:
                    yield number, chunk, found

    def done(self, outcome: Outcome) -> Iterator[Work]:
        """Yield what was done, or has failed for good."""
        yield from (chunk for _, chunk, _ in self.chunks(outcome))
        yield from (each for place, (_, each) in enumerate(self._packs) if place in outcome.packs)

    def packs(self, outcome: Outcome) -> Iterator[tuple[int, Pack, functools.partial[None]]]:
        for place, (number, each) in enumerate(self._packs):
            found = outcome.packs.get(place)
            if found is not None:
                each.rows = found.rows
                yield number, each, functools.partial(each.then, each, found.failed)


def _paths(pack: Pack) -> Iterator[str]:
    return (item.entry.path for item in pack.items) if pack.expected else iter(())


class Pace:
    """The pace of a cluster's workers, and how much work a task gets by that."""

    def __init__(self) -> None:
        # What workers did lately, and in what time; each outcome halves what was before.
        self._done_bytes, self._done_s = 0.0, 0.0
        self.threads, self._threads_each = 0, 1.0  # of all workers, and of one on average

    def see(self, threads: Sequence[int]) -> None:
        """Note how many threads each worker has."""
        self.threads = sum(threads)
        self._threads_each = max(self.threads / max(len(threads), 1), 1)

    @property
    def slots(self) -> int:
        """Return how many tasks Dask gets at once."""
        return _QUEUED * self.threads

    def note(self, done_bytes: int, seconds: float) -> None:
        """Note a task that was done."""
        self._done_bytes = self._done_bytes / 2 + done_bytes
        self._done_s = self._done_s / 2 + seconds

    def task_bytes(self, left_bytes: int | None) -> int:
        """Return how much work the next task gets: less toward the end, that all end together.

        It is a second's at least. `left_bytes` are in no task yet; None: more may be found.
        """
        if not self._done_s:
            return _FIRST_BYTES
        bytes_per_s = self._done_bytes / self._done_s / self._threads_each
        wanted = int(bytes_per_s * max(_TASK_S, self.slots / _TASKS_A_S))
        if left_bytes is not None:
            wanted = min(wanted, left_bytes // max(self.slots, 1))
        return max(min(wanted, _MOST_BYTES), min(int(bytes_per_s), _FIRST_BYTES), MIB)


class Dispatcher:
    """Hands the bytes of one copy to the workers of a cluster."""

    def __init__(
        self, client: Client, terms: CopyTerms, errand: Errand, jobs: Jobs | None = None
    ) -> None:
        self._client, self._terms, self._queue = client, terms, terms.queue
        self._jobs = jobs  # of a batch queue
        self._errand = pack(errand)
        self._thread = threading.Thread(target=with_context(self._run), name="cluster", daemon=True)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards what follows
        self._given: dict[int, _Given] = {}  # tasks that Dask has
        self._pace, self._standing = Pace(), Standing()
        self._noted: set[str] = set()
        # For the thread alone: the task that is being made, and whether people know of no worker.
        self._next: _Given | None = None
        self._has_said_none = False

    def start(self) -> None:
        if self._jobs is not None and self._jobs.refused:
            self._note(self._jobs.refused)
        self._thread.start()

    def end(self) -> None:
        """Take all tasks back, since all is done or the copy stops."""
        self._thread.join()
        with self._lock:
            futures = [each.future for each in self._given.values() if each.future is not None]
        if futures:
            with contextlib.suppress(OSError, TimeoutError):  # it is lost
                self._client.cancel(futures, force=True)
        if self._terms.options.verbose:
            for each in self._terms.counters.workers:
                self._terms.reporter.note(f"worker {each.worker}: {of_worker(each)}")

    # --- making tasks; on a thread of its own

    def _run(self) -> None:
        patient_until_s, next_look_s = time.monotonic() + _PATIENCE_S, 0.0
        try:
            while self._is_going():
                if (now_s := time.monotonic()) >= next_look_s:
                    next_look_s = now_s + _LOOK_S
                    with of_scheduler():
                        self._look_at_cluster(is_patient=now_s <= patient_until_s)
                if not self._queue.wait_until(self._fill_next, _LOOK_S, is_lane=True):
                    continue
                self._queue.wait_until(self._fill, _COLLECT_S, is_lane=True)
                if self._queue.wait_until(self._fill_until_room, _LOOK_S, is_lane=True):
                    with of_scheduler():
                        self._hand_out()
        except BaseException as error:
            self._queue.stop(error)
        finally:
            if self._next is not None:
                self._give_back(self._next)

    def _is_going(self) -> bool:
        return self._queue.error is None and not self._queue.is_finished

    def _look_at_cluster(self, *, is_patient: bool) -> None:
        """Count the workers' threads. Raises ConnectionLost where the scheduler is gone, or all
        jobs are over.
        """
        if self._client.status != "running":
            raise ConnectionLost("Dask's scheduler is lost", RUN_AGAIN)
        workers = workers_of(self._client)
        if self._jobs is not None:
            self._jobs.see([str(each["name"]) for each in workers.values()], time.monotonic())
        with self._lock:
            self._pace.see([each["nthreads"] for each in workers.values()])
            self._standing.see(workers)
            stranded = [each for each in self._given.values() if each.is_stranded(workers)]
        for task in stranded:
            task.workers = []
            self._client.cancel([task.future], force=True)
        is_waiting = self._next is not None or self._queue.has_work()
        if not (self._pace.slots or is_patient or self._has_said_none) and is_waiting:
            self._has_said_none = True
            self._note(no_worker(self._jobs))

    def _note(self, text: str) -> None:
        with self._lock:
            is_new = text not in self._noted
            self._noted.add(text)
        if is_new:
            self._terms.reporter.note(text)

    def _fill_next(self) -> bool:
        """Take work for the next task; return whether there is any. The queue runs this."""
        if self._next is None:
            number, left_bytes = next(self._numbers), None
            if self._terms.counters.plan_complete:
                left_bytes = self._terms.counters.left_bytes - self._queue.in_flight_bytes()
            window = Window(self._pace.task_bytes(left_bytes), 0.0)
            share = LaneShare(window, number * TASK)
            share.wants = _moves_bytes
            self._next = _Given(number, share)
            self._queue.join(share)
        self._fill()
        return self._next.bytes > 0

    def _fill(self) -> bool:
        """Take work until the next task has enough; return whether it has. The queue runs this."""
        task = self._next
        assert task is not None
        while task.share.window.has_room and (taken := self._queue.try_take(task.share)):
            task.add(*taken)
        return not task.share.window.has_room

    def _fill_until_room(self) -> bool:
        """Take work until a worker has room for the next task; return that. The queue runs this."""
        self._fill()
        return len(self._given) < self._pace.slots

    def _hand_out(self) -> None:
        task, self._next = self._next, None
        assert task is not None
        limiter = self._terms.context.limiter
        limit = limiter.kbit_s() if limiter is not None else None
        each = max(limit // max(self._pace.threads, 1), 1) if limit is not None else None
        record = task.task(each)
        with self._lock:
            self._given[task.number] = task
            task.workers = self._standing.chosen()
        task.future = self._client.submit(
            move, version(), self._errand, pack(record),
            key=f"{task.label}-{self._terms.nonce}-{task.number}", pure=False,
            workers=task.workers,
        )  # fmt: skip
        task.future.add_done_callback(with_context(functools.partial(self._done, task)))

    # --- taking outcomes; on a thread of Dask's

    def _done(self, task: _Given, future: Future) -> None:
        try:
            with of_scheduler():
                outcome = self._outcome(task, future)
            if outcome is not None:
                self._take(task, outcome)
            elif task.workers == []:  # it was stranded
                self._shut_out(task)
                self._give_back(task)
        except BaseException as error:
            self._queue.stop(error)
        finally:
            with self._lock:
                self._given.pop(task.number, None)
            self._queue.wake(lanes=True)

    def _outcome(self, task: _Given, future: Future) -> Outcome | None:
        """Return what a task's worker says; None where it was taken back."""
        if future.status == "finished":
            with contextlib.suppress(CancelledError):  # it was lost with the worker that had it
                return outcome_of(future.result())
        problem: PscpError = ConnectionLost("Dask's scheduler has dropped a task", RUN_AGAIN)
        if future.status == "error":
            problem = CopyError(f"a worker of the cluster failed: {future.exception()!r}")
        elif task.workers == [] or not self._is_going():
            return None
        return Outcome("", {}, {}, problem)

    def _take(self, task: _Given, outcome: Outcome) -> None:
        if outcome.worker:  # else none has answered
            self._count(task, outcome)  # first: what follows may be the end of the copy
        self._shut_out(task)
        settle = self._queue.settle
        for number, chunk, found in task.chunks(outcome):
            tell = functools.partial(chunk.tell, found.digest or None, found.receipt, found.failure)
            settle(task.share, number, tell)
        for number, _, then in task.packs(outcome):
            settle(task.share, number, then)
        has_done = bool(outcome.chunks or outcome.packs)
        self._give_back(task)
        for text in outcome.notes:
            self._note(f"{outcome.worker}: {text}")
        with self._lock:
            if not outcome.is_shut_out:
                self._standing.note(outcome.address, has_done=has_done)
            is_hopeless = self._standing.is_hopeless
            if outcome.problem is None:
                self._pace.note(task.bytes, outcome.seconds)
        if outcome.problem is not None:
            self._failed(outcome.worker, outcome.problem, is_hopeless=is_hopeless)

    def _shut_out(self, task: _Given) -> None:
        """Have the sink refuse what tries of this task send from now on: a worker that seemed lost
        may begin one when all has landed. The fence stays short: it names the first task that is
        not over.
        """
        with self._lock:  # all that are made later have higher numbers
            first = min((each for each in self._given if each != task.number), default=None)
        lane = TASK * task.number
        if first is None or task.number < first:
            lane = TASK * (first or task.number + 1) - 1  # of which all before it are over
        revoke = requests.Revoke(lane)
        # Where it fails, the copy is over, or another run's, which what comes next finds.
        self._queue.add(Ask(False, revoke, ignored, ignored, is_prompt=True))

    def _count(self, task: _Given, outcome: Outcome) -> None:
        done_bytes = sum(map(_content_bytes, task.done(outcome)))
        its = WorkerTotals(
            outcome.worker, done_bytes, outcome.seconds, 1, int(outcome.is_retry), outcome.lanes,
            outcome.lost,
        )  # fmt: skip
        counters = self._terms.counters
        counters.add(connections_lost=outcome.lost)
        with self._lock:
            counters.set(workers=by_worker([*counters.workers, its]))

    def _failed(self, worker: str, problem: PscpError, *, is_hopeless: bool) -> None:
        _log.debug("a task of %s failed: %s", worker, problem.message)
        if is_hopeless:
            self._queue.stop(problem)
        elif self._is_going():
            where = "" if worker in problem.message else f"{worker}: "
            self._note(f"{where}{problem.message}; another worker does what it did not")

    def _give_back(self, task: _Given) -> None:
        self._queue.run_alone(lambda: self._queue.give_back(task.share))


def _content_bytes(work: Work) -> int:
    if isinstance(work, Chunk):
        return work.length
    return sum(item.entry.size for item in work.items) if isinstance(work, Pack) else 0
