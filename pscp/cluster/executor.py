"""Runs calls that look at one tree of this machine on the workers of a cluster, which see it too.

Dask gives them out, and again where a worker is lost. They change nothing: one that comes late does
no harm.

Not here: which calls (../manifests/trees.py), the tasks of a copy (dispatcher.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pscp.cluster.mover import OTHER_PLACE, SAME, ask_here, name_here
from pscp.cluster.place import of_scheduler
from pscp.cluster.tasks import call_of, pack
from pscp.endpoint.writing import seen
from pscp.ground.errors import RUN_AGAIN, ConnectionLost, CopyError, PscpError
from pscp.ground.terminal_text import printable
from pscp.options.arguments import version
from pscp.transfer import one_place

if TYPE_CHECKING:
    import distributed

_T = TypeVar("_T")


class WorkersExecutor(Executor):
    """The workers of a cluster. One thread submits calls."""

    def __init__(self, client: distributed.Client, root: str) -> None:
        self._client, self._root = client, root
        self._place = ask_here(seen.Sources([root]))
        self._name = f"hashing {printable(os.path.basename(root))}-{os.urandom(4).hex()}"
        self._numbers = itertools.count(1)
        self._given: set[distributed.Future] = set()  # Dask's thread removes them

    def submit(self, call: Callable[..., _T], /, *args: Any, **more: Any) -> Future[_T]:
        found = Future[_T]()
        data = pack(partial(call, *args, **more))
        with of_scheduler():
            given = self._client.submit(
                look, version(), self._root, self._place, data,
                key=f"{self._name}-{next(self._numbers)}", pure=False,
            )  # fmt: skip
        self._given.add(given)
        given.add_done_callback(partial(self._done, found))
        return found

    def _done(self, found: Future[Any], given: distributed.Future) -> None:
        self._given.discard(given)
        if given.status == "finished":
            found.set_result(given.result())
        elif given.status == "error":
            error = given.exception()
            failed = CopyError(f"a worker of the cluster failed: {error!r}")
            found.set_exception(error if isinstance(error, PscpError) else failed)
        else:
            found.set_exception(ConnectionLost("Dask's scheduler is lost", RUN_AGAIN))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take back what is not done."""
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler is lost
            self._client.cancel([*self._given], force=True)


def look(version_there: str, root: str, place: object, data: bytes) -> object:
    """Make a call, and return its result. Raises CopyError where this is not a worker for it."""
    if version_there != version():
        raise CopyError(f"{name_here()} has pscp {version()}, and not {version_there}", SAME)
    its = ask_here(seen.Sources([root]))
    if isinstance(its, dict) or not one_place.has_any(its, place):
        raise CopyError(f"{name_here()}: {OTHER_PLACE}")
    return call_of(data)()
