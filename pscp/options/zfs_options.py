"""The options of a replication that are its own; those of connections it has as well.

What a row says is in copy_options.py. Not here: how they are checked (../zfs/settings.py).
Read next: ../zfs/settings.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from pscp.ground.values import parse_number
from pscp.options.option_rows import Flag, Group

# The properties that place a dataset: who makes the stream would choose them at the receiver.
PLACING = ("mountpoint", "canmount", "sharenfs", "sharesmb")
PRUNABLE = ("source", "dest", "both")

_ONLY = ("pscp-zfs",)
REPLICATED = Group("what is replicated", _ONLY)
RECEIVED = Group("what the receiver does with it", _ONLY)
AFTERWARDS = Group("what goes afterwards", _ONLY)
RUN = Group("how zfs is run", _ONLY)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ZfsOptions:
    """The fields of Settings."""

    recursive: bool = REPLICATED.flag(
        "-R --recursive",
        "and all datasets below it, parents first",
        "With all datasets below it, parents first.",
    )
    exclude: tuple[str, ...] = REPLICATED.value(
        "--exclude PATTERN",
        "leave out what matches, and all below it; a pattern with a / is for the path below "
        "SOURCE (or a whole name), another for a dataset's last name",
        "Patterns of datasets to leave out, with all below them.",
        default=(),
    )
    all_between: bool = REPLICATED.row(
        True,
        (
            Flag(
                "-I --all-between",
                "with all snapshots since the last replication (the default)",
                const=True,
            ),
            Flag("-i --newest-only", "the newest snapshot alone", const=False),
        ),
        "With all snapshots since the last replication; False: the newest alone.",
    )
    snapshot_name: str | None = REPLICATED.value(
        "--snapshot-name NAME",
        "take a snapshot of this name first; {time} in it is the time (UTC)",
    )
    raw: bool = REPLICATED.flag(
        "-w --raw", "as they lie on the disk; encrypted ones without their keys"
    )
    properties: bool = REPLICATED.flag("-p --properties", "with the datasets' properties")

    set_properties: tuple[str, ...] = RECEIVED.value(
        "-o --set NAME=VALUE",
        "set this property there",
        "NAME=VALUE each: set these properties there.",
        default=(),
    )
    leave_properties: tuple[str, ...] = RECEIVED.value(
        "-x --leave NAME", "do not take this property", "Do not take these properties.", default=()
    )
    keep_mountpoints: bool = RECEIVED.flag(
        "--keep-mountpoints",
        f"take also {', '.join(PLACING[:-1])} and {PLACING[-1]} from the stream",
    )
    mount: bool = RECEIVED.flag(
        "--mount",
        "mount what is received (without it, nothing new is mounted)",
    )
    force_rollback: bool = RECEIVED.flag(
        "--force-rollback",
        "throw away what was changed at DEST since the snapshot that both have; a DEST without "
        "snapshots is overwritten whole",
    )
    readonly: bool = RECEIVED.flag(
        "--no-readonly",
        "do not set readonly=on on a DEST that is made (it keeps changes there from stopping "
        "the next replication)",
        "Set readonly=on on a destination that this makes.",
        default=True,
    )

    keep_last: int | None = AFTERWARDS.value(
        "--keep-last N",
        "of the snapshots of this --snapshot-name that this replication took, keep the newest N",
        "Of the snapshots of this `snapshot_name` that it took, keep so many of the newest.",
        read=parse_number,
    )
    prune: str = AFTERWARDS.value(
        "--prune WHERE",
        "where --keep-last destroys the others: source (the default), dest or both",
        default="source",
        among=PRUNABLE,
    )
    bookmark: bool = AFTERWARDS.flag(
        "--bookmark",
        "bookmark the newest snapshot that both ends have, at SOURCE: the next increment can "
        "begin with the bookmark when the snapshot is gone",
    )

    zfs_command: str | None = RUN.value(
        "--zfs-command COMMAND",
        "run this as zfs here, such as 'sudo zfs'",
    )
    far_zfs_command: str | None = RUN.value("--far-zfs-command COMMAND", "and this at the far end")
    parallel: int = RUN.value(
        "--parallel N",
        "the number of datasets at once (2)",
        default=2,
        read=parse_number,
    )
