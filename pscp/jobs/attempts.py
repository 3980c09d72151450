"""The attempts of a run at one destination: what they come to, and whether there is another.

Not here: how they are made (../calls/deliveries.py), what becomes of the whole job (runner.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pscp.calls.deliveries import Delivery
from pscp.endpoint.reading.source import NO_MATCH
from pscp.ground import errors
from pscp.ground.counters import by_worker
from pscp.jobs.reports.outcome import DestinationRun, Outcome
from pscp.jobs.toml.schema import as_keys
from pscp.progress.progress import Counters, Failure, count

MAX_PAUSE_S = 300.0
_JITTER = 0.25  # of a pause, so that many who lost one server do not come back at one moment
_MISTAKES = (
    errors.AuthenticationError, errors.HostKeyError, errors.NoPython, errors.NoAgent, errors.NoSftp
)  # fmt: skip
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
        self.run = DestinationRun(  # what they have come to, so far
            destination, Outcome.CUT, time.time(), 0.0, attempts=0, message="not begun"
        )
        self.not_removed: tuple[Failure, ...] = ()  # at the source: the run's failures, not its
        self.has_result = False  # the last attempt has looked at every file
        self._has_connected = False  # any attempt has
        self._retry_for_s, self._left, self._steady = retry_for_s, left, steady
        self._begin_s = steady()
        self._failing_s: float | None = None  # since when nothing has come of them
        self._pauses = pauses()
        self._sending_s = 0.0
        self._looked_s: float | None = None  # last in this attempt; and what it was then:
        self._sent_bytes, self._is_sending = 0, False

    def look(self, now: Counters) -> None:
        """See where an attempt stands, some ten times a second: whether bytes move, or could."""
        now_s, is_more = self._steady(), now.bytes_sent > self._sent_bytes
        if self._looked_s is not None and (is_more or self._is_sending):
            self._sending_s += now_s - self._looked_s
        self._looked_s, self._sent_bytes = now_s, now.bytes_sent
        self._is_sending = now.lanes_alive > 0 and now.sending_bytes > 0

    def add(self, delivery: Delivery) -> float | None:
        """Count an attempt; return the seconds until the next one, or None if it was the last."""
        now_s, error, result = self._steady(), delivery.error, delivery.result
        found = result.failures if result is not None else ()
        failures = tuple(_with_keys(each) for each in found if self._counts(each))
        self.not_removed = tuple(filter(_is_of_after, failures))
        failures = tuple(each for each in failures if not _is_of_after(each))
        failures = _not_deleted(delivery) + failures
        self._count(delivery, failures, now_s - self._begin_s)
        self._looked_s, self._sent_bytes, self._is_sending = None, 0, False
        self._has_connected |= _has_begun(delivery)
        if isinstance(error, _STOPS) and self._is_unreached:
            pass  # it was cut while it tried once more: the last error is why
        elif error is not None:
            self.end(outcome_of(error), words_of(error, self._retry_for_s))
        elif failures or self.run.files_failed:
            failed, noun = self.run.files_failed, delivery.counters.nouns[0]
            why = f"{count(failed, noun)} failed" if failed else failures[0].message
            self.end(Outcome.FAILED, why)
        else:
            self.end(Outcome.DONE if _has_found(delivery) else Outcome.NOTHING)
        may_succeed = error.retry if error is not None else any(f.retry for f in failures)
        if not may_succeed:
            return None
        if self._failing_s is None or _has_gone_on(delivery):
            self._failing_s, self._pauses = now_s, pauses()
        left_s = self._failing_s + self._retry_for_s - now_s
        return min(next(self._pauses), left_s) if left_s > 0 else None

    def end(self, outcome: Outcome, message: str = "") -> None:
        """Note what they have come to, so far, and why."""
        self.run = replace(self.run, outcome=outcome, message=message)

    @property
    def _is_unreached(self) -> bool:
        return self.run.outcome == Outcome.UNREACHABLE and not self._has_connected

    def _count(self, delivery: Delivery, failures: tuple[Failure, ...], seconds: float) -> None:
        run, its, result = self.run, delivery.counters, delivery.result
        self.has_result = result is not None
        unlisted = result.failures_unlisted if result is not None else 0
        if result is not None and any(map(_is_of_after, result.failures[-1:])):
            unlisted = 0  # they come last: so those that were not listed are such, too
        self.run = replace(
            run,
            seconds=seconds,
            sending_s=self._sending_s,
            files=run.files + its.files_done,
            files_unchanged=max(
                0, its.files_unchanged + its.files_resumed - run.files - run.files_linked
            ),
            files_linked=run.files_linked + its.files_linked,
            files_skipped=its.files_skipped,
            files_deleted=run.files_deleted + its.files_deleted,
            bytes=run.bytes + its.bytes_done,
            bytes_sent=run.bytes_sent + its.bytes_sent,
            chunks_resent=run.chunks_resent + its.chunks_resent,
            connections=max(run.connections, result.connections if result is not None else 0),
            connections_lost=run.connections_lost + its.connections_lost,
            workers=by_worker([*run.workers, *its.workers]),
            attempts=run.attempts + 1,
            verified=run.verified and its.verified,
            files_failed=unlisted + sum(1 for each in failures if each.path),
            failures=failures,
        )

    def _counts(self, failure: Failure) -> bool:
        """Return whether this is a failure, and not a file that is left for the next run, or a
        pattern there that nothing matches.
        """
        if not is_failure(failure):
            return False
        if self._left is None or failure.error != errors.SourceChanged.__name__:
            return True
        self._left(failure.path)
        return False


def outcome_of(error: errors.PscpError) -> Outcome:
    """Return the outcome of what ended with this error."""
    if isinstance(error, _STOPS):
        return Outcome.CUT
    if isinstance(error, errors.ConnectError):
        return Outcome.MISCONFIGURED if _is_mistake(error) else Outcome.UNREACHABLE
    return Outcome.MISCONFIGURED if isinstance(error, errors.UsageError) else Outcome.FAILED


@contextlib.contextmanager
def faults_told() -> Iterator[None]:
    """Run a block. Raises CopyError, with the line of pscp that it is of, for what is a bug there:
    a job fails of it, and those after it are run.
    """
    try:
        yield
    except errors.PscpError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = " ".join(f"{type(error).__name__}: {error}".split())
        where = f"{os.path.basename(at.filename)}, line {at.lineno}"
        raise errors.CopyError(f"pscp is at fault: {what} ({where})") from error


def _is_mistake(error: errors.ConnectError) -> bool:
    """Return whether it fails until somebody mends a key, a host key, ssh_config or the far end.

    A connection that is not made anew for a login that asks goes on when it is run again.
    """
    return (
        isinstance(error, _MISTAKES) or type(error) is errors.ConnectError
    ) and error.hint != errors.RUN_AGAIN


def words_of(error: errors.PscpError, retry_for_s: float) -> str:
    """Return an error's message and hint as they are told of a job that is tried for so long."""
    if isinstance(error, _STOPS):
        return error.message  # that the next run goes on, the report says of all that is cut
    advice = "" if retry_for_s else '; retry-for = "30m" keeps trying for so long'
    told = as_keys(error.message, letters=isinstance(error, errors.UsageError))
    hint = as_keys(error.hint.replace(errors.RETRY_FOR, advice))
    return "\n".join(filter(None, (told, hint)))


