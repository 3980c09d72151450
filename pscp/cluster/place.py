"""Whether all workers see the files at the near end, found out before the first byte.

Not here: the same of several far hosts (../transfer/one_place.py), what shows a worker that joins
later (mover.py).
Read next: dispatcher.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pscp.cluster.mover import ask_here, ask_named
from pscp.endpoint.asking import requests
from pscp.ground.errors import RUN_AGAIN, ConnectionLost, CopyError, UsageError
from pscp.ground.log import Log
from pscp.transfer import one_place
from pscp.transfer.terms.copy_terms import CopyRequest

if TYPE_CHECKING:
    from distributed import Client

_ANSWER_S = 10.0  # a worker that stands still has no answer, and may have one for its tasks later

_T = TypeVar("_T")
SHARED = "all workers have to see the files that are here, as the same user: docs/cluster.md"

_log = Log("cluster")


@contextlib.contextmanager
def of_scheduler() -> Iterator[None]:
    """Run a block that speaks with Dask's scheduler. Raises ConnectionLost where that is lost."""
    try:
        yield
    except OSError as error:
        raise ConnectionLost(f"Dask's scheduler is lost: {error}", RUN_AGAIN) from None


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """Return what the scheduler knows of each worker, by its address."""
    found: dict[str, dict[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def run_on_all(
    client: Client, call: Callable[..., _T], *args: object, answer_s: float | None = None
) -> list[_T]:
    """Return what a function returns on each worker; one that is lost meanwhile is passed over, as
    is one that does not answer within so many seconds.

    Raises UsageError where a worker cannot run it, ConnectionLost where the scheduler is lost.
    """
    with of_scheduler():
        workers = list(workers_of(client))
        within_s = _ANSWER_S if answer_s is None else answer_s
        found = client.sync(_run_on_each, client, workers, within_s, call, *args)
    for worker, each in zip(workers, found, strict=True):
        if isinstance(each, OSError):
            _log.debug("%s is passed over: %r", worker, each)
        elif isinstance(each, Exception):
            raise UsageError(
                f"{worker}: this worker cannot run pscp: {each}", "install the same there"
            )
    return [each for each in found if not isinstance(each, Exception)]


async def _run_on_each(
    client: Client, workers: list[str], answer_s: float, call: Callable[..., _T], *args: object
) -> list[_T | Exception]:
    async def run(worker: str) -> _T | Exception:
        try:
            async with asyncio.timeout(answer_s):
                found: dict[str, _T | Exception]
                found = await client.run(call, *args, workers=[worker], on_error="return")
                return found[worker]
        except TimeoutError as error:
            return error

    return await asyncio.gather(*map(run, workers))


class _Workers:
    """Asks this machine to show its place to the workers of a cluster, which look for it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def first(self, request: requests.Request) -> object:
        return one_place.checked(request, ask_here(request))

    def others(self, request: requests.Request) -> list[tuple[str, object]]:
        return run_on_all(self._client, ask_named, request)

    def name(self) -> str:
        return "this machine"


def check_sources(client: Client, paths: list[str]) -> None:
    """Raise CopyError where a worker does not see these files of this machine."""
    with _explained():
        one_place.check_sources(_Workers(client), paths)


def check_sink(client: Client, request: CopyRequest, own: str) -> None:
    """Raise CopyError where a worker does not see at once what is made at the destination, in a
    file whose name has `own` in it.
    """
    with _explained():
        one_place.check_sink(_Workers(client), request, own)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except CopyError as error:
        error.hint = SHARED
        raise
