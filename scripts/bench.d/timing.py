"""Runs one command and times it: wall time, and the CPU time of the process itself.

A process that ended is looked at before it is reaped: /proc then still tells its own CPU time
apart from that of the children it waited for. Where there is no /proc the CPU time is None.

Not here: which commands (tools.py) and in which order (rounds.py). Read next: rounds.py.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile

from pscp.ground.processes import end_tree


@dataclass(frozen=True)
class Outcome:
    seconds: float
    status: int | None  # None: it took longer than it may, and was ended
    own_cpu_s: float | None
    below_cpu_s: float | None  # of the processes below it
    out: str
    err: str

    @property
    def last_words(self) -> str:
        lines = (self.err.strip() or self.out.strip() or "it said nothing").splitlines()
        return lines[-1].strip()[:120]


def timed(argv: Sequence[str], *, stdin: str, env: Mapping[str, str], timeout_s: float) -> Outcome:
    """Files take what it says: a pipe would need a reader, and that would need CPU time."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        start_s = time.perf_counter()
        # A session of its own: Ctrl-C at a terminal is for us, and we end it.
        process = subprocess.Popen(
            argv, stdin=given, stdout=out, stderr=err, env=env, start_new_session=True
        )
        try:
            ended = wait_unreaped(process, timeout_s)
            seconds = time.perf_counter() - start_s
            own_cpu_s, below_cpu_s = cpu_s(process.pid) if ended else (None, None)
        finally:
            end_tree(process)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    return Outcome(seconds, process.returncode if ended else None, own_cpu_s, below_cpu_s, *said)


def wait_unreaped(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """True once it has ended; it stays a zombie."""
    poll = select.poll()
    fd = os.pidfd_open(process.pid)
    try:
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(fd)


def cpu_s(pid: int) -> tuple[float | None, float | None]:
    """User and system time of all its threads, and of the children that it waited for: proc(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None, None
    ticks = os.sysconf("SC_CLK_TCK")
    return sum(map(int, fields[11:13])) / ticks, sum(map(int, fields[13:15])) / ticks
