"""--check: whether each destination of each job would take what the job brings, asked in parallel.

It logs in as the job would with nobody there to answer, and changes nothing.

Not here: what is asked of an end (probe.py). Read next: probe.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pscp import errors
from pscp.api import Session
from pscp.jobs import words
from pscp.jobs.job import Job
from pscp.locations import Location, parse_location
from pscp.progress import format_bytes
from pscp.terminal_text import printable
from pscp.zfs.replicate import replicate
from pscp.zfs.settings import Settings

GOOD, WARN, BAD = "ok", "warn", "FAIL"
_AT_ONCE = 8  # sshd's MaxStartups begins to refuse at 10
_CLOCK_S = 5.0  # from here on --update, min-age and the quick check may be misled
_LEAST_FREE = 0.05
# python3 as the agent finds it, whatever the PATH of a session is; it runs a program with paths.
_PYTHON = (
    "for p in python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do"
    ' command -v $p >/dev/null 2>&1 && exec $p -IS -c "$@"; done; exit 127'
)
Run = Callable[[list[str]], str]  # runs a Python program with arguments at an end
_CLOCK = "import time; print(time.time())"


@dataclass
class Row:
    """What was found out of one destination of a job."""

    job: str
    destination: str
    login: str = "-"
    python: str = "-"
    clock: str = "-"
    free: str = "-"
    writable: str = "-"
    mark: str = GOOD
    is_unreachable: bool = False
    reasons: list[str] = field(default_factory=list)

    def add(self, mark: str, reason: str) -> None:
        """Note what is wrong."""
        self.mark = BAD if BAD in (mark, self.mark) else WARN
        self.reasons.append(reason)


class _Folder(NamedTuple):
    """What the probe has found: the folder of a path, or the nearest one above it."""

    path: str
    free_bytes: int
    total_bytes: int
    is_full: bool
    why_not_writable: str  # "": it is


def check(jobs: Iterable[Job]) -> list[Row]:
    """Ask all destinations of these jobs; return a row for each, in their order."""
    asked = [(job, destination) for job in jobs for destination in job.destinations]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda each: _row(*each), asked))


def exit_code(rows: Iterable[Row]) -> int:
    """Return 0 if all would go well, 3 if a login failed, else 1. A warning is none of these."""
    rows = list(rows)
    if any(row.is_unreachable for row in rows):
        return errors.ConnectError.exit_code
    return int(any(row.mark == BAD for row in rows))


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of --check: a line for each row, and below them what is wrong."""
    heads = ("", "job", "destination", "login", "python", "clock", "free", "writable")
    cells = [
        (r.mark, r.job, r.destination, r.login, r.python, r.clock, r.free, r.writable) for r in rows
    ]
    lines = words.columns([heads, *cells])
    found = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        found += [line, *(f"      {printable(reason)}" for reason in row.reasons)]
    return found


def _row(job: Job, destination: str) -> Row:
    row = Row(job.name, destination)
    try:
        if job.datasets:
            _ask_zfs(job, destination, row)
        else:
            _ask(job, destination, row)
    except errors.ConnectError as error:
        row.is_unreachable, row.login = True, "failed"
        row.add(BAD, f"{error.message}; {error.hint}")
    except errors.CopyRunning as error:
        row.add(WARN, error.message)
    except errors.ItemError as error:
        row.add(BAD, f"{error.path}: {error.message}; {error.hint}")
    except (errors.PscpError, OSError) as error:
        row.add(BAD, getattr(error, "message", str(error)))
    return row


def _ask(job: Job, destination: str, row: Row) -> None:
    """Ask both ends of a copy."""
    to, froms = parse_location(destination), [parse_location(text) for text in job.sources]
    removed = [_folder_of(each) for each in froms] if job.after != "keep" else []
    if far := next((each for each in (to, *froms) if each.is_remote), None):
        options = dataclasses.replace(
            job.chosen(destination).options, batch=True, connections=1, channels=1, retry_for_s=None
        )
        with Session(far, options) as session:
            _ask_far(row, session, to, [each for each in removed if each.is_remote])
    else:
        row.add(WARN, "where it comes from is listed when it runs")
    _tell_end(row, _run_here, to, [each for each in removed if not each.is_remote])


def _ask_far(row: Row, session: Session, to: Location, removed: list[Location]) -> None:
    """Log in, and ask the far end. Raises ConnectError, CopyError."""
    begun_s, options = time.monotonic(), session.options
    session.connections.check(options, to.is_remote)
    agents = session.connections.take(options, lambda text: None)
    is_sftp = agents[0].is_sftp
    session.connections.give(agents)
    row.login = f"{time.monotonic() - begun_s:.1f} s{', SFTP' * is_sftp}"
    if is_sftp:
        row.add(WARN, "no python3 there: its clock, its room and who may write are not known")
        return
    run = functools.partial(_run_there, session)
    _tell_clock(row, run)
    _tell_end(row, run, to, removed)


