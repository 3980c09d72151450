"""--check: whether each destination of each job would take what the job brings, asked in parallel.

It logs in as the job would with nobody there to answer, and changes nothing.

Not here: what is asked of an end (probe.py). Read next: probe.py.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pydantic

from pscp import errors
from pscp.api import Session
from pscp.jobs import probe, report
from pscp.jobs.job import Job
from pscp.locations import Location, parse_location
from pscp.progress import format_bytes
from pscp.terminal_text import printable
from pscp.transports.remote_command import PYTHONS
from pscp.zfs.replicate import replicate

GOOD, WARN, BAD = "ok", "warn", "FAIL"
_NO_LOGIN = "failed"
_AT_ONCE = 8  # sshd's MaxStartups begins to refuse at 10
_CLOCK_S = 5.0  # from here on --update, min-age and the quick check may be misled
_LEAST_FREE = 0.05
# It runs a program with python3 as the agent finds it, whatever the PATH of a session is.
_SCRIPT = f'for p in {PYTHONS};do command -v $p >/dev/null 2>&1&&exec $p -IS -c "$@";done;exit 127'


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
    reasons: list[str] = field(default_factory=list)

    def add(self, mark: str, reason: str) -> None:
        """Note what is wrong."""
        self.mark = BAD if BAD in (mark, self.mark) else WARN
        self.reasons.append(reason)


class Answer(pydantic.BaseModel):
    """What probe.py tells of an end, and of the folder that a path is or would be in."""

    python: str
    time_s: float
    folder: str
    free_bytes: float
    total_bytes: float
    has_names_left: bool
    is_writable: bool


def check(jobs: Iterable[Job]) -> list[Row]:
    """Ask all destinations of these jobs; return a row for each, in their order."""
    asked = [(job, destination) for job in jobs for destination in job.destinations]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda each: _row(*each), asked))


def exit_code(rows: Iterable[Row]) -> int:
    """Return 0 if all would go well, 3 if a login failed, else 1. A warning is none of these."""
    bad = [row for row in rows if row.mark == BAD]
    if any(row.login == _NO_LOGIN for row in bad):
        return errors.ConnectError.exit_code
    return int(bool(bad))


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of --check: a line for each row, and below them what is wrong."""
    heads = ("mark", "job", "destination", "login", "python", "clock", "free", "writable")
    cells = [[getattr(row, head) for head in heads] for row in rows]
    first, *lines = report.columns([("", *heads[1:]), *cells])
    told = [first]
    for row, line in zip(rows, lines, strict=True):
        told += [line, *(f"      {printable(reason)}" for reason in row.reasons)]
    return told


def _row(job: Job, destination: str) -> Row:
    row = Row(job.name, destination)
    try:
        (_ask_zfs if job.datasets else _ask)(job, destination, row)
    except (errors.PscpError, OSError) as error:
        if isinstance(error, errors.ConnectError):
            row.login = _NO_LOGIN
        where = f"{error.path}: " if isinstance(error, errors.ItemError) else ""
        hint = getattr(error, "hint", "")
        mark = WARN if isinstance(error, errors.CopyRunning) else BAD
        row.add(mark, f"{where}{error}{hint and '; '}{hint}")
    return row


def _ask(job: Job, destination: str, row: Row) -> None:
    """Log in to the far end, wherever that is, and look at the destination."""
    to = parse_location(destination)
    ends = (to, *(parse_location(source) for source in job.sources))
    if far := next((each for each in ends if each.is_remote), None):
        its = job.chosen(destination).options
        options = dataclasses.replace(its, batch=True, connections=1, channels=1, retry_for_s=None)
        with Session(far, options) as session:
            _ask_far(row, session, to)
    else:
        row.add(WARN, "where it comes from is listed when it runs")
    if not to.is_remote:
        _tell_folder(row, Answer.model_validate(probe.look(to.path)))


def _ask_far(row: Row, session: Session, to: Location) -> None:
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
    asked_s, program = time.time(), Path(probe.__file__).read_text("ascii")
    ran = session.run(["sh", "-c", _SCRIPT, "sh", program, to.path if to.is_remote else ""])
    if ran.status:
        said = os.fsdecode(ran.err).strip().rpartition("\n")[2]
        raise errors.CopyError(f"python3 there ended with status {ran.status}: {said}")
    try:
        answer = Answer.model_validate_json(ran.out)
    except ValueError:
        raise errors.CopyError("the far end's answer to the check is none") from None
    row.python = answer.python
    # What the answer's way took is no difference between the clocks.
    ahead_s = max(answer.time_s - time.time(), 0) + min(answer.time_s - asked_s, 0)
    row.clock = f"{ahead_s:+.0f} s" if ahead_s else "same"
    if abs(ahead_s) > _CLOCK_S:
        row.add(WARN, f"the clock there is off by {row.clock}")
    if to.is_remote:
        _tell_folder(row, answer)


def _tell_folder(row: Row, its: Answer) -> None:
    """Tell whether the destination can be written, and what room it has."""
    row.writable = "yes" if its.is_writable else "no"
    row.free = f"{format_bytes(its.free_bytes)} of {format_bytes(its.total_bytes)}"
    if not its.is_writable:
        row.add(BAD, f"{its.folder} cannot be written in")
    if not (its.free_bytes and its.has_names_left):
        row.add(BAD, f"{its.folder}: no room left")
    elif its.free_bytes < its.total_bytes * _LEAST_FREE:
        row.add(WARN, f"{its.folder}: less than {_LEAST_FREE:.0%} is free")


def _ask_zfs(job: Job, destination: str, row: Row) -> None:
    """Plan the replications, for which zfs is asked at both ends; nothing is changed."""
    its = job.chosen(destination).options
    options = dataclasses.replace(its, batch=True, dry_run=True, retry_for_s=None)
    begun_s = time.monotonic()
    for dataset, to in job.replications(destination):
        result = replicate(dataset, to, options=options, settings=job.settings)
        row.login = f"{time.monotonic() - begun_s:.1f} s"
        for failure in result.failures:
            row.add(BAD, f"{failure.path}: {failure.message}; {failure.hint}")
    row.free = row.writable = "not asked"
