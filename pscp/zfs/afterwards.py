"""What follows once datasets were received, for several at once: each is looked for at the
destination, then come the record, the holds, a bookmark, and what --keep-last destroys.

Only what the destination lists by its GUID counts as replicated.

Not here: how a dataset was sent (dataset_job.py), what may be pruned (plan.py, record.py).
Read next: record.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pscp.ground import errors
from pscp.zfs import commands, error_messages
from pscp.zfs.dataset_job import Job, Received
from pscp.zfs.inventory import Dataset, Snapshot, Zfs
from pscp.zfs.plan import of_ours_to_prune

_NAMED = 3  # snapshots, in a note


@dataclass(frozen=True)
class Sent:
    """One dataset that the destination now has as the source has it."""

    source: str
    dest: str
    snapshot: str  # the newest, at both ends
    base: str = ""  # "@name" or "#name", of a clone "dataset@name"; "": full, or nothing was sent
    streams: int = 0
    bytes: int = 0
    resumed: bool = False  # it went on with a cut receive
    pruned: tuple[str, ...] = ()


class Afterwards:
    """What follows for the datasets of one replication."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._settings = job.speech.settings

    # --- those that were received

    def settle(self, received: Sequence[Received]) -> tuple[list[Sent], list[errors.DatasetError]]:
        """Confirm these datasets. Return those that are there, and what is wrong with others."""
        job = self.job
        good: list[tuple[Received, Dataset | None, str]] = []
        wrong: list[errors.DatasetError] = []
        asked = [each.dest_name for each in received if each.plan.streams]
        try:
            there = job.dest.look(asked, job.dest_top)
        except errors.DatasetError as error:
            return [], [type(error)(each.dest_name, error.message) for each in received]
        for each in received:
            dest = there.get(each.dest_name) if each.plan.streams else each.dest
            try:
                good.append((each, dest, _confirmed(each, dest)))
            except errors.StreamRejected as error:
                wrong.append(error)
                continue
            if dest is not None:
                job.record.settle(dest)
        job.holds.release([name for each, _, _ in good for name in self._held(each.source)])
        with ThreadPoolExecutor(self._settings.parallel, "zfs afterwards") as pool:
            sent = list(pool.map(lambda one: self._sent(*one), good))
        return sent, wrong

    def _held(self, source: Dataset) -> list[str]:
        """Return what this run holds of the dataset, and what an earlier one may have left."""
        listed = {f"{source.name}@{each.name}" for each in source.snapshots if each.is_held}
        return sorted(listed | self.job.holds.of(source.name))

    def _sent(self, each: Received, dest: Dataset | None, newest: str) -> Sent:
        if self._settings.bookmark and dest is not None:
            self._bookmark(each.source, dest)
        tally = each.tally
        return Sent(
            each.source.name,
            each.dest_name,
            newest,
            base=tally.base or "",
            streams=tally.streams,
            bytes=tally.bytes,
            resumed=tally.resumed,
            pruned=self._prune(each.source, dest),
        )

    # --- those that were not

    def give_up(self, failed: Sequence[tuple[Dataset, str]]) -> None:
        """Let go of these datasets and their destinations, which were not replicated.

        Their snapshots are pruned at the source like others, or each night that fails would leave
        one more; but not what a cut stream goes on with, nor what the next increment begins with.
        """
        job, settings = self.job, self._settings
        self.release([source for source, _ in failed])
        if settings.keep_last is None or settings.prune == "dest":
            return
        try:
            there = job.dest.look([dest for _, dest in failed], job.dest_top)
        except errors.DatasetError:  # then the next run prunes
            return
        for source, dest_name in failed:
            dest = there.get(dest_name)
            ours = of_ours_to_prune(source.snapshots, job.mark, settings.keep_last, _guids(dest))
            if dest is not None and dest.token:
                held = self._held(source)
                if not held:  # then nothing tells what the cut stream goes on with
                    continue
                ours = [each for each in ours if f"{source.name}@{each.name}" not in held]
            if gone := self._destroy(job.source, source, ours):
                more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
                job.note(
                    f"{source.name}: --keep-last {settings.keep_last} destroyed what earlier runs "
                    f"took and did not deliver: {', '.join(gone[:_NAMED])}{more}"
                )

    def release(self, sources: Sequence[Dataset]) -> None:
        """Release what this run holds of these, but for what a cut stream goes on with."""
        done = [each for each in sources if not self._may_resume(each)]
        of = self.job.holds.of
        self.job.holds.release([name for each in done for name in sorted(of(each.name))])

    def _may_resume(self, source: Dataset) -> bool:
        return self.job.speech.common.resume and source.name in self.job.began

    # --- bookmarks

    def _bookmark(self, source: Dataset, dest: Dataset) -> None:
        """Bookmark the newest snapshot that both ends have, and destroy our earlier bookmarks."""
        job, there = self.job, _guids(dest)
        shared = [each for each in source.snapshots if each.guid in there]
        if not shared:
            return
        ours = f"pscp-{job.mark}-"  # a bookmark has no property for our mark
        earlier = [each for each in source.bookmarks if each.name.startswith(ours)]
        if all(each.guid != shared[-1].guid for each in earlier):
            name = f"{ours}{shared[-1].guid:016x}"
            ran = job.source.run(*commands.bookmark(source.name, shared[-1], name))
            if ran.status != 0:
                said = error_messages.complaint(ran.err)
                job.note(f"{source.name}{shared[-1].short}: no bookmark was made: {said}")
                return
        for each in earlier:
            if each.guid != shared[-1].guid:
                job.source.run(*commands.destroy_bookmark(source.name, each))

    # --- pruning

    def _prune(self, source: Dataset, dest: Dataset | None) -> tuple[str, ...]:
        settings, job = self._settings, self.job
        if settings.keep_last is None:
            return ()
        gone: list[str] = []
        if settings.prune != "source" and dest is not None:
            trusted = job.record.trusted(self._marked(dest))
            ours = of_ours_to_prune(trusted.snapshots, job.mark, settings.keep_last)
            gone += self._destroy(job.dest, trusted, ours)
        if settings.prune != "dest":
            ours = of_ours_to_prune(source.snapshots, job.mark, settings.keep_last, _guids(dest))
            gone += self._destroy(job.source, source, ours)
        return tuple(gone)

    def _marked(self, dest: Dataset) -> Dataset:
        """Mark what is in the record at the destination, since zfs send leaves the mark out."""
        job = self.job
        new = [
            each
            for each in dest.snapshots
            if each.mark != job.mark and job.record.holds(dest.name, each)
        ]
        if not new:
            return dest
        ran = job.dest.run(*commands.set_mark(dest.name, new, job.mark))
        if ran.status != 0:
            job.note(f"{dest.name}: not marked for --prune: {error_messages.complaint(ran.err)}")
            return dest
        return job.dest.look([dest.name], dest.name).get(dest.name, dest)

    def _destroy(self, zfs: Zfs, dataset: Dataset, snapshots: Sequence[Snapshot]) -> list[str]:
        gone = []
        for each in snapshots:
            ran = zfs.run(*commands.destroy(dataset.name, each))
            if ran.status == 0:
                gone.append(f"{dataset.name}{each.short}")
            else:
                said = error_messages.complaint(ran.err)
                self.job.note(f"{dataset.name}{each.short}: not pruned: {said}")
        return gone


def _guids(dataset: Dataset | None) -> set[int]:
    return {each.guid for each in dataset.snapshots} if dataset else set()


def _confirmed(received: Received, dest: Dataset | None) -> str:
    """Return the newest snapshot's name at the destination, which must have it, by its GUID."""
    there = {each.guid: each for each in dest.snapshots} if dest else {}
    target = received.plan.target or received.source.snapshots[-1]
    if received.plan.streams and target.guid not in there:
        what = f"{target.short} is not there, though zfs receive said nothing against it"
        raise errors.StreamRejected(received.dest_name, what)
    return there[target.guid].name if target.guid in there else target.name
