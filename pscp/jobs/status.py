"""Where the jobs stand: for each destination its last run, its last success, and what is behind.

Not here: who starts jobs (timers.py), the page of all nights (page.py), one run (report.py), the
options (../cli/run_status.py).
Read next: timers.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pscp.jobs import words
from pscp.jobs.job import Job
from pscp.jobs.outcome import DestinationRun, JobRun, Outcome
from pscp.jobs.timers import Timer
from pscp.progress import count

_PERIODS = 2  # without a success: a job is behind


class Past(Protocol):
    """What is asked of history.py's History."""

    def last(self, job: str) -> JobRun | None: ...

    def last_success(self, job: str, destination: str) -> float | None: ...

    def runs(self, job: str | None = None, since_s: float = 0) -> list[JobRun]: ...


@dataclass(frozen=True)
class Standing:
    """Where a job stands for one destination."""

    job: str
    destination: str
    outcome: Outcome | None  # of the last run; None: there was none
    last_run_s: float | None  # seconds since the epoch, as the other times
    last_success_s: float | None
    next_s: float | None  # None: not known
    next_by: str
    files_waiting: int  # of the job: left for its next run
    behind: tuple[str, ...]  # why it is not where it should be


def standings(
    jobs: Iterable[Job], past: Past, timers: Mapping[str, Timer], now_s: float
) -> list[Standing]:
    """Return where each job stands for each of its destinations, in the order of jobs.toml."""
    found = []
    for job in jobs:
        run, timer = past.last(job.name), timers.get(job.name)
        for destination in job.destinations:
            success_s = past.last_success(job.name, destination)
            part = part_of(run, destination)
            found.append(
                Standing(
                    job=job.name,
                    destination=destination,
                    outcome=part.outcome if part else run.outcome if run else None,
                    last_run_s=run.started_s if run else None,
                    last_success_s=success_s,
                    next_s=timer.next_s if timer else None,
                    next_by=timer.name if timer else "",
                    files_waiting=run.files_waiting if run else 0,
                    behind=tuple(_behind(run, part, success_s, timer, now_s)),
                )
            )
    return found


def part_of(run: JobRun | None, destination: str) -> DestinationRun | None:
    """Return a destination's part in a run, which may have ended before it came to that."""
    parts = run.destinations if run else ()
    return next((part for part in parts if part.destination == destination), None)


def _behind(
    run: JobRun | None,
    part: DestinationRun | None,
    success_s: float | None,
    timer: Timer | None,
    now_s: float,
) -> Iterable[str]:
    if run is None:
        yield "never run"
        return
    ended = part if part and part.outcome not in words.GOOD else run
    if ended.outcome not in words.GOOD and (ended is part or not _is_others(run)):
        failed = f"{count(len(part.failures), 'file')} failed" if part and part.failures else ""
        yield next(iter(ended.message.splitlines()), "") or failed or str(ended.outcome)
    if success_s is None:
        yield "never done"
    elif timer and timer.period_s and now_s - success_s > _PERIODS * timer.period_s:
        yield f"not done for {words.age(now_s - success_s)}"


def _is_others(run: JobRun) -> bool:
    """Return whether a run ended badly for some of its destinations, and not as a whole."""
    return any(part.outcome == run.outcome for part in run.destinations)


def table(found: Sequence[Standing], now_s: float) -> list[str]:
    """Return the lines of --status."""

    def ago(time_s: float | None) -> str:
        return "-" if time_s is None else f"{words.age(now_s - time_s)} ago"

    def ahead(each: Standing) -> str:
        return "not known" if each.next_s is None else f"{words.date(each.next_s)} ({each.next_by})"

    heads = (
        "job",
        "destination",
        "last run",
        "outcome",
        "last success",
        "next",
        "waiting",
        "behind",
    )
    rows = [
        (
            each.job,
            each.destination,
            ago(each.last_run_s),
            each.outcome or "-",
            ago(each.last_success_s),
            ahead(each),
            count(each.files_waiting, "file") if each.files_waiting else "",
            "; ".join(each.behind),
        )
        for each in found
    ]
    return words.columns([heads, *rows])


def as_json(found: Sequence[Standing]) -> str:
    return json.dumps([dataclasses.asdict(each) for each in found], indent=1)
