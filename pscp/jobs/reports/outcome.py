"""The outcome of a job, and of each of its destinations: what history, reports and metrics tell.

Not here: what a job is (../toml/job.py), where outcomes are kept (history.py), to whom they are
told (notifications.py), and how (report.py, notifications.py, status.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pscp.progress.progress import Failure, WorkerTotals


class Outcome(enum.StrEnum):
    """How a job, or its part for one destination, ended; the worst last."""

    exit_code: int  # pscp-run's; 130 after SIGINT, 143 after SIGTERM or SIGHUP, whatever it was
    sign: str  # no two are the same, so that no colour is needed
    kind: str  # names its colour

    def __new__(cls, text: str, exit_code: int, sign: str, kind: str) -> Self:
        made = str.__new__(cls, text)
        made._value_, made.exit_code, made.sign, made.kind = text, exit_code, sign, kind
        return made

    NOTHING = "nothing to do", 7, "\N{MIDDLE DOT}", "idle"
    DONE = "done", 0, "\N{CHECK MARK}", "good"
    LOCKED = "locked", 6, "=", "idle"  # another run of the job was under way
    # Ended early, by max-duration, a signal or a crash; the next run goes on.
    CUT = "cut", 5, "\N{BLACK SCISSORS}\N{VARIATION SELECTOR-15}", "cut"
    UNREACHABLE = "unreachable", 3, "?", "bad"
    # Some files were not copied, or a command failed.
    FAILED = "failed", 1, "\N{MULTIPLICATION X}", "bad"
    MISCONFIGURED = "misconfigured", 2, "!", "bad"


GOOD = (Outcome.DONE, Outcome.NOTHING)  # a destination has all that is to be there


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of several together; of none it is NOTHING."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.NOTHING)


@dataclass(frozen=True)
class DestinationRun:
    """One destination's part in a run of a job, over all attempts."""

    destination: str  # as it is written in the job
    outcome: Outcome
    started_s: float  # seconds since the epoch
    seconds: float  # by a clock that no one sets
    sending_s: float = 0.0  # of these, those in which bytes moved, or could: without pauses
    files: int = 0  # copied
    files_unchanged: int = 0  # there already
    files_linked: int = 0  # made names of unchanged files in other folders, with link-dest
    files_skipped: int = 0  # left out by update, existing or ignore-existing
    files_deleted: int = 0  # at the destination, folders too
    bytes: int = 0  # of the files that were copied
    bytes_sent: int = 0
    chunks_resent: int = 0
    connections: int = 0  # most at once
    connections_lost: int = 0
    workers: tuple[WorkerTotals, ...] = ()  # of a cluster
    attempts: int = 1
    verified: bool = True
    files_failed: int = 0
    failures: tuple[Failure, ...] = ()  # of files, and with path "" of no file
    message: str = ""  # why it ended, where it was not done

    @property
    def bytes_per_s(self) -> float:
        """How fast it sent, while it did."""
        return rate([self])


_LOOK_S = 0.1  # between two looks at whether bytes move


def rate(parts: Iterable[DestinationRun]) -> float:
    """Return how many bytes these sent in a second, of those in which bytes moved or could."""
    sent = [part for part in parts if part.bytes_sent]
    # A run of an earlier version has no such seconds, and one that was too short none to go by.
    seconds = sum(part.sending_s if part.sending_s >= _LOOK_S else part.seconds for part in sent)
    return sum(part.bytes_sent for part in sent) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class CommandRun:
    """One of a job's own commands that was run."""

    name: str  # "before", "after-success", "after-failure" or "sources-command"
    ok: bool
    how: str  # it ended: "exit status 3"
    output: str  # the end of what it wrote
    seconds: float


@dataclass(frozen=True)
class JobRun:
    """One run of a job."""

    run: str  # names it: unique, and sorts by time
    job: str
    outcome: Outcome
    started_s: float  # seconds since the epoch
    seconds: float
    destinations: tuple[DestinationRun, ...] = ()
    files_waiting: int = 0  # left for the next run: too young, or not settled
    files_removed: int = 0  # at the source, or moved there
    message: str = ""
    is_skipped: bool = False  # LOCKED, by if-running = "skip": as it was asked for
    commands: tuple[CommandRun, ...] = ()  # not kept in the history

    @property
    def exit_code(self) -> int:
        """Return what pscp-run exits with."""
        return exit_code([self])


def exit_code(runs: Iterable[JobRun]) -> int:
    """Return what pscp-run exits with after these runs: the code of the worst outcome.

    A run that was skipped as it was asked for counts as none; where all were, that is well: 0.
    """
    told = [run.outcome for run in runs if not run.is_skipped]
    return worst(told).exit_code if told else 0
