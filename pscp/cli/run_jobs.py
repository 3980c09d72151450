"""The actions of pscp-run on the jobs of a sound file: it runs them, or shows something of them.

Not here: the command line (run.py), the runs themselves (../jobs/runner.py), what is told of them
(../jobs/reports/notifications.py), where they stand (../jobs/reports/status.py), the lines of
--explain (../jobs/explain.py), what --check asks (../jobs/check.py).
Read next: ../jobs/runner.py.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pscp.cli import copy, zfs
from pscp.endpoint.frames import system
from pscp.ground import state
from pscp.ground.errors import Interrupted, PscpError, UsageError
from pscp.ground.terminal_text import complain, print_line, write_line, write_text
from pscp.jobs import check, explain, sources
from pscp.jobs.ending import NAME
from pscp.jobs.reports import page, report, status, systemd, timers
from pscp.jobs.reports.history import history_of
from pscp.jobs.reports.lock import state_path
from pscp.jobs.reports.notifications import Teller
from pscp.jobs.reports.outcome import exit_code
from pscp.jobs.runner import ordered, run
from pscp.jobs.toml.job import Job

if TYPE_CHECKING:
    from pscp.jobs.toml.config import Config

Given = Mapping[str, Any]  # the options of the command line that were given


def act(what: str, config: Config, names: Sequence[str], given: Given) -> int:
    """Do what a command line asks for with the jobs of these names; return the exit code."""
    if what == "run":
        return run_jobs(config, names, given)
    jobs = [config.jobs[name] for name in names]
    if what == "status":
        return show_status(config, jobs, given)
    shows = {"list": show_jobs, "explain": show_lines, "dry-run": dry_run, "check": check_all}
    return shows[what](jobs)


def run_jobs(config: Config, names: Sequence[str], given: Given) -> int:
    """Run jobs, and those that they depend on. Return the exit code of the worst outcome.

    Raises UsageError, and Interrupted or Terminated once what was under way is recorded.
    """
    system.raise_descriptor_limit()
    jobs = [
        replace(job, if_running=given.get("if_running", job.if_running))
        for job in ordered(config.jobs, names)
    ]
    lock = threading.Lock()  # one line at a time

    def note(text: str) -> None:
        with lock:
            for line in text.split("\n"):
                write_line(sys.stderr, f"{NAME}: {line}")

    history = history_of(config.path, functools.cache(note))  # each note once, not per write
    reports, is_verbose = given.get("reports", ()), "verbose" in given
    teller = Teller(history, note, reports=reports, is_verbose=is_verbose)
    systemd.notify("READY=1")
    try:
        code = exit_code(run(jobs, history, config.path, teller))
    finally:
        teller.all_ended()
    return teller.exit_code(code)


def show_status(config: Config, jobs: Sequence[Job], given: Given) -> int:
    """Print where the jobs stand, or write the page; return 1 where something is behind.

    Raises UsageError where the page cannot be written.
    """
    now_s = time.time()
    history = history_of(config.path, lambda text: write_line(sys.stderr, f"{NAME}: {text}"))
    known = timers.find(config.jobs, os.path.realpath(config.path), now_s)
    locks = {job.name: f"{state_path(config.path, job.name)}.lock" for job in jobs}
    running = {name: state.holder(lock) for name, lock in locks.items()}
    found = status.standings(jobs, history, known, now_s, running)
    if (path := given.get("html")) is not None:
        try:
            report.write_whole(path, page.make(found, history, now_s))
        except OSError as error:
            raise UsageError(f"--html {path}: {error.strerror or error}") from None
    else:
        _print(status.as_json(found).splitlines() if "json" in given else status.table(found))
    return int(any(each.behind for each in found))


def check_all(jobs: Sequence[Job]) -> int:
    """Ask every destination, print one table, and return the exit code."""
    rows = check.check(jobs)
    _print(check.table(rows))
    return check.exit_code(rows)


def show_jobs(jobs: Sequence[Job]) -> int:
    rows = [("job", "sources", "destinations", "depends on")]
    for job in jobs:
        listed = job.sources_from or " ".join(job.sources_command)
        froms = ", ".join(job.sources or job.datasets) or f"what {listed} lists"
        rows.append((job.name, froms, ", ".join(job.destinations), ", ".join(job.depends_on)))
    _print(report.columns(rows))
    return 0


def show_lines(jobs: Sequence[Job]) -> int:
    for job in jobs:
        heads = [f"# {job.name}"] if len(jobs) > 1 else []
        for line in (*heads, *explain.lines(job)):
            write_text(f"{line}\n", sys.stdout)  # as a shell is to read it
    return 0


def dry_run(jobs: Sequence[Job]) -> int:
    """List what the jobs would copy, and return the highest exit code."""
    highest = 0
    for job in jobs:
        try:
            for code in _dry_runs(job):
                highest = max(highest, code)
                if code >= Interrupted.exit_code:
                    return code
        except PscpError as error:
            complain(error, NAME)
            highest = max(highest, error.exit_code)
    return highest


def _dry_runs(job: Job) -> Iterator[int]:
    """Make each copy of a job as a dry run, and yield its exit code."""
    found = [] if job.datasets else sources.find(job, lambda ran: None)
    texts = [place.text if place.is_remote else place.path for place in found]
    for destination in job.destinations if texts or job.datasets else ():
        write_line(sys.stderr, f"{NAME}: {job.name}: to {destination}")
        for name, *words in explain.argv(job, destination, texts, "--dry-run", "--"):
            main = zfs.main if name == "pscp-zfs" else copy.main
            # A manifest is of what was copied.
            yield main([word for word in words if not word.startswith(("--manifest", "--sign="))])


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)
