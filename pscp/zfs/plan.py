"""What must be sent so that the destination has the source's newest snapshot. Pure.

Snapshots are the same where their GUIDs are: names may be changed, GUIDs are kept by zfs receive.

Not here: the zfs commands (commands.py), and who runs them (dataset_job.py).
Read next: commands.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from pscp.errors import DestinationExists, Diverged, NoCommonSnapshot, NoSnapshot, ResumeRefused
from pscp.zfs.inventory import Dataset, Snapshot


@dataclass(frozen=True)
class Stream:
    """One zfs send and one zfs receive."""

    source: str
    dest: str
    snapshot: Snapshot | None = None  # None: whatever the token says
    base: Snapshot | None = None  # None: a full stream
    all_between: bool = False
    token: str = ""

    @property
    def is_resumed(self) -> bool:
        return bool(self.token)


@dataclass(frozen=True)
class Plan:
    """The streams to send for one dataset, and the rollback before them."""

    source: str
    dest: str
    rollback_to: str = ""  # the destination's name of a snapshot
    destroyed: tuple[str, ...] = ()  # the destination's snapshots that the rollback throws away
    streams: tuple[Stream, ...] = ()

    @property
    def target(self) -> Snapshot | None:
        """The newest snapshot that the destination has once all streams are received."""
        return self.streams[-1].snapshot if self.streams else None

    @property
    def goes_on(self) -> bool:
        """Whether another plan must be made afterwards: it finds the rest after a cut receive."""
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
        return f"{begin}, to {last.snapshot.short}"


def make_plan(
    source: Dataset,
    dest_name: str,
    dest: Dataset | None,
    *,
    all_between: bool = True,
    force_rollback: bool = False,
    can_resume: bool = False,
) -> Plan:
    """Return the plan for one dataset. Raises the DatasetError that forbids it."""
    if dest is not None and dest.token:
        if not can_resume:
            what = "it holds a cut receive, and the source's zfs knows no resume tokens"
            raise ResumeRefused(dest_name, what)
        cut = Stream(source.name, dest_name, token=dest.token)
        return Plan(source.name, dest_name, streams=(cut,))
    if not source.snapshots:
        raise NoSnapshot(source.name, "it has no snapshot")
    if dest is None or not dest.snapshots:
        if dest is not None and not force_rollback:
            raise DestinationExists(dest_name, "it is there already, and has no snapshot")
        return Plan(source.name, dest_name, streams=_streams(source, dest_name, None, all_between))
    base, there = common(source, dest)
    newer = dest.snapshots[dest.snapshots.index(there) + 1 :]
    if newer and not force_rollback:
        names = ", ".join(each.short for each in newer[-3:])
        what = f"it has snapshots after {there.short} that the source has not: {names}"
        raise Diverged(dest_name, what)
    streams = _streams(source, dest_name, base, all_between)
    destroyed = tuple(each.name for each in newer)
    return Plan(source.name, dest_name, there.name if newer else "", destroyed, streams)


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
    if not all_between:
        return (Stream(source.name, dest, newest, base),)
    if base is not None and not base.is_bookmark:
        return (Stream(source.name, dest, newest, base, True),)
    first = Stream(source.name, dest, oldest, base)  # zfs send -I begins with snapshots only
    if oldest == newest:
        return (first,)
    return first, Stream(source.name, dest, newest, oldest, True)


def of_ours_to_prune(snapshots: tuple[Snapshot, ...], mark: str, keep_last: int) -> list[Snapshot]:
    """Return all with our mark but the newest of these; never the last, the next stream's base."""
    ours = [each for each in snapshots if each.mark == mark]
    return [each for each in ours[:-keep_last] if each != snapshots[-1]]
