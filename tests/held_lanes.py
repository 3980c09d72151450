"""Lanes that wait for each other, in the place of a rate (-l) that gives others time to log in.

The copy needs a limit, whatever it is: what waits for a lane's turn waits for the others instead.
In this process the fixture `together` (conftest.py) sees to it, in a command `program`.

Not here: a server that waits for logins (servers/logins.py), a lane's program that stands still
(faults/relay.py).
"""

from __future__ import annotations

import collections
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pscp.ground.values import MIB
from pscp.transfer.lanes import lane_context

LIMIT_KBIT_S = 10_000_000
LIMIT = ("-l", f"{LIMIT_KBIT_S}")
POLL_S, PATIENCE_S = 0.01, 60.0  # then the copy goes on, and its test says what was not there


class Gate:
    """Opens once `is_so()`, which one thread at a time calls, and which may act."""

    def __init__(self, is_so: Callable[[], object]) -> None:
        self._is_so, self._lock, self._open = is_so, threading.Lock(), threading.Event()
        self._until_s = 0.0

    def pass_(self, is_over: Callable[[], bool]) -> None:
        """Wait until it is open, or for a lane that is over."""
        while not (self._open.is_set() or is_over()):
            with self._lock:
                self._until_s = self._until_s or time.monotonic() + PATIENCE_S
                if not self._open.is_set() and self._is_opened():
                    self._open.set()
            self._open.wait(POLL_S)

    def _is_opened(self) -> object:
        return self._is_so() or time.monotonic() > self._until_s


def hold(
    lanes: int, is_so: Callable[[], object] = lambda: True, after_bytes: int = 0,
    replace: Callable[[object, str, object], None] = setattr,
) -> None:  # fmt: skip
    """Have no lane of this process send or take a block before so many have one; nor, after so many
    bytes, before `is_so()`. None has all of the work in its window then.
    """
    at_work, sizes = set[int](), list[int]()
    all_there, amid = Gate(lambda: len(at_work) >= lanes), Gate(is_so)

    def wait(limiter: object, size_bytes: int, is_over: Callable[[], bool]) -> None:
        at_work.add(threading.get_ident())
        all_there.pass_(is_over)
        sizes.append(size_bytes)
        if sum(sizes) >= after_bytes:
            amid.pass_(is_over)

    replace(lane_context.RateLimiter, "wait", wait)
    replace(lane_context, "WINDOW_BYTES", MIB)


def stand_after(most_bytes: int) -> Callable[[object, int, Callable[[], bool]], None]:
    """Return a RateLimiter.wait by which each lane stands still after so many bytes of its own."""
    gone, never = collections.Counter[int](), threading.Event()

    def wait(limiter: object, size_bytes: int, is_over: Callable[[], bool]) -> None:
        gone[threading.get_ident()] += size_bytes
        while gone[threading.get_ident()] > most_bytes and not is_over():
            never.wait(POLL_S)

    return wait


def program(lanes: int, module: str = "copy") -> tuple[str, ...]:
    """Return a command whose lanes wait for each other: what ways.PSCP is for others."""
    here = str(Path(__file__).parent)
    first = f"import sys; sys.path.append({here!r}); import held_lanes; held_lanes.hold({lanes})"
    run = f"from pscp.cli.{module} import main; sys.exit(main())"
    return (sys.executable, "-c", f"{first}; {run}")
