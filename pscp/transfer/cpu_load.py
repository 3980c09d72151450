"""How busy this machine's processors are, and how much of it is this copy's doing; from proc(5).

Not here: what is made of it (autotune.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable

from pscp.endpoint import system


def idle_s() -> float:
    """Return how many seconds a processor was idle since its start, on average; inf: unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat") as stat:
        # "cpu  user nice system idle iowait ...", in ticks, of all processors
        ticks = int(stat.readline().split()[4])
        return ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return math.inf


def used_s(pids: Iterable[int]) -> float:
    """Return the seconds that this process and these used of each processor, on average."""
    of_others = sum(system.cpu_seconds(pid) or 0.0 for pid in pids)
    return (time.process_time() + of_others) / (os.cpu_count() or 1)
