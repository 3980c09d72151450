"""Which cluster a copy uses: what --cluster names, or a program's client; and whether it may.

Not here: jobs of a batch queue (batch.py), the copy's tasks (dispatcher.py), calls that hash
(executor.py), what is sent among machines (docs/security.md).
Read next: place.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pscp.cluster import batch, place
from pscp.cluster.dispatcher import Dispatcher, is_request, no_worker
from pscp.cluster.executor import WorkersExecutor
from pscp.cluster.mover import SAME, begin_login, close_connections, place_here
from pscp.cluster.tasks import Errand, Login, pack
from pscp.endpoint.asking import requests
from pscp.endpoint.reading import source
from pscp.ground.contexts import with_context
from pscp.ground.errors import PscpError, Unreachable, UsageError
from pscp.options.arguments import version
from pscp.options.keywords import to_programs
from pscp.options.options import Options
from pscp.transfer.terms.copy_terms import CopyRequest, CopyTerms, Movers

if TYPE_CHECKING:
    from distributed import Client

_ASKING_LANES = 2  # of the coordinator, which moves no bytes
_START_S = 5.0  # for a scheduler to answer
_END_S = 1.0  # for workers to answer that a copy is over; one that does not finds out
_HERE = "127.0.0.1"
_INSECURE = "start it with TLS, or allow it with --cluster-insecure (docs/security.md)"


class Cluster(Movers):
    """A cluster whose workers move the bytes of one copy."""

    wants = staticmethod(is_request)

    def __init__(self, client: Client, jobs: batch.Jobs | None = None) -> None:
        self._client, self._jobs = client, jobs
        self._copy = ""  # what stands for it
        self._dispatcher: Dispatcher | None = None

    def prepare(self, request: CopyRequest) -> None:
        """Have all workers log in, where they have this version. Raises UsageError."""
        self._copy = os.urandom(8).hex()
        self._check_versions(pack(self._login(request)))

    def _login(self, request: CopyRequest) -> Login:
        host = request.to if request.is_push else request.froms[0]
        return Login(self._copy, request.is_push, host, _for_workers(request.options))

    def check(self, request: CopyRequest, own: str, tops: Sequence[source.Top]) -> None:
        """Make sure that all workers see the files at the near end.

        `own` is of this run alone. Raises CopyError.
        """
        if request.is_push:
            place.check_sources(self._client, [top.path for top in _as_whole(tops)])
        else:
            place.check_sink(self._client, request, own)

    def _check_versions(self, login: bytes | None = None) -> int:
        """Return how many workers there are; with a login, they begin to log in.

        Raises UsageError where one has another version.
        """
        found = place.run_on_all(self._client, begin_login, version(), login)
        others = sorted(f"{name} has {there}" for name, there in found if there != version())
        if others:
            raise UsageError(
                f"pscp here is {version()}, and of the workers {', '.join(others)}",
                SAME,
            )
        return len(found)

    def begin(
        self, terms: CopyTerms, of_source: requests.BeginSource, of_sink: requests.BeginSink
    ) -> None:
        """Have the workers move the bytes of this copy."""
        if terms.is_push:
            of_source = of_source._replace(tops=_as_whole(of_source.tops))
        errand = Errand(
            self._login(terms),
            of_source=of_source,
            of_sink=of_sink,
            place=place_here(of_source, of_sink, terms.is_push),
            admission=terms.connections.admission,
        )
        self._dispatcher = Dispatcher(self._client, terms, errand, self._jobs)
        self._dispatcher.start()

    def end(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.end()

    def close(self) -> None:
        """Have the workers close their connections for the copy."""
        if self._copy and self._client.status == "running":
            with contextlib.suppress(PscpError, OSError):
                place.run_on_all(self._client, close_connections, self._copy, answer_s=_END_S)

    def executor(self, root: str, note: Callable[[str], None]) -> WorkersExecutor:
        if not self._check_versions():
            note(no_worker(self._jobs))
        place.check_sources(self._client, [root])
        return WorkersExecutor(self._client, root, note, self._jobs)

    def options_here(self, options: Options) -> Options:
        return replace(options, connections=_ASKING_LANES, channels=1)


def _for_workers(options: Options) -> Options:
    """Return the options of a worker, which asks nobody and has another working folder."""
    password_file = options.password_file or os.environ.get("PSCP_PASSWORD_FILE")
    return replace(
        options.with_absolute_paths(),
        password_file=os.path.abspath(password_file) if password_file else None,
        cluster=None,
        cluster_insecure=False,
        batch=True,
        progress="none",
    )


def _as_whole(tops: Sequence[source.Top]) -> list[source.Top]:
    """Return the sources with whole paths, which mean the same in a worker's folder."""
    return [top._replace(path=os.path.join(os.getcwd(), top.path)) for top in tops]


