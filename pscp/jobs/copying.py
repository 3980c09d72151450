"""The copies of one run of a job, to all its destinations: of its files, or of its datasets.

Not here: what comes before and after them (runner.py), which sources there are (sources.py), which
files are left for later (../transfer/settled.py), the next attempt (attempts.py).
Read next: ../deliveries.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pscp import errors, state
from pscp.api import copy
from pscp.deliveries import Delivery, side_by_side
from pscp.jobs import sources
from pscp.jobs.attempts import Attempts
from pscp.jobs.job import Job
from pscp.jobs.outcome import CommandRun, JobRun, Outcome
from pscp.jobs.telling import Teller
from pscp.locations import Location
from pscp.options import Options
from pscp.progress import Counters, Failure, Result, Silent, count, format_duration
from pscp.transfer.job_terms import JobTerms
from pscp.transfer.moves import Moves
from pscp.transfer.settled import Settled

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
        self.note = ""  # for the run's report, also where all went well
        left = self.settled.left if self.settled.is_needed else None
        self.attempts = {each: Attempts(each, job.retry_for_s, left) for each in job.destinations}
        self._lock = threading.Lock()  # one destination's end at a time is counted and told

    @property
    def moved(self) -> int:
        """How many files were removed at the source, or moved there."""
        return self._moves.moved if self._moves is not None else 0

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
                self._to_all(partial(self._copy, ready, self._terms()))
            else:
                for each in self.attempts.values():
                    each.end(Outcome.NOTHING)
        finally:
            self._keep_state(
                is_whole=not ready or all(each.has_result for each in self.attempts.values())
            )

    def _terms(self) -> JobTerms:
        """Return what the copies to all destinations share."""
        job = self._job
        if job.after != "keep":
            places = [job.place(each) for each in self.attempts]
            self._moves = Moves(places, job.move_to if job.after == "move" else None)
        kbit_s = job.limit_now if job.limit or job.options.limit_kbit_s else None
        return JobTerms(self._select, kbit_s, self._path, self._moves)

    def _keep_state(self, *, is_whole: bool) -> None:
        if self._select is not None:
            known = self.settled.state(is_whole=is_whole)
            if not state.remember(f"{self._path}.json", known):
                self.note = f"{state.folder()} cannot be written: what has settled is not kept"

    def _to_all(self, deliver: Callable[[str, Show], Result]) -> None:
        side_by_side(
            [*self.attempts], deliver, self._again,
            progress=partial(self._teller.goes_on, self._job.name),
            max_hosts=self._job.max_hosts, shares=len(self.attempts) > 1,
        )  # fmt: skip

    # --- for the destinations' threads

    def _copy(self, ready: list[Location], terms: JobTerms, destination: str, show: Show) -> Result:
        return copy(
            ready, self._job.place(destination), options=self._options(destination),
            reporter=_Notes(partial(self._say, destination)), progress=show,
            keep_digests=False, terms=terms,
        )  # fmt: skip

    def _options(self, destination: str) -> Options:
        """Return the options of a copy, with the place of its manifest. Raises CopyError."""
        job, options = self._job, self._job.chosen(destination).options
        path = job.manifest_of(destination, self._run.run, self._run.started_s)
        if path is None:
            return options
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            raise errors.CopyError(f"manifest {path}: {error.strerror}") from None
        return replace(options, manifest=path)

    def _again(self, delivery: Delivery) -> float | None:
        """Count an attempt that has ended; return the seconds until the next one, or None."""
        with self._lock:
            attempts = self.attempts[delivery.destination]
            pause_s = attempts.add(delivery)
            if self._moves is not None and (delivery.result is not None or self.moved):
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
        whole, failures = Counters(), list[Failure]()
        for dataset, to in job.replications(destination):
            found = replicate(
                dataset, to, options=options,
                settings=job.settings, reporter=_Notes(partial(self._say, destination)),
                progress=lambda now: show(whole + now),
            )  # fmt: skip
            failures += found.failures
            whole.add(files_done=found.files, bytes_done=found.bytes, bytes_sent=found.bytes_sent)
            show(whole.snapshot())
        return Result(failures=tuple(failures))

    def _say(self, destination: str, text: str) -> None:
        self._teller.says(self._job.name, f"{destination}: {text}")


class _Notes(Silent):
    """Hands notes of a copy on."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def note(self, text: str) -> None:
        self._say(text)
