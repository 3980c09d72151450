"""Tells of runs while they go on and at their end, to all whom their jobs name: a URL, in the
manner of healthchecks, and a monitor, by a file for node_exporter's textfile collector.

Whatever of this fails is a note; it changes nothing of a run. But where a file that the user named
could not be written, pscp-run does not exit with 0.

The URL gets URL/start at the begin, URL at a success, URL/EXITCODE at a failure, each with the
report as its body. A server that is slow, silent or broken delays a run's end by PATIENCE_S at
most, and never makes it fail.

`metrics` of a job names the collector's folder, where each job has a file of its own, so that jobs
that run at once do not lose each other's numbers; or one file, which is then that job's alone. The
age of the last success is the monitor's time() less pscp_job_last_success_timestamp_seconds: an
age in the file would stand still when pscp-run does not run any more. Prometheus, which has a
label "job" of its own, shows this one as exported_job.

Not here: the report (report.py), the service manager and the journal (systemd.py), which URLs may
be given (../toml/schema.py), how the numbers came to be (outcome.py).
Read next: report.py.
"""

from __future__ import annotations

import functools
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pscp.ground.terminal_text import printable
from pscp.jobs.reports import report, systemd
from pscp.jobs.reports.history import History
from pscp.jobs.reports.outcome import GOOD, JobRun, Outcome
from pscp.jobs.reports.report import FORMS, write_whole
from pscp.jobs.toml.job import Job
from pscp.progress.progress import Counters
from pscp.progress.progress_words import describe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PATIENCE_S = 10.0  # for all pings of a run that are still under way at its end
_ANSWER_S = 4.0  # for one answer: two attempts fit
_SHOWS_S = 10.0  # from one note on where a copy stands to the next
_BODY_MAX_BYTES = 10_000  # what healthchecks keeps


def write_metrics(metrics: str, run: JobRun, last_success_s: Mapping[str, float | None]) -> None:
    """Write a run's numbers in one step; `last_success_s` has, by destination, when one was done.

    Raises OSError.
    """
    from prometheus_client import generate_latest

    if metrics.endswith("/") or os.path.isdir(metrics):
        name = urllib.parse.quote(run.job, safe="", errors="replace")
        metrics = os.path.join(metrics, f"pscp_{name}.prom")
    write_whole(metrics, generate_latest(collect(run, last_success_s)).decode())


def collect(run: JobRun, last_success_s: Mapping[str, float | None]) -> CollectorRegistry:
    """Return the numbers as prometheus_client writes them."""
    from prometheus_client import CollectorRegistry, Gauge

    registry, gauges = CollectorRegistry(), dict[str, Gauge]()

    def put(name: str, what: str, value: float, **labels: str) -> None:
        if name not in gauges:
            names = ("job", *labels)
            gauges[name] = Gauge(f"pscp_job_{name}", f"{what}.", names, registry=registry)
        gauges[name].labels(*map(printable, (run.job, *labels.values()))).set(value)

    put("last_run_timestamp_seconds", "When it began", run.started_s)
    put("exit_code", "pscp-run's exit code", run.exit_code)
    put("waiting_files", "Files left for the next run", run.files_waiting)
    for to, success_s in last_success_s.items():
        what = "When a destination last had everything, 0 if never"  # so that an alert sees it
        put("last_success_timestamp_seconds", what, success_s or 0, destination=to)
    for part in run.destinations:
        one = functools.partial(put, destination=part.destination)
        one("destination_exit_code", "pscp-run's, for one destination", part.outcome.exit_code)
        one("copied_bytes", "Bytes of the files that were copied", part.bytes)
        one("sent_bytes", "Bytes that were sent, with what was sent again", part.bytes_sent)
        one("seconds", "How long it took", part.seconds)
        one("rate_bytes_per_second", "Bytes that were sent in a second", part.bytes_per_s)
        one("lanes", "Connections, the most at once", part.connections)
        one("retries", "Connections that were lost and made again", part.connections_lost)
        one("attempts", "How often it was tried", part.attempts)
        one("resent_chunks", "Chunks that were sent again", part.chunks_resent)
        one("files", "Files by what became of them", part.files, outcome="copied")
        one("files", "", part.files_unchanged, outcome="unchanged")
        one("files", "", part.files_linked, outcome="linked")
        one("files", "", part.files_skipped, outcome="skipped")
        one("files", "", part.files_deleted, outcome="deleted")
        one("files", "", part.files_failed, outcome="failed")
    return registry


class Pings:
    """The pings of one run of a job, the first of which goes out at once. One thread calls."""

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self.host = self._url.hostname  # the path is a secret
        self._end = queue.SimpleQueue[tuple[str, str]]()
        self._why = ""  # the last one failed; written by the thread
        # A daemon: a server that answers a byte at a time keeps no run from ending.
        self._thread = threading.Thread(target=self._run, name="ping", daemon=True)
        self._thread.start()

    def end(self, exit_code: int, body: str) -> str:
        """Tell how the run ended; return "", or why nobody heard it."""
        self._end.put((f"/{exit_code}" if exit_code else "", body))
        self._thread.join(PATIENCE_S)
        return "no answer in time" if self._thread.is_alive() else self._why

    def _run(self) -> None:
        """Send one after the other: a start after the end would stand for a run under way."""
        self._send("/start", "")
        self._why = self._send(*self._end.get())

    def _send(self, suffix: str, body: str) -> str:
        path = self._url.path.rstrip("/") + suffix if suffix else self._url.path
        url = self._url._replace(path=path).geturl()
        return _post(url, body) and _post(url, body)


