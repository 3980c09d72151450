"""Plans what must be sent so that the destination has the source's newest snapshot. Pure.

Snapshots are the same where their GUIDs are: names may be changed, GUIDs are kept by zfs receive.

Not here: the zfs commands (commands.py), and who runs them (dataset_job.py).
Read next: commands.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pscp.ground.errors import (
    DatasetError,
    DestinationExists,
    Diverged,
    NoCommonSnapshot,
    NoSnapshot,
    ResumeRefused,
)
from pscp.progress.progress import Failure
from pscp.zfs.inventory import Dataset, Snapshot, guids
from pscp.zfs.names import parent, relative
from pscp.zfs.settings import untimed

NOT_TAKEN = 0  # instead of a GUID
_DIVERGED = (
    "--force-rollback destroys them. If the source had them and destroyed them, as --keep-last of "
    "another replication may: its own --snapshot-name, or --bookmark, keeps that from happening"
)


@dataclass(frozen=True)
class Pair:
    """A dataset, and what it is replicated to."""

    source: Dataset
    dest_name: str
    dest: Dataset | None  # as it was found there
    last: str = ""  # the snapshot that this run took: none that is newer is sent
    lacks: str = ""  # a pool or a parent of the destination that is not there


@dataclass(frozen=True)
class Stream:
    """One zfs send and one zfs receive."""

    source: str
    dest: str
    snapshot: Snapshot | None = None  # None: whatever the token says
    base: Snapshot | None = None  # None: a full stream
    all_between: bool = False
    token: str = ""
    origin: str = ""  # the dataset of the base, where that is what a clone began with

    @property
    def is_resumed(self) -> bool:
        return bool(self.token)

    @property
    def needed(self) -> tuple[Snapshot, ...]:
        """The source's own snapshots that must stay until the stream was received."""
        own = self.base if self.base and not (self.base.is_bookmark or self.origin) else None
        return tuple(each for each in (own, self.snapshot) if each is not None)

    @property
    def base_name(self) -> str:
        """The base as zfs send is told of it: "@name", "#name" or "dataset@name"; "": none."""
        return f"{self.origin}{self.base.short}" if self.base else ""


@dataclass(frozen=True)
class Plan:
    """The streams to send for one dataset, and the rollback before them."""

    dest: str
    rollback_to: str = ""  # the destination's name of a snapshot
    streams: tuple[Stream, ...] = ()
    makes_new: bool = False  # the destination is made by the first stream

    @property
    def target(self) -> Snapshot | None:
        """The newest snapshot that the destination has once all streams are received."""
        return self.streams[-1].snapshot if self.streams else None

    @property
    def goes_on(self) -> bool:
        """True where another plan must follow: it finds the rest after a cut receive."""
        return any(stream.is_resumed for stream in self.streams)

    @property
    def describes(self) -> str:
        """The plan in words, for people."""
        if not self.streams:
            return "nothing to send"
        first, last = self.streams[0], self.streams[-1]
        if first.token:
            return "goes on with a cut receive"
        assert last.snapshot is not None
        begin = f"incremental from {first.base.short}" if first.base else "full"
        if first.origin:
            begin = f"as a clone of {first.base_name}"
        return f"{begin}, to {last.snapshot.short}"


def make_plan(
    source: Dataset,
    dest_name: str,
    dest: Dataset | None,
    *,
    all_between: bool = True,
    force_rollback: bool = False,
    can_resume: bool = False,
    has_origin: bool = False,
    last: str = "",
) -> Plan:
    """Return the plan for one dataset. Raises the DatasetError that forbids it.

    With `has_origin` the destination has the snapshot that the source began with as a clone. With
    `last` nothing is sent that is newer than the snapshot of this name, if there is one.
    """
    if dest is not None and dest.token:
        if not can_resume:
            what = "it holds a cut receive, and the source's zfs knows no resume tokens"
            raise ResumeRefused(dest_name, what)
        cut = Stream(source.name, dest_name, token=dest.token)
        return Plan(dest_name, streams=(cut,), makes_new=not dest.snapshots)
    if not source.snapshots:
        raise NoSnapshot(source.name, "it has no snapshot")
    if dest is None or not dest.snapshots:
        if dest is not None and not force_rollback:
            raise DestinationExists(dest_name, "it is there already, and has no snapshot")
        if dest is None and has_origin:
            streams = _clone_streams(_up_to(source, last), dest_name, all_between)
        else:
            streams = _streams(_up_to(source, last), dest_name, None, all_between)
        return Plan(dest_name, streams=streams, makes_new=dest is None)
    base, there = common(source, dest)
    newer = dest.snapshots[dest.snapshots.index(there) + 1 :]
    if newer and not force_rollback:
        names = ", ".join(each.short for each in newer[-3:])
        what = f"it has snapshots after {there.short} that the source has not: {names}"
        raise Diverged(dest_name, what, _DIVERGED)
    streams = _streams(_up_to(source, last), dest_name, base, all_between)
    return Plan(dest_name, there.name if newer else "", streams)


