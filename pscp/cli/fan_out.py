"""--fan-out: one copy to several destinations, on the command line, and what is shown meanwhile:
every destination with where its copy stands.

Not here: how it is done (../calls/deliveries.py), one copy (copy.py) and its display
(../progress/display.py, ../progress/progress.py).
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pscp.calls.deliveries import Delivery, fan_out
from pscp.cli.closing import closing_line, is_told, table
from pscp.cli.run_log import RunLog, run_log
from pscp.ground import log
from pscp.ground.counters import Counters, LiveCounters
from pscp.ground.locations import Location, placed
from pscp.ground.signals import raise_on_signals
from pscp.ground.terminal_text import is_progress_paused, is_terminal, printable, write_line
from pscp.options.options import Options
from pscp.progress.display import RichBar, style_of
from pscp.progress.progress import (
    CHANGES,
    JsonLines,
    Notes,
    Outcome,
    PlainLines,
    Rate,
    Reporter,
    Result,
    count,
    format_bytes,
    format_duration,
    what_became,
)
from pscp.progress.progress_words import Piece, describe, fit

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_BAR_COLUMNS = 12


class Row:
    """The state of the copy to one destination. Its copy's threads set what the display reads."""

    def __init__(self, place: Location) -> None:
        self.place = place
        self.counters: LiveCounters | None = None  # None: it waits for its turn
        self.end = ""  # how it ended
        self._rate = Rate()

    def describe(self, now_s: float) -> list[Piece]:
        """Return where it stands. For the display's thread."""
        if self.end:
            return [Piece(0, self.end)]
        if self.counters is None:
            return [Piece(0, "waiting for its turn")]
        now = self.counters.snapshot()
        if not (now.lanes_alive or now.connections_lost or now.bytes_done or now.bytes_resumed):
            return [Piece(0, "connecting")]
        rate = self._rate.per_s(now_s, now.bytes_done)
        first, second = describe(now, rate)
        return first + second

    @property
    def share(self) -> float:
        """How much of what is expected, else planned, has landed, from 0 to 1."""
        now = self.counters
        total_bytes = 0 if now is None else now.bytes_expected or now.bytes_total
        if now is None or not total_bytes:
            return 0.0
        return min((now.bytes_done + now.bytes_resumed) / total_bytes, 1.0)


class PrefixedNotes(Notes):
    """Notes and lines that name the destination they are about. Any thread may call."""

    def note_of(self, place: Location, text: str) -> None:
        """Show a note with its destination, unless it names that host; a hint stays below it."""
        names_it = text.startswith(("  ", place.prefix))
        self.note(text if names_it else f"{place.text}: {text}")

    def line_of(self, place: Location, text: str) -> None:
        self.line(f"{place.text}: {text}")

    def file_of(self, place: Location, path: str, became: str, digest: str) -> None:
        self.line(f"{became:<9} {place.text}: {path}")


class PlainRows(PrefixedNotes, PlainLines):
    """A line a second for each destination that is under way."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self._rows = rows

    def tick(self) -> None:
        for row in self._rows:
            if row.counters is not None and not row.end and not is_progress_paused():
                words = ", ".join(piece.text for piece in row.describe(self._clock()))
                write_line(self._err, f"{row.place.text}: {words}")


class JsonRows(JsonLines):
    """JsonLines of which every event has its destination."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self._rows = rows

    def tick(self) -> None:
        for row in self._rows:
            if row.counters is not None:
                self.event_of(row.place.text, "progress", self._counted(row.counters))

    def finish(self, result: Result | None) -> None:
        self.tick()

    def event_of(self, destination: str, event: str, values: dict[str, object]) -> None:
        self._event(event, {"destination": destination, **values})

    def note_of(self, place: Location, text: str) -> None:
        self.event_of(place.text, "note", {"text": text})

    def line_of(self, place: Location, text: str) -> None:
        self.event_of(place.text, "line", {"text": text})

    def file_of(self, place: Location, path: str, became: str, digest: str) -> None:
        self.event_of(place.text, "file", {"path": path, "became": became, "digest": digest})


