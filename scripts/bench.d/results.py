"""What was measured, and the numbers that follow from it: medians, rates, ratios.

A ratio is always taken within a round, where both tools ran one after the other, and then the
median of the rounds is taken: the machine's mood changes from minute to minute, for both alike.

Not here: measuring (rounds.py) and showing (tables.py, plots.py). Read next: goals.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

# How much of a row's amount is one of the unit: amounts are bytes, files, or runs.
UNITS = {"MiB/s": 1 << 20, "Mbit/s": 125_000, "files/s": 1, "runs/s": 1}
GIB = 1 << 30


@dataclass(frozen=True)
class Sample:
    """One run of one tool."""

    round: int
    seconds: float
    own_cpu_s: float | None = None  # of the process itself, not of the ssh it started
    connections: int | None = None  # as pscp reports
    below_cpu_s: float | None = None  # of the processes below it


@dataclass
class Row:
    """All runs of one tool in a case."""

    tool: str
    amount: int  # bytes, files or runs, as the case's unit says
    moved: str  # the same for people
    bytes: int
    samples: list[Sample] = field(default_factory=list)
    note: str = ""

    @property
    def median_s(self) -> float | None:
        return median(s.seconds for s in self.samples) if self.samples else None

    @property
    def connections(self) -> int | None:
        return next((s.connections for s in reversed(self.samples) if s.connections), None)

    def cpu_s_per_gib(self, *, below: bool = False) -> float | None:
        """CPU time of the process itself, or of those below it."""
        times_s = [s.below_cpu_s if below else s.own_cpu_s for s in self.samples]
        spent = [each for each in times_s if each is not None]
        return median(spent) * GIB / self.bytes if spent and self.bytes else None

    def rates(self) -> dict[int, float]:
        """Amount a second, by round."""
        return {s.round: self.amount / s.seconds for s in self.samples}


@dataclass
class Case:
    """Tools that do the same thing, in turn."""

    regime: str
    kind: str  # what goals.py knows it by: file, large file, tree, large tree, a link's name
    title: str
    unit: str
    limit: str  # the tool whose rate is the most that can be had
    rtt_ms: float
    quick: bool  # smaller than the goals speak of
    rows: list[Row] = field(default_factory=list)

    @property
    def way(self) -> str:
        return "pull" if ", pull," in self.title else "push"

    def row(self, tool: str) -> Row | None:
        return next((row for row in self.rows if row.tool == tool), None)

    def rate(self, tool: str) -> float | None:
        """The median rate in the case's unit."""
        row = self.row(tool)
        if row is None or not row.samples:
            return None
        return median(row.rates().values()) / UNITS[self.unit]

    def ratio(self, tool: str, other: str) -> float | None:
        """How many times the rate of `other` that of `tool` is, within a round."""
        first, second = self.row(tool), self.row(other)
        if first is None or second is None:
            return None
        mine, theirs = first.rates(), second.rates()
        ratios = [mine[n] / theirs[n] for n in mine.keys() & theirs.keys()]
        return median(ratios) if ratios else None

    def best(self, tools: Iterable[str]) -> str | None:
        rates = {tool: rate for tool in tools if (rate := self.rate(tool)) is not None}
        return max(rates, key=rates.__getitem__, default=None)


@dataclass
class Report:
    """Everything that a run of the benchmark found."""

    machine: dict[str, str]
    cases: list[Case] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # a tool or regime, and why
    measured: dict[str, str] = field(default_factory=dict)  # each regime's day and version

    def keep_from(self, older: Report, regimes: Iterable[str]) -> None:
        """Take over what an older report has of regimes other than these."""
        now = set(regimes)
        self.cases = [case for case in older.cases if case.regime not in now] + self.cases
        self.measured = {**older.measured, **self.measured}

    def save(self, path: Path) -> None:
        """Whole or not at all: a report may hold hours of measuring."""
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(part, path)


def load(path: Path) -> Report:
    """Raises ValueError where the file is not a report."""
    from pydantic import TypeAdapter  # here: a Python with pscp alone may lack it

    return TypeAdapter(Report).validate_json(path.read_bytes())
