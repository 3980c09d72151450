"""The sources of a job: paths, patterns, HOST:PATHs, and lists from a file or a command.

Not here: which of their files are left for later (../transfer/walk/selection.py), what a far end
makes of a pattern.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pscp.endpoint.reading import source
from pscp.endpoint.reading.paths import is_pscps_own, to_bytes, to_text
from pscp.ground import errors
from pscp.ground.locations import Location, parse_location
from pscp.jobs.commands import run_command
from pscp.jobs.reports.outcome import CommandRun
from pscp.jobs.toml.job import Job


def find(job: Job, keep: Callable[[CommandRun], object]) -> list[Location]:
    """Return what a job copies now, each once; nothing is no error.

    A list from a file or a command has names, or HOST:PATHs, and no patterns: "*" is itself. What
    is named and is not there is found missing by the copy, which then fails for that alone.

    Args:
        job: which has no datasets.
        keep: takes what became of the command that lists sources.

    Raises:
        CopyError: a list cannot be read, or the folder of a pattern.
        UsageError: what is listed is no location.
    """
    if job.sources:
        found = [each for text in job.sources for each in _expanded(parse_location(text))]
    else:
        end = b"\0" if job.options.from0 else b"\n"
        listed = _listed(job, keep)
        lines = (line.removesuffix(b"\r") if end == b"\n" else line for line in listed.split(end))
        typed = [parse_location(os.fsdecode(line)) for line in lines if line]
        found = [
            each if each.is_remote else replace(each, path=os.path.join(job.folder, each.path))
            for each in typed
        ]
    return list({(each.prefix, each.port, each.path): each for each in found}.values())


def _expanded(typed: Location) -> list[Location]:
    """Return what a source as typed stands for here; a far end knows its own patterns."""
    if typed.is_remote:
        return [typed]
    path = os.path.expanduser(typed.path)
    found = [to_text(each) for each in sorted(glob.glob(source.as_glob(to_bytes(path))))]
    # A file named "*" is one of those that the pattern means, and would hide the others for ever.
    if path not in found and (os.path.lexists(path) or not glob.has_magic(path)):
        return [Location(typed.text, path)]
    if not found:
        _check_folder(path)
    return [
        Location(typed.text, each)
        for each in found
        if not is_pscps_own(to_bytes(os.path.basename(each)))
    ]


def _check_folder(pattern: str) -> None:
    """Raise CopyError where the folder that a pattern looks into is not there, or is closed.

    Nothing matches there either: a disk that is not mounted would look like a quiet night.
    """
    folder = to_text(source.folder_of(to_bytes(pattern)))
    try:
        with os.scandir(folder or "."):
            pass
    except OSError as error:
        raise errors.CopyError(f"{folder}: {error.strerror}") from None


def _listed(job: Job, keep: Callable[[CommandRun], object]) -> bytes:
    """Return the job's list. A command that fails lists nothing: half a list looks whole."""
    what = f"sources-from {job.sources_from}" if job.sources_from else "sources-command"
    try:
        if job.sources_from:
            return Path(job.sources_from).read_bytes()
        with tempfile.TemporaryFile() as printed:
            environment = {"PSCP_JOB": job.name}
            command, folder = job.sources_command, job.folder or None
            ran = run_command(what, command, environment, to=printed, folder=folder)
            keep(ran)
            if not ran.ok:
                raise errors.CopyError(f"{what}: {ran.how}")
            printed.seek(0)
            return printed.read()
    except OSError as error:
        raise errors.CopyError(f"{what}: {error.strerror}") from None