class RichRows(PrefixedNotes, RichBar):
    """A bar for each destination, as many as the terminal has room for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self._rows = rows

    def _render(self, now: Counters, console: Console) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width, height = console.size
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=width // 3)
        table.add_column(width=_BAR_COLUMNS)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        rows = sorted(self._rows, key=lambda row: (bool(row.end), row.counters is None))
        shown = rows if len(rows) < height else rows[: max(height - 2, 1)]
        for row in shown:
            words = fit(row.describe(self._clock()), width - width // 3 - _BAR_COLUMNS - 2)
            name = Text(printable(row.place.text))
            table.add_row(name, ProgressBar(1.0, row.share), Text(printable(words)))
        if len(shown) < len(rows):
            table.add_row(Text(f"and {len(rows) - len(shown)} more"), "", "")
        return table


Display = PrefixedNotes | JsonRows


class RowReporter(Reporter):
    """The reporter of the copy to one destination."""

    is_live = True

    def __init__(self, row: Row, display: Display) -> None:
        self._row, self._display = row, display
        self.wants_files, self.names_copied = display.wants_files, display.names_copied
        self.sums_up = display.sums_up

    def start(self, counters: LiveCounters) -> None:
        self._row.counters = counters

    def note(self, text: str) -> None:
        self._display.note_of(self._row.place, text)

    def line(self, text: str) -> None:
        self._display.line_of(self._row.place, text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        if self.wants_files:
            self._display.file_of(self._row.place, path, what_became(outcome, is_new), digest)
        elif outcome in CHANGES:
            self.line(path)

    def stop(self, result: Result | None = None) -> None:
        if not self._row.end:
            failed = "failed" if result is None else "not everything was copied"
            differs = result is not None and result.differing
            is_good = result is not None and result.ok
            self._row.end = "done" if is_good else "it differs" if differs else failed


def make_display(options: Options, rows: Sequence[Row], *, is_terminal: bool) -> Display:
    """Return what shows a fan-out to these destinations."""
    style = style_of(options)
    display: Display = PrefixedNotes()
    if style == "json":
        display = JsonRows(rows)
    elif is_terminal and style in ("auto", "bar") and not options.dry_run:
        display = RichRows(rows)
    elif style in ("bar", "plain") and not options.dry_run:
        display = PlainRows(rows)
    display.wants_files, display.names_copied = options.itemize, options.verbose
    display.sums_up = is_terminal and style not in ("none", "json")
    return display


def run(
    sources: Sequence[Location],
    destinations: Sequence[Location],
    options: Options,
    max_hosts: int | None,
    words: Sequence[str],
) -> int:
    """Copy to all destinations; return the worst exit code."""
    rows = [Row(place) for place in destinations]
    display = make_display(options, rows, is_terminal=is_terminal(sys.stderr))
    by_name = {row.place.text: row for row in rows}
    with (
        raise_on_signals(),
        log.show_records(options.debug, display.note),
        run_log("pscp", words, options) as kept,
    ):
        display.start(LiveCounters(started_s=time.monotonic(), host="all"))
        try:
            found = fan_out(
                sources,
                destinations,
                options=options,
                max_hosts=max_hosts,
                keep_digests=False,
                raises=False,
                reporter=lambda name: kept.of(RowReporter(by_name[name], display)),
            )
        finally:
            display.stop(None)
        conclude(found, options, display, kept)
    return max(each.exit_code for each in found)


def conclude(found: Sequence[Delivery], options: Options, display: Display, log_: RunLog) -> None:
    """Say of each destination what became of it and what it cost, and of all together."""
    is_shown = is_told(options)
    for each in found:
        for text in told(each, options):
            log_.write(text)
            if is_shown or each.error is not None:
                write_line(sys.stderr, text)
        if options.stats and each.result is not None:
            for text in table(each.result, options):
                write_line(sys.stderr, text)
        if isinstance(display, JsonRows):
            display.event_of(each.destination, "end", each.as_dict())
    text = together(found, stats=options.stats)
    log_.write(text)
    if is_shown:
        write_line(sys.stderr, text)


def told(delivery: Delivery, options: Options) -> list[str]:
    """Return the line, or the lines, about one destination."""
    if delivery.error is not None:
        hint = [f"      {delivery.error.hint}"] if delivery.error.hint else []
        return [f"pscp: {placed(delivery.error.message, delivery.destination)}", *hint]
    assert delivery.result is not None
    text = closing_line(delivery.result, options, delivery.destination)
    if options.stats:
        cost = f"{format_bytes(delivery.bytes_read)} read for it, {delivery.cpu_s:.2f} s of CPU"
        text += f"; {cost}"
    if options.check or options.dry_run or options.transfer_test:  # that line names no place
        return [f"{delivery.destination}: {text}"]
    return [text]


def together(found: Sequence[Delivery], *, stats: bool) -> str:
    """Return what became of all destinations, and with `stats` what they cost this machine."""
    good = sum(each.ok for each in found)
    seconds = max((each.seconds for each in found), default=0.0)
    text = f"{good} of {count(len(found), 'destination')} complete in {format_duration(seconds)}"
    if not stats:
        return text
    read_bytes = sum(each.bytes_read for each in found)
    here, below = (
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    cost = f"{format_bytes(read_bytes)} read, CPU here: {here:.2f} s pscp, {below:.2f} s ssh"
    return f"{text}; {cost}"
