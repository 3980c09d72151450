"""Runs of jobs in words: signs, dates, what was copied, columns of text. Pure.

Not here: numbers and sizes (../progress_words.py), the reports made of these words (report.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from pscp.jobs.outcome import DestinationRun, Outcome
from pscp.progress import count, format_bytes, format_duration
from pscp.terminal_text import printable

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


def copied(part: DestinationRun) -> str:
    """Return, for example: 298 copied, 12 there already, 2 failed, 4.1 GB in 10 min 2 s (6.8 MB/s).

    The rate is of what was sent.
    """
    rate = f" ({format_bytes(part.bytes_per_s)}/s)" if part.bytes_sent else ""
    texts = [
        f"{part.files} copied",
        f"{part.files_unchanged} there already" if part.files_unchanged else "",
        f"{part.files_failed} failed" if part.files_failed else "",
        f"{format_bytes(part.bytes)} in {format_duration(part.seconds)}{rate}",
        f"connected again {count(part.connections_lost, 'time')}" if part.connections_lost else "",
        f"{count(part.chunks_resent, 'chunk')} sent again" if part.chunks_resent else "",
        f"{part.attempts} attempts" if part.attempts > 1 else "",
        "" if part.verified else "not verified",
    ]
    return ", ".join(filter(None, texts))


def date(epoch_s: float | None) -> str:
    """Return local time, for example: 2026-11-23 02:00; "-" for none that a clock shows."""
    if epoch_s is not None:
        with contextlib.suppress(OverflowError, ValueError, OSError):
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_s))
    return "-"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns, made printable."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
