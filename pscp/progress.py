"""What a copy counts, what it returns, and the reporters that show it.

A reporter gets the Counters once and reads them from a thread of its own while the lanes add to
them. Its methods get notes (failures, warnings) and lines (a dry run's list) only. One that cannot
write any more falls silent; it never ends a copy, and a note never waits.

Not here: the numbers (counters.py), who counts (transfer/coordinator.py), the closing words
(cli/copy.py), records for who looks for a cause (log.py), a program's own functions but for
`progress` (callbacks.py), and how a line is written (terminal_text.py).
Read next: transfer/journal.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from pscp import errors, terminal_text
from pscp.counters import Counters as Counters
from pscp.options import Options
from pscp.terminal_text import printable, write_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

NO_CIPHER = "sent without a cipher (--plane plain)"  # in summaries
# What became of a file: "copied" has its final name, "unchanged" was there already, and the same,
# "skipped" was left out by --update and the like.
Outcome = Literal["copied", "unchanged", "skipped", "failed"]
RATE_WINDOW_S = 10.0  # long enough to be steady, short enough to show a lane that died


@dataclass(frozen=True)
class Failure:
    """One file that was not copied."""

    path: str
    error: str  # the name of its class in errors.py
    message: str
    hint: str = ""

    @property
    def retry(self) -> bool:
        """True if the same copy may succeed later, with nothing changed by anybody."""
        return bool(getattr(errors, self.error).retry)


@dataclass(frozen=True)
class Result:
    """What a copy did."""

    files: int = 0  # copied in this run
    files_resumed: int = 0  # there already, and verified
    files_skipped: int = 0  # left out by update
    bytes: int = 0  # of all files that are good at the destination
    bytes_sent: int = 0
    bytes_resumed: int = 0
    chunks_verified: int = 0
    chunks_resent: int = 0
    verified: bool = True  # what landed was compared with what was read
    connections: int = 0  # most at once
    connections_lost: int = 0
    plane: str = "ssh"  # what carried the lanes: ssh, tls or plain
    seconds: float = 0.0
    digests: dict[str, str] = field(default_factory=dict, hash=False)  # SHA-256s; with strong
    failures: tuple[Failure, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no file failed."""
        return not self.failures


class Reporter(Protocol):
    """Shows a copy. Any thread may call the methods; stop() may be called more than once."""

    @property
    def wants_files(self) -> bool:
        """Whether file() is to be called. It holds for a whole copy."""
        return False

    def start(self, counters: Counters) -> None:
        """The copy begins; `counters` say at any time where it stands."""

    def note(self, text: str) -> None:
        """Show a failure or a warning: "PATH: what happened"."""

    def line(self, text: str) -> None:
        """Show a line of output that was asked for, such as a dry run's."""

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        """A file or a link has come to its end; one call at a time, in the order of what is done.

        `path` is the one below the destination, `digest` the SHA-256 in hex (with strong, of what
        is copied or unchanged), else "". `is_new` is False where it replaced one.
        """

    def stop(self, result: Result | None = None) -> None:
        """The copy is over; without a result it raised an exception."""


def make_reporter(options: Options, is_terminal: bool) -> Reporter:
    """Return the reporter for a command line. `is_terminal`: stderr, where a bar goes, is one."""
    style = "none" if options.quiet else options.progress
    if style == "json":
        return JsonLines()
    if options.dry_run:
        return Notes()
    if is_terminal and style in ("auto", "bar"):
        return RichBar()
    return PlainLines() if style in ("bar", "plain") else Notes()


class Silent:
    """Shows nothing: the reporter of a program that names no other."""

    wants_files = False

    def start(self, counters: Counters) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        pass

    def stop(self, result: Result | None = None) -> None:
        pass


