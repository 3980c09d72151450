"""--status and --check of pscp-run.

Not here: where the jobs stand (../jobs/status.py), what is asked (../jobs/check.py).
Read next: ../jobs/status.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pscp.errors import UsageError
from pscp.jobs import check, page, status, timers
from pscp.jobs.history import history_of
from pscp.jobs.job import Command
from pscp.jobs.whole_file import write_whole
from pscp.terminal_text import write_line

if TYPE_CHECKING:
    from pscp.jobs.config import Config


def show_status(config: Config, command: Command) -> int:
    """Print where the jobs stand, or write the page; return 1 where something is behind.

    Raises UsageError where the page cannot be written.
    """
    now_s = time.time()
    history = history_of(config.path, lambda text: write_line(sys.stderr, f"pscp-run: {text}"))
    known = timers.find(config.jobs, os.path.realpath(config.path), now_s)
    found = status.standings((config.jobs[name] for name in command.jobs), history, known, now_s)
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
