"""Runs calls that look at one tree of this machine on the workers of a cluster, which see it too.

Dask gives them out, and again where a worker is lost. They change nothing: one that comes late does
no harm. What a worker says that sees another tree is not believed.

Not here: which calls (../manifests/trees.py), the tasks of a copy (dispatcher.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pscp.cluster import here
from pscp.cluster.mover import SAME, ask_here
from pscp.cluster.place import SHARED, of_scheduler, workers_of
from pscp.cluster.tasks import call_of, pack
from pscp.endpoint.writing import seen
from pscp.ground.contexts import with_context
from pscp.ground.errors import RUN_AGAIN, ConnectionLost, CopyError, PscpError
from pscp.ground.terminal_text import printable
from pscp.options.arguments import version
from pscp.transfer import one_place

if TYPE_CHECKING:
    import distributed

    from pscp.cluster.batch import Jobs

_T = TypeVar("_T")
_LOOK_S = 1.0  # how often the workers are looked for


class NotThere(CopyError):
    """The worker that was asked cannot say how the tree is: it does not see it."""

    def __init__(self, message: str, hint: str, address: str) -> None:
        super().__init__(message, hint)
        self.address = address  # by which Dask knows the worker


class WorkersExecutor(Executor):
    """The workers of a cluster. One thread submits calls; Dask's takes what comes of them, and has
    another worker make the call of one that does not see the tree.
    """

    def __init__(
        self,
        client: distributed.Client,
        root: str,
        note: Callable[[str], None],
        jobs: Jobs | None = None,
    ) -> None:
        """`jobs` are a batch queue's: once all are over, so is what was not answered."""
        self._client, self._root, self._note, self._jobs = client, root, note, jobs
        self._place = ask_here(seen.Sources([root]))
        self._name = f"hashing {printable(os.path.basename(root))}-{os.urandom(4).hex()}"
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards what follows
        self._given: set[distributed.Future] = set()
        self._not_there: set[str] = set()  # addresses of workers
        self._good: list[str] | None = None  # addresses of the others; None: all see it
        self._waiting: set[Future[Any]] = set()  # what is not answered
        self._is_over = threading.Event()
        self._watching: threading.Thread | None = None
        if jobs is not None:
            watch = with_context(self._watch)
            self._watching = threading.Thread(target=watch, name="jobs", daemon=True)
            self._watching.start()

    def submit(self, call: Callable[..., _T], /, *args: Any, **more: Any) -> Future[_T]:
        found = Future[_T]()
        with self._lock:
            self._waiting.add(found)
        self._give(found, pack(partial(call, *args, **more)))
        return found

    def _give(self, found: Future[Any], data: bytes) -> None:
        with of_scheduler(), self._lock:
            if self._is_over.is_set():
                return
            given = self._client.submit(
                look, version(), self._root, self._place, data,
                key=f"{self._name}-{next(self._numbers)}", pure=False,
                # Where they are lost others may do it, and say so if they cannot.
                workers=self._good, allow_other_workers=self._good is not None,
            )  # fmt: skip
            self._given.add(given)
        given.add_done_callback(partial(self._done, found, data))

    def _done(self, found: Future[Any], data: bytes, given: distributed.Future) -> None:
        with self._lock:
            self._given.discard(given)
        try:
            if given.status == "finished":
                self._end(found, given.result())
            elif given.status == "error":
                self._failed(found, data, given.exception())
            else:
                raise ConnectionLost("Dask's scheduler is lost", RUN_AGAIN)
        except Exception as error:
            self._end(found, error)

    def _end(self, found: Future[Any], result: object) -> None:
        """Answer a call, once, by its result or the exception that came of it."""
        with self._lock:
            if found not in self._waiting:
                return
            self._waiting.discard(found)
        if isinstance(result, Exception):
            found.set_exception(result)
        else:
            found.set_result(result)

    def _watch(self) -> None:
        """End all that waits once the jobs are over, or the scheduler is lost."""
        assert self._jobs is not None
        while not self._is_over.wait(_LOOK_S):
            try:
                with of_scheduler():
                    workers = workers_of(self._client).values()
                self._jobs.see([str(each["name"]) for each in workers], time.monotonic())
            except ConnectionLost as error:
                with self._lock:
                    waiting = [*self._waiting]
                for each in waiting:
                    self._end(each, error)

    def _failed(self, found: Future[Any], data: bytes, error: BaseException) -> None:
        """Give a call to another worker if there is one that may do better, else raise why not."""
        if not isinstance(error, PscpError):
            raise CopyError(f"a worker of the cluster failed: {error!r}")
        if not isinstance(error, NotThere):
            raise error
        with of_scheduler():
            present = list(workers_of(self._client))
        with self._lock:
            is_new = error.address not in self._not_there
            self._not_there.add(error.address)
            self._good = [each for each in present if each not in self._not_there]
            if not self._good:
                raise error
        if is_new:
            self._note(f"{error.message}; another worker does what it did not")
        self._give(found, data)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take back what is not done."""
        with self._lock:
            self._is_over.set()
            given = [*self._given]
        if self._watching is not None:
            self._watching.join()
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler is lost
            self._client.cancel(given, force=True)


def look(version_there: str, root: str, place: object, data: bytes) -> object:
    """Make a call, and return its result. Raises NotThere where this is not a worker for it."""
    if version_there != version():
        what = f"{here.name()} has pscp {version()}, and not {version_there}"
        raise NotThere(what, SAME, here.address())
    _check_sees(root, place)
    found = call_of(data)()
    _check_sees(root, place)  # it may have been unmounted meanwhile: nothing is missing by that
    return found


def _check_sees(root: str, place: object) -> None:
    its = ask_here(seen.Sources([root]))
    if isinstance(its, dict) or not one_place.has_any(its, place):
        what = f"{here.name()}: it does not see {printable(root)}"
        raise NotThere(what, SHARED, here.address())