def _with_keys(failure: Failure) -> Failure:
    is_ours = issubclass(getattr(errors, failure.error), errors.FileError)  # else it may be zfs's
    message = as_keys(failure.message, letters=is_ours)
    return replace(failure, message=message, hint=as_keys(failure.hint))


def _has_begun(delivery: Delivery) -> bool:
    """Return whether an attempt has come beyond the login."""
    its = delivery.counters
    begun = its.files_total or its.bytes_sent or its.lanes_wanted or its.connections_lost
    return delivery.result is not None or bool(begun)


def _not_deleted(delivery: Delivery) -> tuple[Failure, ...]:
    """Return a failure for the mirror that had something to copy and deleted nothing."""
    why = delivery.result.not_deleted if delivery.result is not None else ""
    if not why or not _has_found(delivery):
        return ()
    return (_with_keys(Failure("", errors.FileError.__name__, why)),)


def _has_found(delivery: Delivery) -> bool:
    result, its = delivery.result, delivery.counters
    failed = result.failures if result is not None else ()
    came = its.files_done, its.files_unchanged, its.files_resumed, its.files_linked
    return has_found(failed, came)


def has_found(failed: Sequence[Failure], came: Iterable[int]) -> bool:
    """Return whether anything was there to copy: not where no pattern at a host matched.

    Of what `came` there are the numbers.
    """
    return not failed or any(map(is_failure, failed)) or any(came)


def is_failure(failure: Failure) -> bool:
    """Return whether it is one, and no pattern at a host that nothing matches."""
    return failure.message != NO_MATCH


def _is_of_after(failure: Failure) -> bool:
    """Return whether a file was copied, and only what `after` says could not be done."""
    return failure.error == errors.NotRemoved.__name__


def _has_gone_on(delivery: Delivery) -> bool:
    """Return whether an attempt has brought the copy on, so that the next one is none in a row."""
    is_lost = isinstance(delivery.error, errors.ConnectError)
    return bool(delivery.counters.files_done or (is_lost and delivery.counters.bytes_done))