class Notes(Silent):
    """Notes on stderr, lines on stdout, and no progress."""

    def __init__(self, err: TextIO | None = None, out: TextIO | None = None) -> None:
        self._err = err or sys.stderr
        self._out = out or sys.stdout
        self._notes = terminal_text.Notes(self._write_note)

    def note(self, text: str) -> None:
        self._notes.add(text)

    def stop(self, result: Result | None = None) -> None:
        self._notes.flush()

    def _write_note(self, text: str) -> None:
        write_line(self._err, f"pscp: {text}")

    def line(self, text: str) -> None:
        write_line(self._out, text)


class Ticking(Notes):
    """Calls its own tick() from a thread, from start() until stop()."""

    period_s = 1.0

    def __init__(
        self,
        err: TextIO | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(err, out)
        self._clock = clock
        self._counters = Counters()
        self._rate = Rate()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, counters: Counters) -> None:
        self._counters = counters
        self._rate = Rate()
        self._rate.per_s(self._clock(), counters.bytes_done)
        self._end.clear()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def stop(self, result: Result | None = None) -> None:
        super().stop(result)
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        self._thread = None  # last, so that a stop() that a signal cut short can be called again
        self.finish(result)

    def tick(self) -> None:
        """Show where the copy stands."""

    def finish(self, result: Result | None) -> None:
        """Show the end of the copy, after the last tick."""

    def _run(self) -> None:
        while not self._end.wait(self.period_s):
            self.tick()

    def _describe(self) -> tuple[list[str], list[str]]:
        now = self._counters.snapshot()
        return describe(now, self._rate.per_s(self._clock(), now.bytes_done))


class PlainLines(Ticking):
    """Notes, and a line of progress a second on stderr: for a pipe or a log."""

    def tick(self) -> None:
        first, second = self._describe()
        if not terminal_text.is_progress_paused():
            write_line(self._err, ", ".join(first + second))


class JsonLines(Ticking):
    """Everything as one JSON object a line on stdout, for a program that reads it.

    The events are "progress", "note", "line" and "end". JSON in ASCII holds neither control
    characters nor surrogates, so names are whole and nothing is left to escape.
    """

    def _write_note(self, text: str) -> None:
        self._event("note", {"text": text})

    def line(self, text: str) -> None:
        self._notes.flush()
        self._event("line", {"text": text})

    def tick(self) -> None:
        now = self._counters.snapshot()
        counted = now.as_dict()
        del counted["started_s"]
        elapsed_s = self._clock() - now.started_s
        self._event("progress", {"elapsed_s": round(elapsed_s, 3), **counted})

    def finish(self, result: Result | None) -> None:
        self.tick()
        ok = result is not None and result.ok
        self._event("end", {"ok": ok, **(asdict(result) if result else {})})

    def _event(self, event: str, values: dict[str, object]) -> None:
        write_line(self._out, json.dumps({"event": event, **values}))


