"""The bar on a terminal, and which reporter shows a command's copy.

Not here: the other reporters (progress.py), the words (progress_words.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from pscp.ground import terminal_text
from pscp.ground.counters import Counters, LiveCounters
from pscp.ground.terminal_text import is_terminal, printable
from pscp.options.options import Options
from pscp.progress.progress import (
    JsonLines,
    Notes,
    PlainLines,
    Rate,
    Reporter,
    Result,
    Ticking,
    prefixed,
)
from pscp.progress.progress_words import fit, format_duration, lane_rates, under_way

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_TALL = 16  # lines of a terminal that has room for the names of files
_FILES_MOST = 4  # that are named at once
_BAR_COLUMNS = 10  # of the bar itself, at least
_WIDE = 100  # columns of a terminal that has room for the rate of each lane


def make_reporter(options: Options, is_terminal: bool, name: str = "pscp") -> Reporter:
    """Return the reporter for a command line. `is_terminal`: stderr, where a bar goes, is one.

    `name` is the command's, which goes before each note.
    """
    reporter = _of_style(options, is_terminal)
    reporter.name = name
    reporter.sums_up = is_terminal and not options.quiet and options.progress != "json"
    reporter.wants_files, reporter.names_copied = options.itemize, options.verbose
    return reporter


def style_of(options: Options) -> str:
    """Return the style of --progress; -q silences text, and not the JSON that is asked for."""
    return "none" if options.quiet and options.progress != "json" else options.progress


def _of_style(options: Options, is_terminal: bool) -> Notes:
    style = style_of(options)
    if style == "json":
        return JsonLines()
    if options.dry_run and not options.check:  # which reads what it compares
        return Notes()
    if is_terminal and style in ("auto", "bar"):
        return RichBar()
    return PlainLines() if style in ("bar", "plain") else Notes()


class RichBar(Ticking):
    """A bar on a terminal, with notes above it, and on a tall one the large files under way; on a
    wide one, or where that is asked for, the rate of each lane.

    Before the first lane is up it says where it connects to. It goes away at the end, and while
    a person types an answer.
    """

    period_s = 0.1

    def __init__(
        self,
        err: TextIO | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(err, out, clock)
        self._lock = threading.RLock()  # guards what follows, and the terminal
        self._live: Live | None = None
        self._is_over = True
        self._lanes: list[Rate] = []

    def start(self, counters: LiveCounters) -> None:
        self._is_over = False
        terminal_text.clear_before_typing(self._clear)
        super().start(counters)

    def tick(self) -> None:
        now = self._counters.snapshot()
        if not (self._live or now.host or now.lanes_alive or now.bytes_resumed):
            return
        with self._lock:
            if self._is_over or terminal_text.is_progress_paused():
                return
            with contextlib.suppress(OSError, ValueError):  # the terminal went away
                self._live = live = self._live or self._new_live()
                live.start()
                live.update(self._render(now, live.console), refresh=True)

    def _new_live(self) -> Live:
        # Here: it takes longer to import than --help to print.
        from rich.console import Console, ConsoleDimensions
        from rich.live import Live

        class Screen(Console):
            @property  # type: ignore[misc]  # nobody sets it
            def size(self) -> ConsoleDimensions:
                """Leave room behind the last line, where the terminal shows a typed ^C."""
                width, height = super().size
                return ConsoleDimensions(max(1, width - len("^C")), height)

            def on_broken_pipe(self) -> None:  # rich would end the program
                self.quiet = True

        return Live(
            console=Screen(file=self._err, force_terminal=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _write_note(self, text: str) -> None:
        with self._lock:
            live = self._live
            if live is None or not live.is_started:
                super()._write_note(text)
                return
            with contextlib.suppress(OSError, ValueError):
                live.console.out(printable(prefixed(text, self.name)), highlight=False)

    def line(self, text: str) -> None:
        with self._lock:
            if is_terminal(self._out or sys.stdout):  # the next tick draws the bar below it
                self._clear()
            super().line(text)

    def finish(self, result: Result | None) -> None:
        terminal_text.clear_before_typing(None)
        with self._lock:
            self._is_over = True
            self._clear()

    def _clear(self) -> None:
        """Take what is shown off the terminal."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()

    def _render(self, now: Counters, console: Console) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        def line(text: str) -> Text:
            return Text(printable(text), no_wrap=True, overflow="ellipsis")

        begun = now.lanes_alive, now.connections_lost, now.bytes_done, now.bytes_resumed
        if not any(begun) and not now.is_hashing:
            passed = format_duration(self._elapsed_s(now))
            return line(f"connecting to {now.host} ({passed})")
        first, second = self._describe(now)
        width, height = console.size
        total, done = _amounts(now)
        bar = ProgressBar(total, done, pulse=total is None)
        top = Table.grid(expand=True, padding=(0, 1))
        top.add_column(ratio=1)
        top.add_column(no_wrap=True, overflow="ellipsis")
        top.add_row(bar, line(fit(first, width - _BAR_COLUMNS)))
        lines = _FILES_MOST if height >= _TALL else 0
        files = under_way([*now.large.values()], lines, width)
        has_rates = (self.wants_files or width >= _WIDE) and not now.is_hashing  # the former: -vv
        rates = self._rates() if has_rates else []
        lanes = [lane_rates(rates, width)] if rates else []
        return Group(top, *map(line, [fit(second, width), *lanes, *files]))

    def _rates(self) -> list[float | None]:
        """Return the bytes a second of each lane; None for one that is not up."""
        moved, now_s = self._counters.lanes_moved(), self._clock()
        self._lanes += [Rate() for _ in moved[len(self._lanes) :]]
        rates = zip(self._lanes, moved, strict=False)
        return [None if done is None else rate.per_s(now_s, done) for rate, done in rates]


def _amounts(now: Counters) -> tuple[int | None, int]:
    """Return the bytes of the bar, None where they are not known, and those that are done."""
    if now.is_hashing:
        return max(now.bytes_to_hash, 1), now.bytes_hashed
    is_known = now.plan_complete or now.files_counted
    return max(now.bytes_expected, 1) if is_known else None, now.bytes_done + now.bytes_resumed
