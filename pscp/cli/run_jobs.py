"""The actions of pscp-run on the jobs of a sound file: it runs them, or shows something of them.

Not here: the command line (run.py), the runs themselves (../jobs/runner.py), what is told of them
(../jobs/reports/notifications.py), where they stand (../jobs/reports/status.py), the lines of
--explain (../jobs/explain.py), what --check asks (../jobs/check.py).
Read next: ../jobs/runner.py.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pscp.cli import copy, zfs
from pscp.cli.run_log import run_command
from pscp.endpoint.frames import system
from pscp.ground import state
from pscp.ground.errors import CopyError, Interrupted, PscpError, UsageError
from pscp.ground.terminal_text import complain, print_line, write_line, write_text
from pscp.jobs import check, explain, sources
from pscp.jobs.attempts import has_found, is_failure, outcome_of, words_of
from pscp.jobs.reports import page, report, status, systemd, timers
from pscp.jobs.reports.history import history_of
from pscp.jobs.reports.lock import is_locked, state_path
from pscp.jobs.reports.notifications import Teller
from pscp.jobs.reports.outcome import GOOD, Outcome, exit_code, worst
from pscp.jobs.runner import ordered, run
from pscp.jobs.stopping import NAME
from pscp.jobs.toml.config import is_default
from pscp.jobs.toml.job import Job, check_after, moves_of
from pscp.jobs.toml.schema import as_keys
from pscp.options.arguments import make_parser
from pscp.progress.progress import Result, count
from pscp.transfer.terms.copy_terms import JobTerms
from pscp.transfer.terms.moves import Moves
from pscp.transfer.walk.selection import Settled

if TYPE_CHECKING:
    from pscp.jobs.toml.config import Config

_OUTCOMES = {each.exit_code: each for each in Outcome}
SHOWN = 3  # names of what a dry run tells of a job as a whole
Given = Mapping[str, Any]  # the options of the command line that were given


def act(what: str, config: Config, names: Sequence[str], given: Given) -> int:
    """Do what a command line asks for with the jobs of these names; return the exit code."""
    if what == "run":
        return run_jobs(config, names, given)
    jobs = [config.jobs[name] for name in names]
    if what == "status":
        return show_status(config, jobs, given)
    if what == "dry-run":
        return dry_run(config, names)
    shows = {"list": show_jobs, "explain": show_lines, "check": check_all}
    return shows[what](jobs)


def run_jobs(config: Config, names: Sequence[str], given: Given) -> int:
    """Run jobs, and those that they depend on. Return the exit code of the worst outcome.

    Raises UsageError, and Interrupted or Terminated once what was under way is recorded.
    """
    system.raise_descriptor_limit()
    jobs = [
        replace(job, if_running=given.get("if_running", job.if_running))
        for job in ordered(config.jobs, names)
    ]
    lock = threading.Lock()  # one line at a time

    def note(text: str) -> None:
        with lock:
            for line in text.split("\n"):
                write_line(sys.stderr, f"{NAME}: {line}")

    history = history_of(config.path, functools.cache(note))  # each note once, not per write
    reports, is_verbose = given.get("reports", ()), "verbose" in given
    file = ["--config", os.path.abspath(config.path)] if "config" in given else []
    command = shlex.join([NAME, *file])  # it does the same from any folder
    teller = Teller(
        history, note, reports=reports, is_verbose=is_verbose,
        is_watched=sys.stderr.isatty(), command=command,
    )  # fmt: skip
    systemd.notify("READY=1")
    try:
        code = exit_code(run(jobs, history, config.path, teller))
    finally:
        teller.all_ended()
    return teller.exit_code(code)


def show_status(config: Config, jobs: Sequence[Job], given: Given) -> int:
    """Print where the jobs stand, or write the page; return 1 where something is behind.

    Raises UsageError where the page cannot be written, CopyError where the history cannot be read.
    """

    def fail(text: str) -> NoReturn:  # without its history a job would seem never to have run
        raise CopyError(text, "ask as the account that runs the jobs")

    now_s, file = time.time(), os.path.realpath(config.path)
    history = history_of(config.path, fail)
    known = timers.find(config.jobs, file, now_s, is_default=is_default(file))
    path_of = functools.partial(state_path, config.path)
    history.find_killed(lambda name: is_locked(path_of(name)))
    running = {job.name: state.holder(f"{path_of(job.name)}.lock") for job in jobs}
    found = status.standings(jobs, history, known, now_s, running)
    if (path := given.get("html")) is not None:
        try:
            report.write_whole(path, page.make(found, history, now_s))
        except OSError as error:
            raise UsageError(f"--html {path}: {error.strerror or error}") from None
    else:
        _print(status.as_json(found).splitlines() if "json" in given else status.table(found))
    return int(any(each.behind for each in found))


def check_all(jobs: Sequence[Job]) -> int:
    """Ask every destination, print one table, and return the exit code."""
    rows = check.check(jobs)
    _print(check.table(rows))
    return check.exit_code(rows)


def show_jobs(jobs: Sequence[Job]) -> int:
    rows = [("job", "sources", "destinations", "depends on")]
    for job in jobs:
        listed = job.sources_from or " ".join(job.sources_command)
        froms = ", ".join(job.sources or job.datasets) or f"what {listed} lists"
        rows.append((job.name, froms, ", ".join(job.destinations), ", ".join(job.depends_on)))
    _print(report.columns(rows))
    return 0


def show_lines(jobs: Sequence[Job]) -> int:
    for job in jobs:
        heads = [f"# {job.name}"] if len(jobs) > 1 else []
        for line in (*heads, *explain.lines(job)):
            write_text(f"{line}\n", sys.stdout)  # as a shell is to read it
    return 0


def dry_run(config: Config, names: Iterable[str]) -> int:
    """List what the jobs, and those that they depend on, would copy; return a run's exit code."""
    found = dict[str, Outcome]()
    for job in ordered(config.jobs, names):
        if other := next((each for each in job.depends_on if found[each] not in GOOD), None):
            its = found[other]
            fails = "fail" if its is Outcome.FAILED else f"be {its}"
            _say(job, f"would not be run: {other}, which it depends on, would {fails}")
            found[job.name] = Outcome.FAILED
            continue
        outcomes = list[Outcome]()
        try:
            known = state.recall(f"{state_path(config.path, job.name)}.json")
            for code in _DryRun(job, Settled(job.min_age_s, job.settled_for_s, known)).codes():
                if code >= Interrupted.exit_code:
                    return code
                outcomes.append(_OUTCOMES[code])
        except PscpError as error:
            complain(error, NAME)
            outcomes.append(outcome_of(error))
        found[job.name] = worst(outcomes)
    return worst(found.values()).exit_code


