"""The counts of a copy, its result, and the reporters that show both in lines.

A reporter gets the LiveCounters once and reads them from a thread of its own while the lanes add to
them. Its methods get notes (failures, warnings) and lines (a dry run's list) only. One that cannot
write any more falls silent; it never ends a copy, and a note never waits.

Not here: the numbers (../ground/counters.py), who counts (../transfer/coordinator.py), the words
(progress_words.py), the bar (display.py), the closing words (../cli/closing.py), records for who
looks for a cause (../ground/log.py), a program's own functions but for `progress` (callbacks.py),
and how a line is written (../ground/terminal_text.py).
Read next: ../transfer/terms/journal.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal, TextIO, TypeVar

from pscp.ground import errors, terminal_text
from pscp.ground.contexts import with_context
from pscp.ground.counters import Counters as Counters
from pscp.ground.counters import LiveCounters as LiveCounters
from pscp.ground.counters import WorkerTotals as WorkerTotals
from pscp.ground.terminal_text import printable, write_line, write_text
from pscp.options.keywords import said
from pscp.progress.progress_words import Piece, describe
from pscp.progress.progress_words import Rate as Rate
from pscp.progress.progress_words import count as count
from pscp.progress.progress_words import format_bytes as format_bytes
from pscp.progress.progress_words import format_duration as format_duration
from pscp.progress.progress_words import of_worker as of_worker

NO_CIPHER = "sent without a cipher (--plane plain)"  # in summaries
# What became of a file: "copied" has its final name, "unchanged" was there already, and the same,
# "metadata" as well, but for its metadata, which it was given,
# "linked" is a name of a file in another folder (--link-dest), "skipped" was left out by --update
# and the like, "different" would be copied (--check, --dry-run).
Outcome = Literal["copied", "unchanged", "metadata", "linked", "skipped", "failed", "different"]
CHANGES: tuple[Outcome, ...] = ("copied", "metadata")  # which -v names


@dataclass(frozen=True)
class Failure:
    """One file that was not copied."""

    path: str
    error: str  # the name of its class in ../ground/errors.py
    message: str
    hint: str = ""
    errno: int = 0  # what the operating system said, as errno.ENOSPC; 0: it said nothing

    @property
    def retry(self) -> bool:
        """True if the same copy may succeed later, with nothing changed by anybody."""
        return bool(getattr(errors, self.error).retry)


@dataclass(frozen=True)
class Result:
    """The result of a copy."""

    files: int = 0  # copied in this run; with dry_run, that would be
    files_resumed: int = 0  # there already, and verified
    files_unchanged: int = 0  # there already, of the same size and time; not read
    files_linked: int = 0  # made names of unchanged files in other folders, with link_dest
    files_skipped: int = 0  # left out by update, existing or ignore_existing
    files_left_out: int = 0  # by size or age, or as they are FIFOs, sockets or devices
    files_deleted: int = 0  # at the destination, folders too
    not_deleted: str = ""  # why a mirror deleted nothing, where no failure says it
    metadata_set: int = 0  # files and folders there already that got other metadata
    files_removed: int = 0  # at the source, with remove_source_files
    differing: int = 0  # with check: what differs, or is not at the destination
    bytes: int = 0  # sent, gone on with or compared; not of holes, nor of what is unchanged
    bytes_sent: int = 0
    bytes_resumed: int = 0
    chunks_verified: int = 0
    chunks_resent: int = 0
    verified: bool = True  # what landed was compared with what was read
    connections: int = 0  # most at once
    connections_lost: int = 0
    hosts_left_out: int = 0  # of a location's hosts, those that gave no lanes
    workers: tuple[WorkerTotals, ...] = ()  # of a cluster
    plane: str = "ssh"  # what carried the lanes: ssh, tls or plain
    seconds: float = 0.0
    manifest_seconds: float = 0.0  # that the hashing for the manifest took, after those
    digests: dict[str, str] = field(default_factory=dict, hash=False)  # SHA-256s; with strong
    failures: tuple[Failure, ...] = ()
    failures_unlisted: int = 0  # for which `failures` had no room
    root: str = ""  # the folder at the destination that the paths are below; "": nothing was there

    @property
    def ok(self) -> bool:
        """True if no file failed and, with check, none differs."""
        return not (self.failures or self.differing)

    def as_dict(self) -> dict[str, object]:
        """Return `ok` and the fields, of what json.dumps() takes: the end event's of JSON."""
        return {"ok": self.ok, **asdict(self)}


