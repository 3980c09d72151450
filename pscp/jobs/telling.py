"""Tells of runs while they go on and at their end, to all whom their jobs name.

Whatever of this fails is a note; it changes nothing of a run.

Not here: the report (report.py), the numbers (metrics.py), the URL (ping.py), the service manager
and the journal (systemd.py).
Read next: report.py.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from pscp.jobs import metrics, report, systemd, timers, words
from pscp.jobs.job import Job
from pscp.jobs.outcome import JobRun, Outcome
from pscp.jobs.ping import Pings
from pscp.jobs.status import Past
from pscp.jobs.watching import Watcher
from pscp.progress import Counters, format_bytes

_STATUS_S = 1.0  # between two of them


class Teller(Watcher):
    """Is told what happens, and tells the others. Any thread may call says() and goes_on().

    A context manager: the block has read its configuration, and ends with all of the runs.
    """

    def __init__(
        self,
        past: Past,
        config: str,
        note: Callable[[str], object],
        *,
        reports: Sequence[tuple[str, str]] = (),
        is_verbose: bool = False,
    ) -> None:
        """Tell of jobs of the file `config`, by which their timers are found.

        `past` has each run that has ended. `note` shows a line, from any thread. `reports` are
        written of all runs together, each a form and a file.
        """
        self._past, self._config, self._note = past, os.path.realpath(config), note
        self._reports, self._is_verbose = reports, is_verbose
        self._runs: list[JobRun] = []
        self._pings: dict[str, Pings] = {}
        self._events = itertools.count()
        self._lock = threading.Lock()  # guards what follows
        self._watchdog = systemd.Watchdog()
        self._shown_s = 0.0

    def __enter__(self) -> Teller:
        systemd.notify("READY=1")
        return self

    def __exit__(self, *why: object) -> None:
        systemd.notify("STOPPING=1")

    def begins(self, job: Job, run: JobRun) -> None:
        """A run has its lock and begins."""
        self._goes_on(job.name, f"{job.name}: has begun")
        if job.ping:
            self._pings[job.name] = Pings(job.ping)
            self._pings[job.name].start()

    def goes_on(self, job: Job, destination: str, counters: Counters) -> None:
        """Some ten times a second: where the copy to a destination stands."""
        done, total = counters.bytes_done + counters.bytes_resumed, counters.bytes_total
        text = f"{job.name}: {format_bytes(done)} of {format_bytes(total)} to {destination}"
        self._goes_on(destination, text, *counters.as_dict().values())

    def says(self, job: str, text: str) -> None:
        """What happens, for who asked to be told."""
        self._goes_on("says", f"{job}: {text}")
        if self._is_verbose:
            self._note(f"{job}: {text}")

    def ended(self, job: Job, run: JobRun) -> None:
        """A run has ended, or did not begin since another has the lock: that one tells the rest."""
        self._runs.append(run)
        is_good = run.outcome in words.GOOD or run.is_skipped
        again = "" if is_good else self._again(job)
        text = report.as_text([run], again)
        is_in_journal = systemd.is_journal() and all(
            [systemd.to_journal(*record) for record in _records(run, text, is_good=is_good)]
        )
        if self._is_verbose or not (is_good or is_in_journal):
            for line in text.splitlines():
                self._note(line)
        self._goes_on(job.name, f"{run.job}: {run.outcome}")
        for form, path in self._reports:
            self._try(f"--report {path}", functools.partial(report.write, form, path, self._runs))
        if run.outcome is not Outcome.LOCKED:
            self._tell_others(job, run, text, again)

    def _tell_others(self, job: Job, run: JobRun, text: str, again: str) -> None:
        for form, path in job.report:
            what = f"{run.job}: report {path}"
            self._try(what, functools.partial(report.write, form, path, [run], again))
        if job.metrics:
            success_s = {e: self._past.last_success(run.job, e) for e in job.destinations}
            write = functools.partial(metrics.write, job.metrics, run, success_s)
            self._try(f"{run.job}: metrics {job.metrics}", write)
        pings = self._pings.pop(run.job, None)
        code = 0 if run.outcome in words.GOOD else run.exit_code
        if pings and (why := pings.end(code, text)):
            self._note(f"{run.job}: ping: {why}")

    def _goes_on(self, what: str, status: str, *marks: object) -> None:
        """Tell systemd that something happens: without marks always, else if these are others."""
        with self._lock:
            self._watchdog.see(what, marks or next(self._events))
            now_s = time.monotonic()
            if not marks or now_s - self._shown_s >= _STATUS_S:
                self._shown_s = now_s
                systemd.show_status(status)

    def _again(self, job: Job) -> str:
        """Return when the job is tried again."""
        for timer in timers.find([job.name], self._config, time.time()).values():
            return f"it is tried again at {words.date(timer.next_s)} ({timer.name})"
        return "no timer is known that starts it again"

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._note(f"{what}: {error.strerror or error}")


def _records(run: JobRun, text: str, *, is_good: bool) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Yield the journal's records: one for each destination, and the report where it is needed."""
    of_run = {"PSCP_JOB": run.job, "PSCP_RUN": run.run}
    for part in run.destinations:
        message = f"{run.job}: {part.destination}: {part.outcome}, {words.copied(part)}"
        of_part = {"PSCP_DESTINATION": part.destination, "PSCP_OUTCOME": str(part.outcome)}
        yield message, systemd.INFO, {**of_run, **of_part}
    if not (is_good and run.destinations):
        priority = systemd.INFO if is_good else systemd.ERROR
        yield text, priority, {**of_run, "PSCP_OUTCOME": str(run.outcome)}
