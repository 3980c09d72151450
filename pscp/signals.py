"""SIGINT, SIGTERM and SIGHUP as exceptions, while something of ours runs that must end tidily.

Not here: the exit codes (errors.py), what an end means for a copy (coordinator.py).
Read next: errors.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from pscp.errors import Interrupted, PscpError, Terminated


def _heard(number: int, frame: object) -> None:
    """What was begun goes on."""


@contextlib.contextmanager
def signals_raised(
    hint: str = "", instead: Callable[[PscpError], bool] = lambda error: False
) -> Iterator[None]:
    """These signals end the copy in the order of its own code: the first of them raises.

    Not where `instead` takes the error, and sees to the end: an exception in the middle of taking
    a Condition's lock would leave it held. What comes later finds the copy ending already. What is
    ignored (nohup, &) stays ignored.
    """
    words = "interrupted" if hint else "interrupted; what has landed is kept"
    errors = {
        signal.SIGINT: Interrupted, signal.SIGTERM: Terminated,
        signal.SIGHUP: Terminated,  # the terminal is gone
    }  # fmt: skip
    ended: list[int] = []

    def end(number: int, frame: object) -> None:
        ended.append(number)
        for each in before:
            signal.signal(each, _heard)  # SIG_IGN would be inherited by an ssh that starts now
        error = errors[signal.Signals(number)](words, hint)
        if not instead(error):
            raise error

    before = {
        each: signal.getsignal(each)
        for each in errors
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, action in before.items():  # the end of the program is disturbed by nothing
            signal.signal(each, signal.SIG_IGN if ended else action)
