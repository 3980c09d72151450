"""Tells of a job's run while it goes on and at its end, to all whom the job names.

Whatever of this fails is a note; it changes nothing of the run.

Not here: the report (report.py), the numbers (metrics.py), the URL (ping.py), the service manager
and the journal (systemd.py).
Read next: report.py.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator

from pscp.jobs import metrics, report, systemd, timers, words
from pscp.jobs.job import Job
from pscp.jobs.outcome import JobRun, Outcome
from pscp.jobs.ping import Pings
from pscp.jobs.status import Past

Note = Callable[[str], object]


class Telling:
    """What is told of one run of a job. One thread calls: begin() once it has the job's lock."""

    def __init__(self, job: Job, config: str, note: Note) -> None:
        """`config` is the path of jobs.toml, by which a timer is found; `note` gets what fails."""
        self._job, self._config, self._note = job, config, note
        self._pings = Pings(job.ping) if job.ping else None

    def begin(self) -> None:
        systemd.show_status(f"{self._job.name}: has begun")
        if self._pings:
            self._pings.start()

    def end(self, run: JobRun, past: Past) -> None:
        """Tell how the run ended; `past` has it already.

        A run that found the job locked tells nobody but who called it: the other one does the rest.
        """
        again = "" if run.outcome in words.GOOD else self.again()
        text = report.as_text([run], again)
        if not self._to_journal(run, text) and run.outcome not in words.GOOD:
            for line in text.splitlines():
                self._note(line)
        systemd.show_status(f"{run.job}: {run.outcome}")
        if run.outcome is Outcome.LOCKED:
            return
        for form, path in self._job.report:
            self._try(f"report {path}", functools.partial(report.write, form, path, [run], again))
        if self._job.metrics:
            self._try(f"metrics {self._job.metrics}", lambda: self._write_metrics(run, past))
        code = 0 if run.outcome in words.GOOD else run.exit_code
        if self._pings and (why := self._pings.end(code, text)):
            self._note(f"{run.job}: ping: {why}")

    def again(self) -> str:
        """Return when the job is tried again."""
        found = timers.find([self._job.name], os.path.realpath(self._config), time.time())
        for timer in found.values():
            return f"it is tried again at {words.date(timer.next_s)} ({timer.name})"
        return "no timer is known that starts it again"

    def _write_metrics(self, run: JobRun, past: Past) -> None:
        success_s = {each: past.last_success(run.job, each) for each in self._job.destinations}
        metrics.write(self._job.metrics or "", run, success_s)

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._note(f"{self._job.name}: {what}: {error.strerror or error}")

    def _to_journal(self, run: JobRun, text: str) -> bool:
        """Write a record for each destination, with the whole report on a failure."""
        if not systemd.is_journal():
            return False
        return all([systemd.to_journal(*record) for record in _records(run, text)])


def _records(run: JobRun, text: str) -> Iterator[tuple[str, int, dict[str, str]]]:
    is_good = run.outcome in words.GOOD
    of_run = {"PSCP_JOB": run.job, "PSCP_RUN": run.run}
    for part in run.destinations:
        message = f"{run.job}: {part.destination}: {part.outcome}, {words.copied(part)}"
        of_part = {"PSCP_DESTINATION": part.destination, "PSCP_OUTCOME": str(part.outcome)}
        yield message, systemd.INFO, {**of_run, **of_part}
    if not (is_good and run.destinations):
        priority = systemd.INFO if is_good else systemd.ERROR
        yield text, priority, {**of_run, "PSCP_OUTCOME": str(run.outcome)}
