"""What is at the destination already: the regimes `delta` and `unchanged`.

`delta` is a large file of which the destination has an earlier version: one hundredth has changed,
in pieces of 64 KiB all over it, as in a machine's image. `unchanged` is a tree that is there, as on
a night on which nothing has changed.

Not here: the other regimes (regimes.py), the link (links.py).
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from links import loopback, wan
from rounds import Bench, Contestant, compete, new_case
from stock import GIB, MIB
from tools import RSYNC, Command, Run, Tool, pscp

RATE_MBIT, RTT_MS = 1000, 100
WHOLE = pscp("--no-resume")


def rsync_inplace(run: Run) -> Command:
    return Command(["rsync", "-a", "--inplace", "-e", shlex.join(run.ssh), *run.ends])


RSYNC_IN_PLACE: Tool = replace(RSYNC, name="rsync --inplace", command=rsync_inplace)


def delta(bench: Bench) -> None:
    load = bench.stock.changed_file(bench.sized(2 * GIB, 256 * MIB))
    with wan(RATE_MBIT, RTT_MS) as link:
        for push in (True, False):
            case = new_case(bench, "delta", "file", push, load, "Mbit/s", WHOLE.name, RTT_MS)
            tools = (pscp(), RSYNC_IN_PLACE, WHOLE)
            entries = [Contestant(tool, load, bench.runs) for tool in tools]
            compete(bench, case, link, entries, push)


def unchanged(bench: Bench) -> None:
    load = bench.stock.tree(bench.sized(100_000, 10_000))
    load = replace(load, before=load.path)
    for rtt_ms in (0, 50):
        with wan(RATE_MBIT, rtt_ms) if rtt_ms else loopback() as link:
            for push in (True, False):
                kind = f"{rtt_ms} ms"
                case = new_case(bench, "unchanged", kind, push, load, "files/s", "", rtt_ms)
                entries = [Contestant(tool, load, bench.runs) for tool in (pscp(), RSYNC)]
                compete(bench, case, link, entries, push)
