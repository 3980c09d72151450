"""SIGINT and SIGTERM as exceptions, while something of ours runs that must end tidily.

Not here: the exit codes (errors.py), what an end means for a copy (coordinator.py).
Read next: errors.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from pscp.errors import Interrupted, Terminated


@contextlib.contextmanager
def signals_raised(hint: str = "") -> Iterator[None]:
    """SIGINT and SIGTERM end the copy in the order of its own code: the first of them raises.

    What comes later finds the copy ending already. What is ignored (nohup, &) stays ignored.
    """
    words = "interrupted" if hint else "interrupted; what has landed is kept"
    errors = {signal.SIGINT: Interrupted, signal.SIGTERM: Terminated}
    ended: list[int] = []

    def end(number: int, frame: object) -> None:
        ended.append(number)
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise errors[signal.Signals(number)](words, hint)

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
        for each, action in () if ended else before.items():
            signal.signal(each, action)
