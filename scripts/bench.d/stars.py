"""Several near hosts with a Dask worker each, and far ones that share the files in memory.

Each has a link of its own. Dask's scheduler, and the pscp that hands out tasks, are on the host
core, which reaches all.

Not here: one link between two hosts (links.py). Read next: regimes.py.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from links import Link, at, far_server, hosts, iperf_server, program, started
from many_hosts_world import Cluster
from servers.private import PrivateServer, free_port
from tools import OWN, Run, Tool, pscp

FAR_HOSTS = 3
RTT_MS = 50
CORE_ADDRESS = "10.99.0.1"
FULL_MBIT = 200
# Packets are as small as real ones then, where a slow link's queue has no room for those of 64 KiB.
NEXT_TO_NONE = "0.0000001"
STREAMS = 4  # of iperf3 on each link
DASK = (sys.executable, "-m")
QUIET = ("--no-dashboard", "--protocol", "tcp")


@dataclass(frozen=True, kw_only=True)
class Star(Link):
    """How commands run at the near hosts reach the far ones; `server` stands for all of these."""

    near_hosts: int
    rate_mbit: float
    scheduler: str  # Dask's address

    @property
    def servers(self) -> Sequence[PrivateServer]:
        return cast(Cluster, self.server).servers


@contextlib.contextmanager
def star(near_hosts: int, rate_mbit: float) -> Iterator[Link]:
    """So many near hosts and three far ones. Raises LeftOut where they cannot be made."""
    shape = (near_hosts, FAR_HOSTS, rate_mbit, RTT_MS)
    loss_percent = NEXT_TO_NONE if rate_mbit < FULL_MBIT else 0
    with hosts("star", *shape, loss_percent), contextlib.ExitStack() as stack:
        names = [(f"far{number}", far_address(number)) for number in range(1, FAR_HOSTS + 1)]
        servers = [
            stack.enter_context(started(functools.partial(far_server, *each))) for each in names
        ]
        port = free_port()
        for name, address in names:
            port = stack.enter_context(iperf_server(at(name), address, port))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pscp-bench-")))
        scheduler = stack.enter_context(dask(near_hosts, folder))
        far: Any = Cluster(folder, *servers)
        link = Link(far, rtt_ms=RTT_MS, iperf_port=port)
        yield Star(**vars(link), near_hosts=near_hosts, rate_mbit=rate_mbit, scheduler=scheduler)


def far_address(number: int) -> str:
    return f"10.99.2.{number}"


@contextlib.contextmanager
def dask(workers: int, folder: Path) -> Iterator[str]:
    """The address of a scheduler that has a worker, with one thread, at each near host."""
    port = free_port()
    address = f"tcp://{CORE_ADDRESS}:{port}"
    here = ("--host", CORE_ADDRESS, "--port", str(port))
    scheduler = [*at("core"), *DASK, "distributed.cli.dask_scheduler", *here, *QUIET]
    with program(scheduler, "Scheduler at"), contextlib.ExitStack() as stack:
        for number in range(1, workers + 1):
            words = ["--host", f"10.99.1.{number}", "--local-directory", str(folder), *QUIET]
            words += ["--nthreads", "1", "--no-nanny", "--name", f"near{number}", address]
            argv = [*at(f"near{number}"), *DASK, "distributed.cli.dask_worker", *words]
            stack.enter_context(program(argv, "Registered to", XDG_STATE_HOME=str(folder)))
        yield address


def alone_command(run: Run) -> list[str]:
    return [*at("near1"), *pscp(*chunks(run)).command(run)]


def clustered_command(run: Run) -> list[str]:
    assert isinstance(run.link, Star)
    tool = pscp("--cluster", run.link.scheduler, "--cluster-insecure", *chunks(run))
    return [*at("core"), *tool.command(run)]


def chunks(run: Run) -> Sequence[str]:
    """Over a slower link as many chunks a second as over one of the full rate."""
    assert isinstance(run.link, Star)
    size_kib = int(4096 * run.link.rate_mbit / FULL_MBIT)
    return () if run.load.is_tree else ("--chunk-size", f"{size_kib}K")


def iperf_command(run: Run) -> list[str]:
    """One iperf3 for each pair of a near and a far host, all at once; with -R, as in tools.py."""
    assert isinstance(run.link, Star)
    pairs = min(run.link.near_hosts, FAR_HOSTS)
    words = ["-p", str(run.link.iperf_port), "-P", str(STREAMS), "-n", str(run.load.bytes // pairs)]
    each = [
        [*at(f"near{number}"), "iperf3", "-R", "-c", far_address(number), *words]
        for number in range(1, pairs + 1)
    ]
    all_of_them = "".join(f"{shlex.join(one)} & " for one in each)
    return ["bash", "-c", f"{all_of_them} for job in $(jobs -p); do wait $job || exit; done"]


ALONE = Tool("pscp at one host", alone_command, OWN.program, single=False)
CLUSTERED = Tool("pscp --cluster", clustered_command, OWN.program, single=False)
ALL_LINKS = Tool("iperf3 on all links", iperf_command, "iperf3", copies=False)
