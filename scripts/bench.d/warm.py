"""The regime `warm`: the second copy to a host, whose connections are open already.

pscp keeps its own (--persist); rsync's ssh uses a live ControlMaster.

Not here: the other regimes (regimes.py), the link (links.py).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace

from links import Link, wan
from results import Case, Report
from rounds import Bench, Contestant, compete, new_case
from stock import GIB, MIB, Load
from tools import IPERF, PSCP, RSYNC, Command, Run, Tool, pscp, rsync

RATE_MBIT = 1000
DELAYS_MS = (100, 50)
BOTH_WAYS = (True, False)  # push, pull
WARM = pscp("--persist", "10m")
KEPT_RSYNC = "rsync, ControlMaster"
TINY = "tiny file"  # the kind of case


def warm(bench: Bench) -> None:
    tiny = bench.stock.file(4096)
    for rtt_ms in DELAYS_MS:
        with wan(RATE_MBIT, rtt_ms) as bare, master(bare) as kept_rsync:
            link = replace(bare, keeps=True)
            try:
                runs = [Contestant(tool, tiny, 5 * bench.runs) for tool in (pscp(), WARM)]
                measure(bench, link, TINY, runs, "runs/s")
                if rtt_ms == DELAYS_MS[0]:
                    load = bench.stock.file(bench.sized(GIB, 256 * MIB))
                    tools: Sequence[Tool] = (pscp(), WARM, IPERF)
                    measure(bench, link, "file", [on(bench, t, load) for t in tools], "Mbit/s")
                else:
                    load = bench.stock.tree(bench.sized(5000))
                    tools = (pscp(), WARM, RSYNC, kept_rsync)
                    measure(bench, link, "tree", [on(bench, t, load) for t in tools], "files/s")
            finally:
                subprocess.run([PSCP, "-q", "--disconnect", link.server.host], env=bench.env)


def on(bench: Bench, tool: Tool, load: Load) -> Contestant:
    return Contestant(tool, load, bench.runs)


def measure(
    bench: Bench, link: Link, kind: str, contestants: Sequence[Contestant], unit: str
) -> None:
    limit = IPERF.name if kind == "file" else ""
    for push in BOTH_WAYS:
        load = contestants[0].load
        case = new_case(bench, "warm", kind, push, load, unit, limit, link.rtt_ms)
        case.title += f", {link.rtt_ms:g} ms"
        for _ in range(2):  # the first logs in, and the second knows what the first has learned
            once(bench, WARM, load, link, push)
        compete(bench, case, link, contestants, push)


def once(bench: Bench, tool: Tool, load: Load, link: Link, push: bool) -> None:
    """Copy without being timed."""
    out = bench.stock.fresh_folder()
    command: Command = tool.command(Run(link, load, out, push))
    subprocess.run([*link.near, *command.argv], env=bench.env, capture_output=True)
    shutil.rmtree(out, ignore_errors=True)


@contextlib.contextmanager
def master(link: Link) -> Iterator[Tool]:
    """Yield rsync over an ssh whose connection is open."""
    with tempfile.TemporaryDirectory(prefix="pk") as folder:
        path = f"-oControlPath={folder}/s"
        ssh = [*link.near, link.ssh, "-F", link.config, path]
        subprocess.run([*ssh, "-M", "-f", "-N", link.server.host], check=True)
        try:
            yield rsync(KEPT_RSYNC, path)
        finally:
            subprocess.run([*ssh, "-O", "exit", link.server.host], capture_output=True)


def round_trips(case: Case, report: Report) -> float | None:
    """Return how many round trips a warm copy takes: what it takes longer over a longer path."""
    way = case.title.split(", ")[1]
    times: dict[float, float] = {}
    for other in report.cases:
        row = other.row(WARM.name)
        median_s = row.median_s if row else None
        if (other.regime, other.kind) == ("warm", TINY) and way in other.title and median_s:
            times[other.rtt_ms] = median_s
    if len(times) < len(DELAYS_MS):
        return None
    far_ms, near_ms = DELAYS_MS
    return (times[far_ms] - times[near_ms]) * 1000 / (far_ms - near_ms)
