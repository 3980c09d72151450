"""What pscp-run does with the jobs of a sound file: runs them, --status, --check.

Not here: the command line (run.py), the runs themselves (../jobs/runner.py), what is told of them
(../jobs/telling.py), where they stand (../jobs/status.py), what is asked (../jobs/check.py).
Read next: ../jobs/runner.py.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pscp.endpoint import system
from pscp.errors import UsageError
from pscp.jobs import check, page, status, timers
from pscp.jobs.ending import NAME
from pscp.jobs.history import history_of
from pscp.jobs.job import Command
from pscp.jobs.lock import running, state_path
from pscp.jobs.outcome import exit_code
from pscp.jobs.runner import ordered, run
from pscp.jobs.telling import Teller
from pscp.jobs.whole_file import write_whole
from pscp.terminal_text import write_line

if TYPE_CHECKING:
    from pscp.jobs.config import Config


def run_jobs(config: Config, command: Command) -> int:
    """Run jobs, and those that they depend on. Return the exit code of the worst outcome.

    Raises UsageError, and Interrupted or Terminated once what was under way is recorded.
    """
    system.raise_descriptor_limit()
    jobs = [
        replace(job, if_running=command.if_running or job.if_running)
        for job in ordered(config.jobs, command.jobs)
    ]
    lock = threading.Lock()  # one line at a time

    def note(text: str) -> None:
        with lock:
            for line in text.split("\n"):
                write_line(sys.stderr, f"{NAME}: {line}")

    history = history_of(config.path, functools.cache(note))  # each note once, not per write
    reports, is_verbose = command.reports, command.verbose
    with Teller(history, note, reports=reports, is_verbose=is_verbose) as teller:
        return exit_code(run(jobs, history, config.path, teller))


def show_status(config: Config, command: Command) -> int:
    """Print where the jobs stand, or write the page; return 1 where something is behind.

    Raises UsageError where the page cannot be written.
    """
    now_s = time.time()
    history = history_of(config.path, lambda text: write_line(sys.stderr, f"pscp-run: {text}"))
    known = timers.find(config.jobs, os.path.realpath(config.path), now_s)
    jobs = [config.jobs[name] for name in command.jobs]
    found = status.standings(
        jobs, history, known, now_s, lambda job: running(state_path(config.path, job))
    )
    if command.html:
        try:
            write_whole(command.html, page.make(found, history, now_s))
        except OSError as error:
            raise UsageError(f"--html {command.html}: {error.strerror or error}") from None
    else:
        _print(status.as_json(found).splitlines() if command.json else status.table(found))
    return int(any(each.behind for each in found))


def check_all(config: Config, command: Command) -> int:
    """Ask every destination, print one table, and return the exit code."""
    rows = check.check(config.jobs[name] for name in command.jobs)
    _print(check.table(rows))
    return check.exit_code(rows)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(sys.stdout, line)
