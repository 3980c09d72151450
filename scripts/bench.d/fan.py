"""The regime `fan-out`: one file to four destinations at once, against the same to one.

What counts is CPU at this end: pscp's own, and that of the ssh or other programs below it, which
encrypt for each destination. --plane plain has no such programs.

Not here: the other regimes (regimes.py), the link (links.py).
"""

from __future__ import annotations

from links import loopback
from results import Case, Report
from rounds import Bench, Contestant, compete, new_case
from stock import GIB, MIB
from tools import PSCP, Command, Run, Tool, pscp

DESTINATIONS = 4
ONE_PLAIN = pscp("--plane", "plain")


def to_four(*options: str) -> Tool:
    one = pscp(*options)

    def command(run: Run) -> Command:
        more = [run.far(f"{run.out}/{number}/") for number in range(2, DESTINATIONS + 1)]
        return Command([*one.command(run).argv, *more, "--fan-out"])

    return Tool(" ".join(["pscp --fan-out", *options]), command, PSCP, single=False)


FOUR, FOUR_PLAIN = to_four(), to_four("--plane", "plain")


def fan_out(bench: Bench) -> None:
    load = bench.stock.file(bench.sized(GIB, 256 * MIB))
    with loopback() as link:
        case = new_case(bench, "fan-out", "file", True, load, "MiB/s", "")
        tools = (pscp(), FOUR, ONE_PLAIN, FOUR_PLAIN)
        compete(bench, case, link, [Contestant(tool, load, bench.runs) for tool in tools], True)


def own_cpu_of_four(case: Case, report: Report) -> float | None:
    """pscp's own CPU time with four destinations, against one."""
    return _ratio(case, FOUR, "pscp")


def own_cpu_of_four_plain(case: Case, report: Report) -> float | None:
    return _ratio(case, FOUR_PLAIN, ONE_PLAIN.name)


def _ratio(case: Case, four: Tool, one: str) -> float | None:
    rows = case.row(four.name), case.row(one)
    spent = [row.own_cpu_s_per_gib if row else None for row in rows]
    return spent[0] / spent[1] if spent[0] and spent[1] else None