def _post(url: str, body: str) -> str:
    """Post a text. Return "", or what went wrong."""
    data = body.encode("utf-8", "backslashreplace")[:_BODY_MAX_BYTES]
    headers = {"Content-Type": "text/plain; charset=utf-8", "User-Agent": "pscp-run"}
    try:
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - http(s): ../toml/schema.py
        with urllib.request.urlopen(request, timeout=_ANSWER_S):  # noqa: S310 - the same
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"{error.code} {error.reason}".partition("\n")[0]
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(getattr(error, "reason", error)) or type(error).__name__
        return " ".join(why.split())


class Teller:
    """Is told what happens, and tells the others.

    Any thread may call says(), warns() and goes_on().
    """

    def __init__(
        self,
        history: History,
        note: Callable[[str], object],
        *,
        reports: Sequence[tuple[str, str]] = (),
        is_verbose: bool = False,
        is_watched: bool = False,
        command: str = report.COMMAND,
    ) -> None:
        """Tell of runs, which are in the history once they have ended.

        `note` shows a line, from any thread. `reports` are written of all runs together, each a
        form and a file. `is_watched`: a person sees the notes as they come. `command` is pscp-run
        with the --config that it had.
        """
        self._history, self._note = history, note
        self._reports, self._is_verbose, self._command = reports, is_verbose, command
        self._runs: list[JobRun] = []
        self._hints = set[str]()  # that a report on stderr has had
        self._is_watched = is_watched
        self._shown_s = dict[str, float]()  # when it was last noted where a copy stands
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
        if self._is_verbose and self._is_watched:
            now_s, where = time.monotonic(), f"{job}: {destination}"
            if now_s - self._shown_s.setdefault(where, now_s) >= _SHOWS_S:
                self._shown_s[where] = now_s
                first, second = describe(counters, 0.0)
                told = [piece.text for piece in (*first, *second) if piece.text != "0 B/s"]
                self._note(f"{where}: {', '.join(told)}")

    def says(self, job: str, text: str) -> None:
        """Say what happens, for who asked to be told (-v)."""
        self._watchdog.see(job, object())  # whatever it is, it goes on
        if self._is_verbose:
            self._note(f"{job}: {text}")

    def warns(self, job: str, text: str) -> None:
        """Say what everybody is to know, also where all goes well."""
        self._watchdog.see(job, object())
        self._note(f"{job}: {text}")

    def ended(self, job: Job, run: JobRun) -> None:
        """A run has ended, or did not begin since another has the lock."""
        self._watchdog.see(job.name, "ended")
        self._runs.append(run)
        is_quiet = run.is_skipped or (run.outcome in GOOD and not run.message)
        _to_journal(run)
        if self._is_verbose or not is_quiet:
            for line in report.lines(run, self._command, self._hints):
                self._note(line)
        if run.outcome is not Outcome.LOCKED:  # the run that has the lock tells the others
            self._tell_others(job, run)

    def all_ended(self) -> None:
        """All runs have ended, or a signal has ended them."""
        for form, path in self._reports if self._runs else ():
            self._try(f"--report {path}", write_whole, path, FORMS[form](self._runs, self._command))

    def exit_code(self, code: int) -> int:
        """Return the exit code of runs that would have this one if all was told."""
        is_good = code in (each.exit_code for each in GOOD)
        return Outcome.FAILED.exit_code if self._has_failed and is_good else code

    def _tell_others(self, job: Job, run: JobRun) -> None:
        for form, path in job.report:
            text = FORMS[form]([run], self._command)
            self._try(f"{run.job}: report {path}", write_whole, path, text, of=run)
        if job.metrics:
            success_s = {to: self._history.last_success(run.job, to) for to in job.destinations}
            what = f"{run.job}: metrics {job.metrics}"
            self._try(what, write_metrics, job.metrics, run, success_s, of=run)
        code = 0 if run.outcome in GOOD else run.exit_code
        if job.ping and self._pings is None:  # a run that did not begin has failed as well
            self._pings = Pings(job.ping)
        pings, self._pings = self._pings, None
        if pings and (why := pings.end(code, report.as_text([run], self._command))):
            self._note_unless_idle(f"{run.job}: ping {pings.host}: {why}", run)

    def _try(
        self, what: str, write: Callable[..., None], *args: object, of: JobRun | None = None
    ) -> None:
        """Write, and note what is amiss, of the run that this is of, or of all of them."""
        try:
            write(*args)
        except OSError as error:
            runs = self._runs if of is None else [of]
            well = all(run.outcome in GOOD for run in runs)
            rest = "; the copies went well" if well else ""
            is_told = self._note_unless_idle(f"{what}: {error.strerror or error}{rest}", of)
            self._has_failed |= is_told

    def _note_unless_idle(self, text: str, run: JobRun | None) -> bool:
        """Note what is amiss, and return whether it matters. One run every ten minutes that has
        nothing to do would be a mail every ten minutes.
        """
        is_idle = run is not None and run.outcome is Outcome.NOTHING
        if self._is_verbose or not is_idle:
            self._note(text)
        return not is_idle


def _to_journal(run: JobRun) -> None:
    """Write a record for each destination, and of the run where it failed and they did not."""
    records = [(part.destination, part.outcome, report.copied(part)) for part in run.destinations]
    if run.outcome not in {part.outcome for part in run.destinations}:
        records.append(("", run.outcome, run.message))
    for destination, outcome, text in records:
        fields = {"PSCP_JOB": run.job, "PSCP_RUN": run.run, "PSCP_OUTCOME": str(outcome)}
        if destination:
            fields["PSCP_DESTINATION"] = destination
        priority = systemd.INFO if outcome in GOOD or run.is_skipped else systemd.ERROR
        systemd.to_journal(f"{run.job}: {destination}: {outcome}, {text}", priority, fields)