def count_failed(result: Result) -> int:
    """Return how many failures a copy had, those included that its result has no room for."""
    return len(result.failures) + result.failures_unlisted


def problem_of(result: Result) -> errors.FilesFailed | None:
    """Return the error of a copy in which files failed, about the first of them; else None."""
    if not result.failures:
        return None
    first, more = result.failures[0], count_failed(result) - 1
    rest = f", and {more} more" if more else ""
    message = f"{first.path}: {first.message}{rest}" if first.path else first.message + rest
    return errors.FilesFailed(message, said(first.hint), result=result)


AnyResult = TypeVar("AnyResult", bound=Result)


def checked(result: AnyResult) -> AnyResult:
    """Return the result of a copy. Raises FilesFailed where files failed."""
    problem = problem_of(result)
    if problem is not None:
        raise problem
    return result


class Reporter:
    """Shows a copy; by itself nothing: the reporter of a program that names no other.

    Any thread may call the methods; stop() may be called more than once.
    """

    is_live = False  # does somebody watch, so that a failure is shown before others are counted?
    # May one line stand for many failures: on a terminal, where many lines push each other out of
    # sight? Elsewhere each file that failed is named.
    sums_up = True
    wants_files = False  # is file() to be called? It holds for a whole copy
    names_copied = False  # is file() to be called of what is copied alone, at least?

    def start(self, counters: LiveCounters) -> None:
        """The copy begins; `counters` say at any time where it stands."""

    def note(self, text: str) -> None:
        """Show a failure or a warning: "PATH: what happened"."""

    def failed(self, text: str, is_sum: bool) -> None:
        """Show a line on what failed: what fails is told by lines that may stand for several files
        (`is_sum`), and once more by a line for each.
        """
        if is_sum is self.sums_up:
            self.note(text)

    def line(self, text: str) -> None:
        """Show a line of output that was asked for, such as a dry run's."""

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        """A file or a link has come to its end; one call at a time, in the order of what is done.

        Where copied names are wanted, also: a folder was made, or was there and got another mode or
        owner, and `path` ends in "/".

        `path` is the one below the destination, `digest` the SHA-256 in hex (with strong, of what
        is copied or unchanged), else "". `is_new` is False where it replaced one.
        """

    def differs(self, path: str, why: str, is_new: bool) -> None:
        """Tell of a file that a dry run or a check finds to differ; people see it by line()."""

    def gone(self, text: str) -> None:
        """Tell of what was deleted at the destination, or removed at the source, where copied names
        are wanted; people see the former by line().
        """

    def stop(self, result: Result | None = None) -> None:
        """The copy is over; without a result it raised an exception."""


Silent = Reporter


