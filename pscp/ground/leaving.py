"""Logins that nobody needs any more, some of which outlive the program.

sshd counts a login that is cut off as an offence, and refuses those who have too many
(sshd_config(5), PerSourcePenalties), so each gets some seconds to end by itself. A thread waits for
it; where the program ends before that, another process does.

Not here: who lets them go (../connect/spare_logins.py, ../transfer/lane_pool.py), how processes are
found (processes.py).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from pscp.ground.contexts import start_thread
from pscp.ground.processes import signal_tree

LET_GO_S = 4.0


class LoginProcess(NamedTuple):
    """The ssh of a login. Once `socket` is there the connection is kept, and what leads to it."""

    pid: int
    socket: str = ""  # its whole path; "": it is not kept


_leaving: list[Callable[[], Iterable[LoginProcess | None]]] = []


def let_go(
    wait: Callable[[], object], processes: Callable[[], Iterable[LoginProcess | None]]
) -> None:
    """Have a thread wait for logins to end, and end them if that takes longer than LET_GO_S.

    `processes` returns those that may still be there, for who waits if this program ends first.
    """
    _leaving.append(processes)

    def run() -> None:
        try:
            wait()
        finally:
            _leaving.remove(processes)

    start_thread("leaving", run)


@atexit.register
def end_later() -> None:
    """Have the logins that are left end after LET_GO_S, if they have not by then.

    Another process waits: this one ends. Does nothing but on Linux, nor where none can be made.
    """
    logins = dict[int, LoginProcess]()
    for login in [login for each in list(_leaving) for login in each() if login is not None]:
        with contextlib.suppress(AttributeError, OSError):
            logins[os.pidfd_open(login.pid)] = login
    if not logins:
        return
    import warnings  # here: few copies leave a login behind

    with warnings.catch_warnings(), contextlib.suppress(OSError):
        warnings.simplefilter("ignore")  # that this process has threads: the other one needs none
        if not os.fork():
            _wait_and_end(logins)
    for fd in logins:
        os.close(fd)


def _wait_and_end(logins: dict[int, LoginProcess]) -> NoReturn:
    """Be the process that waits."""
    try:
        os.setsid()
        os.chdir("/")
        for name in os.listdir("/proc/self/fd"):  # pipes, whose ends others wait for
            if int(name) not in logins:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        poll, until_s = select.poll(), time.monotonic() + LET_GO_S
        for fd in logins:
            poll.register(fd, select.POLLIN)  # as soon as it has ended
        while logins and (left_s := until_s - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                poll.unregister(fd)
                del logins[fd]
        for fd, login in logins.items():
            if login.socket and os.path.exists(login.socket):
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
            else:
                signal_tree(login.pid, signal.SIGTERM)
    finally:
        os._exit(0)
