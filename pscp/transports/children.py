"""Signals for a child of ours and for the processes that it has started in turn.

An `ssh` may be a script that runs the real ssh as its child: to end the script alone would leave
that one running, with the descriptors of its channel.

Not here: when a channel ends (openssh.py), servers and tests (../processes.py).
"""

from __future__ import annotations

import contextlib
import os
import signal


def signal_group(pid: int, kind: signal.Signals) -> None:
    """Send a signal to a child that leads a process group of its own, and to all others in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a zombie
        os.killpg(pid, kind)


def signal_tree(pid: int, kind: signal.Signals) -> None:
    """Send a signal to a child in our own process group, and to its children, where known."""
    found = [pid]
    for each in found:
        found += _children(each)
    for each in reversed(found):  # a parent that sees its child end may start another
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, kind)


def _children(pid: int) -> list[int]:
    """Return a process's children, by /proc/PID/task/TID/children (proc(5)); none without it."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(word) for word in listed.read().split()]
    except (OSError, ValueError):
        return []


def end_input(fd: int) -> None:
    """Let the reader of this pipe see its end, and every later write to it fail.

    The number stays in use, since another thread may be about to write to it.
    """
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    os.dup2(write_fd, fd, inheritable=False)
    os.close(write_fd)