def _say(job: Job, text: str) -> None:
    write_line(sys.stderr, f"{NAME}: {job.name}: {text}")


class _DryRun:
    """The dry run of one job."""

    def __init__(self, job: Job, settled: Settled) -> None:
        self._job, self._settled = job, settled
        self._moves: Moves | None = None
        self._ready: list[str] = []  # files that the copy to one destination takes
        self._has_found = True  # a pattern of its at a host has matched, or it has none

    def codes(self) -> Iterator[int]:
        """Make each copy, and yield its exit code."""
        job, settled, most = self._job, self._settled, list[str]()
        found = [] if job.datasets else sources.find(job, lambda ran: None)
        ready = [each for each in found if each.is_remote or settled.is_ready_at(each.path)]
        check_after(job, ready)
        self._moves = moves_of(job, ready)
        texts = [place.text if place.is_remote else place.path for place in ready]
        for destination in job.destinations if texts or job.datasets else ():
            _say(job, f"to {destination}")
            for name, *words in self._lines(destination, texts):
                # A manifest is of what was copied.
                left = [word for word in words if not word.startswith(("--manifest", "--sign="))]
                yield self._make(name, left, destination)
            most, self._ready = max(most, self._ready, key=len), []
        if settled.waiting:
            self._tell(settled.waiting, "would wait for the next run", settled.first_waiting(SHOWN))
        if job.after != "keep" and most:
            what = (
                f"be moved to {job.move_to}" if job.after == "move" else "be removed at the source"
            )
            them = "it" if len(most) == 1 else "them"
            self._tell(len(most), f"would {what}, once every destination has {them}", most[:SHOWN])

    def _lines(self, destination: str, texts: Sequence[str]) -> list[list[str]]:
        job = replace(self._job, min_age_s=0)  # which is_ready() knows, and when clocks were set
        removes = ("--remove-source-files",) if job.after != "keep" else ()
        return explain.argv(job, destination, texts, "--dry-run", *removes, "--")

    def _make(self, name: str, words: list[str], destination: str) -> int:
        """Make a copy, or with pscp-zfs a replication, and return a run's exit code."""
        terms = JobTerms(self._is_ready, moves=self._moves)
        place = destination if len(self._job.destinations) > 1 else ""
        of_zfs = name == "pscp-zfs"
        said = functools.partial(as_keys, letters=not of_zfs)  # zfs may have said them
        by = copy.OtherCommand(terms, self._judged, NAME, said, place)

        def run(given: list[str]) -> int:
            try:
                if of_zfs:
                    return zfs.run(zfs.parse(given), given, by)
                code = copy.run(copy.parse(given), given, by)
                return code if self._has_found else Outcome.NOTHING.exit_code
            except PscpError as error:
                told, *hints = words_of(error, self._job.retry_for_s).split("\n", 1)
                error.args, error.hint = (told, *error.args[1:]), "".join(hints)
                if (outcome := outcome_of(error)) is not Outcome.CUT:
                    error.exit_code = outcome.exit_code
                raise

        return run_command(NAME, make_parser, run, words)

    def _judged(self, result: Result) -> Result:
        """Return the result without patterns that nothing matches, which are no failures."""
        self._has_found = has_found(
            result.failures, (result.files, result.files_unchanged, result.files_resumed)
        )
        return replace(result, failures=tuple(filter(is_failure, result.failures)))

    def _is_ready(self, path: str, size: int, mtime_ns: int, inode: int) -> bool:
        is_ready = self._settled.is_ready(path, size, mtime_ns, inode)
        if is_ready and self._job.after != "keep":
            self._ready.append(path)
        return is_ready

    def _tell(self, number: int, what: str, names: Sequence[str]) -> None:
        shown = ", ".join([*names, *([f"and {number - SHOWN} more"] if number > SHOWN else [])])
        _say(self._job, f"{count(number, 'file')} {what}: {shown}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)
