"""Runs jobs, in their order: each alone, to all its destinations, with what comes before and after.

A job's lock is held from before its first command until after its last. What goes wrong with it is
its outcome, and never an exception: the next job is run all the same.

Not here: what is copied (sources.py, settled.py), the destinations' attempts (attempts.py,
../deliveries.py), the limit (limits.py), how a job is ended early (ending.py), its commands
(commands.py), where it is kept (lock.py, history.py), who is told (watching.py).
Read next: attempts.py.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from pscp import errors, state
from pscp.api import copy
from pscp.deliveries import Delivery, side_by_side
from pscp.jobs import limits, sources
from pscp.jobs.attempts import Attempts, outcome_of
from pscp.jobs.commands import run_command
from pscp.jobs.ending import Ending
from pscp.jobs.history import History
from pscp.jobs.job import Job
from pscp.jobs.lock import locked, state_name
from pscp.jobs.outcome import CommandRun, DestinationRun, JobRun, Outcome, worst
from pscp.jobs.settled import Settled
from pscp.jobs.watching import Notes, Watcher
from pscp.locations import Location
from pscp.progress import Counters, Result, count, format_duration
from pscp.transfer.job_terms import JobTerms
from pscp.transfer.moves import Moves

Progress = Callable[[Counters], object]
Look = Callable[[float, float, object], Settled]
_DONE = (Outcome.DONE, Outcome.NOTHING)  # what a job that depends on one waits for


def ordered(jobs: Mapping[str, Job], names: Iterable[str]) -> list[Job]:
    """Return the jobs of these names, and those that they depend on, each after those.

    Raises UsageError for a name that there is not, and for jobs that wait for each other.
    """
    found: dict[str, Job] = {}

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = " -> ".join((*way[way.index(name) :], name))
            raise errors.UsageError(f"depends-on leads in a circle: {circle}")
        if name not in jobs:
            raise errors.UsageError(f"there is no job {name!r}", f"jobs: {', '.join(jobs)}")
        if name not in found:
            for each in jobs[name].depends_on:
                visit(each, (*way, name))
            found[name] = jobs[name]

    for name in names:
        visit(name, ())
    return list(found.values())


def run(
    jobs: Iterable[Job],
    history: History,
    config_path: str,
    watcher: Watcher | None = None,
    *,
    look: Look = Settled,
) -> list[JobRun]:
    """Run these jobs one after the other, in this order (see ordered()).

    For the main thread. Raises Interrupted and Terminated, once the job that was under way is
    recorded and told to the watcher as CUT; the jobs after it are not run.

    Args:
        history: where runs are kept.
        config_path: the file that the jobs are of, which names their state.
        watcher: is told what happens.
        look: looks at files that may be too young, or not settled.
    """
    ending, runs = Ending(), dict[str, JobRun]()
    for job in jobs:
        name = state_name(config_path, job.name)
        one = _Run(job, name, history, watcher or Watcher(), look, ending=ending)
        runs[job.name] = one.run([runs[each] for each in job.depends_on if each in runs])
        if ending.signal is not None:
            raise ending.signal
    return list(runs.values())


class _Run:
    """One run of one job."""

    def __init__(
        self,
        job: Job,
        name: str,
        history: History,
        watcher: Watcher,
        look: Look,
        *,
        ending: Ending,
    ) -> None:
        """`name` is that of the job's state."""
        self.job, self.history, self.watcher = job, history, watcher
        self._name, self._look, self._ending = name, look, ending
        self._settled = look(0, 0, None)  # until the state of earlier runs may be read
        self._begin_s = time.monotonic()
        now_s = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        run = f"{stamp}-{os.urandom(3).hex()}"
        self._begun = JobRun(run, job.name, Outcome.CUT, now_s, 0.0, message="under way")
        self._commands: list[CommandRun] = []
        self._attempts: dict[str, Attempts] = {}
        self._moves: Moves | None = None
        self._lock = threading.Lock()  # one destination's end at a time is counted and told

    def run(self, waits_for: Iterable[JobRun]) -> JobRun:
        """Return what became of the job, after those that it depends on."""
        for other in waits_for:
            if other.outcome not in _DONE:
                is_locked = other.outcome == Outcome.LOCKED
                outcome = Outcome.LOCKED if is_locked else Outcome.FAILED
                why = f"not run: {other.job}, which it depends on, is {other.outcome}"
                return self._not_run(outcome, why, is_skipped=other.is_skipped)
        with contextlib.ExitStack() as stack:
            try:
                with self._ending.stoppable():
                    path = os.path.join(state.folder(), self._name)
                    stack.enter_context(locked(path, waits=self.job.if_running == "wait"))
            except errors.CopyRunning as error:
                is_skipped = self.job.if_running == "skip"
                return self._not_run(Outcome.LOCKED, error.message, is_skipped=is_skipped)
            except errors.PscpError as error:
                return self._not_run(outcome_of(error), error.text)
            return self._run_locked()

    def _not_run(self, outcome: Outcome, why: str, *, is_skipped: bool = False) -> JobRun:
        """Tell why the job was not run. One that is locked is in the history by its other run."""
        ended = replace(self._ended(outcome, why), is_skipped=is_skipped)
        if outcome != Outcome.LOCKED:
            self.history.record(ended)
        return self._tell(ended)

    def _run_locked(self) -> JobRun:
        job, known = self.job, state.recall(f"{self._name}.json")
        self._settled = self._look(job.min_age_s, job.settled_for_s, known)
        self.history.begin(self._begun)
        self.watcher.begins(self.job, self._begun)
        ended = self._copied()
        self.history.record(ended)  # what follows may be killed
        command = self.job.after_success if ended.outcome in _DONE else self.job.after_failure
        if command is not None:
            name = "after-success" if ended.outcome in _DONE else "after-failure"
            why = self._command(name, command, _environment(ended))
            told = "; ".join(filter(None, (ended.message, why)))
            outcome = worst([ended.outcome, Outcome.FAILED] if why else [ended.outcome])
            ended = self._ended(outcome, told, ended.destinations)
            self.history.record(ended)
        self.history.prune(self.job.name, self.job.keep_history_s)
        return self._tell(ended)

    def _copied(self) -> JobRun:
        """Run `before`, copy, and return what became of it."""
        most_s = self.job.max_duration_s
        what = f"max-duration ({format_duration(most_s)})" if most_s else ""
        self._attempts = {
            each: Attempts(each, self.job.retry_for_s, self._left) for each in self._destinations()
        }
        why = ""
        try:
            with self._ending.stoppable(most_s, what):
                if self.job.before is not None:
                    names = {"PSCP_JOB": self.job.name, "PSCP_RUN": self._begun.run}
                    if why := self._command("before", self.job.before, names):
                        raise errors.CopyError(f"{why}; nothing was copied")
                self._copy()
        except errors.PscpError as error:
            why = error.text
            for each in self._attempts.values():
                each.end(error)
        parts = tuple(each.run() for each in self._attempts.values())
        outcome = worst(part.outcome for part in parts)
        # What ends the job once all is done ends nothing.
        return self._ended(outcome, "" if outcome in _DONE else why, parts)

    def _destinations(self) -> list[str]:
        return list(dict.fromkeys(self.job.destinations))

    # --- copying

    def _copy(self) -> None:
        """Copy to all destinations. Raises what ends the job as a whole."""
        if self.job.datasets:
            self._side_by_side(self._replicate)
            return
        found = sources.find(self.job, self._commands.append)
        ready = [each for each in found if self._is_ready(each)]
        self._say(f"{count(len(ready), 'source')} of {len(found)}")
        if not ready:
            for each in self._attempts.values():
                each.nothing()
            self._keep_state(is_whole=True)
            return
        terms = self._terms()
        here = {each for each in ready if not each.is_remote and os.path.lexists(each.path)}

        def deliver(destination: str, progress: Progress) -> Result:
            options = self.job.chosen(destination).options
            reporter = Notes(self.watcher, self.job.name, destination)
            while True:
                # An attempt before, or another destination, may have been the last one that kept
                # files from being removed: what is gone by then is at this destination.
                still, moved = _still(ready, here), self._moved()
                if not still:
                    return Result()
                result = copy(
                    still, self._folder(destination), options=options, reporter=reporter,
                    progress=progress, keep_digests=False, terms=terms,
                )  # fmt: skip
                is_moved = self._moved() > moved or len(_still(still, here)) < len(still)
                if result.ok or self._moves is None or not is_moved:
                    return result

        try:
            self._side_by_side(deliver)
        finally:
            self._keep_state(is_whole=all(each.has_result for each in self._attempts.values()))

    def _terms(self) -> JobTerms:
        """Return what the copies to all destinations share."""
        job = self.job
        if job.after != "keep":
            places = [self._folder(each) for each in self._attempts]
            self._moves = Moves(places, job.move_to if job.after == "move" else None)
        has_limit = job.limit or job.options.limit_kbit_s
        return JobTerms(
            select=self._settled.is_ready if self._settled.is_needed else None,
            kbit_s=limits.limit_of(job) if has_limit else None,
            name=self._name,
            moves=self._moves,
        )

    def _moved(self) -> int:
        return self._moves.moved if self._moves is not None else 0

    def _folder(self, destination: str) -> str:
        """Return the destination of a copy; where the sources may be any number, a folder.

        Else a night with one of them would make a file of the name that the folder was to have.
        """
        is_list = not self.job.sources or any(map(glob.has_magic, self.job.sources))
        ends = destination.endswith(("/", ":"))
        return f"{destination}/" if is_list and not ends else destination

    def _side_by_side(self, deliver: Callable[[str, Progress], Result]) -> None:
        max_hosts = self.job.max_hosts

        def watched(destination: str, progress: Progress) -> Result:
            def show(now: Counters) -> None:
                progress(now)
                self.watcher.goes_on(self.job, destination, now)

            return deliver(destination, show)

        side_by_side(list(self._attempts), watched, self._again, max_hosts=max_hosts)

    def _again(self, delivery: Delivery) -> float | None:
        """Count an attempt that has ended. For its thread."""
        with self._lock:
            attempts = self._attempts[delivery.destination]
            pause_s = attempts.add(delivery)
            then = "" if pause_s is None else f"; again in {format_duration(pause_s)}"
            why = f" ({attempts.message})" if attempts.message else ""
            self._say(f"{delivery.destination}: {attempts.outcome}{why}{then}")
            return pause_s

    def _replicate(self, destination: str, progress: Progress) -> Result:
        """Replicate all datasets to a destination, one after the other."""
        from pscp.zfs.replicate import replicate  # here: few jobs need it
        from pscp.zfs.settings import Settings

        options, whole = self.job.chosen(destination).options, Counters()
        if self.job.limit:  # the one that holds when it begins: a stream has no other
            options = replace(options, limit_kbit_s=limits.limit_of(self.job)())

        def show(now: Counters) -> None:
            progress(_added(whole, now))

        result = Result()
        for dataset, to in self.job.replications(destination):
            reached = replicate(
                dataset, to,
                options=options,
                settings=Settings(**self.job.dataset_options),  # type: ignore[arg-type]
                reporter=Notes(self.watcher, self.job.name, destination),
                progress=show,
            )  # fmt: skip
            result = replace(
                result,
                files=result.files + reached.files,
                failures=(*result.failures, *reached.failures),
            )
            counted = Counters(files_done=reached.files, bytes_done=reached.bytes)
            whole = _added(whole, counted)
            whole.bytes_sent += reached.bytes_sent
            progress(whole)
        return result

    def _is_ready(self, found: Location) -> bool:
        """Return whether a source is to be copied; what is no file here is for the copy to see."""
        if found.is_remote or not self._settled.is_needed:
            return True
        try:
            status = os.stat(found.path)
        except OSError:
            return True
        return not stat.S_ISREG(status.st_mode) or self._settled.is_ready(
            found.path, status.st_size, status.st_mtime_ns, status.st_ino
        )

    @property
    def _left(self) -> Callable[[str], object] | None:
        """Who takes a file that changed meanwhile, where the job expects that some grow."""
        return self._settled.left if self._settled.is_needed else None

    def _keep_state(self, *, is_whole: bool) -> None:
        if self._settled.is_needed:
            kept = state.remember(f"{self._name}.json", self._settled.state(is_whole=is_whole))
            if not kept:
                self._say(f"{state.folder()} cannot be written: what has settled is not known")

    # --- commands, and what is told

    def _command(
        self, name: str, command: str | tuple[str, ...], environment: Mapping[str, str]
    ) -> str:
        """Run one of the job's commands; return what was wrong with it, or ""."""
        if name == "before":  # it is stopped with the copy
            ran = run_command(name, command, environment)
        else:
            try:
                with self._ending.stoppable():
                    ran = run_command(name, command, environment)
            except errors.PscpError as error:
                return f"{name}: {error.message}"
        self._commands.append(ran)
        self._say(f"{name}: {ran.how}")
        return "" if ran.ok else f"{name}: {ran.how}"

    def _ended(
        self, outcome: Outcome, message: str, parts: tuple[DestinationRun, ...] = ()
    ) -> JobRun:
        return replace(
            self._begun,
            outcome=outcome,
            seconds=time.monotonic() - self._begin_s,
            destinations=parts,
            files_waiting=self._settled.waiting,
            files_removed=self._moved(),
            message=message,
            commands=tuple(self._commands),
        )

    def _say(self, text: str) -> None:
        self.watcher.says(self.job.name, text)

    def _tell(self, ended: JobRun) -> JobRun:
        self.watcher.ended(self.job, ended)
        return ended


def _still(sources: list[Location], here: set[Location]) -> list[Location]:
    """Return the sources without those that were here and are gone."""
    return [each for each in sources if each not in here or os.path.lexists(each.path)]


def _environment(ended: JobRun) -> dict[str, str]:
    """Return what the commands that follow are told."""
    return {
        "PSCP_JOB": ended.job,
        "PSCP_RUN": ended.run,
        "PSCP_OUTCOME": ended.outcome.name.lower(),
        "PSCP_FILES": str(sum(part.files for part in ended.destinations)),
        "PSCP_BYTES": str(sum(part.bytes for part in ended.destinations)),
        "PSCP_FILES_WAITING": str(ended.files_waiting),
        "PSCP_FILES_REMOVED": str(ended.files_removed),
        "PSCP_MESSAGE": ended.message,
    }


def _added(whole: Counters, now: Counters) -> Counters:
    """Return what was counted for the datasets before and for this one."""
    return Counters(
        files_done=whole.files_done + now.files_done,
        bytes_done=whole.bytes_done + now.bytes_done,
        bytes_sent=whole.bytes_sent + now.bytes_sent,
        connections_lost=whole.connections_lost + now.connections_lost,
    )
