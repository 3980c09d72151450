"""Lanes that wait for each other, in the place of a rate (-l) that gives others time to log in.

In this process a test has waiting_for() be RateLimiter.wait; `program` does so in a command. Both
need a limit to be given, whatever it is: no lane waits for it.

Not here: a server that waits for logins (servers/logins.py), a lane's program that does
(faults/relay.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pscp.transfer.lanes import lane_context

Wait = Callable[[object, int, Callable[[], bool]], None]
MIB = 1024 * 1024
LIMIT = ("-l", "10G")
POLL_S, PATIENCE_S = 0.01, 60.0  # then the copy goes on, and its test says what was not there


def waiting_for(lanes: int, is_so: Callable[[], object] = lambda: True) -> Wait:
    """Return a RateLimiter.wait by which no block goes before so many lanes have one to send, or
    have got one, and `is_so()`.
    """
    at_work, complete = set[int](), threading.Event()

    def wait(limiter: object, size_bytes: int, is_over: Callable[[], bool]) -> None:
        at_work.add(threading.get_ident())
        until_s = time.monotonic() + PATIENCE_S
        while not (complete.is_set() or is_over() or time.monotonic() > until_s):
            if len(at_work) >= lanes and is_so():
                complete.set()
            complete.wait(POLL_S)

    return wait


def hold(lanes: int) -> None:
    """Have the lanes of this process wait. None has all the work in its window then."""
    lane_context.RateLimiter.wait = waiting_for(lanes)  # type: ignore[assignment,method-assign]
    lane_context.WINDOW_BYTES = MIB


def program(lanes: int, module: str = "copy") -> tuple[str, ...]:
    """Return a command of pscp whose lanes wait for each other: what ways.PSCP is for others."""
    here = str(Path(__file__).parent)
    first = f"import sys; sys.path.append({here!r}); import held_lanes; held_lanes.hold({lanes})"
    run = f"from pscp.cli.{module} import main; sys.exit(main())"
    return (sys.executable, "-c", f"{first}; {run}")
