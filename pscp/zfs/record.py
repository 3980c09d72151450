"""The record of the snapshots that a replication took and delivered, kept from run to run.

--prune destroys at the destination only what is in it: a mark there, or what the far end says of
its snapshots, is not enough. A snapshot is known by its name and its GUID.

It is a file of JSON in the state folder, beside the lock of the same replication:

    {"taken": [name], "delivered": {dataset: {name: GUID}}}

A file that is lost or unreadable is an empty record: then nothing that came before is pruned.

Not here: which of them are destroyed (plan.py). Read next: ../ground/state.py.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable

from pscp.ground import state
from pscp.zfs.inventory import Dataset, Snapshot, guids


class Record:
    """The record of one replication. Any thread may use it."""

    def __init__(self, mark: str, *, is_written: bool = True) -> None:
        """With `is_written` False, as for a dry run, the file stays as it is."""
        self.mark, self._is_written = mark, is_written
        self.name = f"zfs/{mark}.json"  # in the state folder
        self.strange: list[str] = []  # snapshots with our mark that are not in the record
        self.is_kept = True  # False: it could not be written
        self._lock = threading.Lock()
        self._taken, self._delivered = _checked(state.recall(self.name))
        self._expected: dict[str, set[int]] = {}  # GUIDs that this run began to send, by dataset

    def take(self, name: str) -> None:
        """Note that a snapshot of this name is about to be taken at the source."""
        with self._lock:
            self._taken.add(name)
            self._write()

    def expect(self, dataset: str, there: Dataset | None, coming: Iterable[Snapshot]) -> None:
        """Note, before they are sent to the dataset, which of the snapshots we took.

        A snapshot whose name or GUID is at the destination already was not delivered by us. One
        with a name that we wanted, but without our mark, may be the user's own. What we delivered
        before to another dataset comes again with one that was renamed at the source.
        """
        had = there.snapshots if there else ()
        known = {each.name for each in had}, {each.guid for each in had}
        with self._lock:
            earlier = {pair for of in self._delivered.values() for pair in of.items()}
            ours = {
                each.name: each.guid
                for each in coming
                if (each.name in self._taken or (each.name, each.guid) in earlier)
                and each.name not in known[0]
                and each.guid not in known[1]
                and each.mark == self.mark
            }
            if ours:
                self._delivered.setdefault(dataset, {}).update(ours)
                self._expected.setdefault(dataset, set()).update(ours.values())
                self._write()

    def holds(self, dataset: str, snapshot: Snapshot) -> bool:
        """Return whether this replication delivered the snapshot to this dataset."""
        with self._lock:
            return self._delivered.get(dataset, {}).get(snapshot.name) == snapshot.guid

    def delivered(self) -> set[int]:
        """Return the GUIDs of all snapshots that are in the record as delivered, to any dataset."""
        with self._lock:
            return {guid for of in self._delivered.values() for guid in of.values()}

    def undelivered(self, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
        """Return those that were taken, as the record has it, and never delivered to any dataset.

        A record that was lost has none of what was taken before that.
        """
        delivered = self.delivered()
        with self._lock:
            return [s for s in snapshots if s.name in self._taken and s.guid not in delivered]

    def with_marks(self, dataset: Dataset) -> Dataset:
        """Return the dataset with our mark on all that the record has of it."""
        snapshots = (
            dataclasses.replace(each, mark=self.mark) if self.holds(dataset.name, each) else each
            for each in dataset.snapshots
        )
        return dataclasses.replace(dataset, snapshots=tuple(snapshots))

    def trusted(self, dataset: Dataset) -> Dataset:
        """Return the dataset with our mark only on what the record has; `strange` gets the rest."""
        snapshots = []
        for each in dataset.snapshots:
            if each.mark == self.mark and not self.holds(dataset.name, each):
                self.strange.append(f"{dataset.name}{each.short}")
                each = dataclasses.replace(each, mark="")
            snapshots.append(each)
        return dataclasses.replace(dataset, snapshots=tuple(snapshots))

    def settle(self, dataset: Dataset) -> None:
        """Forget the snapshots that were expected at the dataset and are not there."""
        there = {each.name for each in dataset.snapshots}
        with self._lock:
            before = self._delivered.pop(dataset.name, {})
            after = {name: guid for name, guid in before.items() if name in there}
            if after:
                self._delivered[dataset.name] = after
            if after != before:
                self._write()

    def forget_cut(self, dataset: str, there: Dataset | None) -> None:
        """Forget what this run began to send to the dataset and did not bring there.

        What earlier runs delivered stays in the record: it may be at a destination that is out of
        sight, such as in a pool that is not imported.
        """
        arrived = guids(there)
        with self._lock:
            cut = self._expected.pop(dataset, set()) - arrived
            before = self._delivered.get(dataset, {})
            after = {name: guid for name, guid in before.items() if guid not in cut}
            if after != before:
                self._delivered[dataset] = after
                self._write()

    def all_delivered(self) -> None:
        """Note that nothing that was taken is still to be sent."""
        with self._lock:
            if self._taken:
                self._taken.clear()
                self._write()

    def _write(self) -> None:
        if not self._is_written:
            return
        value = {"taken": sorted(self._taken), "delivered": self._delivered}
        self.is_kept = state.remember(self.name, value) and self.is_kept


def _checked(value: object) -> tuple[set[str], dict[str, dict[str, int]]]:
    """Return what the file holds, or nothing where it has another shape."""
    if not isinstance(value, dict):
        return set(), {}
    try:
        taken = {name for name in value["taken"] if isinstance(name, str)}
        delivered = {
            dataset: {name: guid for name, guid in of.items() if isinstance(guid, int)}
            for dataset, of in value["delivered"].items()
        }
    except (TypeError, LookupError, AttributeError):
        return set(), {}
    return taken, delivered
