"""Numbers that all worker processes see: how many connections there are, and penalties.

Each process writes a table of its own in memory that it shares with the others, and reads theirs:
there is no lock, and what a dead process had counted is wiped as a whole.

Not here: what is counted, and what comes of it (gate.py).
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import struct
import time
from collections.abc import Iterator

_SLOTS = 8192  # of one process: more than it has connections, and addresses under a penalty
_TRIES = 8  # slots in which a key may be
_SLOT = struct.Struct("<Qqd")  # the key's hash, a count, until when
_TABLE_BYTES = (_SLOTS + _TRIES) * _SLOT.size


class Shared:
    """Counts and penalties by key, of all processes. It is made before they are forked."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.worker = 0
        self._memory = mmap.mmap(-1, workers * _TABLE_BYTES)

    def become(self, worker: int) -> None:
        """From now on this process is that worker, whose table is empty."""
        self.worker = worker
        self.wipe(worker)

    def wipe(self, worker: int) -> None:
        """Forget what a worker has counted, which has ended."""
        self._memory[worker * _TABLE_BYTES : (worker + 1) * _TABLE_BYTES] = bytes(_TABLE_BYTES)

    def add(self, key: str, amount: int) -> None:
        """Count so much more, or less, of a key in this process."""
        at, count, until_s = self._place(_hash(key))
        if at is not None:
            _SLOT.pack_into(self._memory, at, _hash(key), max(0, count + amount), until_s)

    def count(self, key: str) -> int:
        """Return how much of a key all processes have counted."""
        return sum(count for count, _ in self._found(key))

    def penalize(self, key: str, cost_s: float, most_s: float) -> None:
        """Make the time longer, to `most_s` from now at most, for which a key has a penalty."""
        until_s = time.monotonic() + min(self.penalty_s(key) + cost_s, most_s)
        at, count, _ = self._place(_hash(key))
        if at is not None:
            _SLOT.pack_into(self._memory, at, _hash(key), count, until_s)

    def penalty_s(self, key: str) -> float:
        """Return for how many seconds a key has a penalty."""
        longest_s = max((until_s for _, until_s in self._found(key)), default=0.0)
        return max(0.0, longest_s - time.monotonic())

    def _slots(self, worker: int, key: int) -> Iterator[tuple[int, int, int, float]]:
        first = worker * _TABLE_BYTES + key % _SLOTS * _SLOT.size
        found = _SLOT.iter_unpack(self._memory[first : first + _TRIES * _SLOT.size])
        for number, (its, count, until_s) in enumerate(found):
            yield first + number * _SLOT.size, its, count, until_s

    def _found(self, name: str) -> Iterator[tuple[int, float]]:
        key = _hash(name)
        for worker in range(self.workers):
            for _, its, count, until_s in self._slots(worker, key):
                if its == key:
                    yield count, until_s

    def _place(self, key: int) -> tuple[int | None, int, float]:
        """Return the key's own slot, or the one that is least missed; None where all count."""
        free: dict[float, int] = {}
        for at, its, count, until_s in self._slots(self.worker, key):
            if its == key:
                return at, count, until_s
            if not count:
                free.setdefault(until_s, at)
        return (free[min(free)] if free else None), 0, 0.0


@functools.lru_cache(1024)
def _hash(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