class CallbackReporter(Ticking):
    """Calls a program's function ten times a second and once at the end, one call at a time.

    An exception of the function ends the calls; `end` gets it, and stop() raises it again.
    """

    period_s = 0.1

    def __init__(
        self,
        callback: Callable[[Counters], object],
        inner: Reporter | None = None,
        end: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        super().__init__()
        self._callback, self._end_copy = callback, end
        self._inner = inner or Silent()
        self.wants_files = self._inner.wants_files
        self._raised: BaseException | None = None

    def start(self, counters: Counters) -> None:
        self._inner.start(counters)
        super().start(counters)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def line(self, text: str) -> None:
        self._inner.line(text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        self._inner.file(path, outcome, digest, is_new)

    def tick(self) -> None:
        if self._raised is None:
            try:
                self._callback(self._counters.snapshot())
            except BaseException as error:
                self._raised = error
                self._end_copy(error)

    def finish(self, result: Result | None) -> None:
        self._inner.stop(result)
        self.tick()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised


class RichBar(Ticking):
    """A bar on a terminal, with notes above it.

    It shows once a lane is up, so that ssh can ask for a password on a clean screen before that;
    it goes away at the end.
    """

    period_s = 0.1
    _live: Live | None = None

    def start(self, counters: Counters) -> None:
        from rich.console import Console  # here: it takes longer to import than --help to print
        from rich.live import Live

        class Screen(Console):
            def on_broken_pipe(self) -> None:  # rich would end the program
                self.quiet = True

        self._live = Live(
            console=Screen(file=self._err, force_terminal=True),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        super().start(counters)

    def tick(self) -> None:
        live, now = self._live, self._counters.snapshot()
        if live is None or not (live.is_started or now.lanes_alive or now.bytes_resumed):
            return
        if terminal_text.is_progress_paused():
            return
        with contextlib.suppress(OSError, ValueError):  # the terminal went away
            live.start()
            live.update(self._render(now), refresh=True)

    def _write_note(self, text: str) -> None:
        live = self._live
        if live is None or not live.is_started:
            super()._write_note(text)
            return
        with contextlib.suppress(OSError, ValueError):
            live.console.out(f"pscp: {printable(text)}", highlight=False)

    def finish(self, result: Result | None) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):
                live.stop()

    def _render(self, now: Counters) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        first, second = self._describe()
        total = max(now.bytes_total, 1) if now.plan_complete else None
        bar = ProgressBar(total, now.bytes_done + now.bytes_resumed, pulse=total is None)
        top = Table.grid(expand=True, padding=(0, 1))
        top.add_column(ratio=1)
        top.add_column(no_wrap=True, overflow="ellipsis")
        top.add_row(bar, Text(", ".join(first)))
        return Group(top, Text(", ".join(second), no_wrap=True, overflow="ellipsis"))


class Rate:
    """Computes bytes a second over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def per_s(self, now_s: float, bytes_done: int) -> float:
        """Record how many bytes are done now; return the bytes a second."""
        samples = self._samples
        samples.append((now_s, bytes_done))
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_WINDOW_S:
            samples.popleft()
        passed_s = now_s - samples[0][0]
        return max(0.0, bytes_done - samples[0][1]) / passed_s if passed_s > 0 else 0.0


def describe(now: Counters, bytes_per_s: float) -> tuple[list[str], list[str]]:
    """Return where a copy stands, in words: amount, rate, time left; then files, lanes, rest."""
    there = now.bytes_done + now.bytes_resumed
    first = [format_bytes(there), f"{format_bytes(bytes_per_s)}/s"]
    if now.bytes_total:
        first[0] += f" of {format_bytes(now.bytes_total)}{'' if now.plan_complete else '+'}"
    is_out = now.connections_lost > 0 and now.lanes_alive == 0 and now.left_bytes > 0
    if now.plan_complete and bytes_per_s >= 1 and now.left_bytes > 0 and not is_out:
        first.append(f"{format_duration(now.left_bytes / bytes_per_s)} left")
    finished = now.files_done + now.files_resumed + now.files_skipped
    second = [
        *([f"{finished} of {count(now.files_total, now.nouns[0])}"] if now.files_total else []),
        "connection lost, trying again"
        if is_out
        else f"{now.lanes_alive} of {count(max(now.lanes_wanted, now.lanes_alive), now.nouns[1])}",
    ]
    if now.bytes_resumed:
        second.append(f"{format_bytes(now.bytes_resumed)} resumed")
    if now.files_failed:
        second.append(f"{now.files_failed} failed")
    return first, second


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_bytes(number: float) -> str:
    """Return bytes in powers of 1000, as links' rates and disks' sizes are: "268.4 MB"."""
    if number < 999.5:
        return f"{number:.0f} B"
    power = 1
    while number / 1000**power >= 999.95 and power < 6:  # what rounds to 1000.0 is 1.0 of the next
        power += 1
    return f"{number / 1000**power:.1f} {'kMGTPE'[power - 1]}B"


def format_duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole_s} s"
