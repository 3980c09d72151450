"""Runs jobs, in their order: each alone, with what comes before and after its copies. These go to
all its destinations, and are of its files, or of its datasets.

A job's lock is held from before its first command until after its last. What goes wrong with it is
its outcome, and never an exception: the next job is run all the same.

Not here: which sources there are (sources.py), which files are left for later
(../transfer/walk/selection.py), the next attempt (attempts.py), how a job is ended early
(stopping.py), its commands (commands.py), where it is kept (reports/lock.py, reports/history.py),
who is told (reports/notifications.py).
Read next: ../calls/deliveries.py.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from pscp.calls.api import copy
from pscp.calls.deliveries import Delivery, side_by_side
from pscp.ground import errors, state
from pscp.ground.locations import Location
from pscp.jobs import sources
from pscp.jobs.attempts import Attempts, faults_told, outcome_of, words_of
from pscp.jobs.commands import program_of, run_command
from pscp.jobs.reports.history import History
from pscp.jobs.reports.lock import locked, state_path
from pscp.jobs.reports.notifications import Teller
from pscp.jobs.reports.outcome import GOOD, CommandRun, JobRun, Outcome, worst
from pscp.jobs.reports.report import reasons, summary
from pscp.jobs.stopping import Stopping
from pscp.jobs.toml.job import Job, check_after, moves_of
from pscp.jobs.toml.schema import as_keys
from pscp.options.keywords import as_typed
from pscp.options.options import Options
from pscp.progress.progress import (
    Counters,
    Failure,
    LiveCounters,
    Reporter,
    Result,
    count,
    format_duration,
)
from pscp.transfer.terms.copy_terms import JobTerms
from pscp.transfer.terms.moves import Moves
from pscp.transfer.walk.selection import Settled

_BECAME = {Outcome.FAILED: "has failed", Outcome.CUT: "was cut"}
Show = Callable[[Counters], object]


class Copying:
    """The copies of one run. For the main thread, but for what is said to be for others."""

    def __init__(self, job: Job, run: JobRun, path: str, teller: Teller) -> None:
        """`path` is that of the job's state, of which the run has the lock."""
        self._job, self._run, self._path, self._teller = job, run, path, teller
        known = state.recall(f"{path}.json")
        self.settled = Settled(job.min_age_s, job.settled_for_s, known)
        self._select = self.settled.is_ready if self.settled.is_needed else None
        self._moves: Moves | None = None
        self._removes = False  # the copy, which is from a host to this machine, does it
        self._removed = 0  # by that
        self.note = ""  # for the run's report, also where all went well
        left = self.settled.left if self.settled.is_needed else None
        self.attempts = {each: Attempts(each, job.retry_for_s, left) for each in job.destinations}
        self._lock = threading.Lock()  # one destination's end at a time is counted and told

    @property
    def moved(self) -> int:
        """How many files were removed at the source, or moved there."""
        return self._moves.moved if self._moves is not None else self._removed

    def copy(self, keep: Callable[[CommandRun], object]) -> None:
        """Copy to all destinations. Raises what ends the job as a whole.

        `keep` takes what became of the command that lists sources.
        """
        if self._job.datasets:
            self._to_all(self._replicate)
            return
        found = sources.find(self._job, keep)
        is_ready = self.settled.is_ready_at if self._select else lambda path: True
        ready = [each for each in found if each.is_remote or is_ready(each.path)]
        self._teller.says(self._job.name, f"{count(len(ready), 'source')} of {len(found)}")
        try:
            if ready:
                self._to_all(partial(self._copy, ready, self._terms(ready)))
            else:
                for each in self.attempts.values():
                    each.end(Outcome.NOTHING)
        finally:
            self._keep_state(
                is_whole=not ready or all(each.has_result for each in self.attempts.values())
            )

    def _terms(self, ready: Iterable[Location]) -> JobTerms:
        """Return what the copies to all destinations share. Raises UsageError."""
        job = self._job
        check_after(job, ready)
        self._moves = moves_of(job, ready)
        self._removes = job.after != "keep" and self._moves is None
        kbit_s = job.limit_now if job.limit or job.options.limit_kbit_s else None
        return JobTerms(self._select, kbit_s, self._path, self._moves)

    def _keep_state(self, *, is_whole: bool) -> None:
        if self._select is not None:
            known = self.settled.state(is_whole=is_whole)
            if not state.remember(f"{self._path}.json", known):
                self.note = f"{state.folder()} cannot be written: what has settled is not kept"

    def _to_all(self, deliver: Callable[[str, Show], Result]) -> None:
        side_by_side(
            [*self.attempts], faults_told()(deliver), self._again,
            progress=self._goes_on,
            max_hosts=self._job.max_hosts, shares=len(self.attempts) > 1,
        )  # fmt: skip

    # --- for the destinations' threads

    def _copy(self, ready: list[Location], terms: JobTerms, destination: str, show: Show) -> Result:
        return copy(
            ready, self._job.place(destination), options=self._options(destination),
            reporter=_Notes(partial(self._note, destination)), progress=show,
            keep_digests=False, terms=terms, raises=False,
        )  # fmt: skip

    def _options(self, destination: str) -> Options:
        """Return the options of a copy, with the place of its manifest. Raises CopyError."""
        job, options = self._job, self._job.chosen(destination).options
        path = job.manifest_of(destination, self._run.run, self._run.started_s)
        if self._removes:
            options = replace(options, remove_source_files=True)
        if path is None:
            return options
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise errors.CopyError(f"manifest {path}: {error.strerror}") from None
        return replace(options, manifest=path)

    def _goes_on(self, destination: str, now: Counters) -> None:
        self.attempts[destination].look(now)
        self._teller.goes_on(self._job.name, destination, now)

    def _again(self, delivery: Delivery) -> float | None:
        """Count an attempt that has ended; return the seconds until the next one, or None."""
        with self._lock:
            attempts = self.attempts[delivery.destination]
            pause_s = attempts.add(delivery)
            self._removed += delivery.counters.files_removed
            is_moved = self._moves is not None or self._removes
            if is_moved and (delivery.result is not None or self.moved):
                pause_s = None  # another one would miss what was removed at the source
            then = "" if pause_s is None else f"; again in {format_duration(pause_s)}"
            why = f" ({attempts.run.message})" if attempts.run.message else ""
            self._say(delivery.destination, f"{attempts.run.outcome}{why}{then}")
            return pause_s

    def _replicate(self, destination: str, show: Show) -> Result:
        """Replicate all datasets to a destination, one after the other."""
        from pscp.zfs.replicate import replicate  # here: few jobs need it

        job, options = self._job, self._job.chosen(destination).options
        if job.limit:  # the one that holds when it begins: a stream has no other
            options = replace(options, limit_kbit_s=job.limit_now())
        whole, failures = LiveCounters(nouns=("dataset", "stream")), list[Failure]()
        lanes = 0
        for dataset, to in job.replications(destination):
            found = replicate(
                dataset, to, options=options,
                settings=job.settings, reporter=_Notes(partial(self._say, destination)),
                progress=lambda now: show(whole + now), raises=False,
            )  # fmt: skip
            failures += found.failures
            lanes = max(lanes, found.connections)
            whole.add(files_done=found.files, bytes_done=found.bytes, bytes_sent=found.bytes_sent)
            show(whole.snapshot())
        return Result(failures=tuple(failures), connections=lanes)

    def _note(self, destination: str, text: str) -> None:
        """Hand a note on: once a day that an agent is missed, without which less is kept."""
        if text.endswith(errors.USING_SFTP):
            known = f'{text}; remote = "sftp" in the job says that it is to be so'
            self._teller.warns(self._job.name, f"{destination}: {known}")
        else:
            self._say(destination, text)

    def _say(self, destination: str, text: str) -> None:
        said = as_keys(text, letters=False)  # zfs may have said those
        self._teller.says(self._job.name, f"{destination}: {said}")