def _folder_of(source: Location) -> Location:
    """Return the folder out of which a source's files are taken."""
    path = source.path.rstrip("/")
    return dataclasses.replace(source, path=os.path.dirname(path) or ("." if path else "/"))


def _run_there(session: Session, argv: list[str]) -> str:
    ran = session.run(["sh", "-c", _PYTHON, "sh", *argv])
    if ran.status:
        said = os.fsdecode(ran.err).strip().rpartition("\n")[2]
        raise errors.CopyError(f"python3 there ended with status {ran.status}: {said}")
    return os.fsdecode(ran.out)


def _run_here(argv: list[str]) -> str:
    done = subprocess.run([sys.executable, "-IS", "-c", *argv], capture_output=True, check=False)
    if done.returncode:
        raise errors.CopyError(os.fsdecode(done.stderr).strip().rpartition("\n")[2])
    return os.fsdecode(done.stdout)


def _facts(run: Run, paths: list[str]) -> tuple[str, list[_Folder]]:
    """Run the probe at an end; return python's version there, and a folder for each path.

    Raises CopyError where it answers something else.
    """
    program = (Path(__file__).parent / "probe.py").read_text("ascii")
    try:
        facts = json.loads(run([program, *paths]))
        folders = [_folder(its) for its in facts["folders"]]
        if len(folders) == len(paths):
            return str(facts["python"]), folders
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    raise errors.CopyError("the far end's answer to the check is none")


def _folder(its: dict[str, Any]) -> _Folder:
    room = int(its["free_bytes"]), int(its["total_bytes"])
    is_full = not room[0] or its["free_files"] == 0
    return _Folder(str(its["folder"]), *room, is_full, str(its["why_not_writable"]))


def _tell_clock(row: Row, run: Run) -> None:
    """Compare the clocks; what an answer's way took is no difference."""
    asked_s = time.time()
    try:
        there_s = float(run([_CLOCK]))
    except ValueError:
        raise errors.CopyError("the far end does not tell its time") from None
    off_s = max(there_s - time.time(), 0.0) + min(there_s - asked_s, 0.0)
    row.clock = f"{off_s:+.0f} s" if off_s else "same"
    if abs(off_s) > _CLOCK_S:
        what = "ahead" if off_s > 0 else "behind"
        row.add(WARN, f"the clock there is {abs(off_s):.0f} s {what}")


def _tell_end(row: Row, run: Run, to: Location, removed: list[Location]) -> None:
    """Tell of the folders at one end: the destination, if it is there, and those of sources."""
    is_far = run is not _run_here
    is_destination = to.is_remote == is_far
    paths = [each.path for each in ([to] if is_destination else []) + removed]
    python, folders = _facts(run, paths) if paths or is_far else ("", [])
    row.python = python if is_far else row.python
    for place, its in enumerate(folders):
        is_source = place > 0 or not is_destination
        if its.why_not_writable:
            removed_not = ", so nothing is removed" if is_source else ""
            row.add(BAD, f"{its.path}: {its.why_not_writable}{removed_not}")
        if not is_source:
            row.writable = "no" if its.why_not_writable else "yes"
            _tell_room(row, its)


def _tell_room(row: Row, its: _Folder) -> None:
    row.free = f"{format_bytes(its.free_bytes)} of {format_bytes(its.total_bytes)}"
    if its.is_full:
        row.add(BAD, f"{its.path}: no room left")
    elif its.free_bytes < its.total_bytes * _LEAST_FREE:
        row.add(WARN, f"{its.path}: less than {_LEAST_FREE:.0%} is free")


def _ask_zfs(job: Job, destination: str, row: Row) -> None:
    """Plan the replications, for which zfs is asked at both ends; nothing is changed."""
    its = job.chosen(destination).options
    options = dataclasses.replace(its, batch=True, dry_run=True, retry_for_s=None)
    settings = Settings(**job.dataset_options)  # type: ignore[arg-type]  # checked by config.py
    begun_s = time.monotonic()
    for dataset, to in job.replications(destination):
        result = replicate(dataset, to, options=options, settings=settings)
        row.login = f"{time.monotonic() - begun_s:.1f} s"
        for failure in result.failures:
            row.add(BAD, f"{failure.path}: {failure.message}; {failure.hint}")
    row.free = "not asked"
    row.writable = "not asked"
