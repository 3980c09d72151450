"""A tree whose files are hashed where it lies: here by threads, at a host by the agents of N lanes.

The requests are those that a copy makes of its sink. The sink is that of a dry run, which changes
nothing; it reaches what is below its root without following links, whatever it is asked for.

Not here: which requests are made (hashing.py), the lanes (../transfer/lane_pool.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, TypeVar

from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.connections import Connections
from pscp.endpoint.asking import entries, requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving.end import End
from pscp.ground import errors, stops
from pscp.ground.contexts import with_context
from pscp.ground.locations import Location, absolute
from pscp.options.options import Options
from pscp.progress.progress import LiveCounters, Reporter
from pscp.transfer.begin_requests import choose_hash, sink_request
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.negotiation import replace_dead
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask
from pscp.transfer.pools import make_pool, shared_cpus
from pscp.transfer.terms.copy_terms import ALONE, Movers

_NEAR_MOST = 8  # threads: each hashes with a CPU of its own
_FAR_MOST = 4  # lanes, where the user names no number: each costs a login
_WAITING_MOST = 256  # requests of this machine that wait for a thread, or a worker
_LOOK_S = 0.25  # so that a signal, or a stop, is seen
# That an agent needs to look at files, and hash them.
_MODULES = ("ownership", "xattrs", "sameness", "lookup")
_WALK_ITEMS = 2000  # in one answer

_T = TypeVar("_T")
Then = Callable[[object], None]


class Tree(Protocol):
    """A tree that answers the requests of a sink, several at once."""

    @property
    def reads_back(self) -> bool:
        """Return whether all that is hashed is read over the connection."""

    def put(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        """Make a request once there is room. `then` gets the answer; one call at a time."""

    def add(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        """Do as put(), for a request that follows from an answer: it never waits."""

    def finish(self) -> None:
        """Wait until all is answered. Raises what has stopped it."""


# --- at a host


class _FarTree:
    def __init__(self, work: WorkQueue, *, reads_back: bool) -> None:
        self._queue, self.reads_back = work, reads_back

    def put(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        self._queue.put(_ask(request, then, cost_bytes))
        self._queue.check()

    def add(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        self._queue.add(_ask(request, then, cost_bytes))

    def finish(self) -> None:
        self._queue.wait_until(self._queue.is_idle)
        self._queue.check()


def _ask(request: requests.Request, then: Then, cost_bytes: int) -> Ask:
    def failed(failure: failures.Data) -> None:
        raise _refused(failure)

    return Ask(False, request, then, failed, cost_bytes=cost_bytes)


def _refused(failure: failures.Data) -> errors.CopyError:
    return errors.CopyError(f"{failure['path']}: {failure['message']}")


@contextlib.contextmanager
def _far_tree(
    connections: Connections,
    root: str,
    options: Options,
    counters: LiveCounters,
    reporter: Reporter,
) -> Iterator[Tree]:
    """Yield the tree `root` of a host, its path as the host spells it."""
    with _taken(connections, options, reporter) as agents:
        connections.expect_lanes(options, agents[0])
        reads_back = agents[0].is_sftp and not agents[0].hello["hashes_strong"]
        lanes = min(shared_cpus(agents[0]), _FAR_MOST)
        if reads_back:  # the path is the limit: those lanes serve that the copy has found useful
            lanes = max(lanes, len(agents))
        lanes = options.connections or lanes
        terms = replace(options, connections=lanes, limit_kbit_s=None, channels=None)
        pool = make_pool(
            connections, terms, counters, agents[0], is_push=True, note=reporter.note
        )  # fmt: skip
        try:
            algorithm = choose_hash(agents[0])
            connections.spread(terms, agents, pool.layout.count, reporter.note)
            first = [agents.pop(0) for _ in range(min(len(agents), pool.layout.count))]
            with stops.ended_by(pool.queue.stop):
                of_sink = _of_sink(root, algorithm)._replace(modules=copy_modules(_MODULES))
                pool.begin(_of_source([], algorithm), of_sink, first)
                yield _FarTree(pool.queue, reads_back=reads_back)
        except BaseException as error:
            pool.queue.stop(error)
            raise
        finally:
            pool.end()
            agents += pool.kept


@contextlib.contextmanager
def _taken(
    connections: Connections, options: Options, reporter: Reporter
) -> Iterator[list[RemoteAgent]]:
    agents = connections.take(options, reporter.note)
    try:
        replace_dead(agents, connections, options, reporter.note)
        yield agents
    finally:
        connections.give(agents)


def _of_source(tops: list[source.Top], algorithm: str) -> requests.BeginSource:
    rules = tree.Rules(True, False, False, False, [])
    return requests.BeginSource(tops, rules, algorithm, 256 * 1024, False, False)


def _of_sink(root: str, algorithm: str) -> requests.BeginSink:
    """Return the request for a sink without a nonce, which changes nothing."""
    return sink_request(root, "", Options(), algorithm)


# --- here


def _answer_here(begin: requests.BeginSink, request: requests.Request) -> object:
    """Return the answer of a sink that begins for this. Raises CopyError."""
    with contextlib.closing(End(0)) as end:
        try:
            end.begin(begin)
        except OSError as error:
            raise errors.DestinationError(f"{begin.root}: {error.strerror}") from None
        return _checked(answers.of_near(end, request))


class _Threads(ThreadPoolExecutor):
    """Threads, which have the context variables of who submits a call."""

    def submit(self, call: Callable[..., _T], /, *args: object, **more: object) -> Future[_T]:
        return super().submit(with_context(call), *args, **more)


class _NearTree:
    """Answers by threads, or a cluster's workers. The thread that puts requests takes them."""

    reads_back = False

    def __init__(self, root: str, executor: Executor) -> None:
        self._begin = _of_sink(root, "sha256")
        self._submit, self._end = executor.submit, executor.shutdown
        self._pending: dict[Future[object], Then] = {}
        self._error: BaseException | None = None  # set by any thread

    def put(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        self._take_answers(_WAITING_MOST - 1)
        self.add(request, then, cost_bytes)

    def add(self, request: requests.Request, then: Then, cost_bytes: int) -> None:
        self._pending[self._submit(_answer_here, self._begin, request)] = then

    def finish(self) -> None:
        self._take_answers(0)

    def _take_answers(self, most: int) -> None:
        """Take answers until at most so many are awaited. Raises what stops it."""
        while len(self._pending) > most:
            for each in wait(self._pending, _LOOK_S, FIRST_COMPLETED).done:
                self._pending.pop(each)(each.result())
            if self._error is not None:
                raise self._error

    def stop(self, error: BaseException) -> None:
        self._error = self._error or error

    def close(self) -> None:
        self._end(cancel_futures=True)


@contextlib.contextmanager
def _near_tree(root: str, options: Options, executor: Executor | None) -> Iterator[Tree]:
    """Yield the tree `root` of this machine."""
    threads = options.connections or min(os.cpu_count() or 1, _NEAR_MOST)
    found = _NearTree(root, executor or _Threads(threads, "hashing"))
    try:
        with stops.ended_by(found.stop):
            yield found
    except BaseException as error:
        found.stop(error)
        raise
    finally:
        found.close()


# --- either


def opened(
    root: str,
    connections: Connections | None,
    options: Options,
    shown: tuple[LiveCounters, Reporter],
    movers: Movers = ALONE,
) -> AbstractContextManager[Tree]:
    """Return a context with the tree `root`, as resolved() has found it: here without connections,
    where a cluster's workers look at it if there are any, else at a host.
    """
    if connections is None:
        if not os.path.isabs(root):  # workers have another folder
            root = os.path.join(absolute("."), root)
        return _near_tree(root, options, movers.executor(root, shown[1].note))
    return _far_tree(connections, root, options, *shown)


Asker = Callable[[requests.Request], tuple[object, bool]]


@contextlib.contextmanager
def asker(connections: Connections | None, options: Options, reporter: Reporter) -> Iterator[Asker]:
    """Yield what makes one request after the other of a new end, here without connections."""
    if connections is None:
        end = End(0)
        try:
            yield lambda request: answers.of_near(end, request)
        finally:
            end.close()
        return
    with _taken(connections, options, reporter) as agents:
        yield agents[0].ask


def resolved(where: Location, ask: Asker) -> str:
    """Return the path of a folder as its end spells it. Raises DestinationError for no folder."""
    why = "there is no such folder"
    path = where.path if where.is_remote else where.literal_path
    with shaped():
        answer, is_failed = ask(requests.Expand([path], False))
        [found] = [] if is_failed else answers.items(answer)
        if isinstance(found, dict):
            message = failures.parse_failure(found)["message"]
            why = message if message != source.NOT_THERE else why
        else:
            _, full, is_folder = answers.items(answers.items(found)[0])
            if is_folder:
                return answers.text(full)
            why = "is a file, not a folder: ROOT is where the manifest's paths begin"
    raise errors.DestinationError(f"{where.text}: {why}")


def listed(root: str, ask: Asker) -> Iterator[tuple[str, str, str]]:
    """Yield path and kind of whatever is no folder below a root; and of what is unreadable, as a
    folder whose path ends in "/", with the reason, which is "" else.
    """
    with shaped():
        _checked(ask(_of_source([source.Top("", root, True)], "sha256")))
        after, is_last = None, False
        while not is_last:
            walk = requests.Walk(after, False, _WALK_ITEMS)
            found, is_last = answers.items(_checked(ask(walk)))  # type: ignore[assignment]
            for entry in map(entries.entry, answers.items(found)):
                if entry.kind == tree.ERROR:
                    yield entry.path, entry.kind, failures.parse_failure(entry.extra)["message"]
                elif entry.kind != tree.FOLDER:
                    yield entry.path, entry.kind, ""
        _checked(ask(requests.End()))


def _checked(answered: tuple[object, bool]) -> object:
    answer, is_failed = answered
    if is_failed:
        raise _refused(failures.parse_failure(answer))
    return answer