class _Notes(Reporter):
    """Hands notes of a copy on."""

    sums_up = False

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def note(self, text: str) -> None:
        self._say(text)


def ordered(jobs: Mapping[str, Job], names: Iterable[str]) -> list[Job]:
    """Return the jobs of these names, and those that they depend on (no circle), before them."""
    found: dict[str, Job] = {}

    def add(name: str) -> None:
        for each in jobs[name].depends_on:
            add(each)
        found.setdefault(name, jobs[name])

    for name in names:
        add(name)
    return list(found.values())


@as_typed()
def run(jobs: Iterable[Job], history: History, config_path: str, teller: Teller) -> list[JobRun]:
    """Run these jobs one after the other, in this order (see ordered()).

    For the main thread. Raises Interrupted and Terminated, once the job that was under way is
    recorded and told to the teller as CUT; the jobs after it are not run.

    Args:
        history: where runs are kept.
        config_path: the file that the jobs are of, which names their state.
        teller: is told what happens.
    """
    stopping, runs = Stopping(), dict[str, JobRun]()
    for job in jobs:
        path = state_path(config_path, job.name)
        one = _Run(job, path, history, teller, stopping)
        runs[job.name] = one.run([runs[each] for each in job.depends_on if each in runs])
        if stopping.signal is not None:
            stopping.signal.hint = ""  # the report has said that the next run goes on
            raise stopping.signal
    return list(runs.values())


