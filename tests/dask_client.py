"""A Dask client for tests, whose workers are in this process."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def worker_at(address: str) -> Any:
    """Return what pscp asks of a worker, which has no limit of tasks."""
    return SimpleNamespace(address=address, state=SimpleNamespace(nthreads=1 << 16))


class DaskClient:
    """What pscp asks of a client, apart from submit() and cancel()."""

    status = "running"

    def __init__(self, workers: Sequence[str]) -> None:
        self.workers = workers  # their addresses

    def scheduler_info(self, **more: object) -> dict[str, Any]:
        return {
            "address": "inproc://test",
            "workers": {address: {"nthreads": 1} for address in self.workers},
        }

    def sync(self, call: Callable[..., Any], *args: object) -> Any:
        return asyncio.run(call(*args))

    async def run(
        self, call: Callable[..., object], *args: object, workers: Sequence[str], on_error: str
    ) -> dict[str, object]:
        if "dask_worker" in inspect.signature(call).parameters:
            return {address: call(*args, dask_worker=worker_at(address)) for address in workers}
        return {address: call(*args) for address in workers}
