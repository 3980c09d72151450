"""pscp-run, without an option that asks for something else: the jobs are run.

Not here: the command line (run.py), the runs themselves (../jobs/runner.py), what is told of them
(../jobs/telling.py).
Read next: ../jobs/runner.py.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from pscp.endpoint import system
from pscp.jobs.ending import NAME
from pscp.jobs.history import history_of
from pscp.jobs.job import Command
from pscp.jobs.outcome import exit_code
from pscp.jobs.runner import ordered, run
from pscp.jobs.telling import Teller
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
