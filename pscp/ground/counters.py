"""Counts where a copy stands.

Not here: who counts (../transfer/coordinator.py), how it is shown (../progress/progress.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

_COUNTED = ("files_counted", "bytes_counted", "bytes_unneeded")  # of which as_dict() has the sums
_NO_NUMBERS = ("nouns", "host", "large", "workers", *_COUNTED)


@dataclass(slots=True)
class LargeFile:
    """A file that travels in chunks, or is hashed, as far as it has come."""

    path: str
    size_bytes: int
    done_bytes: int = 0
    is_hashed: bool = False


@dataclass(frozen=True)
class WorkerTotals:
    """The totals of one worker of a cluster in a copy."""

    worker: str  # the name of its machine, and its process
    bytes: int = 0  # that it has moved
    seconds: float = 0.0  # that its tasks took
    tasks: int = 0
    retries: int = 0  # of these tasks, those that a worker had begun which seemed lost then
    connections: int = 0  # most at once
    connections_lost: int = 0

    def __add__(self, other: WorkerTotals) -> WorkerTotals:
        """Return the totals of two parts of its work."""
        most = max(self.connections, other.connections)
        summed = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[1:])
        return replace(WorkerTotals(self.worker, *summed), connections=most)


def by_worker(parts: Iterable[WorkerTotals]) -> tuple[WorkerTotals, ...]:
    """Return the totals of each worker, by name."""
    found = dict[str, WorkerTotals]()
    for part in parts:
        found[part.worker] = found[part.worker] + part if part.worker in found else part
    return tuple(found[name] for name in sorted(found))


@dataclass(frozen=True)
class Counters:
    """The numbers of a copy at one moment."""

    bytes_total: int = 0  # planned so far
    plan_complete: bool = False
    bytes_done: int = 0  # landed and verified in this run
    bytes_resumed: int = 0  # there already and verified, not sent
    bytes_comparing: int = 0  # that may be in a file which is at the destination
    bytes_sent: int = 0  # put on the wire, resends included
    files_total: int = 0
    files_counted: int = 0  # ahead of the walk, all that the sources hold; 0: not known
    bytes_counted: int = 0  # of those
    bytes_unneeded: int = 0  # of files that are unchanged, linked or skipped
    files_done: int = 0  # finished in this run
    files_resumed: int = 0  # there already and verified
    files_unchanged: int = 0  # there already by size and time, and not read
    files_linked: int = 0  # names of files in other folders (--link-dest)
    files_skipped: int = 0
    files_left_out: int = 0  # by size or age, and what is no file; in no other number
    files_failed: int = 0
    files_deleted: int = 0  # at the destination, folders too
    metadata_set: int = 0  # files and folders there already that got other metadata
    files_removed: int = 0  # at the source, or moved away there
    chunks_verified: int = 0  # a small file sent whole counts as one
    verified: bool = True  # else there are no such chunks (--verify none)
    chunks_resent: int = 0
    bytes_to_hash: int = 0  # for the manifest, once the copy is over
    bytes_hashed: int = 0  # of those
    files_to_hash: int = 0  # for the manifest, links too; 0: the copy is not over, or makes none
    files_hashed: int = 0  # of those
    lanes_alive: int = 0
    lanes_wanted: int = 0
    connections_lost: int = 0
    attempts: int = 0  # to connect again, since no lane is alive
    started_s: float = field(default_factory=time.monotonic)  # by the clock time.monotonic()
    nouns: tuple[str, str] = ("file", "lane")  # what is counted, for people
    host: str = ""  # as it was typed
    workers: tuple[WorkerTotals, ...] = ()  # of a cluster, as far as they have answered
    large: dict[int, LargeFile] = field(default_factory=dict, compare=False)  # under way, by number

    @property
    def bytes_expected(self) -> int:
        """Bytes of the whole copy; until the plan is complete about so many, or 0: not known."""
        if self.plan_complete:
            return self.bytes_total
        about = self.bytes_counted - self.bytes_unneeded
        return max(self.bytes_total, about) if self.files_counted else 0

    @property
    def files_expected(self) -> int:
        """Files of the whole copy, as with bytes_expected."""
        if self.plan_complete:
            return self.files_total
        return max(self.files_total, self.files_counted) if self.files_counted else 0

    @property
    def is_hashing(self) -> bool:
        """True once the copy is over, and its files are hashed for the manifest."""
        return self.files_to_hash > 0

    @property
    def left_bytes(self) -> int:
        """Bytes that have not landed yet, of what is planned so far."""
        return self.bytes_total - self.bytes_done - self.bytes_resumed

    @property
    def sending_bytes(self) -> int:
        """Bytes that have not landed yet, of those that have to be sent as far as is known."""
        return self.left_bytes - self.bytes_comparing

    def __add__(self, other: Counters) -> Counters:
        """Return what two copies have done together; `other` is the one that goes on."""
        kinds = ("bytes_", "files_", "chunks_", "connections_", "metadata_")
        counted = (each.name for each in fields(self) if each.name.startswith(kinds))
        summed = {name: getattr(self, name) + getattr(other, name) for name in counted}
        return replace(other, **summed, verified=self.verified and other.verified)

    def as_dict(self) -> dict[str, object]:
        counted = [each.name for each in fields(self) if each.name not in _NO_NUMBERS]
        expected = {"bytes_expected": self.bytes_expected, "files_expected": self.files_expected}
        return {**{name: getattr(self, name) for name in counted}, **expected}


class LiveCounters(Counters):
    """Counters that go on. Any thread may add; a single field may be read at any time."""

    __setattr__ = object.__setattr__

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._lock = threading.Lock()
        # Asks for the bytes that have landed over each lane; None for one that is not up.
        self.lanes_moved: Callable[[], list[int | None]] = list

    def add(self, **deltas: int) -> None:
        """Add to counters of these names; chunks that nothing verifies are not counted."""
        with self._lock:
            for name, delta in deltas.items():
                if name != "chunks_verified" or self.verified:
                    setattr(self, name, getattr(self, name) + delta)

    def set(self, **values: object) -> None:
        with self._lock:
            for name, value in values.items():
                setattr(self, name, value)

    def begin_file(
        self, number: int, path: str, size_bytes: int, *, is_hashed: bool = False
    ) -> None:
        """Note that a large file is under way, or hashed, until end_file()."""
        with self._lock:
            self.large[number] = LargeFile(path, size_bytes, is_hashed=is_hashed)

    def add_to_file(self, number: int, done_bytes: int) -> None:
        with self._lock:
            if number in self.large:
                self.large[number].done_bytes += done_bytes

    def end_file(self, number: int) -> None:
        with self._lock:
            self.large.pop(number, None)

    def snapshot(self) -> Counters:
        """Return the numbers of now, which belong together and stay as they are."""
        with self._lock:
            now = {each.name: getattr(self, each.name) for each in fields(Counters)}
            now["large"] = {n: replace(each) for n, each in self.large.items()}
        return Counters(**now)
