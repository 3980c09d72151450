"""The attempts of a run at one destination: what they come to, and whether there is another.

Not here: how they are made (../deliveries.py), what becomes of the whole job (runner.py).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator

from pscp import errors
from pscp.deliveries import Delivery
from pscp.jobs.outcome import DestinationRun, Outcome
from pscp.progress import Counters, Failure, count

MAX_PAUSE_S = 300.0
_JITTER = 0.25  # of a pause, so that many who lost one server do not come back at one moment
_STOPS = (errors.Cancelled, errors.Interrupted, errors.Terminated)


def pauses(draw: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield the seconds between attempts: 1, 2, 4 and so on up to 5 minutes, or up to 1/4 less."""
    for number in itertools.count():
        yield min(2.0 ** min(number, 30), MAX_PAUSE_S) * (1 - _JITTER * draw())


class Attempts:
    """The attempts at one destination. For one thread at a time."""

    def __init__(
        self,
        destination: str,
        retry_for_s: float,
        left: Callable[[str], object] | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`left` takes each file that changed while it was copied, where that is no failure."""
        self.destination = destination
        self._retry_for_s, self._left, self._steady = retry_for_s, left, steady
        self._started_s, self._begin_s = time.time(), steady()
        self._end_s = self._begin_s
        self._failing_s: float | None = None  # since when nothing has come of them
        self._pauses = pauses()
        self._ended: list[Delivery] = []
        self.outcome, self.message = Outcome.CUT, "not begun"
        self.failures: tuple[Failure, ...] = ()

    def add(self, delivery: Delivery) -> float | None:
        """Count an attempt; return the seconds until the next one, or None if it was the last."""
        self._end_s = self._steady()
        self._ended.append(delivery)
        result, error = delivery.result, delivery.error
        self.failures = tuple(filter(self._counts, result.failures)) if result is not None else ()
        if error is not None:
            self.end(outcome_of(error), error.text)
        elif self.failures:
            failed = self._files_failed
            why = f"{count(failed, 'file')} failed" if failed else self.failures[0].message
            self.end(Outcome.FAILED, why)
        else:
            self.end(Outcome.DONE)
        may_succeed = error.retry if error is not None else any(f.retry for f in self.failures)
        if not may_succeed:
            return None
        if self._failing_s is None or _has_gone_on(delivery):
            self._failing_s, self._pauses = self._end_s, pauses()
        left_s = self._failing_s + self._retry_for_s - self._end_s
        return min(next(self._pauses), left_s) if left_s > 0 else None

    def end(self, outcome: Outcome, message: str = "") -> None:
        """Note what they have come to, so far, and why."""
        self.outcome, self.message = outcome, message

    @property
    def has_begun(self) -> bool:
        return bool(self._ended)

    @property
    def has_result(self) -> bool:
        """Whether the last attempt has looked at every file."""
        return self.has_begun and self._ended[-1].result is not None

    def run(self) -> DestinationRun:
        """Return what the attempts came to."""
        counted = [each.counters for each in self._ended]
        results = [each.result for each in self._ended if each.result is not None]
        files = sum(each.files_done for each in counted)
        last = counted[-1] if counted else Counters()
        there = last.files_unchanged + last.files_resumed - (files - last.files_done)
        return DestinationRun(
            self.destination,
            self.outcome,
            self._started_s,
            self._end_s - self._begin_s,
            files=files,
            files_unchanged=max(0, there),
            bytes=sum(each.bytes_done for each in counted),
            bytes_sent=sum(each.bytes_sent for each in counted),
            chunks_resent=sum(each.chunks_resent for each in counted),
            connections=max((each.connections for each in results), default=0),
            connections_lost=sum(each.connections_lost for each in counted),
            attempts=len(self._ended),
            verified=all(each.verified for each in counted),
            files_failed=self._files_failed,
            failures=self.failures,
            message=self.message,
        )

    @property
    def _files_failed(self) -> int:
        return sum(1 for each in self.failures if each.path)

    def _counts(self, failure: Failure) -> bool:
        """Return whether this is a failure, and not a file that is left for the next run."""
        if self._left is None or failure.error != errors.SourceChanged.__name__:
            return True
        self._left(failure.path)
        return False


def outcome_of(error: errors.PscpError) -> Outcome:
    """Return the outcome of what ended with this error."""
    if isinstance(error, _STOPS):
        return Outcome.CUT
    if isinstance(error, errors.UsageError):
        return Outcome.MISCONFIGURED
    return Outcome.UNREACHABLE if isinstance(error, errors.ConnectError) else Outcome.FAILED


def _has_gone_on(delivery: Delivery) -> bool:
    """Return whether an attempt has brought the copy on, so that the next one is none in a row."""
    is_lost = isinstance(delivery.error, errors.ConnectError)
    return bool(delivery.counters.files_done or (is_lost and delivery.counters.bytes_done))
