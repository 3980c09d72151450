"""Runs of jobs in words: dates, ages, what was copied, why files failed, columns of text. Pure.

Not here: numbers and sizes (../progress_words.py), the reports made of these words (report.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pscp.jobs.outcome import CommandRun, DestinationRun, JobRun, Outcome
from pscp.progress import Failure, count, format_bytes, format_duration
from pscp.terminal_text import printable

LINES_SHOWN = 10  # of what a command wrote
NAMES_SHOWN = 3  # of the files that failed for one reason
GOOD = (Outcome.DONE, Outcome.NOTHING)
# Each outcome's sign and, for its colour, class. The signs differ, so that no colour is needed.
SIGNS = {
    Outcome.DONE: ("\N{CHECK MARK}", "good"),
    Outcome.NOTHING: ("\N{MIDDLE DOT}", "idle"),
    Outcome.LOCKED: ("=", "idle"),
    Outcome.CUT: ("\N{BLACK SCISSORS}\N{VARIATION SELECTOR-15}", "cut"),
    Outcome.UNREACHABLE: ("?", "bad"),
    Outcome.FAILED: ("\N{MULTIPLICATION X}", "bad"),
    Outcome.MISCONFIGURED: ("!", "bad"),
}


class Kind(NamedTuple):
    """Files that failed for one reason."""

    message: str
    number: int
    names: tuple[str, ...]  # the first of them
    hint: str

    @property
    def text(self) -> str:
        """For example: No space left on device (5): a, b, c, and 2 more."""
        more = (
            f", and {self.number - len(self.names)} more" if self.number > len(self.names) else ""
        )
        return f"{self.message} ({self.number}): {', '.join(self.names)}{more}"


def kinds(failures: Iterable[Failure]) -> list[Kind]:
    """Return why files failed, the reason for most of them first."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        found.setdefault((each.error, each.message), []).append(each)
    made = (
        Kind(
            printable(message),
            len(those),
            tuple(printable(each.path) for each in those[:NAMES_SHOWN]),
            printable(next((each.hint for each in those if each.hint), "")),
        )
        for (_, message), those in found.items()
    )
    return sorted(made, key=lambda kind: -kind.number)


def copied(part: DestinationRun) -> str:
    """Return, for example: 298 copied, 12 there already, 2 failed, 4.1 GB in 10 min 2 s (6.8 MB/s).

    The rate is of what was sent.
    """
    sent = f"{format_bytes(rate(part))}/s" if part.bytes_sent else ""
    texts = [
        f"{part.files} copied",
        f"{part.files_unchanged} there already" if part.files_unchanged else "",
        f"{len(part.failures)} failed" if part.failures else "",
        f"{format_bytes(part.bytes)} in {format_duration(part.seconds)}{f' ({sent})' * bool(sent)}",
        f"connected again {count(part.connections_lost, 'time')}" if part.connections_lost else "",
        f"{count(part.chunks_resent, 'chunk')} sent again" if part.chunks_resent else "",
        f"{part.attempts} attempts" if part.attempts > 1 else "",
        "" if part.verified else "not verified",
    ]
    return ", ".join(filter(None, texts))


def rate(part: DestinationRun) -> float:
    """Return the bytes that were sent in a second."""
    return part.bytes_sent / part.seconds if part.seconds > 0 else 0.0


def left(run: JobRun) -> str:
    """Return what was left for the next run; "" for nothing."""
    if not run.files_waiting:
        return ""
    return f"{count(run.files_waiting, 'file')} left for the next run: still being written, or new"


def said(ran: CommandRun) -> list[str]:
    """Return the last lines that a command has written, as they stand in a report."""
    return [f"    | {line}" for line in ran.output.splitlines()[-LINES_SHOWN:]]


def date(epoch_s: float) -> str:
    """Return local time, for example: 2026-11-23 02:00; "-" for a time that no clock shows."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_s))
    except (OverflowError, ValueError, OSError):
        return "-"


def age(seconds: float) -> str:
    """Return, for example: 3 days, 5 h, 12 min; 0 min for what a clock set back puts ahead."""
    minutes = int(max(seconds, 0.0)) // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 60 // 24} days"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns, made printable."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