def _up_to(source: Dataset, last: str) -> Dataset:
    """Return the source without the snapshots that are newer than the one of this name.

    Another replication of the same source may have taken them meanwhile: they are its own to send.
    """
    names = [each.name for each in source.snapshots]
    if last not in names:
        return source
    return dataclasses.replace(source, snapshots=source.snapshots[: names.index(last) + 1])


def common(source: Dataset, dest: Dataset) -> tuple[Snapshot, Snapshot]:
    """Return the source's snapshot, or bookmark, of the newest one that both ends have."""
    bases = {each.guid: each for each in (*source.bookmarks, *source.snapshots) if each.guid}
    for there in reversed(dest.snapshots):
        if there.guid in bases:
            return bases[there.guid], there
    names = ", ".join(each.short for each in dest.snapshots[-3:])
    what = f"none of its snapshots ({names}) is one of {source.name}, nor a bookmark there"
    raise NoCommonSnapshot(dest.name, what)


def _streams(
    source: Dataset, dest: str, base: Snapshot | None, all_between: bool
) -> tuple[Stream, ...]:
    """Return the streams from the base, or from nothing, to the newest snapshot."""
    after = [each for each in source.snapshots if base is None or each.txg > base.txg]
    if not after:
        return ()
    oldest, newest = after[0], after[-1]
    is_snapshot = base is not None and not base.is_bookmark  # zfs send -I begins with no other
    if not all_between or is_snapshot or oldest == newest:
        return (Stream(source.name, dest, newest, base, all_between and is_snapshot),)
    first = Stream(source.name, dest, oldest, base)
    return first, Stream(source.name, dest, newest, oldest, True)


def _clone_streams(source: Dataset, dest: str, all_between: bool) -> tuple[Stream, ...]:
    """Return the streams of a clone from what it began with, which the destination has."""
    of, _, name = source.origin.partition("@")
    first = source.snapshots[0 if all_between else -1]
    stream = Stream(source.name, dest, first, Snapshot(name, source.origin_guid), origin=of)
    return stream, *(_streams(source, dest, first, True) if all_between else ())


def arrivals(source: Dataset, plan: Plan) -> set[int]:
    """Return the GUIDs of the snapshots that the destination has once the plan is carried out."""
    come: set[int] = set()
    for stream in plan.streams:
        if stream.snapshot is not None:
            come.add(stream.snapshot.guid)
            since = stream.base.txg if stream.base else 0
            if stream.all_between:
                come |= {s.guid for s in source.snapshots if since < s.txg <= stream.snapshot.txg}
    return come


def awaited(sources: Mapping[str, Dataset]) -> dict[str, set[str]]:
    """Return the datasets in the order to begin them, each with those that must have come before.

    That is the parent, and for a clone the dataset that it began with. Where that lies below the
    clone itself, or sources that contradict themselves lead in a circle, the clone does not wait.
    """
    left = {name: {parent(name)} & sources.keys() for name in sources}
    for name, before in left.items():
        origin = sources[name].origin.partition("@")[0]
        if origin in left and relative(origin, name) is None:
            before.add(origin)
    done: dict[str, set[str]] = {}
    while left:
        ready = False
        for name in list(left):
            if left[name] <= done.keys():
                done[name], ready = left.pop(name), True
        if not ready:  # a circle
            name = next(name for name in left if parent(name) not in left)
            left[name] &= done.keys()
    return done


_IN_VAIN = ("its parent was not replicated", "what it is a clone of was not replicated")


