"""--status and --check of pscp-run.

Not here: where the jobs stand (../jobs/status.py), what is asked
(../jobs/check.py).
Read next: ../jobs/status.py.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pscp.errors import UsageError
from pscp.jobs import check, page, status, timers
from pscp.jobs.job import Job
from pscp.jobs.whole_file import write_whole
from pscp.terminal_text import write_line


class Config(Protocol):
    """What is taken of ../jobs/config.py's Config."""

    @property
    def jobs(self) -> Mapping[str, Job]: ...

    @property
    def path(self) -> str: ...


class Command(Protocol):
    """What is taken of the command line."""

    @property
    def jobs(self) -> Sequence[str]: ...  # none: all

    @property
    def json(self) -> bool: ...

    @property
    def html(self) -> str | None: ...


def show_status(config: Config, command: Command, past: status.Past | None = None) -> int:
    """Print where the jobs stand, or write the page; return 1 where something is behind.

    `past` is the history; None: that of these jobs. Raises UsageError where nothing is written.
    """
    now_s = time.time()
    past = past or importlib.import_module("pscp.jobs.history").history_of(config.path, _complain)
    known = timers.find(config.jobs, os.path.realpath(config.path), now_s)
    found = status.standings(_chosen(config, command), past, known, now_s)
    if command.html:
        try:
            write_whole(command.html, page.make(found, past, now_s))
        except OSError as error:
            raise UsageError(f"--html {command.html}: {error.strerror or error}") from None
    elif command.json:
        _print(status.as_json(found).splitlines())
    else:
        _print(status.table(found, now_s))
    return int(any(each.behind for each in found))


def check_all(config: Config, command: Command) -> int:
    """Ask every destination, print one table, and return the exit code."""
    rows = check.check(_chosen(config, command))
    _print(check.table(rows))
    return check.exit_code(rows)


def _chosen(config: Config, command: Command) -> list[Job]:
    return [config.jobs[name] for name in command.jobs or config.jobs]


def _complain(text: str) -> None:
    write_line(sys.stderr, f"pscp-run: {text}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write_line(sys.stdout, line)
