"""How busy this machine's processors are, and how much of it is this copy's doing; from proc(5).

Not here: what is made of it (tuner.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable


def idle_s() -> float:
    """How long a processor here has been idle since it started, on average; inf: not known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat") as stat:
        # "cpu  user nice system idle iowait ...", in ticks, of all processors
        return int(stat.readline().split()[4]) / _ticks() / (os.cpu_count() or 1)
    return math.inf


def used_s(pids: Iterable[int]) -> float:
    """What this process and these have used of each processor here, on average."""
    return (time.process_time() + sum(map(_used_s, pids))) / (os.cpu_count() or 1)


def _used_s(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat") as stat:
        # The name in brackets may hold anything, so read after the last bracket: utime, stime
        user, system = stat.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _ticks()
    return 0.0


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
