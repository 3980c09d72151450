"""The plan in zfs's words. Every command that changes something is made here. Pure.

Not here: running them (work.py). Read next: work.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pscp.errors import NoZfs
from pscp.zfs.abilities import Abilities, Common
from pscp.zfs.asking import MARK, Snapshot
from pscp.zfs.plan import Plan, Stream
from pscp.zfs.settings import Settings

Words = tuple[str, ...]


@dataclass(frozen=True)
class Speech:
    """How these two ends are spoken to."""

    settings: Settings
    common: Common

    def send(self, stream: Stream) -> Words:
        if stream.is_resumed:  # the token says all the rest
            return ("send", "-t", stream.token)
        return ("send", *self._flags(), *_range(stream))

    def size(self, stream: Stream) -> Words:
        """Asks how large the stream will be."""
        if stream.is_resumed:
            return ("send", "-nvP", "-t", stream.token)
        return ("send", "-nvP", *self._flags(), *_range(stream))

    def _flags(self) -> Words:
        flags = [f"-{letter}" for letter in self.common.letters]
        if self.settings.raw:
            flags.append("-w")
        if self.settings.properties:
            flags.append("-p")
        return tuple(flags)

    def receive(self, stream: Stream) -> Words:
        words = ["receive"]
        if self.common.resume:
            words.append("-s")
        if self.common.unmounted and not self.settings.mount:
            words.append("-u")
        if self.settings.force_rollback and not stream.is_resumed:
            words.append("-F")
        for text in self.settings.set_properties:
            words += ["-o", text]
        for name in self.settings.leave_properties:
            words += ["-x", name]
        return (*words, stream.dest)


def _range(stream: Stream) -> Words:
    assert stream.snapshot is not None
    target = f"{stream.source}{stream.snapshot.short}"
    if stream.base is None:
        return (target,)
    return ("-I" if stream.all_between else "-i", f"{stream.source}{stream.base.short}", target)


def rollback(plan: Plan) -> Words:
    return ("rollback", "-r", f"{plan.dest}@{plan.rollback_to}")


def take(names: Sequence[str], snapshot: str, mark: str) -> Words:
    return ("snapshot", "-o", f"{MARK}={mark}", *(f"{name}@{snapshot}" for name in names))


def set_mark(dataset: str, snapshots: Sequence[Snapshot], mark: str) -> Words:
    return ("set", f"{MARK}={mark}", *(f"{dataset}@{each.name}" for each in snapshots))


def hold(dataset: str, snapshots: Sequence[Snapshot], tag: str) -> Words:
    return ("hold", tag, *(f"{dataset}@{each.name}" for each in snapshots))


def release(dataset: str, snapshots: Sequence[Snapshot], tag: str) -> Words:
    return ("release", tag, *(f"{dataset}@{each.name}" for each in snapshots))


def destroy(dataset: str, snapshot: Snapshot) -> Words:
    """Of one snapshot; without -r, -R and -f, so that what depends on it or holds it forbids it."""
    assert snapshot.name and not snapshot.is_bookmark
    return ("destroy", f"{dataset}@{snapshot.name}")


def check_abilities(settings: Settings, source: Abilities, dest: Abilities) -> None:
    """Refuse what was asked for where zfs at an end does not know it."""
    for wanted, known, what in (
        (settings.raw, "w" in source.send, "--raw: the source's zfs has no send -w"),
        (settings.properties, "p" in source.send, "-p: the source's zfs has no send -p"),
        (settings.set_properties, "o" in dest.receive, "-o: the receiver's zfs has no receive -o"),
        (settings.leave_properties, "x" in dest.receive, "-x: the receiver's has no receive -x"),
    ):
        if wanted and not known:
            raise NoZfs(what, "leave the option out, or update ZFS there")


@dataclass(frozen=True)
class Foreseen:
    """What zfs send -nvP says of a stream that it would make."""

    bytes: int | None = None
    dataset: str = ""  # of a resumed stream, as its token has it
    is_raw: bool = False


def parse_foreseen(text: str) -> Foreseen:
    """Read what zfs send -nvP prints; with -t, what is in the token comes first."""
    size, dataset, is_raw = None, "", False
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "size" and words[1].isdigit():
            size = int(words[1])
        name, equals, value = line.strip().partition(" = ")
        if equals and name == "toname":
            dataset = value.partition("@")[0]
        is_raw = is_raw or name == "rawok"
    return Foreseen(size, dataset, is_raw)
