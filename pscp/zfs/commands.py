"""The zfs commands that carry out a plan. Every command that changes something is made here. Pure.

Not here: running them (dataset_job.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pscp.ground.errors import NoZfs
from pscp.options.zfs_options import PLACING
from pscp.zfs.inventory import MARK, Abilities, Common, Dataset, Snapshot
from pscp.zfs.plan import Plan, Stream
from pscp.zfs.settings import Settings

Words = tuple[str, ...]
READONLY = "readonly=on"
_GUID = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII)


@dataclass(frozen=True)
class Speech:
    """Makes the words of zfs send and zfs receive, as these two ends know them."""

    settings: Settings
    common: Common

    @property
    def must_unmount(self) -> bool:
        """True where zfs receive mounts what it makes, and nothing is to be mounted."""
        return not (self.common.unmounted or self.settings.mount)

    def send(self, stream: Stream) -> Words:
        if stream.is_resumed:  # the token has all the rest
            return ("send", "-t", stream.token)
        return ("send", *self._flags(), *_range(stream))

    def size(self, stream: Stream) -> Words:
        """Return the command that prints how large the stream will be."""
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

    def receive(self, stream: Stream, *, readonly: bool = False) -> Words:
        """Return the words of zfs receive; with `readonly` it makes a dataset that nobody changes.

        Where zfs receive cannot set a property, set_readonly() does so afterwards.
        """
        words = ["receive"]
        if self.common.resume:
            words.append("-s")
        if self.common.unmounted and not self.settings.mount:
            words.append("-u")
        if self.settings.force_rollback and not stream.is_resumed:
            words.append("-F")
        for text in self.settings.set_properties:
            words += ["-o", text]
        if readonly and self.common.sets:
            words += ["-o", READONLY]
        left = list(self.settings.leave_properties)
        if self.common.leaves and not self.settings.keep_mountpoints:
            is_set = {text.partition("=")[0] for text in self.settings.set_properties}
            left += [name for name in PLACING if name not in {*left, *is_set}]
        for name in left:
            words += ["-x", name]
        return (*words, stream.dest)


def _range(stream: Stream) -> Words:
    assert stream.snapshot is not None
    target = f"{stream.source}{stream.snapshot.short}"
    if stream.base is None:
        return (target,)
    base = f"{stream.origin or stream.source}{stream.base.short}"
    return ("-I" if stream.all_between else "-i", base, target)


def rollback(plan: Plan) -> Words:
    return ("rollback", "-r", f"{plan.dest}@{plan.rollback_to}")


def take(names: Sequence[str], snapshot: str, mark: str) -> Words:
    return ("snapshot", "-o", f"{MARK}={mark}", *(f"{name}@{snapshot}" for name in names))


def set_mark(dataset: str, snapshots: Sequence[Snapshot], mark: str) -> Words:
    return ("set", f"{MARK}={mark}", *(f"{dataset}@{each.name}" for each in snapshots))


def placing_of(dataset: str) -> Words:
    """Return the command that prints where a dataset is mounted, and what of that was received."""
    names = ",".join(("type", "mounted", *PLACING))
    return ("get", "-Hp", "-o", "property,value,source", names, dataset)


def parse_placing(text: str) -> dict[str, tuple[str, str]]:
    """Return the value and the source of each property that placing_of() prints."""
    found = {"type": ("", ""), "mounted": ("", "")}
    for line in text.splitlines():
        name, *rest = line.split("\t")
        if len(rest) == 2:
            found[name] = rest[0], rest[1]
    return found


def unmounted(dataset: str, *, is_mounted: bool) -> tuple[Words, ...]:
    """Return the commands that leave a dataset as zfs receive -u does, also after a reboot."""
    unmount = (("unmount", dataset),) if is_mounted else ()
    return ("set", "canmount=noauto", dataset), *unmount


def undo_received_property(dataset: str, name: str) -> Words:
    """Return the command that undoes a property's value, which came in a stream."""
    if name == "canmount":  # nothing inherits it
        return ("set", "canmount=noauto", dataset)
    return ("inherit", name, dataset)


