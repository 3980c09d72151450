"""pscp-run, without an option that asks for something else: the jobs are run.

Quiet where all went well; what did not is told in a few lines on stderr.

Not here: the command line (run.py), the runs themselves (../jobs/runner.py).
Read next: ../jobs/runner.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pscp.endpoint import system
from pscp.jobs.ending import NAME
from pscp.jobs.history import history_of
from pscp.jobs.job import Job
from pscp.jobs.outcome import JobRun, Outcome, exit_code
from pscp.jobs.runner import ordered, run
from pscp.jobs.watching import Watcher
from pscp.terminal_text import write_line

if TYPE_CHECKING:
    from pscp.cli.run import Command
    from pscp.jobs.config import Config

_GOOD = (Outcome.DONE, Outcome.NOTHING)


def run_jobs(config: Config, command: Command) -> int:
    """Run jobs, and those that they depend on. Return the exit code of the worst outcome.

    Raises UsageError, and Interrupted or Terminated once what was under way is recorded.
    """
    system.raise_descriptor_limit()
    jobs = [
        replace(job, if_running=command.if_running or job.if_running)
        for job in ordered(config.jobs, command.jobs)
    ]
    screen = Screen(is_verbose=command.verbose)
    return exit_code(run(jobs, history_of(config.path, screen.note), config.path, screen))


class Screen(Watcher):
    """Tells on stderr what failed; and, with -v, what happens. Any thread may call."""

    def __init__(self, *, is_verbose: bool) -> None:
        self._is_verbose = is_verbose
        self._lock = threading.Lock()  # one line at a time

    def ended(self, job: Job, run: JobRun) -> None:
        if self._is_verbose or not (run.outcome in _GOOD or run.is_skipped):
            for text in _lines(run):
                self.note(text)

    def says(self, job: str, text: str) -> None:
        if self._is_verbose:
            self.note(f"{job}: {text}")

    def note(self, text: str) -> None:
        with self._lock:
            for line in text.split("\n"):
                write_line(sys.stderr, f"{NAME}: {line}")


def _lines(run: JobRun) -> Iterator[str]:
    yield f"{run.job}: {run.outcome}" + (f": {run.message}" if run.message else "")
    for part in run.destinations:
        if part.outcome not in _GOOD and part.message != run.message:
            yield f"  {part.destination}: {part.outcome}: {part.message}"
        for failure in part.failures[:10]:
            yield f"    {failure.path}: {failure.message}"
    for ran in run.commands:
        if not ran.ok:
            yield from (f"  {ran.name} said: {line}" for line in ran.output.splitlines()[-10:])
