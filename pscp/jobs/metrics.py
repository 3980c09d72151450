"""A job's last run as numbers for a monitor: a file for node_exporter's textfile collector.

`metrics` of a job names the collector's folder, where each job has a file of its own, so that jobs
that run at once do not lose each other's numbers; or one file, which is then that job's alone. The
age of the last success is the monitor's time() less pscp_job_last_success_timestamp_seconds: an
age in the file would stand still when pscp-run does not run any more. Prometheus, which has a
label "job" of its own, shows this one as exported_job.

Not here: how the numbers came to be (outcome.py).
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pscp.jobs.outcome import JobRun
from pscp.jobs.report import write_whole
from pscp.terminal_text import printable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def write(metrics: str, run: JobRun, last_success_s: Mapping[str, float | None]) -> None:
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
        if success_s is not None:
            what = "When a destination last had everything"
            put("last_success_timestamp_seconds", what, success_s, destination=to)
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
        one("files", "", part.files_failed, outcome="failed")
    return registry
