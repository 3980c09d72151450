"""The regime `delta`: a large file of which the destination has an earlier version.

One hundredth of it has changed, in pieces of 64 KiB all over it, as in a machine's image.

Not here: the other regimes (regimes.py), the link (links.py).
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from links import wan
from rounds import Bench, Contestant, compete, new_case
from stock import GIB, MIB
from tools import RSYNC, Command, Run, Tool, pscp

RATE_MBIT, RTT_MS = 1000, 100
WHOLE, IN_PLACE = pscp("--no-resume"), pscp("--inplace")


def rsync_inplace(run: Run) -> Command:
    return Command(["rsync", "-a", "--inplace", "-e", shlex.join(run.ssh), *run.ends])


RSYNC_IN_PLACE: Tool = replace(RSYNC, name="rsync --inplace", command=rsync_inplace)


def delta(bench: Bench) -> None:
    load = bench.stock.changed_file(bench.sized(2 * GIB, 256 * MIB))
    with wan(RATE_MBIT, RTT_MS) as link:
        for push in (True, False):
            case = new_case(bench, "delta", "file", push, load, "Mbit/s", WHOLE.name, RTT_MS)
            tools = (pscp(), IN_PLACE, RSYNC_IN_PLACE, WHOLE)
            entries = [Contestant(tool, load, bench.runs) for tool in tools]
            compete(bench, case, link, entries, push)