@contextlib.contextmanager
def opened(cluster: str | Client, *, insecure: bool) -> Iterator[Cluster]:
    """Yield the cluster that a text names, or a client's. Raises UsageError, Unreachable."""
    if not isinstance(cluster, str):
        if cluster.status != "running":
            raise UsageError(f"cluster: this distributed.Client is {cluster.status}")
        _check_secure(cluster, insecure)
        with contextlib.closing(Cluster(cluster)) as found:
            yield found
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        client, jobs = _client(cluster, stack, insecure)
        _check_secure(client, insecure)
        yield stack.enter_context(contextlib.closing(Cluster(client, jobs)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's own records from people: its tracebacks, where pscp says what is wrong."""
    import distributed.config  # noqa: F401 - which sets their levels

    if logging.getLogger("pscp").isEnabledFor(logging.DEBUG):
        yield
        return
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _client(
    text: str, stack: contextlib.ExitStack, insecure: bool
) -> tuple[Client, batch.Jobs | None]:
    from distributed import Client

    if "://" in text:
        return stack.enter_context(_closing(_client_at(text))), None
    kind, _, number = text.partition(":")
    made: Any
    jobs: batch.Jobs | None = None
    if kind == "local":
        folder = TemporaryDirectory(prefix="pscp-dask-", ignore_cleanup_errors=True)
        made = _local_cluster(int(number), stack.enter_context(folder))
        stack.enter_context(_closing(made))
    else:
        has_tls = not insecure
        made, jobs = stack.enter_context(batch.submitted(kind, int(number), has_tls=has_tls))
    return stack.enter_context(_closing(Client(made, set_as_default=False))), jobs


def _local_cluster(workers: int, folder: str) -> Any:
    """Return a cluster of so many processes. Raises Unreachable."""
    import dask.config
    from distributed import LocalCluster

    try:
        with _without_interrupts(), dask.config.set(temporary_directory=folder):
            return LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host=_HERE,
                dashboard_address=f"{_HERE}:0",
                silence_logs=logging.CRITICAL,
            )
    except RuntimeError:  # each begins as the program does
        what = f"--cluster local:{workers}: its workers cannot be started"
        below = '; a program has to do its work below if __name__ == "__main__":'
        why = f"one was ended as it began, or failed{to_programs(below)}"
        raise Unreachable(what, why) from None


def _client_at(address: str) -> Client:
    from distributed import Client, Security

    arguments = Security().get_connection_args("client")
    if address.startswith(("tls://", "wss://")) and arguments.get("ssl_context") is None:
        what = f"{address}: no certificates are set up here for a scheduler with TLS"
        raise UsageError(what, "set distributed.comm.tls in ~/.config/dask")
    try:
        with ThreadPoolExecutor(1, "greeting") as thread:
            thread.submit(with_context(asyncio.run), _greet(address, arguments)).result()
        return Client(address, timeout=_START_S, set_as_default=False)
    except Exception as error:
        what = f"{address}: no Dask scheduler answers: {_why(error)}"
        hint = "look whether it runs there, at which port, and whether it is tls:// or tcp://"
        raise Unreachable(what, hint) from None


async def _greet(address: str, arguments: dict[str, Any]) -> None:
    """Connect to a scheduler once. Raises whatever comes of it where another program is there: a
    Client would take that for an answer that is still to come.
    """
    from distributed.comm import connect, get_address_host_port

    async with asyncio.timeout(_START_S):
        try:
            comm = await connect(address, timeout=_START_S / 2, **arguments)
        except OSError:  # the last of its tries had no time to find out why
            socket.create_connection(get_address_host_port(address), _START_S / 2).close()
            raise
    comm.abort()


def _why(error: Exception) -> str:
    """Return why a scheduler could not be greeted."""
    if not isinstance(error, OSError):
        return "another program listens there"
    cause: OSError = error
    while isinstance(cause.__cause__, OSError):
        cause = cause.__cause__
    if isinstance(cause, TimeoutError):
        return f"nothing for {_START_S:.0f} s"
    return cause.strerror or "the connection is closed at once"


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Run a block whose threads and processes get no SIGINT: a terminal sends it to all of them,
    and it is this process that ends the copy, and them.
    """
    resource_tracker.ensure_running()  # by the first process, and that unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _closing(thing: Any) -> Iterator[Any]:
    """Close a client or a cluster afterwards, which may be lost by then."""
    try:
        yield thing
    finally:
        with contextlib.suppress(OSError, TimeoutError):
            thing.close()


def _check_secure(client: Client, insecure: bool) -> None:
    """Raise UsageError where what goes to the scheduler could be read or changed on the way."""
    address = str(client.scheduler_info()["address"])
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if not (insecure or scheme in ("tls", "wss", "inproc", "ucxx")):
        raise UsageError(f"{address}: this scheduler has no TLS", _INSECURE)
