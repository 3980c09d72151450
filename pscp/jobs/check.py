"""--check: whether each destination of each job would take what the job brings, asked in parallel.

It logs in as the job would with nobody there to answer, and changes nothing.

Not here: what is asked of an end (probe.py). Read next: probe.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pscp import errors
from pscp.api import Session
from pscp.jobs import words
from pscp.jobs.job import Job
from pscp.locations import Location, parse_location
from pscp.progress import count, format_bytes
from pscp.terminal_text import printable
from pscp.zfs.replicate import replicate

GOOD, WARN, BAD = "ok", "warn", "FAIL"
_AT_ONCE = 8  # sshd's MaxStartups begins to refuse at 10
_CLOCK_S = 5.0  # from here on --update, min-age and the quick check may be misled
_LEAST_FREE = 0.05
# python3 as the agent finds it, whatever the PATH of a session is; it runs a program with paths.
_PYTHON = (
    "for p in python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do"
    ' command -v $p >/dev/null 2>&1 && exec $p -IS -c "$@"; done; exit 127'
)
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
        row.is_unreachable = not isinstance(error, errors.NoPython)
        row.add(BAD if row.is_unreachable else WARN, f"{error.message}; {error.hint}")
        row.login = "failed" if row.is_unreachable else "over SFTP"
    except (errors.PscpError, OSError) as error:
        row.add(BAD, getattr(error, "message", str(error)))
    return row


def _ask(job: Job, destination: str, row: Row) -> None:
    """Ask both ends of a copy."""
    to, froms = parse_location(destination), [parse_location(text) for text in job.sources]
    removed = [_folder_of(each) for each in froms] if job.after != "keep" else []
    far = to if to.is_remote else next((each for each in froms if each.is_remote), to)
    options = dataclasses.replace(job.options, batch=True, connections=1, remote="auto")
    begun_s = time.monotonic()
    with Session(far, options) as session:
        runs: dict[bool, Callable[[list[str]], str]] = {
            True: lambda argv: _run_there(session, argv),
            False: _run_here,
        }
        for place in dict.fromkeys([far, to]):
            its_folders = [each for each in removed if each.is_remote == place.is_remote]
            paths = [each.path for each in (*([to] if place == to else []), *its_folders)]
            facts = _facts(runs[place.is_remote], paths)
            if place.is_remote:
                row.login = f"{time.monotonic() - begun_s:.1f} s"
                row.python = str(facts["python"])
                _tell_clock(row, runs[True])
            _tell_folders(row, facts["folders"], is_destination=place == to)
        near = [each for each in removed if not each.is_remote and to.is_remote]
        if near:
            facts = _facts(_run_here, [each.path for each in near])
            _tell_folders(row, facts["folders"], is_destination=False)


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


def _facts(run: Callable[[list[str]], str], paths: list[str]) -> dict[str, Any]:
    """Run the probe at an end. Raises CopyError where it answers something else."""
    program = (Path(__file__).parent / "probe.py").read_text("ascii")
    try:
        facts = json.loads(run([program, *paths]))
        if len(facts["folders"]) == len(paths):
            return dict(facts)
    except (ValueError, TypeError, KeyError):
        pass
    raise errors.CopyError("the far end's answer to the check is none")


def _tell_clock(row: Row, run: Callable[[list[str]], str]) -> None:
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


def _tell_folders(row: Row, folders: list[dict[str, Any]], *, is_destination: bool) -> None:
    """Put an end's folders into the row; the first is the destination's, where that is there."""
    for place, its in enumerate(folders):
        why = str(its["why_not_writable"])
        if why:
            removing = "" if is_destination and not place else ", so nothing could be removed"
            row.add(BAD, f"{its['folder']}: {why}{removing}")
        if not is_destination or place:
            continue
        row.writable = "no" if why else "yes"
        free, total = int(its["free_bytes"]), int(its["total_bytes"])
        row.free = f"{format_bytes(free)} of {format_bytes(total)}"
        if not free or its["free_files"] == 0:
            row.add(BAD, f"{its['folder']}: no room left")
        elif free < total * _LEAST_FREE:
            row.add(WARN, f"{its['folder']}: less than {_LEAST_FREE:.0%} is free")


def _ask_zfs(job: Job, destination: str, row: Row) -> None:
    """Plan a replication of each dataset, for which both ends are asked; nothing is changed."""
    options = dataclasses.replace(job.options, batch=True, dry_run=True)
    begun_s = time.monotonic()
    for dataset in job.datasets:
        fields: dict[str, Any] = job.dataset_options
        result = replicate(dataset, destination, options=options, **fields)
        row.login = f"{time.monotonic() - begun_s:.1f} s"
        for failure in result.failures:
            row.add(BAD, f"{failure.path}: {failure.message}")
    row.writable = "not asked" if not row.reasons else "no"
    row.free = count(len(job.datasets), "dataset")
