"""Which files a copy leaves out by their size and age, or as its caller selects: for instance those
that are still being written (Settled, a `select` of pscp.JobTerms). Folders and links it takes.

What is left out is neither a failure nor skipped: as what --exclude leaves out, it is not
counted. It is in the source all the same, so nothing may delete it at the destination.

A clock may be set while nobody is watching, so Settled never believes one alone. How long a file
has been the same (size, time and inode) is measured from one look to the next by a clock that
nobody sets and that begins with the boot: across a boot it shows less than has passed, and never
more. A file's age by its own time counts only while the clock on the wall has gone along with that
one; for a file that was seen to be the same for so long it does not matter what its time says.

Not here: patterns (../../options/filters.py), what the destination says about a file (lookups.py),
where the state of Settled is kept (../../jobs/runner.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pscp.endpoint.reading import source, tree
from pscp.endpoint.there.counting import NO_BOUNDS, Bounds
from pscp.options.options import Options
from pscp.transfer.pieces.plan import source_path
from pscp.transfer.terms.copy_terms import Select

_NANO = 10**9
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
Seen = tuple[int, int, int, float]  # those, and since when, by RunNotes' clock


@dataclass
class RunNotes:
    """Notes of a run for the next. The clock goes on at a boot, as if no time had passed."""

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
        self._now = RunNotes(os.uname().nodename, boot(), now_s, apart_s=wall() - now_s)
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            self._take(known)

    def _take(self, state: Any) -> None:
        """Take over what an earlier run has seen, on this machine."""
        known, now = RunNotes(**state), self._now
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
        """Return whether any file could be left for the next run."""
        return bool(self._min_age_s or self._settled_for_s)

    @property
    def waiting(self) -> int:
        """How many files were left for the next run."""
        return len(self._refused) + len(self._changed)

    def first_waiting(self, most: int) -> list[str]:
        """Return the paths of the first of these."""
        with self._lock:
            return sorted(self._refused.keys() | self._changed)[:most]

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
        """Return is_ready() of a path of this machine. What is no file, or not there, is ready."""
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


class Selection:
    """The bounds of a copy. They hold for the size and time that the walk saw."""

    def __init__(
        self,
        options: Options,
        now_ns: int,
        tops: Sequence[source.Top] = (),
        select: Select | None = None,
    ) -> None:
        """Ages are counted from `now_ns`, by the clock of this machine.

        `select` is asked about each file of these sources that is within the bounds.
        """
        self._tops, self._select = tops, select
        self.bounds = Bounds(
            options.min_size_bytes,
            options.max_size_bytes,
            None if options.max_age_s is None else now_ns - options.max_age_s * _NANO,
            None if options.min_age_s is None else now_ns - options.min_age_s * _NANO,
        )
        self._takes_all = self.bounds == NO_BOUNDS and select is None
        self._left_out: set[object] = set()  # files with other names that may come: (source, path)

    def leaves_out(self, entry: tree.Entry) -> bool:
        """Return whether the entry is not to be copied. The entry is as its source knows it.

        A hard link has the size and time of the file that it names, so both stay or neither does;
        what is at the destination under the first name may be another file.
        """
        if self._takes_all:
            return False
        if entry.kind == tree.HARDLINK:
            return (entry.extra["in"], entry.extra["to"]) in self._left_out
        if entry.kind != tree.FILE or self._takes(entry):
            return False
        if "linked" in entry.extra:
            self._left_out.add((entry.top, entry.path))
        return True

    def _takes(self, entry: tree.Entry) -> bool:
        if not self.bounds.hold(entry.size, entry.mtime_ns):
            return False
        if self._select is None:
            return True
        path = source_path(self._tops[entry.top], entry.path)
        return self._select(path, entry.size, entry.mtime_ns, entry.inode)
