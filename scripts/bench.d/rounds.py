"""Runs tools in turn: A B C, A B C, and so on, so that all meet the same moods of the machine.

Before each run the sessions of the last one are gone; the destination is a fresh folder, which
is removed afterwards, and none of that is timed. The first copy of each tool is compared with
its source. A tool that fails or takes too long is not run again in that case.

Not here: which tools (regimes.py). Read next: results.py.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import NamedTuple

from links import Link
from results import Case, Report, Row, Sample
from stock import Load, Stock, difference
from tools import PSCP, WARM, Run, Tool, before

from pscp.ground.processes import end_tree, stat_of

FULL_WHEN_QUICK = ("small", "tiny")  # what these move is little as it is
SLOW_ROUNDS = 2  # of the tools that a long path makes slow
TIMEOUT_S = 300.0  # the most that a run may take
REPORTED_CONNECTIONS = re.compile(r"^connections +(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Contestant:
    tool: Tool
    load: Load
    rounds: int  # in so many of the rounds, the first ones


class Contest(NamedTuple):
    """What is copied over which link, and by whom; the first load is what a case is named for."""

    kind: str
    path: AbstractContextManager[Link]
    entries: Sequence[Contestant]
    unit: str = ""  # by itself what is usual for the load and the link
    ways: tuple[bool, ...] = (True, False)  # push, pull


@dataclass
class Bench:
    """What is measured with, and what was found."""

    report: Report
    stock: Stock
    runs: int
    quick: bool
    scale: float  # of the sizes
    only: tuple[str, ...]  # tools whose names start so; () is all
    before: str  # another pscp, measured beside each run of this one; "": none
    state: str  # pscp's journals go here, not to the user's
    regime: str = ""  # the one that runs
    wrong: list[str] = field(default_factory=list)  # copies that failed or differ

    def sized(self, full: int, quick: int | None = None) -> int:
        """Bytes or files to move, in full or where a quick look is asked for."""
        return max(1, int((quick if self.quick and quick else full) * self.scale))

    def file(self, full: int, quick: int | None = None) -> Load:
        return self.stock.file(self.sized(full, quick))

    def tree(self, full: int, quick: int | None = None) -> Load:
        return self.stock.tree(self.sized(full, quick))

    def entries(self, load: Load, *tools: Tool, rounds: int = 0) -> list[Contestant]:
        return [Contestant(tool, load, rounds or self.runs) for tool in tools]

    def slow(self, load: Load, *tools: Tool) -> list[Contestant]:
        return self.entries(load, *tools, rounds=min(SLOW_ROUNDS, self.runs))

    def with_before(self, entry: Contestant) -> Iterator[Contestant]:
        yield entry
        if self.before and entry.tool.program == PSCP:
            yield replace(entry, tool=before(entry.tool, self.before))

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "XDG_STATE_HOME": self.state}


def compete(bench: Bench, contest: Contest) -> None:
    """Have all of them copy. Raises LeftOut where there cannot be such a link."""
    with contest.path as link:
        there = (each for each in contest.entries if is_ready(bench, each.tool, link))
        ready = [each for entry in there for each in bench.with_before(entry)]
        for push in contest.ways:
            case = new_case(bench, link, contest, push)
            if link.keeps:  # the first logs in, and the second knows what the first has learned
                first = Contestant(WARM, contest.entries[0].load, 2)
                for number in range(first.rounds):
                    run_once(bench, case, row_of(first, case.unit), first, link, push, number)
            case.rows = [row_of(each, case.unit) for each in ready]
            for number in range(max((each.rounds for each in ready), default=0)):
                for contestant, row in zip(ready, case.rows, strict=True):
                    if number < contestant.rounds and not row.note:
                        run_once(bench, case, row, contestant, link, push, number)


def new_case(bench: Bench, link: Link, contest: Contest, push: bool) -> Case:
    load, regime, kind = contest.entries[0].load, bench.regime, contest.kind
    size = f"{load.files} files, {size_text(load.bytes)}" if load.is_tree else size_text(load.bytes)
    where = regime if kind.endswith(("file", "tree")) else f"{regime} {kind}"
    path = f", {link.rtt_ms:g} ms" if link.keeps else ""
    title = f"{where}, {'push' if push else 'pull'}, {size}{path}"
    unit = contest.unit or ("files/s" if load.is_tree else "Mbit/s" if link.rtt_ms else "MiB/s")
    limit = next((each.tool.name for each in contest.entries if not each.tool.copies), "")
    is_small = (bench.quick or bench.scale < 1) and regime not in FULL_WHEN_QUICK
    case = Case(regime, kind, title, unit, limit, link.rtt_ms, is_small)
    bench.report.cases.append(case)
    return case


def is_ready(bench: Bench, tool: Tool, link: Link) -> bool:
    if not tool.is_there:
        bench.report.left_out[tool.program or tool.name] = "not installed"
        return False
    is_wanted = not bench.only or tool.name.startswith(bench.only)
    return is_wanted and (tool.program != "iperf3" or link.iperf_port > 0)


def row_of(contestant: Contestant, unit: str) -> Row:
    load = contestant.load
    amounts = {"files/s": (load.files, f"{load.files} files"), "runs/s": (1, "1 run")}
    amount, moved = amounts.get(unit, (load.bytes, size_text(load.bytes)))
    return Row(contestant.tool.name, amount, moved, load.bytes)


def size_text(size_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def run_once(
    bench: Bench, case: Case, row: Row, contestant: Contestant, link: Link, push: bool, number: int
) -> None:
    tool, load = contestant.tool, contestant.load
    link.settle()
    out = bench.stock.fresh_folder()
    try:
        if load.before is not None:
            subprocess.run(["cp", "-a", load.before, out / load.name], check=True)
        argv = [*link.near, *tool.command(Run(link, load, out, push, case))]
        sample, row.note = timed(argv, bench.env, number)
        if not row.note and number == 0 and tool.copies:
            row.note = difference(load, out / load.name)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    said = row.note or f"{sample.seconds:.2f} s"
    print(f"  {case.title}: round {number + 1}, {tool.name}: {said}", file=sys.stderr, flush=True)
    if not row.note:
        row.samples.append(sample)
    elif tool.name.startswith("pscp"):
        bench.wrong.append(f"{case.title}: {tool.name}: {row.note}")


def timed(argv: Sequence[str], env: Mapping[str, str], number: int) -> tuple[Sample, str]:
    """Run one command; return what it took, and what went wrong, if anything did.

    A process that ended is looked at before it is reaped: /proc then still tells its own CPU
    time apart from that of the children it waited for.
    """
    # A file takes what it says: a pipe would need a reader, and that would need CPU time.
    with TemporaryFile("w+", errors="replace") as file:
        start_s = time.perf_counter()
        # A session of its own: Ctrl-C at a terminal is for us, and we end it.
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env,
            start_new_session=True,
        )  # fmt: skip
        try:
            fd = os.pidfd_open(process.pid)
            ended = select.select([fd], [], [], TIMEOUT_S)[0]
            seconds = time.perf_counter() - start_s
            os.close(fd)
            # User and system time of its threads, and of the children that it waited for: proc(5).
            spent = [int(each) / os.sysconf("SC_CLK_TCK") for each in stat_of(process.pid)[11:15]]
        finally:
            end_tree(process)
        file.seek(0)
        said = file.read()
    found = REPORTED_CONNECTIONS.search(said)
    count = int(found[1]) if found else None
    sample = Sample(number, seconds, sum(spent[:2]), count, sum(spent[2:]))
    if not ended:
        return sample, f"ended after {TIMEOUT_S:.0f} s"
    lines = [line for line in said.splitlines() if line[:1].strip()]  # a hint is indented
    last = (lines or ["it said nothing"])[-1][:120]
    return sample, f"failed: {last}" if process.returncode else ""
