"""Holds on the source's snapshots while they are sent, for several datasets with one command.

At the far end each command costs some round trips, so what the next datasets need is held at once.

Not here: when a dataset needs them (dataset_job.py), when they go (schedule.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from pscp.ground import errors
from pscp.zfs.inventory import Snapshot, Zfs, in_batches
from pscp.zfs.plan import Plan

_AHEAD = 32  # datasets: all that a run that dies leaves holds on


class Holds:
    """The holds of one replication, by the names of the snapshots. Any thread may call."""

    def __init__(self, source: Zfs, tag: str, is_able: bool) -> None:
        self._source, self._tag = source, tag
        self._is_able = is_able  # False: the source's zfs has no holds
        self._lock = threading.Lock()  # held while zfs runs, so that nobody holds the same again
        self._planned: dict[str, list[str]] = {}  # what no dataset before it has asked for
        self._held: dict[str, set[str]] = {}  # by dataset
        self._doubtful: dict[str, set[str]] = {}  # likewise; zfs held some of them

    def expect(self, plans: Mapping[str, Plan]) -> None:
        """Note what will be sent of which datasets, in this order."""
        self._planned = {
            name: [f"{name}@{need.name}" for each in plan.streams for need in each.needed]
            for name, plan in plans.items()
        }

    def take(self, dataset: str, snapshots: Iterable[Snapshot]) -> str:
        """Hold snapshots of this dataset. Return why that cannot be; "" if they are held.

        Raises NoSuchDataset where one of them is gone.
        """
        with self._lock:
            held = self._held.setdefault(dataset, set())
            wanted = [f"{dataset}@{each.name}" for each in snapshots]
            wanted = [name for name in wanted if name not in held]
            self._planned.pop(dataset, None)
            if not wanted or not self._is_able:
                return ""
            if self._planned:
                self._hold_ahead(wanted)
            if held.issuperset(wanted):
                return ""
            ran = self._source.run("hold", self._tag, *wanted)
            if ran.status == 0 or b"already exists" in ran.err:
                held.update(wanted)
                return ""
            error = self._source.meaning(dataset, ran.err)
            if isinstance(error, errors.NoSuchDataset):
                raise error
            return error.message

    def _hold_ahead(self, wanted: list[str]) -> None:
        """Hold these and what the next datasets need; if one of them fails, none counts as held."""
        names = list(wanted)
        for dataset in list(self._planned)[: _AHEAD - 1]:
            names += self._planned.pop(dataset)
        names = list(dict.fromkeys(names))
        for some in in_batches(names):
            ran = self._source.run("hold", self._tag, *some)
            for name in some:
                of = self._held if ran.status == 0 else self._doubtful
                of.setdefault(name.partition("@")[0], set()).add(name)

    def of(self, dataset: str) -> set[str]:
        """Return the names of the dataset's snapshots that this run holds, or may hold."""
        with self._lock:
            return self._held.get(dataset, set()) | self._doubtful.get(dataset, set())

    def release(self, names: Sequence[str]) -> None:
        """Release this replication's holds, an earlier run's included; others' stay."""
        if self._is_able:
            for some in in_batches(names):
                self._source.run("release", self._tag, *some)