def check_awaited(pair: Pair, failed: Collection[str]) -> None:
    """Raise DatasetError for a dataset that the destination has not yet, if one of those that must
    have come before it has failed.
    """
    if failed and pair.dest is None:
        is_parent = parent(pair.source.name) in failed
        raise DatasetError(pair.dest_name, _IN_VAIN[0 if is_parent else 1])


def is_in_vain(failure: Failure) -> bool:
    """Return whether a dataset failed only because one that it waited for did."""
    return failure.message in _IN_VAIN


def all_in_vain(failures: Sequence[Failure]) -> str:
    """Return one line for all datasets that failed since others did."""
    first = failures[0]
    if len(failures) == 1:
        return f"{first.path}: {first.message}"
    whole = all(each.message == _IN_VAIN[0] for each in failures)
    why = "what they lie below" if whole else "what they lie below, or are clones of,"
    return f"{first.path} and {len(failures) - 1} more: {why} was not replicated"


def of_ours_to_prune(
    snapshots: tuple[Snapshot, ...],
    mark: str,
    keep_last: int,
    counts: Callable[[str], bool],
    bases: Collection[int] = (),
) -> list[Snapshot]:
    """Return all with our mark, and a name that counts, but the newest of these; never what the
    next stream begins with.

    That is the newest of all, or the newest whose GUID is in `bases`, of what the other end has.
    """
    ours = [each for each in snapshots if each.mark == mark and counts(each.name)]
    shared = [each for each in snapshots if each.guid in bases]
    return [each for each in ours[:-keep_last] if each not in (snapshots[-1], *shared[-1:])]


def left_behind(source: Dataset, dest: Dataset, mark: str) -> list[Snapshot]:
    """Return the destination's snapshots that another replication took, and the source has no more.

    zfs send leaves the other's mark out, so it is known by the names of those at the source.
    """
    others = {untimed(each.name) for each in source.snapshots if each.mark not in ("", mark)}
    there = guids(source)
    return [
        each
        for each in dest.snapshots
        if each.mark != mark and each.guid not in there and untimed(each.name) in others
    ]


def brings_others(source: Dataset, mark: str) -> bool:
    """Return whether another replication took a snapshot since this one took its last but one.

    It comes along with -I: as many are left behind every night as the other takes.
    """
    ours = [place for place, each in enumerate(source.snapshots) if each.mark == mark][-2:]
    between = source.snapshots[ours[0] : ours[-1]] if ours else ()
    return any(each.mark not in ("", mark) for each in between)


def renamed(pairs: Mapping[str, Pair], dests: Mapping[str, Dataset]) -> list[tuple[str, str]]:
    """Return each new name at the destination, and the one there that has its snapshots.

    That is one that no source goes to, among the `dests` at and below DEST. What lies below such a
    one is renamed with it.
    """
    taken = {pair.dest_name for pair in pairs.values()}
    left = {guid: name for name in dests if name not in taken for guid in guids(dests[name])}
    found: dict[str, str] = {}
    for pair in pairs.values():
        name = pair.dest_name
        earlier = [left[guid] for guid in guids(pair.source) if guid in left]
        if earlier and pair.dest is None:
            found[name] = earlier[0]
    return [(name, of) for name, of in found.items() if found.get(parent(name)) != parent(of)]


def planned(source: Dataset, name: str, mark: str) -> Dataset:
    """Return the source as it will be once a snapshot of this name was taken, with this mark."""
    newest = max((each.txg for each in source.snapshots), default=0)
    taken = Snapshot(name, NOT_TAKEN, newest + 1, mark=mark)
    return dataclasses.replace(source, snapshots=(*source.snapshots, taken))


def dest_after(pair: Pair, plan: Plan) -> Dataset | None:
    """Return the destination as it will be once the plan is carried out; None: it is not there."""
    if pair.dest is None and not plan.streams:
        return None
    dest = pair.dest or Dataset(pair.dest_name)
    names = [each.name for each in dest.snapshots]
    stay = names.index(plan.rollback_to) + 1 if plan.rollback_to else len(names)
    come = arrivals(pair.source, plan)
    new = [
        dataclasses.replace(each, mark="", is_held=False)  # neither is in a stream
        for each in pair.source.snapshots
        if each.guid in come
    ]
    return dataclasses.replace(dest, snapshots=(*dest.snapshots[:stay], *new))
