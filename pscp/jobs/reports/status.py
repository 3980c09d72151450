"""The standing of jobs: for each destination its last run, its last success, and what is behind.

Not here: who starts jobs (timers.py), the page of all nights (page.py), one run (report.py), the
options (../../cli/run_jobs.py).
Read next: timers.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pscp.jobs.reports import report
from pscp.jobs.reports.history import History
from pscp.jobs.reports.outcome import GOOD, DestinationRun, JobRun, Outcome
from pscp.jobs.reports.timers import Timer
from pscp.jobs.toml.job import Job
from pscp.progress.progress import count

_PERIODS = 2  # without a success: a job is behind


@dataclass(frozen=True)
class Standing:
    """The standing of a job for one destination."""

    job: str
    destination: str
    outcome: Outcome | None  # of the last run; None: there was none
    last_run_s: float | None  # seconds since the epoch, as the other times
    last_success_s: float | None
    next_s: float | None  # None: not known
    next_by: str  # "cron", or a timer's unit
    files_waiting: int  # that the last run left for the next one
    files_skipped: int  # in the last run, by update and the like
    files_deleted: int  # in the last run, at the destination
    behind: str  # why it is not where it should be; "": it is
    running: str  # " (process 123, since 02:15)", if a run is under way


def standings(
    jobs: Iterable[Job],
    history: History,
    timers: Mapping[str, Timer],
    now_s: float,
    running: Mapping[str, str],
) -> list[Standing]:
    """Return where each job stands for each of its destinations, in the order of jobs.toml.

    `running` says of jobs that run now by which process.
    """
    found = []
    for job in jobs:
        run, timer = next(iter(history.runs(job.name, most=1)), None), timers.get(job.name)
        for destination in job.destinations:
            # A run may have ended before it came to a destination.
            parts = run.destinations if run else ()
            part = next((part for part in parts if part.destination == destination), None)
            success_s = history.last_success(job.name, destination)
            late_s = _PERIODS * ((timer and timer.period_s) or math.inf)
            reasons = [why_of(run, part)] if run else ["never run"]
            if run and success_s is None:
                reasons.append("never done")
            elif success_s is not None and now_s - success_s > late_s:
                reasons.append(f"not done since {report.date(success_s)}")
            standing = Standing(
                job=job.name,
                destination=destination,
                outcome=part.outcome if part else run.outcome if run else None,
                last_run_s=run.started_s if run else None,
                last_success_s=success_s,
                next_s=timer.next_s if timer else None,
                next_by=timer.name if timer else "",
                files_waiting=run.files_waiting if run else 0,
                files_skipped=part.files_skipped if part else 0,
                files_deleted=part.files_deleted if part else 0,
                behind="; ".join(filter(None, reasons)),
                running=running.get(job.name, ""),
            )
            found.append(standing)
    return found


def why_of(run: JobRun, part: DestinationRun | None) -> str:
    """Return what failed of a run for a destination, which had this part in it; "" for nothing."""
    its, whole = (part.message if part else "").partition("\n")[0], run.message.partition("\n")[0]
    if part and part.outcome not in GOOD and run.destinations:
        counted = [f"{count(part.files_failed, noun)} failed" for noun in ("file", "dataset")]
        failed = its or counted[0]
        paths = [each.path for each in part.failures if each.path]
        if paths and its in ("", *counted):
            return f"{failed}: {paths[0]}{', ...' if part.files_failed > 1 else ''}"
        if not part.attempts and whole:
            return f"{its}: {whole}"  # not begun
        return failed if its or part.files_failed else part.outcome
    if run.outcome in GOOD or any(each.outcome == run.outcome for each in run.destinations):
        return ""  # it is another's
    return whole or run.outcome


def table(found: Sequence[Standing]) -> list[str]:
    """Return the lines of --status."""
    heads = (
        "job", "destination", "last run", "outcome", "last success", "waiting", "next", "behind",
    )  # fmt: skip
    rows = [
        (
            each.job,
            each.destination,
            report.date(each.last_run_s),
            _became(each),
            report.date(each.last_success_s),
            count(each.files_waiting, "file") if each.files_waiting else "-",
            f"{report.date(each.next_s)} {each.next_by}",
            each.behind,
        )
        for each in found
    ]
    return report.columns([heads, *rows])


def _became(its: Standing) -> str:
    """Return, for example: done, 3 deleted."""
    if its.running:
        return f"running{its.running}"
    counted = report.skipped_and_deleted(its.files_skipped, its.files_deleted)
    return ", ".join([its.outcome or "-", *counted])


def as_json(found: Sequence[Standing]) -> str:
    return json.dumps([dataclasses.asdict(each) for each in found], indent=1)
