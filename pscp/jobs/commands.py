"""A job's own commands: `before`, `after-success`, `after-failure`, and the one that lists sources.

Not here: when they run (runner.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO

from pscp.ground import processes, stops
from pscp.jobs.reports.outcome import CommandRun

_WELL = "exit status 0"
_TOLD_BYTES = 16 * 1024  # the end of what a command wrote: the place where it says why it failed


def run_command(
    name: str,
    command: str | tuple[str, ...],
    environment: Mapping[str, str],
    *,
    to: IO[bytes] | None = None,
    folder: str | None = None,
) -> CommandRun:
    """Run a command and wait for it, but not for what it leaves behind in the background.

    A text is run by /bin/sh, a list as it is. The environment is added to this one's. A stop of the
    call (ground/stops.py) ends the command and all below it.

    Args:
        name: the command's, in the job.
        to: where its standard output goes, if that is not kept with the rest of what it says.
        folder: where it is run, if not where this program is.
    """
    started_s = time.monotonic()
    with _output() as said:
        how = _wait(
            lambda: subprocess.Popen(
                command, shell=isinstance(command, str), env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, stdout=to or said, stderr=said, cwd=folder,
            )
        )  # fmt: skip
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TOLD_BYTES))
        output = said.read().decode("utf-8", "backslashreplace")
    return CommandRun(name, how == _WELL, how, output, time.monotonic() - started_s)


def program_of(command: str | tuple[str, ...]) -> str:
    """Return the program that a command runs; what follows may be secret, as a password."""
    if isinstance(command, tuple):
        return command[0]
    if re.search(r"[;&|(`\n]", command):
        return "sh"  # of several programs any may have failed
    return next((word for word in command.split() if "=" not in word), "sh")


def _output() -> IO[bytes]:
    """Return a file for a command's output: a pipe would be held open by what it leaves behind."""
    try:
        return tempfile.TemporaryFile()
    except OSError:  # no room: the command matters more than what it says
        return open(os.devnull, "w+b")


def _wait(start: Callable[[], subprocess.Popen[bytes]]) -> str:
    """Return how a command ended, or why it was not started."""
    try:
        process = start()
    except (OSError, ValueError) as error:
        return f"not started: {getattr(error, 'strerror', None) or error}"
    try:
        with stops.ended_by(lambda error: processes.end_tree(process)):
            status = process.wait()
        return f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    finally:
        processes.end_tree(process)
