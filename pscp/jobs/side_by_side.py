"""Several destinations side by side, each at its own pace and tried again by itself.

Not here: what is delivered (runner.py), how often it is tried (attempts.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pscp import stops
from pscp.errors import PscpError
from pscp.progress import Counters, Result

Deliver = Callable[[str, Callable[[Counters], object]], Result]
_LOOK_S = 0.1  # as stops.acquire()


@dataclass(frozen=True)
class Delivery:
    """What became of one attempt to deliver to a destination."""

    destination: str
    result: Result | None
    error: PscpError | None  # instead of a result
    seconds: float
    counters: Counters  # how far it came, whichever way it ended


def side_by_side(
    destinations: Sequence[str],
    deliver: Deliver,
    again: Callable[[Delivery], float | None],
    *,
    max_hosts: int | None = None,
) -> None:
    """Deliver to all, each in a thread of its own, and wait for them.

    A stop of the caller's call (stops.py) ends what runs; then its error is raised here, once all
    have ended and `again` knows.

    Args:
        destinations: no two are the same.
        deliver: is called with a destination, and a function to show its counters to.
        again: is called with the end of each attempt, by its thread; it returns the seconds until
            the next one, or None.
        max_hosts: destinations at once; one that waits for its next attempt is none of them.
    """
    turns = threading.Semaphore(max_hosts or len(destinations))
    lines = [_Line(each, deliver, again, turns) for each in destinations]

    def end(error: BaseException) -> None:
        for line in lines:
            line.stop.stop(error)

    with stops.ended_by(end):
        try:
            for line in lines:
                line.start()
        except BaseException as error:  # there are too many threads, for instance
            end(error)
            raise
        finally:
            for line in lines:
                if line.ident is not None:
                    line.join()
    for line in lines:
        if line.raised is not None:
            raise line.raised


class _Line(threading.Thread):
    """The attempts for one destination."""

    def __init__(
        self,
        destination: str,
        deliver: Deliver,
        again: Callable[[Delivery], float | None],
        turns: threading.Semaphore,
    ) -> None:
        super().__init__(name=f"to {destination}")
        self._destination, self._deliver, self._again = destination, deliver, again
        self._turns = turns
        self.stop = stops.Stop()
        self.raised: BaseException | None = None  # a bug, or what a callback raised

    def run(self) -> None:
        try:
            with self.stop.here():
                pause_s = self._attempt()
                while pause_s is not None:
                    stops.pause(pause_s)
                    pause_s = self._attempt()
        except PscpError:
            pass  # stopped, where it waited
        except BaseException as error:
            self.raised = error

    def _attempt(self) -> float | None:
        while not self._turns.acquire(timeout=_LOOK_S):
            self.stop.check()
        try:
            return self._again(self._delivery())
        finally:
            self._turns.release()

    def _delivery(self) -> Delivery:
        begin_s, last = time.monotonic(), [Counters()]
        result = error = None
        try:
            self.stop.check()
            result = self._deliver(self._destination, lambda now: last.__setitem__(0, now))
        except PscpError as raised:
            error = raised
        return Delivery(self._destination, result, error, time.monotonic() - begin_s, last[0])
