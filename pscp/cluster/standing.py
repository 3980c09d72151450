"""Which workers are given tasks: one that can do nothing is passed over while others can.

It ends its tasks at once, so Dask would give it more of them than any other worker gets.

Not here: who makes tasks (dispatcher.py). Read next: mover.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

_PASSED_OVER_S = 30.0  # a worker of whose task nothing was done
_MOST_FRUITLESS = 3  # tasks, where no worker does anything: the copy cannot go on


class Standing:
    """The workers of a cluster that did nothing lately. The dispatcher's lock guards it."""

    def __init__(self) -> None:
        self._present: set[str] = set()
        self._fruitless: dict[str, int] = {}  # tasks, since this worker last did anything
        self._failed_s: dict[str, float] = {}  # when it last did nothing

    def see(self, addresses: Iterable[str]) -> None:
        """Note which workers there are."""
        self._present = set(addresses)

    def note(self, address: str, *, has_done: bool) -> None:
        """Note a task's outcome; the address is empty where it is not known."""
        if has_done:
            self._fruitless.pop(address, None)
            self._fruitless.pop("", None)
            return
        self._fruitless[address] = self._fruitless.get(address, 0) + 1
        self._failed_s[address] = time.monotonic()

    def chosen(self) -> list[str] | None:
        """Return the workers for the next task; None: all that there are."""
        before_s = time.monotonic() - _PASSED_OVER_S
        good = [
            each
            for each in self._present
            if each not in self._fruitless or self._failed_s[each] < before_s
        ]
        return good if 0 < len(good) < len(self._present) else None

    @property
    def is_hopeless(self) -> bool:
        """Return whether no worker that is there can do anything."""
        unknown = self._fruitless.get("", 0)
        if any(each not in self._fruitless for each in self._present):
            return unknown >= _MOST_FRUITLESS
        fruitless = sum(self._fruitless.get(each, 0) for each in self._present)
        return unknown + fruitless >= _MOST_FRUITLESS
