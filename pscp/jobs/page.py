"""The page of all jobs: one HTML file without scripts and without anything from elsewhere.

A night is from noon to noon, and has the date of its evening. Its cell shows the last run that
found something to do; earlier failures of the night are marked in it.

Not here: where the jobs stand (status.py), how a page is rendered and made safe (report.py).
Read next: report.py.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pscp.jobs import words
from pscp.jobs.outcome import DestinationRun, JobRun, Outcome
from pscp.jobs.report import render
from pscp.jobs.status import Past, Standing
from pscp.progress import count, format_bytes

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from markupsafe import Markup

NIGHTS = 28
_NOON_S = 12 * 3600
_LAST_FAILURES = 20


@dataclass
class Night:
    """What one night brought to one destination, or of one job."""

    date: datetime.date  # of its evening
    outcome: Outcome | None = None
    runs: int = 0
    failed: int = 0  # of the runs
    bytes: int = 0
    bytes_sent: int = 0
    seconds: float = 0.0

    def add(self, part: DestinationRun) -> None:
        """Add a run's part, the newest first."""
        if self.outcome is None or words.SIGNS[self.outcome][1] == "idle":
            self.outcome = part.outcome
        self.runs += 1
        self.failed += words.SIGNS[part.outcome][1] in ("bad", "cut")
        self.bytes += part.bytes
        self.bytes_sent += part.bytes_sent
        self.seconds += part.seconds

    @property
    def is_marred(self) -> bool:
        """Whether runs of the night failed before one that did not."""
        return bool(self.failed) and self.outcome in words.GOOD

    @property
    def text(self) -> str:
        """For example: Mon 23 Nov: done, 2 of 48 runs failed."""
        said = str(self.outcome or "no run")
        failed = f", {self.failed} of {self.runs} runs failed" if self.failed else ""
        return f"{self.date:%a %d %b}: {said}{failed}"

    @property
    def rate(self) -> float:
        """Bytes sent in a second of the runs."""
        return self.bytes_sent / self.seconds if self.seconds > 0 else 0.0


@dataclass
class JobNights:
    """A job's nights, the oldest first: of each destination, and of all together."""

    job: str
    destinations: dict[str, list[Night]]
    all: list[Night]
    plots: dict[str, Markup] = field(default_factory=dict)  # SVG, by what it shows


def make(found: Sequence[Standing], past: Past, now_s: float) -> str:
    """Return the page for the jobs that stand like this."""
    tonight = _night_of(now_s)
    runs = past.runs(since_s=now_s - (NIGHTS + 1) * 24 * 3600)
    jobs = [_nights(each, found, runs, tonight) for each in dict.fromkeys(s.job for s in found)]
    for job in jobs:
        if any(night.bytes for night in job.all):
            job.plots = {
                "size": _plot(job.all, [night.bytes for night in job.all], ""),
                "rate": _plot(job.all, [night.rate for night in job.all], "/s"),
            }
    names = {job.job for job in jobs}
    failed = [run for run in runs if run.job in names and run.outcome not in words.GOOD]
    return render(
        "page.html",
        standings=found,
        jobs=jobs,
        failures=failed[:_LAST_FAILURES],
        now_s=now_s,
        nights=NIGHTS,
        waiting={s.job: count(s.files_waiting, "file") for s in found if s.files_waiting},
        count=count,
        format_bytes=format_bytes,
    )


def _night_of(time_s: float) -> datetime.date:
    return datetime.date.fromtimestamp(time_s - _NOON_S)


def _nights(
    job: str, found: Sequence[Standing], runs: Sequence[JobRun], tonight: datetime.date
) -> JobNights:
    def empty() -> list[Night]:
        days = (datetime.timedelta(number) for number in reversed(range(NIGHTS)))
        return [Night(tonight - each) for each in days]

    made = JobNights(job, {s.destination: empty() for s in found if s.job == job}, empty())
    for run in runs:
        place = NIGHTS - 1 - (tonight - _night_of(run.started_s)).days
        if run.job != job or not 0 <= place < NIGHTS:
            continue
        for part in run.destinations:
            made.all[place].add(part)
            if part.destination in made.destinations:
                made.destinations[part.destination][place].add(part)
    return made


def _plot(nights: Sequence[Night], values: Sequence[float], unit: str) -> Markup:
    """Return bars as an SVG whose colours are the page's."""
    import pygal  # here: it takes long to load
    from markupsafe import Markup
    from pygal.style import Style

    # It leaves a finder behind that Python 3.11 warns of at every import from here on.
    sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != "pygal"]
    style = Style(
        background="transparent", plot_background="transparent", colors=("var(--bar)",),
        foreground="var(--ink)", foreground_strong="var(--ink)", foreground_subtle="var(--line)",
        opacity="1", opacity_hover="1", transition="0s", font_family="inherit",
        label_font_size=15, major_label_font_size=15,
    )  # fmt: skip
    chart = pygal.Bar(
        style=style, js=(), disable_xml_declaration=True, show_legend=False, width=440, height=170,
        margin=4, explicit_size=False, x_labels_major_every=7, show_minor_x_labels=False,
        truncate_label=-1, min_scale=2, max_scale=4, include_x_axis=True, print_values=False,
        value_formatter=lambda value: f"{format_bytes(value or 0)}{unit}",
    )  # fmt: skip
    chart.x_labels = [f"{night.date:%d %b}" for night in nights]
    chart.add("", list(values))
    chart.add_xml_filter(_without_scripts)
    return Markup(chart.render(is_unicode=True))


def _without_scripts(element: Element) -> Element:
    """Return the SVG without what only serves pygal's own script."""
    for child in list(element):
        if child.tag in ("script", "desc") or not isinstance(child.tag, str):  # or a comment
            element.remove(child)
        else:
            _without_scripts(child)
    return element
