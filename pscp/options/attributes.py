"""The effect of --chmod, --chown and --numeric-ids on an entry's mode and owner. Pure.

--chmod is read as rsync reads it: where it goes beyond chmod(1) is said in rsync(1).

Not here: how a file gets its mode and owner at the destination (../endpoint/reading/metadata.py),
how the names of --chown are found there (../endpoint/there/owners.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pscp.endpoint.reading import tree
from pscp.ground.errors import UsageError

MAX_ID = (1 << 32) - 2  # chown(2) takes the next one for "leave it as it is"

_BITS = 0o7777
_EXECUTE = 0o111
_OCTAL = r"([DF]?)(0?[0-7]{1,4})"
_SYMBOLIC = r"([DF]?)([ugoa]*)([-+=])([rwxXst]*)"
_WHO = {"u": 0o100, "g": 0o010, "o": 0o001, "a": 0o111}
_PERMISSIONS = {"r": 4, "w": 2, "x": 1, "X": 1}


class ModeChange(NamedTuple):
    """One of the comma-separated changes of --chmod."""

    of: str  # "D" folders, "F" files, "" both
    keep: int  # the bits that stay
    add: int
    is_conditional: bool  # X: to execute is added to folders, and to what somebody may execute


class Owner(NamedTuple):
    """The user and the group of --chown as typed; "" is not changed."""

    user: str
    group: str


class Ids(NamedTuple):
    """The numbers of --chown; None is not changed."""

    uid: int | None = None
    gid: int | None = None


class Attributes(NamedTuple):
    """The changes that a copy makes in its entries."""

    modes: Sequence[ModeChange] = ()
    ids: Ids = Ids()
    numeric: bool = False  # owners travel without their names

    def change(self, entry: tree.Entry) -> tree.Entry:
        """Return the entry as it is to arrive."""
        if entry.kind in (tree.FILE, tree.FOLDER, tree.FIFO, tree.DEVICE):
            entry = entry._replace(mode=changed_mode(entry.mode, entry.kind, self.modes))
        owner = self.owner(entry.extra.get("o"))
        return entry if owner is None else entry._replace(extra={**entry.extra, "o": owner})

    def owner(self, owner: object) -> list[object] | None:
        """Return an owner, as entries and listings have it, as it is to arrive; None for none."""
        if not isinstance(owner, list) or len(owner) != 4:
            if None in self.ids:
                return None
            owner = [0, 0, "", ""]
        uid, gid, user, group = owner
        if self.numeric:
            user = group = ""
        if self.ids.uid is not None:
            uid, user = self.ids.uid, ""
        if self.ids.gid is not None:
            gid, group = self.ids.gid, ""
        return [uid, gid, user, group]


def changed_mode(mode: int, kind: str, changes: Sequence[ModeChange]) -> int:
    """Return the permissions of a file or folder after these changes, one after the other."""
    is_folder, may_execute = kind == tree.FOLDER, mode & _EXECUTE
    for change in changes:
        if change.of == ("F" if is_folder else "D"):
            continue
        withheld = 0
        if change.is_conditional and not is_folder and not may_execute:
            withheld = _EXECUTE
        mode = mode & change.keep | change.add & ~withheld
    return mode


def parse_modes(text: str, umask: int) -> list[ModeChange]:
    """Read the changes of --chmod. Where one names nobody, the umask's bits are left out."""
    return [_parse_mode(each, umask) for each in text.split(",")]


def _parse_mode(text: str, umask: int) -> ModeChange:
    if match := re.fullmatch(_OCTAL, text):
        return ModeChange(match[1], 0, int(match[2], 8), False)
    match = re.fullmatch(_SYMBOLIC, text)
    if match is None:
        what = f"--chmod: {text!r} is no change of a mode"
        raise UsageError(what, "such as 644, go-w, D755,F644 or u=rwX,go=rX")
    of, who, action, what = match.groups()
    where = permissions = special = bits_of_who = 0
    for each in who:
        where |= _WHO[each]
        bits_of_who |= {"u": 0o4000, "g": 0o2000, "a": 0o6000}.get(each, 0)
    for each in what:
        permissions |= _PERMISSIONS.get(each, 0)
        special |= {"s": bits_of_who or 0o4000, "t": 0o1000}.get(each, 0)
    add = where * permissions if where else 0o111 * permissions & ~umask
    add |= special
    if action == "-":
        return ModeChange(of, _BITS & ~add, 0, "X" in what)
    keep = _BITS
    if action == "=":
        keep &= ~((where or 0o111) * 7) & ~(bits_of_who if special else 0)
    return ModeChange(of, keep, add, "X" in what)


def parse_owner(text: str) -> Owner:
    """Read USER, USER:GROUP or :GROUP."""
    user, _, group = text.partition(":")
    if not (user or group) or ":" in group:
        raise UsageError(f"--chown: {text!r} is not USER:GROUP", "USER and :GROUP will do as well")
    for number in (user, group):
        is_number = re.fullmatch(r"[0-9]+", number)
        if is_number and (len(number) > 10 or int(number) > MAX_ID):
            raise UsageError(f"--chown: {number} is too large for a user or a group")
    return Owner(user, group)


def known_id(name: str) -> int | None:
    """Return the number that stands for itself; None for a name."""
    return int(name) if re.fullmatch(r"[0-9]+", name) else None
