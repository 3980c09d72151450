"""Cases and verdicts as tables, for a terminal and docs/benchmarks.md.

Not here: the plots (plots.py). Read next: plots.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from goals import Verdict, verdicts
from plots import PLOTS
from results import Case, Report, Row

LEAD = """\
# Benchmarks

Made by `scripts/bench --write-docs`; `scripts/bench --help` says how to make your own, and
`scripts/bench --quick` takes under three minutes. What each run took is in
[benchmarks.json](benchmarks.json).

Everything lies in memory (tmpfs), sshd is stock, and each time is that of the whole command, with
its connections set up. A rate is the median of the runs, which alternate (A B C, A B C), and a
ratio the median of the ratios within each round. Trees are copied with `-a` by pscp and rsync, and
with times and modes by the others. The first copy of every tool is compared with its source.
"""
WAYS = ("push", "pull")
MEASURED = ("date", "pscp")  # said of each regime
HEADER = ("tool", "moved", "runs", "median s", "rate", "pscp x", "of limit", "CPU s/GiB", "")


def fields(case: Case, row: Row) -> tuple[str, ...]:
    cpu = row.cpu_s_per_gib() if row.tool.startswith("pscp") and row.bytes >= 1 << 26 else None
    connections = row.connections
    remark = f"{connections} connections" if connections and connections > 1 else ""
    if case.regime == "fan-out":
        remark = f"and {number(row.cpu_s_per_gib(below=True))} CPU s/GiB below it"
    rate = case.rate(row.tool)
    return (
        row.tool,
        row.moved,
        str(len(row.samples)),
        number(row.median_s),
        f"{number(rate)} {case.unit}" if rate else "-",
        number(case.ratio("pscp", row.tool)) if row.tool != "pscp" else "",
        number(case.ratio(row.tool, case.limit)) if case.limit else "",
        number(cpu) if cpu is not None else "",
        row.note or remark,
    )


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
    )


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns for a terminal: the first and last to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    header, *rest = rows
    yield "| " + " | ".join(header) + " |"
    yield "|---" + "|--:" * (len(header) - 1) + "|"
    for row in rest:
        yield "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"


def without_way(case: Case) -> str:
    return case.title.replace(f", {case.way}", "", 1)


def for_terminal(report: Report, regimes: Sequence[str]) -> Iterator[str]:
    """The cases of these regimes, the goals and what was left out."""
    for case in report.cases:
        if case.regime in regimes and case.rows:
            yield f"\n{case.title}"
            yield from aligned([HEADER, *(fields(case, row) for row in case.rows)])
    found = [v for v in verdicts(report) if v.case.regime in regimes]
    if found:
        is_small = any(v.case.quick for v in found)
        yield f"\nWhat it must reach{', with more than some of this' if is_small else ''}"
        yield from aligned(goal_rows(found))
    if report.left_out:
        yield "\nLeft out"
        yield from (f"  {what}: {why}" for what, why in sorted(report.left_out.items()))


def goal_rows(found: Iterable[Verdict]) -> list[tuple[str, ...]]:
    """What was reached by push and by pull."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for v in found:
        key = without_way(v.case), f"{v.goal.text}: {v.bound}"
        value = number(v.value) + ("" if v.is_met else ", not met")
        rows.setdefault(key, {})[v.case.way] = value
    values = [(*key, *(of.get(way, "") for way in WAYS)) for key, of in rows.items()]
    return [("case", "goal", *WAYS), *values]


def for_docs(report: Report, plots: Sequence[str]) -> Iterator[str]:
    """The lines of docs/benchmarks.md: the machine, the goals and the plots."""
    yield LEAD
    yield from (
        f"- {what}: {value}" for what, value in report.machine.items() if what not in MEASURED
    )
    for when in sorted(set(report.measured.values())):
        regimes = [name for name, each in report.measured.items() if each == when]
        yield f"- measured on {when}: {', '.join(sorted(regimes))}"
    yield "\n## What it must reach\n"
    yield from markdown(goal_rows(verdicts(report)))
    yield from (f"\n![{PLOTS[name]}](plots/{name}.svg)" for name in plots)
