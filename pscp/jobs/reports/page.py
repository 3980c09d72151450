"""The page of all jobs: one HTML file without scripts and without anything from elsewhere.

A night is from noon to noon, and has the date of its evening. Its cell shows the last run that
found something to do; earlier failures of the night are marked in it.

Not here: where the jobs stand (status.py), how a page is rendered and made safe (report.py).
Read next: report.py.
"""

from __future__ import annotations

import collections
import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pscp.jobs.reports import report
from pscp.jobs.reports.history import History
from pscp.jobs.reports.outcome import GOOD, DestinationRun, JobRun, Outcome, rate
from pscp.jobs.reports.status import Standing, why_of
from pscp.progress.progress import format_bytes

if TYPE_CHECKING:
    from markupsafe import Markup

NIGHTS = 28
_NOON_S = 12 * 3600
_FAILURES = 20  # the last ones are shown


@dataclass(frozen=True)
class Night:
    """The results of one night for one destination, or to all of a job."""

    date: datetime.date  # of its evening
    parts: Sequence[DestinationRun]  # of its runs, the newest first

    @property
    def outcome(self) -> Outcome | None:
        """Return that of the last run which found something to do, if any did."""
        return self._told.outcome if self._told else None

    @property
    def _told(self) -> DestinationRun | None:
        busy = (each for each in self.parts if each.outcome.kind != "idle")
        return next(busy, self.parts[0] if self.parts else None)

    @property
    def failed(self) -> int:
        """How many of the runs failed."""
        return sum(part.outcome.kind in ("bad", "cut") for part in self.parts)

    @property
    def text(self) -> str:
        """Return, for example: Mon 23 Nov: done, 2 of 48 runs failed."""
        told = self._told
        why = f" ({told.message})" if told and told.message else ""
        runs = len(self.parts)
        failed = f", {self.failed} of {runs} runs failed" if self.failed and runs > 1 else ""
        return f"{self.date:%a %d %b}: {self.outcome or 'no run'}{why}{failed}"


def make(found: Sequence[Standing], history: History, now_s: float) -> str:
    """Return the page for the jobs that stand like this."""
    tonight = _night_of(now_s)
    runs = history.runs(since_s=now_s - (NIGHTS + 1) * 24 * 3600)
    of_job = {each.job: [run for run in runs if run.job == each.job] for each in found}
    by_job = {job: nights_of(its, tonight) for job, its in of_job.items()}
    return report.render(
        "page.html",
        standings=found,
        nights=[nights_of(of_job[each.job], tonight, each.destination) for each in found],
        plots={job: _plots(nights) for job, nights in by_job.items() if any(map(_bytes, nights))},
        failures=[r for r in runs if r.job in of_job and r.outcome not in GOOD][:_FAILURES],
        now_s=now_s,
    )


def nights_of(
    runs: Iterable[JobRun], tonight: datetime.date, destination: str | None = None
) -> list[Night]:
    """Return the last NIGHTS of one destination, or all, the oldest first."""
    found = collections.defaultdict[datetime.date, list[DestinationRun]](list)
    for run in runs:
        # A run that came to no destination, as one whose depends-on failed, is one of each.
        not_run = DestinationRun(destination or "", run.outcome, run.started_s, 0.0, attempts=0)
        found[_night_of(run.started_s)] += [
            replace(part, message=why_of(run, part))
            for part in run.destinations or (not_run,)
            if destination in (None, part.destination)
        ]
    dates = (tonight - datetime.timedelta(number) for number in reversed(range(NIGHTS)))
    return [Night(date, found[date]) for date in dates]


def _night_of(time_s: float) -> datetime.date:
    return datetime.date.fromtimestamp(time_s - _NOON_S)


def _bytes(night: Night) -> int:
    return sum(part.bytes for part in night.parts)


def _plots(nights: Sequence[Night]) -> dict[str, Markup]:
    """Return bars by what they show, as SVG whose colours are the page's."""
    import pygal  # here: it takes long to load
    from markupsafe import Markup
    from pygal.style import Style

    style = Style(
        background="transparent", plot_background="transparent", colors=("var(--bar)",),
        foreground="var(--ink)", foreground_strong="var(--ink)", foreground_subtle="var(--line)",
        opacity="1", font_family="inherit", label_font_size=15, major_label_font_size=15,
    )  # fmt: skip
    plots = {}
    for what, value, unit in (
        ("Copied in a night", _bytes, ""),
        ("Sent in a second", lambda night: rate(night.parts), "/s"),
    ):
        chart = pygal.Bar(
            style=style, js=(), disable_xml_declaration=True, show_legend=False, width=440,
            height=170, margin=4, x_labels_major_every=7, show_minor_x_labels=False,
            truncate_label=-1, min_scale=2, max_scale=4,
            value_formatter=lambda value, unit=unit: f"{format_bytes(value or 0)}{unit}",
        )  # fmt: skip
        chart.x_labels = [f"{night.date:%d %b}" for night in nights]
        chart.add("", [value(night) for night in nights])
        drawn = chart.render(is_unicode=True)
        plots[what] = Markup(re.sub(r"(?s)<script.*?</script>|<!--.*?-->", "", drawn))  # noqa: S704 - pygal escapes
    return plots
