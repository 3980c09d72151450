"""Who is connected, asked of the worker processes over a socket of each, and the metrics of it.

Not here: what the processes count (../events.py). Read next: ../events.py.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from pscp.jobs.reports.report import columns, write_whole
from pscp.progress.progress import format_bytes, format_duration

_PATIENCE_S = 2.0
Found = dict[int, dict[str, Any]]  # what each worker has answered


@contextlib.contextmanager
def socket_path(state: str, worker: int) -> Iterator[str]:
    """Give the path of a worker's socket, which may be no longer than 107 bytes. Raises OSError."""
    folder = os.open(state, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/status-{worker}.sock"
    finally:
        os.close(folder)


def ask(state: str) -> Found:
    """Return what each worker process says that answers."""
    found: Found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(state):
            if number := re.fullmatch(r"status-(\d+)\.sock", name):
                worker = int(number[1])
                with contextlib.suppress(OSError, ValueError), socket_path(state, worker) as path:
                    found[worker] = _asked(path)
    return found


def _asked(path: str) -> dict[str, Any]:
    text = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PATIENCE_S)
        client.connect(path)
        while part := client.recv(1 << 16):
            text += part
    answer: dict[str, Any] = json.loads(text)
    return answer


def sessions(found: Found) -> list[dict[str, Any]]:
    """Return the connections of all workers, the longest first."""
    known = [each for its in found.values() for each in its["sessions"]]
    return sorted(known, key=lambda each: -float(each["seconds"]))


def table(found: Found) -> list[str]:
    """Return the lines of --status."""
    rows: list[tuple[str, ...]] = [("user", "address", "for", "rate", "received", "sent", "upload")]
    for each in sessions(found):
        uploads = [f"{path} {format_bytes(size)}" for path, size in each["uploads"]]
        rows.append(
            (
                each["user"] or "(no login yet)",
                each["address"],
                format_duration(each["seconds"]),
                f"{format_bytes(each['bytes_per_s'])}/s",
                format_bytes(each["received_bytes"]),
                format_bytes(each["sent_bytes"]),
                ", ".join(uploads),
            )
        )
    return columns(rows)


class Metrics:
    """The numbers for a monitor; what workers had counted that have ended is kept."""

    def __init__(self) -> None:
        self._last: dict[int, collections.Counter[tuple[str, str]]] = {}
        self._past = collections.Counter[tuple[str, str]]()

    def ended(self, worker: int) -> None:
        """Keep what a worker that has ended had counted; another begins at 0 in its place."""
        self._past.update(self._last.pop(worker, {}))

    def write(self, path: str, found: Found) -> None:
        """Replace the file of metrics in one step. Raises OSError."""
        from prometheus_client import generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for worker, its in found.items():
            self._last[worker] = collections.Counter(
                {(name, user): number for name, user, number in its["counters"]}
            )
        total = sum(self._last.values(), self._past.copy())
        counted = dict[str, dict[str, float]]()
        for (name, user), number in sorted(total.items()):
            counted.setdefault(name, {})[user] = number
        now, windows = collections.Counter[str](), collections.Counter[str]()
        for each in sessions(found):
            now[each["user"]] += 1
            windows[each["user"]] += each["window_bytes"]

        def family(kind: Any, name: str, what: str, numbers: Mapping[str, float]) -> Any:
            made = kind(f"pscp_serve_{name}", what, labels=["user"])
            for user, number in numbers.items():
                made.add_metric([user], number)
            return made

        families = [
            *(family(CounterMetricFamily, name, f"{name} since the start", numbers)
              for name, numbers in counted.items()),
            family(GaugeMetricFamily, "sessions", "connections now", now),
            family(GaugeMetricFamily, "window_bytes", "receive windows now", windows),
            GaugeMetricFamily("pscp_serve_workers", "worker processes that answer", len(found)),
        ]  # fmt: skip
        registry: Any = SimpleNamespace(collect=lambda: families)
        write_whole(path, generate_latest(registry).decode())
