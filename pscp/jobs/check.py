"""--check: whether each destination of each job would take what the job brings, asked in parallel.

It logs in as the job would with nobody there to answer, and changes nothing.

Not here: what is asked of an end (../calls/looking.py). Read next: ../calls/looking.py.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pscp.calls.looking import Look, look
from pscp.endpoint.frames import failures
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.endpoint.reading.source import Top, expand, folder_of
from pscp.ground import errors
from pscp.ground.locations import Location, parse_location
from pscp.ground.terminal_text import printable
from pscp.ground.values import LOGINS_MAX
from pscp.jobs.attempts import outcome_of, words_of
from pscp.jobs.reports import report
from pscp.jobs.reports.outcome import Outcome, worst
from pscp.jobs.toml.job import Job, moves_of
from pscp.jobs.toml.schema import as_keys
from pscp.manifests.signing import check_can_sign
from pscp.options.options import Options
from pscp.progress.progress import format_bytes

GOOD, WARN, BAD = "ok", "warn", "FAIL"
_CLOCK_S = 5.0  # from here on --update, min-age and the quick check may be misled
_LEAST_FREE = 0.05


@dataclass
class Row:
    """The findings on one destination of a job."""

    job: str
    destination: str
    login: str = "-"
    python: str = "-"
    clock: str = "-"
    free: str = "-"
    writable: str = "-"
    mark: str = GOOD
    outcome: Outcome = Outcome.DONE  # that a run would have, as far as this tells
    reasons: list[str] = field(default_factory=list)

    def add(self, mark: str, reason: str, outcome: Outcome = Outcome.FAILED) -> None:
        """Note what is wrong, and what a run becomes of it, where the mark is BAD."""
        self.mark = BAD if BAD in (mark, self.mark) else WARN
        self.outcome = worst([self.outcome, *[outcome] * (mark == BAD)])
        self.reasons.append(reason)


def check(jobs: Iterable[Job]) -> list[Row]:
    """Ask all destinations of these jobs; return a row for each, in their order, and before those
    of a job one for what is wrong with it wherever it goes.
    """
    asked = [(job, destination) for job in jobs for destination in job.destinations]
    with ThreadPoolExecutor(LOGINS_MAX) as pool:
        rows = list(pool.map(lambda each: _row(*each), asked))
    found = list[Row]()
    for (job, destination), row in zip(asked, rows, strict=True):
        if destination == job.destinations[0]:
            found += _of_job(job)
        found.append(row)
    return found


def exit_code(rows: Iterable[Row]) -> int:
    """Return the exit code of a run that found this; 0 if all would go well. No warning counts."""
    found = list(rows)
    code = worst(row.outcome for row in found).exit_code
    return code or int(any(row.mark == BAD for row in found))


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
            row.login = "failed"
        where = f"{error.path}: " if isinstance(error, errors.ItemError) else ""
        told = error if isinstance(error, errors.PscpError) else errors.CopyError(str(error))
        why = _in_a_line(told, job.retry_for_s)
        mark = WARN if isinstance(error, errors.CopyRunning) else BAD
        row.add(mark, where + why, outcome_of(told))
    return row


def _in_a_line(error: errors.PscpError, retry_for_s: float) -> str:
    return words_of(error, retry_for_s).replace("\n", "; ")


def _ask(job: Job, destination: str, row: Row) -> None:
    """Log in to the far end, wherever that is, and look at the destination."""
    to = parse_location(destination)
    ends = (to, *(parse_location(source) for source in job.sources))
    far = next((each for each in ends if each.is_remote), None)
    if far is None:
        row.add(WARN, "where it comes from is listed when it runs")
    else:
        its = job.chosen(destination).options
        options = dataclasses.replace(its, batch=True, retry_for_s=None)
        place = dataclasses.replace(far, path=to.path if far is to else "")
        seen = _look_at_each(row, place, options, is_source=far is not to)
        _tell_login(row, seen)
        if seen.is_sftp and far is to and its.needs_agent:
            why = f"{as_keys(its.needs_agent)} needs the agent, for which there is no python3"
            row.add(BAD, why, Outcome.MISCONFIGURED)
    if far is not to:
        seen = look(to)
    if seen.folder:
        _tell_folder(row, seen)


def _look_at_each(row: Row, place: Location, options: Options, *, is_source: bool) -> Look:
    """Return what the first host sees that answers; tell which of the others do not."""
    found, problems = list[Look](), list[errors.ConnectError]()
    for each in place.each_host:
        try:
            found.append(look(each, options, is_source=is_source))
        except errors.ConnectError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    for problem in problems:
        row.add(WARN, _in_a_line(problem, 0))
    return found[0]


def _tell_login(row: Row, seen: Look) -> None:
    row.login = f"{seen.login_s:.1f} s{', SFTP' * seen.is_sftp}"
    if seen.is_sftp:
        row.add(WARN, "no python3 there: its clock, its room and who may write are not known")
        return
    row.python = seen.python
    row.clock = f"{seen.clock_ahead_s:+.0f} s" if seen.clock_ahead_s else "same"
    if abs(seen.clock_ahead_s) > _CLOCK_S:
        row.add(WARN, f"the clock there is off by {row.clock}")


def _tell_folder(row: Row, its: Look) -> None:
    """Tell whether the destination can be written, and what room it has."""
    row.writable = "yes" if its.is_writable else "no"
    row.free = f"{format_bytes(its.free_bytes)} of {format_bytes(its.total_bytes)}"
    if not its.is_writable:
        row.add(BAD, f"{its.folder} cannot be written in")
    if not (its.free_bytes and its.has_names_left):
        row.add(BAD, f"{its.folder}: no room left")
    elif its.free_bytes < its.total_bytes * _LEAST_FREE:
        row.add(WARN, f"{its.folder}: less than {_LEAST_FREE:.0%} is free")


def _of_job(job: Job) -> list[Row]:
    """Return a row for what is wrong here, whatever the destination; none where all is well."""
    row = Row(job.name, "-")
    _tell_files(job, row)
    _tell_sources(job, row)
    return [row] if row.reasons else []


def _tell_files(job: Job, row: Row) -> None:
    """Tell where a manifest could not be signed, or a report or the metrics not written."""
    if job.options.sign is not None:
        try:
            check_can_sign(job.options.sign)
        except errors.UsageError as error:
            row.add(BAD, _in_a_line(error, 0), outcome_of(error))
    files = [*(("report", file) for _, file in job.report), ("metrics", job.metrics or "")]
    folders = [(key, f if os.path.isdir(f) else os.path.dirname(f)) for key, f in files if f]
    for key, folder in dict.fromkeys(folders):
        if os.access(folder, os.W_OK | os.X_OK):
            continue
        why = "cannot be written in" if os.path.isdir(folder) else "there is no such folder"
        row.add(BAD, f"{key}: {folder}: {why}", Outcome.DONE)  # it counts where all else is well


def _tell_sources(job: Job, row: Row) -> None:
    """Tell where the sources that are here could not be removed, or moved."""
    places = [parse_location(text) for text in job.sources]
    tops = [top for each in places if not each.is_remote for top in _tops(each.path)]
    moves = moves_of(job, places)
    if moves is None or not tops:
        return
    try:
        moves.check(job.place(job.destinations[0]), tops)
    except (errors.UsageError, OSError) as error:
        told = errors.CopyError(str(error)) if isinstance(error, OSError) else error
        row.add(BAD, _in_a_line(told, 0), outcome_of(told))
    folders = sorted({top.path if top.is_folder else os.path.dirname(top.path) for top in tops})
    closed = [folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)]
    if closed:
        more = f", and {len(closed) - 1} more folders" if len(closed) > 1 else ""
        done = "moved" if job.move_to else "removed"
        row.add(WARN, f"{closed[0]}{more}: cannot be written in, so no source there can be {done}")


def _tops(path: str) -> list[Top]:
    """Return what a source here stands for now, or a pattern itself that nothing matches."""
    try:
        return expand(path, True)
    except failures.Refusal:
        folder = to_text(folder_of(to_bytes(path)))
        is_quiet = folder != path and os.path.isdir(folder)
        return [Top("*", os.path.join(folder, "*"), False)] if is_quiet else []


def _ask_zfs(job: Job, destination: str, row: Row) -> None:
    """Plan the replications, for which zfs is asked at both ends; nothing is changed."""
    from pscp.zfs.plan import all_in_vain, is_in_vain  # here: few jobs need them
    from pscp.zfs.replicate import replicate

    its = job.chosen(destination).options
    options = dataclasses.replace(its, batch=True, dry_run=True, retry_for_s=None)
    begun_s = time.monotonic()
    for dataset, to in job.replications(destination):
        result = replicate(dataset, to, options=options, settings=job.settings, raises=False)
        row.login = f"{time.monotonic() - begun_s:.1f} s"
        in_vain = [failure for failure in result.failures if is_in_vain(failure)]
        for failure in result.failures:
            hint = f"; {failure.hint}" if failure.hint else ""
            if not is_in_vain(failure):
                row.add(BAD, f"{failure.path}: {failure.message}{hint}")
        if in_vain:
            row.add(BAD, all_in_vain(in_vain))
    row.free = row.writable = "not asked"