class _Run:
    """One run of one job."""

    def __init__(
        self, job: Job, path: str, history: History, teller: Teller, stopping: Stopping
    ) -> None:
        """`path` is that of the job's state."""
        self.job, self.history, self.teller = job, history, teller
        self._path, self._stopping = path, stopping
        self._begin_s, now_s = time.monotonic(), time.time()
        run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_s))}-{os.urandom(3).hex()}"
        self._ended = JobRun(run, job.name, Outcome.CUT, now_s, 0.0, message="under way")
        self._commands: list[CommandRun] = []

    def run(self, waits_for: Iterable[JobRun]) -> JobRun:
        """Return what became of the job, after those that it depends on."""
        with contextlib.ExitStack() as held:
            if self._may_begin(waits_for, held):
                self.history.begin(self._ended)
                self.teller.begins(self.job)
                self._copy(Copying(self.job, self._ended, self._path, self.teller))
                self._follow()
                self.history.prune(self.job.name, self.job.keep_history_s)
            self.teller.ended(self.job, self._ended)
        return self._ended

    def _may_begin(self, waits_for: Iterable[JobRun], held: contextlib.ExitStack) -> bool:
        """Take the lock; if the job is not to be run, keep why not, and return False."""
        if other := next((each for each in waits_for if each.outcome not in GOOD), None):
            became = _BECAME.get(other.outcome, f"is {other.outcome}")
            why = f"not run: {other.job}, which it depends on, {became}"
            outcome = Outcome.LOCKED if other.outcome == Outcome.LOCKED else Outcome.FAILED
            self._is_over(outcome, why, is_skipped=other.is_skipped)
            return False
        has_lock = False
        try:
            with self._stopping.stoppable():
                held.enter_context(locked(self._path, waits=self.job.if_running == "wait"))
                has_lock = True
            if self._stopping.signal is not None:  # it came when there was nothing to wait for
                raise self._stopping.signal
            return True
        except errors.CopyRunning as error:
            is_skipped = self.job.if_running == "skip"
            self._is_over(Outcome.LOCKED, error.message, is_skipped=is_skipped)
        except errors.PscpError as error:
            outcome, why = outcome_of(error), words_of(error, self.job.retry_for_s)
            if outcome == Outcome.CUT and not has_lock:
                outcome, why = Outcome.LOCKED, f"{why} while it waited for another run of this job"
            self._is_over(outcome, why)
        return False

    def _copy(self, copying: Copying) -> None:
        """Run `before` and copy."""
        attempts, why = copying.attempts.values(), ""
        try:
            with self._stoppable():
                if self.job.before is not None and (why := self._command("before")):
                    raise errors.CopyError(f"{why}; nothing was copied")
                copying.copy(self._commands.append)
        except errors.PscpError as error:
            why = words_of(error, self.job.retry_for_s)
            for each in attempts:
                if not each.run.attempts:
                    each.end(outcome_of(error), "not begun")
        parts = tuple(each.run for each in attempts)
        outcome = worst(part.outcome for part in parts)
        # What ends the job once all is done ends nothing.
        whys = ["" if outcome in GOOD else why, copying.note]
        if stayed := [failure for each in attempts for failure in each.not_removed]:
            outcome = worst([outcome, Outcome.FAILED])
            whys.insert(0, "\n".join(reasons(stayed, set())))
        self._is_over(
            outcome,
            "; ".join(filter(None, whys)),
            destinations=parts,
            files_waiting=copying.settled.waiting,
            files_removed=copying.moved,
        )

    def _follow(self) -> None:
        """Run `after-success` or `after-failure`. What is over is recorded: this may be killed."""
        ended, why = self._ended, ""
        name = "after-success" if ended.outcome in GOOD else "after-failure"
        if getattr(self.job, name.replace("-", "_")) is None:
            return
        try:
            with self._stoppable():
                why = self._command(name)
        except errors.PscpError as error:
            why = f"{name}: {error.message}"
        outcome = worst([ended.outcome, Outcome.FAILED if why else ended.outcome])
        self._is_over(outcome, "; ".join(filter(None, (ended.message, why))))

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Run a block that a signal ends, or max-duration, which begins with it."""
        most_s = self.job.max_duration_s
        what = f"max-duration ({format_duration(most_s)})" if most_s else ""
        with faults_told(), self._stopping.stoppable(most_s, what):
            yield

    def _command(self, name: str) -> str:
        """Run one of the job's commands; return what was wrong with it, or ""."""
        command = getattr(self.job, name.replace("-", "_"))
        ran = run_command(name, command, _environment(self._ended, is_over=name != "before"))
        self._commands.append(ran)
        self.teller.says(self.job.name, f"{name}: {ran.how}")
        return "" if ran.ok else f"{name} ({program_of(command)}): {ran.how}"

    def _is_over(self, outcome: Outcome, message: str, **more: object) -> None:
        """Keep what became of the run. One that is locked is in the history by its other run."""
        self._ended = replace(
            self._ended, outcome=outcome, message=message, commands=tuple(self._commands),
            seconds=time.monotonic() - self._begin_s, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        if outcome != Outcome.LOCKED:
            self.history.record(self._ended)


def _environment(run: JobRun, *, is_over: bool) -> dict[str, str]:
    """Return what a command is told."""
    names = {"PSCP_JOB": run.job, "PSCP_RUN": run.run}
    if not is_over:
        return names
    return names | {
        "PSCP_OUTCOME": run.outcome.name.lower(),
        "PSCP_FILES": str(sum(part.files for part in run.destinations)),
        "PSCP_BYTES": str(sum(part.bytes for part in run.destinations)),
        "PSCP_FILES_WAITING": str(run.files_waiting),
        "PSCP_FILES_REMOVED": str(run.files_removed),
        "PSCP_MESSAGE": summary(run),
    }
