"""Runs of jobs, made by hand: for the tests of what pscp-run tells.

Not here: what must be told of them (unit/test_job_reports.py, unit/test_job_status.py).
"""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterable
from typing import Any

from pscp.jobs.reports.history import History
from pscp.jobs.reports.outcome import GOOD, DestinationRun, JobRun, Outcome, worst
from pscp.progress.progress import Failure

NIGHT_S = 1_763_950_000.0  # an evening of November 2025, in most time zones
HOSTILE = "\x1b[31m<script>\nx\"'& \u202e\udcff"  # a name that acts on terminals, pages and lines
UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")  # but for a newline
FULL = Failure("cam/1.rec", "SystemFailure", "No space left on device", "make room there")


def part(destination: str = "store1:/vault/", **fields: Any) -> DestinationRun:
    given = {"outcome": Outcome.DONE, "started_s": NIGHT_S, "seconds": 10.0, **fields}
    return DestinationRun(destination, **given)


def run_of(*parts: DestinationRun, job: str = "recordings", **fields: Any) -> JobRun:
    given = {
        "run": f"{fields.get('started_s', NIGHT_S)}",
        "outcome": worst(each.outcome for each in parts),
        "started_s": NIGHT_S,
        "seconds": 12.0,
        **fields,
    }
    return JobRun(job=job, destinations=parts, **given)


class Remembered(History):
    """A history in memory: the newest run first."""

    def __init__(self, kept: Iterable[JobRun] = ()) -> None:
        super().__init__("/nowhere")
        self.kept = list(kept)

    def last_success(self, job: str, destination: str) -> float | None:
        parts = (each for run in self.runs(job) for each in run.destinations)
        mine = (each for each in parts if each.destination == destination)
        return next((p.started_s + p.seconds for p in mine if p.outcome in GOOD), None)

    def runs(self, job: str | None = None, since_s: float = 0, most: int = -1) -> list[JobRun]:
        found = [r for r in self.kept if job in (None, r.job) and r.started_s >= since_s]
        return found if most < 0 else found[:most]


class Tags(html.parser.HTMLParser):
    """The elements of a page, the addresses in it, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.addresses, self.text = set[str](), set[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses |= {value or "" for name, value in attrs if name in ("src", "href")}

    def handle_data(self, data: str) -> None:
        self.text += data
