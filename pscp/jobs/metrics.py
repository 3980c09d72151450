"""A job's last run as numbers for a monitor: a file for node_exporter's textfile collector.

`metrics` of a job names the collector's folder, where each job has a file of its own, so that jobs
that run at once do not lose each other's numbers; or one file, which is then that job's alone. The
age of the last success is the monitor's time() less pscp_job_last_success_timestamp_seconds: an
age in the file would stand still when pscp-run does not run any more. Prometheus, which has a
label "job" of its own, shows this one as exported_job.

Not here: how the numbers came to be (outcome.py). Read next: whole_file.py.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Mapping

from pscp.jobs.outcome import EXIT_CODES, DestinationRun, JobRun
from pscp.jobs.whole_file import write_whole
from pscp.jobs.words import rate
from pscp.terminal_text import printable

_BOTH = ("job", "destination")

_Number = Callable[[DestinationRun], float]
_OF_DESTINATION: tuple[tuple[str, str, _Number], ...] = (
    ("copied_bytes", "Bytes of the files that the last run copied", lambda part: part.bytes),
    ("sent_bytes", "Bytes that the last run sent, what was sent again too", lambda p: p.bytes_sent),
    ("seconds", "How long the last run took", lambda part: part.seconds),
    ("rate_bytes_per_second", "Bytes that the last run sent in a second", rate),
    ("lanes", "Connections of the last run, the most at once", lambda part: part.connections),
    ("retries", "Connections that were lost and made again", lambda part: part.connections_lost),
    ("attempts", "How often the last run tried", lambda part: part.attempts),
    ("resent_chunks", "Chunks that were sent again", lambda part: part.chunks_resent),
    (
        "destination_exit_code",
        "How the last run ended for one destination: an exit code of pscp-run",
        lambda part: EXIT_CODES[part.outcome],
    ),
)
_FILES: tuple[tuple[str, _Number], ...] = (
    ("copied", lambda part: part.files),
    ("unchanged", lambda part: part.files_unchanged),
    ("failed", lambda part: len(part.failures)),
)


def file_of(metrics: str, job: str) -> str:
    """Return the file for a job, of which `metrics` names the folder or the file."""
    if metrics.endswith("/") or os.path.isdir(metrics):
        return os.path.join(
            metrics, f"pscp_{urllib.parse.quote(job, safe='', errors='replace')}.prom"
        )
    return metrics


def write(metrics: str, run: JobRun, last_success_s: Mapping[str, float | None]) -> None:
    """Write a run's numbers in one step; `last_success_s` has, by destination, when one was done.

    Raises OSError.
    """
    write_whole(file_of(metrics, run.job), as_text(run, last_success_s))


def as_text(run: JobRun, last_success_s: Mapping[str, float | None]) -> str:
    """Return the numbers in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()

    def gauge(name: str, what: str, labels: tuple[str, ...] = _BOTH) -> Gauge:
        return Gauge(f"pscp_job_{name}", f"{what}.", labels, registry=registry)

    job = printable(run.job)
    gauge("last_run_timestamp_seconds", "When the last run began", ("job",)).labels(job).set(
        run.started_s
    )
    gauge("exit_code", "pscp-run's exit code for the last run", ("job",)).labels(job).set(
        run.exit_code
    )
    gauge("waiting_files", "Files left for the next run", ("job",)).labels(job).set(
        run.files_waiting
    )
    success = gauge("last_success_timestamp_seconds", "When a run was last done for a destination")
    for destination, success_s in last_success_s.items():
        if success_s is not None:
            success.labels(job, printable(destination)).set(success_s)
    for name, what, number in _OF_DESTINATION:
        made = gauge(name, what)
        for part in run.destinations:
            made.labels(job, printable(part.destination)).set(number(part))
    files = gauge("files", "Files of the last run", (*_BOTH, "outcome"))
    for part in run.destinations:
        for outcome, number in _FILES:
            files.labels(job, printable(part.destination), outcome).set(number(part))
    return generate_latest(registry).decode()
