"""Tells of runs while they go on and at their end, to all whom their jobs name.

Whatever of this fails is a note; it changes nothing of a run. But where a file that the user named
could not be written, pscp-run does not exit with 0.

Not here: the report (report.py), the numbers (metrics.py), the URL (ping.py), the service manager
and the journal (systemd.py).
Read next: report.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pscp.jobs import metrics, report, systemd
from pscp.jobs.history import History
from pscp.jobs.job import Job
from pscp.jobs.outcome import GOOD, JobRun, Outcome
from pscp.jobs.ping import Pings
from pscp.jobs.report import FORMS, write_whole
from pscp.progress import Counters


class Teller:
    """Is told what happens, and tells the others. Any thread may call says() and goes_on()."""

    def __init__(
        self,
        history: History,
        note: Callable[[str], object],
        *,
        reports: Sequence[tuple[str, str]] = (),
        is_verbose: bool = False,
    ) -> None:
        """Tell of runs, which are in the history once they have ended.

        `note` shows a line, from any thread. `reports` are written of all runs together, each a
        form and a file.
        """
        self._history, self._note = history, note
        self._reports, self._is_verbose = reports, is_verbose
        self._runs: list[JobRun] = []
        self._has_failed = False  # a report, or a file of metrics, could not be written
        self._pings: Pings | None = None  # of the job that runs
        self._watchdog = systemd.Watchdog()

    def begins(self, job: Job) -> None:
        """A run has its lock and begins."""
        self._watchdog.see(job.name, "begins")
        self._pings = Pings(job.ping) if job.ping else None

    def goes_on(self, job: str, destination: str, counters: Counters) -> None:
        """Some ten times a second: where the copy to a destination stands."""
        self._watchdog.see(f"{job} {destination}", counters.as_dict())

    def says(self, job: str, text: str) -> None:
        """What happens, for who asked to be told (-v)."""
        self._watchdog.see(job, object())  # whatever it is, it goes on
        if self._is_verbose:
            self._note(f"{job}: {text}")

    def ended(self, job: Job, run: JobRun) -> None:
        """A run has ended, or did not begin since another has the lock."""
        self._watchdog.see(job.name, "ended")
        self._runs.append(run)
        is_quiet = run.is_skipped or (run.outcome in GOOD and not run.message)
        _to_journal(run)
        if self._is_verbose or not is_quiet:
            for line in report.lines(run):
                self._note(line)
        if run.outcome is not Outcome.LOCKED:  # the run that has the lock tells the others
            self._tell_others(job, run)

    def all_ended(self) -> None:
        """All runs have ended, or a signal has ended them."""
        for form, path in self._reports if self._runs else ():
            self._try(f"--report {path}", write_whole, path, FORMS[form](self._runs))

    def exit_code(self, code: int) -> int:
        """Return the exit code of runs that would have this one if all was told."""
        is_good = code in (each.exit_code for each in GOOD)
        return Outcome.FAILED.exit_code if self._has_failed and is_good else code

    def _tell_others(self, job: Job, run: JobRun) -> None:
        for form, path in job.report:
            self._try(f"{run.job}: report {path}", write_whole, path, FORMS[form]([run]))
        if job.metrics:
            success_s = {to: self._history.last_success(run.job, to) for to in job.destinations}
            what = f"{run.job}: metrics {job.metrics}"
            self._try(what, metrics.write, job.metrics, run, success_s)
        code = 0 if run.outcome in GOOD else run.exit_code
        if job.ping and self._pings is None:  # a run that did not begin has failed as well
            self._pings = Pings(job.ping)
        pings, self._pings = self._pings, None
        if pings and (why := pings.end(code, report.as_text([run]))):
            self._note(f"{run.job}: ping: {why}")

    def _try(self, what: str, write: Callable[..., None], *args: object) -> None:
        try:
            write(*args)
        except OSError as error:
            self._note(f"{what}: {error.strerror or error}")
            self._has_failed = True


def _to_journal(run: JobRun) -> None:
    """Write a record for each destination, or of the run where it came to none."""
    of_parts = [(part.destination, part.outcome, report.copied(part)) for part in run.destinations]
    for destination, outcome, text in of_parts or [("", run.outcome, run.message)]:
        fields = {"PSCP_JOB": run.job, "PSCP_RUN": run.run, "PSCP_OUTCOME": str(outcome)}
        if destination:
            fields["PSCP_DESTINATION"] = destination
        priority = systemd.INFO if outcome in GOOD or run.is_skipped else systemd.ERROR
        systemd.to_journal(f"{run.job}: {destination}: {outcome}, {text}", priority, fields)
