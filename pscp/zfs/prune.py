"""Destroys what --keep-last leaves no room for, at the ends that --prune names; or foresees that.

Not here: which snapshots of one end these are (plan.py), which of them are ours (record.py).
Read next: record.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pscp.progress.progress_words import some_of
from pscp.zfs import commands
from pscp.zfs.dataset_job import Job
from pscp.zfs.error_messages import complaint
from pscp.zfs.inventory import Dataset, Snapshot, Zfs, guids
from pscp.zfs.plan import brings_others, left_behind, of_ours_to_prune

_NAMED = 3  # snapshots, in a note


def prune(job: Job, source: Dataset, dest: Dataset | None) -> tuple[str, ...]:
    """Prune a dataset that was replicated. Return the snapshots that were destroyed."""
    gone: list[str] = []
    if dest is not None and job.speech.settings.prunes("dest"):
        gone += _destroy(job, job.dest, dest.name, _of_dest(job, source, _marked(job, dest)))
    if job.speech.settings.prunes("source"):
        gone += _destroy(job, job.source, source.name, _of_source(job, source, dest))
    return tuple(gone)


def prune_source(job: Job, source: Dataset, dest: Dataset | None) -> None:
    """Prune a dataset that was not replicated, which is done at the source alone; say what."""
    ours, there = _of_failure(job, source, dest), guids(dest)
    lost = [f"{source.name}{each.short}" for each in ours if each.guid not in there]
    gone = _destroy(job, job.source, source.name, ours)
    if lost := [name for name in lost if name in gone]:
        job.note(
            f"{source.name}: --keep-last {job.speech.settings.keep_last} destroyed what earlier "
            f"runs took and the destination has not: {some_of(lost, _NAMED)}"
        )


def foresee(
    job: Job, source: Dataset, dest: Dataset | None, *, arrives: bool
) -> Iterator[tuple[Zfs, str, Snapshot]]:
    """Yield what would be destroyed: the end, the dataset, the snapshot; `dest` is as by then.

    `arrives` is False for what would not be replicated.
    """
    if not arrives:
        yield from _at(job.source, source.name, _of_failure(job, source, dest))
        return
    if dest is not None and job.speech.settings.prunes("dest"):
        yield from _at(job.dest, dest.name, _of_dest(job, source, job.record.with_marks(dest)))
    if job.speech.settings.prunes("source"):
        yield from _at(job.source, source.name, _of_source(job, source, dest))


def _at(
    zfs: Zfs, dataset: str, snapshots: Sequence[Snapshot]
) -> Iterator[tuple[Zfs, str, Snapshot]]:
    return ((zfs, dataset, each) for each in snapshots)


def _of_source(job: Job, source: Dataset, dest: Dataset | None) -> list[Snapshot]:
    """Return the source's snapshots that --keep-last destroys."""
    return _ours(job, source, guids(dest))


def _of_failure(job: Job, source: Dataset, dest: Dataset | None) -> list[Snapshot]:
    """Return those of the source that go although it was not replicated.

    A destination with none of its snapshots may not be the one that they were delivered to: its
    pool is not imported, or it was renamed. Then nothing goes that was ever delivered; else not
    the newest of that. Nor does what a cut stream goes on with.
    """
    if not job.speech.settings.prunes("source"):
        return []
    there, delivered = guids(dest), job.record.delivered()
    newest = [each.guid for each in source.snapshots if each.guid in delivered][-1:]
    ours = [each for each in _of_source(job, source, dest) if each.guid not in newest]
    if there.isdisjoint(guids(source)):
        ours = job.record.undelivered(ours)
    if dest is None or not dest.token:
        return ours
    held = job.held(source)  # where nothing is, nothing tells what the cut stream goes on with
    return [each for each in ours if held and f"{source.name}@{each.name}" not in held]


def _of_dest(job: Job, source: Dataset, dest: Dataset) -> list[Snapshot]:
    """Return the destination's, which has our mark, of those that are in the record."""
    mark = job.record.mark
    left = [f"{dest.name}{each.short}" for each in left_behind(source, dest, mark)]
    job.left_behind.extend(left)
    if left and job.speech.settings.all_between and brings_others(source, mark):
        job.more_come.set()
    return _ours(job, job.record.trusted(dest))


def _ours(job: Job, dataset: Dataset, bases: Collection[int] = ()) -> list[Snapshot]:
    settings = job.speech.settings
    assert settings.keep_last is not None
    snapshots, mark = dataset.snapshots, job.record.mark
    return of_ours_to_prune(snapshots, mark, settings.keep_last, settings.counts, bases)


def _marked(job: Job, dest: Dataset) -> Dataset:
    """Mark what is in the record at the destination, since zfs send leaves the mark out."""
    both = zip(dest.snapshots, job.record.with_marks(dest).snapshots, strict=True)
    new = [after for now, after in both if now != after]
    if not new:
        return dest
    words = commands.set_mark(dest.name, new, job.record.mark)
    if not job.attempt(job.dest, words, f"{dest.name}: not marked for --prune"):
        return dest
    return job.dest.look([dest.name], dest.name).get(dest.name, dest)


def _destroy(job: Job, zfs: Zfs, dataset: str, snapshots: Sequence[Snapshot]) -> list[str]:
    gone = []
    for each in snapshots:
        name = f"{dataset}{each.short}"
        ran = zfs.run(*commands.destroy(dataset, each))
        if ran.status == 0:
            gone.append(name)
        elif needed := _needed_by(zfs, name, ran.err):
            job.remark(f"{name}: {needed}, so it stays")
        else:
            job.note(f"{name}: not pruned: {complaint(ran.err)}")
    return gone


def _needed_by(zfs: Zfs, snapshot: str, err: bytes) -> str:
    """Return what someone keeps the snapshot for, which zfs did not destroy; "" if nothing does."""
    if b"dependent clones" in err:
        return "a clone needs it"
    for name, needed in (("userrefs", "held (zfs holds)"), ("clones", "a clone needs it")):
        ran = zfs.run("get", "-Hp", "-o", "value", name, snapshot)  # zfs-fuse knows no clones
        if ran.status == 0 and ran.out.strip() not in (b"", b"-", b"0"):
            return needed
    return ""
