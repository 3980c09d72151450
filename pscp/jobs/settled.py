"""Which files are left for the next run: those that are too young (min-age) or have not settled.

A clock may be set while nobody is watching, so it is never believed alone. How long a file has been
the same (size, time and inode) is measured from one look to the next by a clock that nobody sets
and that begins with the boot: across a boot it shows less than has passed, and never more. A file's
age by its own time counts only while the clock on the wall has gone along with that one; for a file
that was seen to be the same for so long it does not matter what its time says.

Not here: sizes and ages that a user asks for with --min-age and the like (transfer/selection.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

Identity = tuple[int, int, int]  # size, mtime_ns, inode
_STEP_S = 2.0  # two clocks that drift apart by more than that were not both left alone


def since_boot() -> float:
    """Return the seconds since this machine was started, asleep or not; nobody sets this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def this_boot() -> str:
    """Return what names this boot of this machine; the machine's name where a boot has none."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return os.uname().nodename


class Settled:
    """What a job's files looked like when they were seen first. Any thread may ask."""

    def __init__(
        self,
        min_age_s: float,
        settled_for_s: float,
        known: object = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot,
        boot: Callable[[], str] = this_boot,
    ) -> None:
        """Begin with what state() has returned in an earlier run; what makes no sense is ignored.

        Args:
            min_age_s: how long ago a file has to have changed; 0: no matter.
            settled_for_s: how long it has to have been seen unchanged; 0: no matter.
            wall: the time of day, seconds since the epoch.
            steady: seconds since the boot.
            boot: names the boot.
        """
        self._min_age_s, self._settled_for_s = min_age_s, settled_for_s
        self._wall, self._steady, self._boot = wall, steady, boot()
        self._lock = threading.Lock()  # guards what follows
        self._seen: dict[str, tuple[Identity, float]] = {}  # and for how long, at the run's begin
        self._found: dict[str, tuple[Identity, float]] = {}  # in this run, likewise
        self._refused: dict[str, Identity] = {}
        self._changed: set[str] = set()
        self._begin_s = steady()
        self._apart_s = wall() - self._begin_s
        self._stepped_s: float | None = None  # when the clock on the wall was last seen to be set
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            self._take(known)

    def _take(self, known: Any) -> None:
        """Take over what an earlier run has seen, on this machine."""
        at_s, apart_s, stepped_s = float(known["at"]), float(known["apart"]), known["stepped"]
        is_same_boot = known["boot"] == self._boot and at_s <= self._begin_s
        if not is_same_boot and known["host"] != os.uname().nodename:
            return  # another machine's clock says nothing
        passed_s = self._begin_s - (at_s if is_same_boot else 0.0)
        for path, (size, mtime_ns, inode, seen_s) in known["files"].items():
            self._seen[path] = (size, mtime_ns, inode), float(seen_s) + passed_s
        if is_same_boot:
            self._stepped_s = None if stepped_s is None else float(stepped_s)
            if abs(self._apart_s - apart_s) > _STEP_S:
                self._stepped_s = self._begin_s

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
            now_s = self._steady()
            self._watch_clocks(now_s)
            if self._refused.get(path) == identity:
                return False
            same_s = self._same_s(path, identity, now_s)
            is_old = same_s >= self._min_age_s or self._age_s(mtime_ns, now_s) >= self._min_age_s
            is_ready = is_old and same_s >= self._settled_for_s
            if is_ready:
                self._refused.pop(path, None)
            else:
                self._refused[path] = identity
            if self._settled_for_s or not is_ready:
                self._found[path] = identity, same_s - (now_s - self._begin_s)
            return is_ready

    def left(self, path: str) -> None:
        """Count a file that changed while it was copied as one that is left."""
        with self._lock:
            self._changed.add(path)

    def state(self, *, is_whole: bool) -> dict[str, object]:
        """Return what the next run has to know, for json.

        `is_whole` says that this run has looked at all files, so that others are there no more.
        """
        with self._lock:
            now_s = self._steady()
            found = self._found if is_whole else {**self._seen, **self._found}
            return {
                "host": os.uname().nodename,
                "boot": self._boot,
                "at": now_s,
                "apart": self._apart_s,
                "stepped": self._stepped_s,
                "files": {
                    path: (*identity, seen_s + now_s - self._begin_s)
                    for path, (identity, seen_s) in found.items()
                },
            }

    def _watch_clocks(self, now_s: float) -> None:
        apart_s = self._wall() - now_s
        if abs(apart_s - self._apart_s) > _STEP_S:
            self._stepped_s = now_s
            self._apart_s = apart_s

    def _same_s(self, path: str, identity: Identity, now_s: float) -> float:
        """Return for how long at least a file was seen to be what it is."""
        for known in (self._found, self._seen):
            if path in known and known[path][0] == identity:
                return known[path][1] + now_s - self._begin_s
        return 0.0

    def _age_s(self, mtime_ns: int, now_s: float) -> float:
        """Return how long ago a file changed by its own time; less than 0 where nobody knows."""
        if self._stepped_s is not None and now_s - self._stepped_s < self._min_age_s:
            return -1.0
        return self._wall() - mtime_ns / 1e9