class Passing(Reporter):
    """Passes everything on to another reporter."""

    def __init__(self, inner: Reporter) -> None:
        self._inner = inner
        self.is_live, self.wants_files = inner.is_live, inner.wants_files
        self.names_copied, self.sums_up = inner.names_copied, inner.sums_up

    def start(self, counters: LiveCounters) -> None:
        self._inner.start(counters)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def failed(self, text: str, is_sum: bool) -> None:
        self._inner.failed(text, is_sum)

    def line(self, text: str) -> None:
        self._inner.line(text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        if self._inner.wants_files or self._inner.names_copied:
            self._inner.file(path, outcome, digest, is_new)

    def differs(self, path: str, why: str, is_new: bool) -> None:
        self._inner.differs(path, why, is_new)

    def gone(self, text: str) -> None:
        self._inner.gone(text)

    def stop(self, result: Result | None = None) -> None:
        self._inner.stop(result)


class Notes(Reporter):
    """Notes on stderr, lines on stdout, and no progress."""

    name = "pscp"  # the command's, before each note; set before it starts
    sums_up = False  # set before it starts

    def __init__(self, err: TextIO | None = None, out: TextIO | None = None) -> None:
        self._err = err or sys.stderr
        self._out = out
        self._notes = terminal_text.Notes(self._write_note)

    def note(self, text: str) -> None:
        self._notes.add(text)

    def stop(self, result: Result | None = None) -> None:
        self._notes.flush()

    def _write_note(self, text: str) -> None:
        write_line(self._err, prefixed(text, self.name))

    def line(self, text: str) -> None:
        self._write_out(text)

    def _write_out(self, text: str) -> None:
        write_text(printable(text) + "\n", self._out or sys.stdout)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        if self.wants_files:
            self.line(f"{what_became(outcome, is_new):<9} {path}")
        elif outcome in CHANGES:
            self.line(path)


class Ticking(Notes):
    """Calls its own tick() from a thread, from start() until stop()."""

    is_live = True
    period_s = 1.0

    def __init__(
        self,
        err: TextIO | None = None,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(err, out)
        self._clock = clock
        self._counters = LiveCounters()
        self._typed_before_s = 0.0
        self._rate, self._is_hashing = Rate(), False
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._out_s: float | None = None  # when the last connection was lost
        self._arrived, self._arrived_s = (-1, -1, -1), 0.0  # what has, and since when

    def start(self, counters: LiveCounters) -> None:
        self._counters = counters
        self._typed_before_s = terminal_text.typed_s()
        self._rate, self._is_hashing = Rate(), False
        self._rate.per_s(self._clock(), counters.bytes_done)
        self._end.clear()
        self._thread = threading.Thread(
            target=with_context(self._run), name="progress", daemon=True
        )
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

    def _elapsed_s(self, now: Counters) -> float:
        """Return the seconds since the copy began, but for those in which a person typed."""
        typed_s = terminal_text.typed_s() - self._typed_before_s
        return max(0.0, self._clock() - now.started_s - typed_s)

    def _describe(self, now: Counters) -> tuple[list[Piece], list[Piece]]:
        time_s = self._clock()
        if now.lanes_alive or not now.connections_lost:
            self._out_s = None
        elif self._out_s is None:
            self._out_s = time_s
        arrived = now.bytes_done, now.bytes_resumed, now.files_done
        if arrived != self._arrived:
            self._arrived, self._arrived_s = arrived, time_s
        if now.is_hashing and not self._is_hashing:
            self._rate, self._is_hashing = Rate(), True
        return describe(
            now,
            self._rate.per_s(time_s, now.bytes_hashed if now.is_hashing else now.bytes_done),
            self._elapsed_s(now),
            out_s=0 if self._out_s is None else time_s - self._out_s,
            still_s=time_s - self._arrived_s,
        )


class PlainLines(Ticking):
    """Notes, and a line of progress a second on stderr: for a pipe or a log."""

    def tick(self) -> None:
        first, second = self._describe(self._counters.snapshot())
        if not terminal_text.is_progress_paused():
            write_line(self._err, ", ".join(piece.text for piece in first + second))


class JsonLines(Ticking):
    """Everything as one JSON object a line on stdout, for a program that reads it.

    The events are "progress", "note", "line", "file" (with -vv) and "end". JSON in ASCII holds
    neither control characters nor surrogates, so names are whole and nothing is left to escape.
    """

    def _write_note(self, text: str) -> None:
        self._event("note", {"text": text})

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        if self.wants_files and not path.endswith("/"):
            became = what_became(outcome, is_new)
            self._event("file", {"path": path, "became": became, "digest": digest})

    def line(self, text: str) -> None:
        self._notes.flush()
        self._event("line", {"text": text})

    def tick(self) -> None:
        self._event("progress", self._counted(self._counters))

    def _counted(self, counters: LiveCounters) -> dict[str, object]:
        """Return what a "progress" event holds."""
        now = counters.snapshot()
        counted = now.as_dict()
        del counted["started_s"]
        return {"elapsed_s": round(self._clock() - now.started_s, 3), **counted}

    def finish(self, result: Result | None) -> None:
        self.tick()
        if result is not None:
            self._event("end", result.as_dict())
        else:  # as stop() is called where the error passes by
            self._event("end", {"ok": False, **errors.as_dict(sys.exc_info()[1])})

    def _event(self, event: str, values: dict[str, object]) -> None:
        self._write_out(json.dumps({"event": event, **values}))


class CallbackReporter(Passing, Ticking):
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
        Ticking.__init__(self)
        Passing.__init__(self, inner or Reporter())
        self._callback, self._end_copy = callback, end
        self._raised: BaseException | None = None

    def start(self, counters: LiveCounters) -> None:
        self._inner.start(counters)
        Ticking.start(self, counters)

    def stop(self, result: Result | None = None) -> None:
        Ticking.stop(self, result)  # whose finish() stops the one inside

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


def what_became(outcome: Outcome, is_new: bool) -> str:
    """Return what became of a file in a word, as a user sees it."""
    if outcome != "copied":
        return outcome
    return "new" if is_new else "changed"


def prefixed(text: str, name: str = "pscp") -> str:
    """Return a note as it is shown; a hint, which begins with two blanks, stands below its note."""
    return f"    {text}" if text.startswith("  ") else f"{name}: {text}"
