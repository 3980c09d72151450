"""The processes below a process: finding them and ending them.

Reads /proc where there is one (Linux), else runs ps. Only processes that we started are ended; they
are known by pid and start time, never by a name.

Not here: the ssh processes of a copy, which their channel ends (../transports/openssh.py), and
logins that are left behind (leaving.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import NamedTuple

KILL_S = 10.0  # after SIGKILL; a process that takes longer hangs in the kernel
STOP_S = 2.0  # after SIGSTOP; likewise
TERM_S = 1.0  # for a process to end by itself before SIGKILL
POLL_S = 0.005
_STAT_BYTES = 4096  # of /proc/PID/stat at most: 52 numbers and a name


class Process(NamedTuple):
    """A living process. The start time tells it from a later one that got the same pid."""

    pid: int
    started: str


def living() -> dict[Process, int]:
    """Return every process of this machine that is not a zombie, with its parent's pid."""
    if not os.path.exists("/proc/self/stat"):
        return living_by_ps()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = stat_of(int(name))
            if fields[0] not in (b"Z", b"X"):
                found[Process(int(name), fields[19].decode())] = int(fields[1])
    return found


def stat_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from its third on, the state. Raises OSError."""
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # open() takes half as long again
    try:
        # proc(5): the name in brackets may hold anything, so read after the last bracket.
        return os.read(fd, _STAT_BYTES).rpartition(b")")[2].split()
    finally:
        os.close(fd)


def living_by_ps() -> dict[Process, int]:
    """Return what living() does, from the output of ps(1)."""
    argv = ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="]
    rows = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    split = (row.split(None, 3) for row in rows)
    return {Process(int(r[0]), r[3]): int(r[1]) for r in split if not r[2].startswith("Z")}


def descendants(pid: int, since_s: float = 0.0) -> set[Process]:
    """Return the living children of `pid`, their children, and so on.

    Where there is proc(5), without children that began before `since_s`, of CLOCK_BOOTTIME, and
    what is below them.
    """
    parents = living()
    if since_s:
        since_ticks = int(since_s * os.sysconf("SC_CLK_TCK"))
        for process in [each for each, parent in parents.items() if parent == pid]:
            if process.started.isdigit() and int(process.started) < since_ticks:
                del parents[process]
    return below(pid, parents)


def below(pid: int, parents: dict[Process, int]) -> set[Process]:
    """Return which of the processes that living() has found descend from `pid`."""
    children: dict[int, list[Process]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    found: set[Process] = set()
    front = [pid]
    while front:
        for child in children.get(front.pop(), ()):
            found.add(child)
            front.append(child.pid)
    return found


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a child of ours and everything below it, and wait for that."""
    if process.poll() is None:
        send(process.pid, signal.SIGSTOP)  # or it would start more while its children are ended
        end_all_below(process.pid)
        process.kill()
    process.wait()


def end_all_below(pid: int) -> None:
    """End every process below this one: by SIGTERM, and after a while by SIGKILL."""
    seen: set[Process] = set()
    for kind, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for child in stop_all_below(pid, seen):
            send(child.pid, kind)
            send(child.pid, signal.SIGCONT)
        deadline_s = time.monotonic() + patience_s
        while still_there(pid, seen):
            if time.monotonic() > deadline_s:
                break
            time.sleep(POLL_S)
        else:
            return


def stop_all_below(pid: int, seen: set[Process]) -> set[Process]:
    """Stop them, so that none can start another, unseen, before it is ended."""
    stopped: set[Process] = set()
    while new := still_there(pid, seen) - stopped:
        for child in new:
            send(child.pid, signal.SIGSTOP)
        wait_until_stopped(new)
        stopped |= new
    return stopped


def wait_until_stopped(processes: set[Process]) -> None:
    """Wait for SIGSTOP to take effect: a process in a fork stops after it, and has a child then."""
    deadline_s = time.monotonic() + STOP_S
    while any(is_at_work(each.pid) for each in processes) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def signal_tree(pid: int, kind: signal.Signals) -> None:
    """Send a signal to a child, and to what is below it, where there is proc(5)."""
    found = [pid]
    for each in found:
        listing = f"/proc/{each}/task/{each}/children"
        with contextlib.suppress(OSError, ValueError), open(listing) as file:
            found += [int(word) for word in file.read().split()]
    for each in reversed(found):  # a parent that sees its child end may start another
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, kind)


def is_at_work(pid: int) -> bool:
    """Return whether a process is neither stopped nor ended; False where that is not known."""
    try:
        return stat_of(pid)[0] not in (b"T", b"t", b"Z", b"X")
    except OSError:
        return False


def still_there(pid: int, seen: set[Process]) -> set[Process]:
    """Return who lives of all descendants seen so far; an orphan is no descendant any more."""
    parents = living()
    seen |= below(pid, parents)
    return seen & parents.keys()


def send(pid: int, kind: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, kind)
