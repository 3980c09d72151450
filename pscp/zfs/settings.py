"""The settings of a replication, checked and frozen; how ssh is run is in options/options.py.

Not here: each single one (../options/zfs_options.py). Read next: names.py.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pscp.ground.errors import UsageError
from pscp.ground.values import check_tuple
from pscp.options.zfs_options import PRUNABLE, ZfsOptions
from pscp.zfs.names import check_property, check_snapshot_name

MAX_PARALLEL = 32
TIME = "{time}"  # in the name of a snapshot; a "%" would be an end of line in a crontab
_WRITTEN = "%Y-%m-%dT%H:%M:%SZ"  # in its place
_IS_WRITTEN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
_SECONDS = 20  # that are tried; each replication of a job takes one, and may do so at once
# Where zfs lies when it is in no PATH, as in a session without a login shell.
USUAL_COMMANDS = (("zfs",), ("/usr/sbin/zfs",), ("/sbin/zfs",), ("/usr/local/sbin/zfs",))


@dataclass(frozen=True)
class Settings(ZfsOptions):
    """The settings of a replication; every field has a default. A value of this class is sound."""

    def __post_init__(self) -> None:
        for name in ("exclude", "set_properties", "leave_properties"):
            if isinstance(getattr(self, name), str):  # one of them
                object.__setattr__(self, name, (getattr(self, name),))
        if self.snapshot_name is not None:
            check_snapshot_name(self.snapshot_name.replace(TIME, "0"))
        _check_number("parallel", self.parallel, MAX_PARALLEL)
        _check_keep(self)
        _check_properties(self)
        if not all(check_tuple("exclude", self.exclude)):
            raise UsageError("the pattern to exclude is empty")
        for command in (self.zfs_command, self.far_zfs_command):
            if command is not None:
                split_command(command)

    def commands(self, is_far: bool) -> tuple[tuple[str, ...], ...]:
        """Return the ways to call zfs, of which the first that exists is taken."""
        given = self.far_zfs_command if is_far else self.zfs_command
        return USUAL_COMMANDS if given is None else (split_command(given),)

    @property
    def makes_readonly(self) -> bool:
        """True where a new DEST gets readonly=on; what the user says of that property wins."""
        is_set = {text.partition("=")[0] for text in self.set_properties}
        return self.readonly and "readonly" not in {*is_set, *self.leave_properties}

    def prunes(self, end: str) -> bool:
        """Return whether --keep-last destroys snapshots at this end: "source" or "dest"."""
        return self.keep_last is not None and self.prune in (end, "both")

    def snapshot_names(self) -> Iterator[str]:
        """Yield names for the snapshot to take first: where one is taken already, the next is for
        that. With the time in it that is the one of the next second; else there is one name.
        """
        name, now_s = self.snapshot_name or "", time.time()
        for later_s in range(_SECONDS if TIME in name else 1):
            yield name.replace(TIME, time.strftime(_WRITTEN, time.gmtime(now_s + later_s)))

    def counts(self, name: str) -> bool:
        """Return whether --keep-last counts a snapshot of this name: if --snapshot-name makes it.

        So neither what is taken each week, nor one before an upgrade, goes with those of each hour.
        """
        pattern = re.escape(self.snapshot_name or "").replace(re.escape(TIME), _IS_WRITTEN)
        return re.fullmatch(pattern, name) is not None


def untimed(name: str) -> str:
    """Return the name of a snapshot with {time} in place of the time that is written in it."""
    return re.sub(_IS_WRITTEN, TIME, name)


def split_command(text: str) -> tuple[str, ...]:
    """Split a command into words as a shell would; none reads them. Raises UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"the zfs command {text!r}: {error}") from None
    if not words or not all(words) or "\0" in text:
        raise UsageError(f"{text!r} is no command to run zfs with", "such as 'sudo zfs'")
    return words


def _check_number(what: str, value: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{what} must be a whole number from 1 to {most}, not {value!r}")


def _check_keep(settings: Settings) -> None:
    if settings.prune not in PRUNABLE:
        raise UsageError(f"prune must be one of {', '.join(PRUNABLE)}, not {settings.prune!r}")
    if settings.keep_last is not None:
        _check_number("the number of snapshots to keep (--keep-last)", settings.keep_last, 10**6)
        if settings.snapshot_name is None:
            what = (
                "--keep-last goes with --snapshot-name: it counts the snapshots that have this name"
            )
            raise UsageError(what, "such as nightly-{time}")
    elif settings.prune != "source":
        raise UsageError("--prune goes with --keep-last, which says how many snapshots stay")


def _check_properties(settings: Settings) -> None:
    for text in check_tuple("set_properties", settings.set_properties):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: a property is set with NAME=VALUE")
        check_property(name)
        if any(ord(each) < 0x20 for each in value):
            raise UsageError(f"--set {name}: the value has a control character in it")
    for name in check_tuple("leave_properties", settings.leave_properties):
        check_property(name)