def set_readonly(dataset: str) -> Words:
    return ("set", READONLY, dataset)


def bookmark(dataset: str, snapshot: Snapshot, name: str) -> Words:
    return ("bookmark", f"{dataset}@{snapshot.name}", f"{dataset}#{name}")


def destroy(dataset: str, snapshot: Snapshot) -> Words:
    """Return what destroys a bookmark, or a snapshot that nothing holds or depends on."""
    assert snapshot.name
    return ("destroy", f"{dataset}{snapshot.short}")


def check_abilities(settings: Settings, source: Abilities, dest: Abilities) -> None:
    """Raise NoZfs for an option that the zfs of an end does not know."""
    leaves = settings.leave_properties
    for wanted, known, what in (
        (settings.raw, "w" in source.send, "--raw: the source's zfs has no send -w"),
        (settings.properties, "p" in source.send, "--properties: the source's zfs has no send -p"),
        (settings.set_properties, "o" in dest.receive, "--set: the receiver's zfs has no -o"),
        (leaves, "x" in dest.receive, "--leave: the receiver's zfs has no receive -x"),
        (settings.bookmark, source.bookmarks, "--bookmark: the source's zfs has no bookmarks"),
    ):
        if wanted and not known:
            raise NoZfs(what, "leave the option out, or update ZFS there")
    takes_all = settings.mount and settings.keep_mountpoints
    if settings.properties and "u" not in dest.receive and not takes_all:
        raise NoZfs(
            "--properties: the receiver's zfs has no receive -u, and would mount where the source "
            "does",
            "use zfs set there; or, to have it so, add --mount --keep-mountpoints",
        )


@dataclass(frozen=True)
class Foreseen:
    """The answer of zfs send -nvP: a stream that it would make."""

    bytes: int | None = None
    named: str = ""  # the dataset that a resume token names
    is_raw: bool = False
    sent: tuple[str, ...] = ()  # the snapshot that zfs found for the token
    to_guids: tuple[int, ...] = ()  # its GUID in the token
    from_guids: tuple[int, ...] = ()  # and of what its increment begins with

    def is_of(self, source: Dataset) -> bool:
        """Return whether the token sends a snapshot of the source, from one of its own on.

        zfs prints each fact of a token once; where there are more, a text in the token made them.
        """
        if len(self.sent) != 1 or len(self.to_guids) != 1 or len(self.from_guids) > 1:
            return False
        own = {each.guid for each in source.snapshots}
        bases = own | {each.guid for each in source.bookmarks} | {source.origin_guid} - {0}
        return (
            self.sent[0].partition("@")[0] == source.name
            and own.issuperset(self.to_guids)
            and bases.issuperset(self.from_guids)
        )


def parse_foreseen(text: str) -> Foreseen:
    """Read what zfs send -nvP prints; with -t, what is in the token comes first.

    Whoever made the token chose its texts, which may have lines in them that look like zfs's own.
    Those come beside the true ones, so all that are found are returned.
    """

    def guids(name: str) -> tuple[int, ...]:  # in hexadecimal; 0 stands for what is no number
        return tuple(int(text, 16) if _GUID.fullmatch(text) else 0 for text in of.get(name, []))

    size, of, sent = None, dict[str, list[str]](), list[str]()
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "size" and words[1].isdigit():
            size = int(words[1])
        name, equals, value = line.strip().partition(" = ")
        if equals:
            of.setdefault(name, []).append(value)
        kind, *columns = line.split("\t")  # the dataset or both, and a size that is not 0
        if kind in ("full", "incremental"):
            sent += [each for each in columns if not each.isdigit()][-1:] or [""]
    return Foreseen(
        size,
        of.get("toname", [""])[0].partition("@")[0],
        "rawok" in of,
        tuple(sent),
        guids("toguid"),
        guids("fromguid"),
    )
