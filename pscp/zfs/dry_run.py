"""Shows what a replication would do, in zfs commands, and which datasets would fail.

Not here: what is planned (plan.py), and carried out (schedule.py). Read next: dataset_job.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from pscp.ground import errors
from pscp.progress.progress import Reporter
from pscp.progress.progress import format_bytes as shown
from pscp.zfs import commands, prune
from pscp.zfs.dataset_job import Job
from pscp.zfs.error_messages import CLONED
from pscp.zfs.inventory import Dataset, Zfs
from pscp.zfs.plan import NOT_TAKEN, Pair, Plan, arrivals, awaited, check_awaited, dest_after


class DryRun:
    """One replication that changes nothing. `unknown_sizes` counts the streams of no known size."""

    def __init__(
        self, job: Job, reporter: Reporter, failed: Callable[[errors.DatasetError], object]
    ) -> None:
        """`failed` gets each dataset that would not be replicated."""
        self._job, self._reporter, self._report_failed = job, reporter, failed
        self.unknown_sizes = 0
        self._failed: set[str] = set()
        self._written: Mapping[str, int] = {}
        self._clones = functools.cache(Zfs.clones)

    def show(self, pairs: Mapping[str, Pair]) -> None:
        """Write the commands for each dataset, those of a parent before those below it."""
        job = self._job
        if not job.speech.settings.force_rollback:
            there = [each.dest_name for each in pairs.values() if each.dest]
            self._written = job.dest.written(there)
        before = awaited({name: each.source for name, each in pairs.items()})
        for name, awaits in before.items():
            pair = pairs[name]
            try:
                check_awaited(pair, awaits & self._failed)
                plan = job.plan(pair)
                self._check_unchanged(pair, plan)
                self._check_uncloned(pair, plan)
                job.at_dest.update(arrivals(pair.source, plan))
                what, texts = plan.describes, list(self._commands(pair, plan))
            except errors.DatasetError as error:
                self._failed.add(name)
                self._report_failed(error)
                what = "not replicated"
                texts = list(self._prunes(pair.source, pair.dest, arrives=False))
                if not texts:
                    continue
            self._reporter.line(f"{name} -> {pair.dest_name}: {what}")
            for text in texts:
                self._reporter.line(f"  {text}")

    def _check_unchanged(self, pair: Pair, plan: Plan) -> None:
        """Raise Diverged where zfs receive would find the destination changed."""
        written = self._written.get(pair.dest_name, 0)
        if pair.dest and plan.streams and not plan.goes_on and written:
            newest = pair.dest.snapshots[-1].short
            what = f"it was changed since {newest}: {shown(written)} written"
            raise errors.Diverged(pair.dest_name, what)

    def _check_uncloned(self, pair: Pair, plan: Plan) -> None:
        """Raise StreamRejected where a clone is in the rollback's way."""
        if not (pair.dest and plan.rollback_to):
            return
        names = [each.name for each in pair.dest.snapshots]
        clones = self._clones(self._job.dest, plan.dest.partition("/")[0])
        for name in names[names.index(plan.rollback_to) + 1 :]:
            if clone := clones.get(f"{plan.dest}@{name}"):
                what = f"it cannot be rolled back: {clone} is a clone of @{name}"
                raise errors.StreamRejected(plan.dest, what, CLONED)

    def _commands(self, pair: Pair, plan: Plan) -> Iterator[str]:
        """Yield the commands as they would be run, with the end that runs them before each."""
        job = self._job
        if plan.rollback_to:
            yield job.dest.command_line(commands.rollback(plan))
        can_tell = job.speech.common.sizes
        for number, stream in enumerate(plan.streams):
            size = None
            said = "  # its size is known once the snapshot is there" if can_tell else ""
            if stream.snapshot is None or stream.snapshot.guid != NOT_TAKEN:
                size = job.foresee(pair.source, stream).bytes
                said = "" if size is None else f"  # {shown(size)}"
            job.counters.add(bytes_total=size or 0)
            self.unknown_sizes += size is None
            readonly = number == 0 and job.makes_readonly(plan)
            yield job.source.command_line(job.speech.send(stream)) + said
            yield job.dest.command_line(job.speech.receive(stream, readonly=readonly))
            if readonly and not job.speech.common.sets:
                yield job.dest.command_line(commands.set_readonly(plan.dest))
        if plan.goes_on:
            yield "# what is sent and destroyed after that is known then"
            return
        job.record.expect(plan.dest, pair.dest, pair.source.snapshots)
        yield from self._prunes(pair.source, dest_after(pair, plan), arrives=True)

    def _prunes(self, source: Dataset, dest: Dataset | None, *, arrives: bool) -> Iterator[str]:
        """Yield the commands that destroy snapshots, and what would keep zfs from that."""
        for zfs, dataset, snapshot in prune.foresee(self._job, source, dest, arrives=arrives):
            unless = "  # unless something holds it then" if snapshot.is_held else ""
            if f"{dataset}{snapshot.short}" in self._clones(zfs, dataset.partition("/")[0]):
                unless = "  # unless a clone needs it then"
            yield zfs.command_line(commands.destroy(dataset, snapshot)) + unless
