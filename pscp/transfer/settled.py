"""What leaves out files that are too young, or still being written: a `select` of pscp.JobTerms.

A clock may be set while nobody is watching, so it is never believed alone. How long a file has been
the same (size, time and inode) is measured from one look to the next by a clock that nobody sets
and that begins with the boot: across a boot it shows less than has passed, and never more. A file's
age by its own time counts only while the clock on the wall has gone along with that one; for a file
that was seen to be the same for so long it does not matter what its time says.

Not here: sizes and ages that a user asks for with --min-age and the like (selection.py), where the
state is kept (../jobs/copying.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_STEP_S = 2.0  # two clocks that drift apart by more than that were not both left alone


def since_boot() -> float:
    """Return the seconds since this machine was started, asleep or not; nobody sets this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def this_boot() -> str:
    """Return what names this boot of this machine; the machine's name where a boot has none."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return os.uname().nodename


Identity = tuple[int, int, int]  # size, mtime_ns, inode
Seen = tuple[int, int, int, float]  # those, and since when, by Known's clock


@dataclass
class Known:
    """What a run leaves to the next one. Its clock goes on at a boot, as if no time had passed."""

    host: str
    boot: str
    at_s: float  # since the boot, when it was written
    before_s: float = 0.0  # what this clock showed at the boot
    apart_s: float = 0.0  # by how much the clock on the wall is ahead of that of the boot
    stepped_s: float | None = None  # when the clock on the wall was last seen to be set
    files: dict[str, Seen] = field(default_factory=dict)


class Settled:
    """Leaves out files that are too young, or were not seen unchanged for long enough.

    Its is_ready() is a `select` of pscp.JobTerms; is_ready_at() takes a path alone. Make one
    for each run, of what state() returned at the end of the run before. Any thread may ask.

    Args:
        min_age_s: how long ago a file has to have changed; 0: no matter.
        settled_for_s: how long it has to have been seen unchanged; 0: no matter.
        known: what state() has returned in an earlier run; what makes no sense is ignored.
        wall: the time of day, seconds since the epoch.
        steady: seconds since the boot.
        boot: names the boot.
    """

    def __init__(
        self,
        min_age_s: float = 0.0,
        settled_for_s: float = 0.0,
        known: object = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot,
        boot: Callable[[], str] = this_boot,
    ) -> None:
        self._min_age_s, self._settled_for_s = min_age_s, settled_for_s
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()  # guards what follows
        self._found: dict[str, Seen] = {}  # in this run
        self._refused: dict[str, Identity] = {}
        self._changed: set[str] = set()
        now_s = steady()
        self._now = Known(os.uname().nodename, boot(), now_s, apart_s=wall() - now_s)
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            self._take(known)

    def _take(self, state: Any) -> None:
        """Take over what an earlier run has seen, on this machine."""
        known, now = Known(**state), self._now
        numbers = known.at_s, known.before_s, known.apart_s, known.stepped_s or 0.0
        if not all(map(math.isfinite, numbers)):
            return
        files = {
            path: (int(size), int(mtime_ns), int(inode), float(since_s))
            for path, (size, mtime_ns, inode, since_s) in known.files.items()
        }
        if known.boot == now.boot and known.at_s <= now.at_s:
            now.before_s, now.stepped_s = known.before_s, known.stepped_s
            if abs(now.apart_s - known.apart_s) > _STEP_S:
                now.stepped_s = now.at_s
        elif known.host == now.host:
            now.before_s = known.before_s + known.at_s
        else:
            return  # another machine's clock says nothing
        now.files = files

    @property
    def is_needed(self) -> bool:
        """Whether any file could be left for the next run."""
        return bool(self._min_age_s or self._settled_for_s)

    @property
    def waiting(self) -> int:
        """How many files were left for the next run."""
        with self._lock:
            return len(self._refused) + len(self._changed)

    def is_ready(self, path: str, size: int, mtime_ns: int, inode: int) -> bool:
        """Return whether a file is taken in this run. Asked again, it is answered the same."""
        identity = size, mtime_ns, inode
        with self._lock:
            if self._refused.get(path) == identity:
                return False
            now_s = self._steady()
            self._watch_clocks(now_s)
            clock_s = self._now.before_s + now_s
            seen = self._found.get(path) or self._now.files.get(path)
            if seen is None or seen[:3] != identity:
                seen = (*identity, clock_s)
            same_s = clock_s - seen[3]
            is_old = same_s >= self._min_age_s or self._age_s(mtime_ns, now_s) >= self._min_age_s
            is_ready = is_old and same_s >= self._settled_for_s
            if is_ready:
                self._refused.pop(path, None)
            else:
                self._refused[path] = identity
            if self._settled_for_s or not is_ready:
                self._found[path] = seen
            return is_ready

    def is_ready_at(self, path: str) -> bool:
        """As is_ready(), of a path of this machine. What is no file, or not there, is ready."""
        try:
            found = os.stat(path)
        except OSError:
            return True
        identity = found.st_size, found.st_mtime_ns, found.st_ino
        return not stat.S_ISREG(found.st_mode) or self.is_ready(path, *identity)

    def left(self, path: str) -> None:
        """Count a file that changed while it was copied as one that is left."""
        with self._lock:
            self._changed.add(path)

    def state(self, *, is_whole: bool) -> dict[str, object]:
        """Return what the next run has to know, for json.

        `is_whole` says that this run has looked at all files, so that others are there no more.
        """
        with self._lock:
            files = self._found if is_whole else {**self._now.files, **self._found}
            return {**vars(self._now), "at_s": self._steady(), "files": files}

    def _watch_clocks(self, now_s: float) -> None:
        apart_s = self._wall() - now_s
        if abs(apart_s - self._now.apart_s) > _STEP_S:
            self._now.apart_s, self._now.stepped_s = apart_s, now_s

    def _age_s(self, mtime_ns: int, now_s: float) -> float:
        """Return how long ago a file changed by its own time; less than 0 where nobody knows."""
        stepped_s = self._now.stepped_s
        if stepped_s is not None and now_s - stepped_s < self._min_age_s:
            return -1.0
        return self._wall() - mtime_ns / 1e9
