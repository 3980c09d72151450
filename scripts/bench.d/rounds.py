"""Runs tools in turn: A B C, A B C, and so on, so that all meet the same moods of the machine.

Before each run the sessions of the last one are gone; the destination is a fresh folder, which
is removed afterwards, and none of that is timed. The first copy of each tool is compared with
its source. A tool that fails or takes too long is not run again in that case.

Not here: which tools (regimes.py). Read next: results.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from links import Link
from results import Case, Report, Row, Sample
from stock import Load, Stock, difference
from timing import Outcome, timed
from tools import Run, Tool

FULL_WHEN_QUICK = ("small", "tiny")  # what these move is little as it is
REPORTED_CONNECTIONS = re.compile(r"^connections +(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Contestant:
    tool: Tool
    load: Load
    rounds: int  # in so many of the rounds, the first ones


@dataclass
class Bench:
    """What is measured with, and what was found."""

    report: Report
    stock: Stock
    runs: int
    quick: bool
    scale: float  # of the sizes
    timeout_s: float
    only: tuple[str, ...]  # tools whose names start so; () is all
    state: str  # pscp's journals go here, not to the user's
    wrong: list[str] = field(default_factory=list)  # copies that failed or differ

    def wants(self, tool: Tool) -> bool:
        return not self.only or any(tool.name.startswith(name) for name in self.only)

    @property
    def is_small(self) -> bool:
        """What is measured is less than the goals speak of."""
        return self.quick or self.scale < 1

    def sized(self, full: int, quick: int | None = None) -> int:
        """Bytes or files to move, in full or where a quick look is asked for."""
        return max(1, int((quick if self.quick and quick else full) * self.scale))

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "XDG_STATE_HOME": self.state}


def new_case(
    bench: Bench,
    regime: str,
    kind: str,
    push: bool,
    load: Load,
    unit: str,
    limit: str,
    rtt_ms: float = 0.0,
) -> Case:
    size = f"{load.files} files, {size_text(load.bytes)}" if load.is_tree else size_text(load.bytes)
    where = regime if kind.endswith(("file", "tree")) else f"{regime} {kind}"
    title = f"{where}, {'push' if push else 'pull'}, {size}"
    less = bench.is_small and regime not in FULL_WHEN_QUICK
    case = Case(regime, kind, title, unit, limit, rtt_ms, less)
    bench.report.cases.append(case)
    return case


def compete(
    bench: Bench, case: Case, link: Link, contestants: Sequence[Contestant], push: bool
) -> None:
    """Fills the case's rows."""
    ready = [(c, row_of(c, case)) for c in contestants if is_ready(bench, c.tool, link)]
    case.rows += [row for _, row in ready]
    for number in range(max((c.rounds for c, _ in ready), default=0)):
        for contestant, row in ready:
            if number < contestant.rounds and not row.note:
                run_once(bench, case, row, contestant, link, push, number)


def is_ready(bench: Bench, tool: Tool, link: Link) -> bool:
    if not tool.is_there:
        bench.report.left_out[tool.program or tool.name] = "not installed"
        return False
    return bench.wants(tool) and (tool.program != "iperf3" or link.iperf_port > 0)


def row_of(contestant: Contestant, case: Case) -> Row:
    load = contestant.load
    amounts = {"files/s": (load.files, f"{load.files} files"), "runs/s": (1, "1 run")}
    amount, moved = amounts.get(case.unit, (load.bytes, size_text(load.bytes)))
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
        command = tool.command(Run(link, load, out, push))
        argv = [*link.near, *command.argv]
        outcome = timed(argv, stdin=command.stdin, env=bench.env, timeout_s=bench.timeout_s)
        row.note = fault(outcome, bench.timeout_s)
        if not row.note and number == 0 and tool.copies:
            row.note = difference(load, out / load.name)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    if row.note:
        tell(f"{case.title}: {tool.name}: {row.note}")
        if tool.name.startswith("pscp"):
            bench.wrong.append(f"{case.title}: {tool.name}: {row.note}")
    else:
        row.samples.append(sample_of(number, outcome))
        tell(f"{case.title}: round {number + 1}, {tool.name}: {row.samples[-1].seconds:.2f} s")


def fault(outcome: Outcome, timeout_s: float) -> str:
    if outcome.status is None:
        return f"ended after {timeout_s:.0f} s"
    return f"failed: {outcome.last_words}" if outcome.status else ""


def sample_of(number: int, outcome: Outcome) -> Sample:
    found = REPORTED_CONNECTIONS.search(outcome.err)
    count = int(found[1]) if found else None
    return Sample(number, outcome.seconds, outcome.own_cpu_s, count, outcome.below_cpu_s)


def tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
