"""Names of datasets and snapshots, checked before they reach any command, and where they are.

Not here: what there is under a name (inventory.py). Read next: link.py.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from pscp.ground.errors import UsageError
from pscp.ground.locations import Location, parse_location

MAX_NAME = 255  # ZFS_MAX_DATASET_NAME_LEN, less its NUL

# zfs_namecheck.c: letters, digits and these; a pool's name begins with a letter.
_PART = r"[A-Za-z0-9_.: -]+"
_DATASET = re.compile(rf"[A-Za-z][A-Za-z0-9_.: -]*(?:/{_PART})*", re.ASCII)
_SNAPSHOT = re.compile(_PART, re.ASCII)
_NEW_SNAPSHOT = re.compile(r"[A-Za-z0-9_.:-]+", re.ASCII)  # zfs takes blanks as well; scripts trip
_PROPERTY = re.compile(r"[a-z0-9][a-z0-9_.:@-]*", re.ASCII)


def parse_place(text: str) -> Location:
    """Read `[user@]host:pool/dataset` or `pool/dataset`, as pscp reads `host:path`."""
    return check_place(parse_location(text))


def as_place(value: str | Location) -> Location:
    """Return where a dataset is that a program gives. Raises UsageError for what is none."""
    if isinstance(value, Location):
        return check_place(value)
    if isinstance(value, str):
        return parse_place(value)
    what = f"a dataset is a text, not {type(value).__name__}: {value!r}"
    raise UsageError(what, "such as POOL/DATASET or HOST:POOL/DATASET")


def check_place(place: Location) -> Location:
    """Return the place; raise UsageError where its path is no name of a dataset."""
    name, text = place.path, place.text
    if not name:
        raise UsageError(f"{text}: a dataset is missing", "write HOST:POOL/DATASET")
    if "@" in name or "#" in name:
        raise UsageError(
            f"{text}: a dataset is named without a snapshot",
            "pscp-zfs finds the snapshots to send by itself",
        )
    if not is_dataset(name):
        hint = "a dataset is named POOL/NAME, without a slash before or behind it"
        raise UsageError(f"{text}: this is no name of a dataset", hint)
    return place


def check_ends(source: Location, dest: Location) -> None:
    """Refuse what is neither from here to one host nor from one host to here."""
    if source.is_remote and dest.is_remote:
        raise UsageError(
            "source and destination are both remote; pscp-zfs replicates from or to this machine",
            "run pscp-zfs on one of the two hosts",
        )
    if not source.is_remote and not dest.is_remote:
        raise UsageError(
            "source and destination are both on this machine; pscp-zfs replicates over SSH",
            "use zfs send and zfs receive, or write the far side as HOST:POOL/DATASET",
        )


def is_dataset(name: str) -> bool:
    """Return whether a filesystem or a volume may have this name."""
    if len(name) > MAX_NAME or not _DATASET.fullmatch(name) or name.endswith(" "):
        return False
    return not {".", ".."} & set(name.split("/"))


def is_snapshot_name(name: str) -> bool:
    """Return whether a snapshot may have this name, behind the "@"."""
    return bool(_SNAPSHOT.fullmatch(name)) and len(name) < MAX_NAME


def check_snapshot_name(name: str) -> None:
    """Refuse a name for a new snapshot, which has no blank in it."""
    if not (is_snapshot_name(name) and _NEW_SNAPSHOT.fullmatch(name)):
        hint = "it has letters, digits, and any of _ . : -"
        if len(name) >= MAX_NAME:
            hint = f"with its dataset's before it, it has at most {MAX_NAME} characters"
        if "{" in name:
            hint = "{time} alone stands for something: the time, with its date"
        raise UsageError(f"{name!r} is no name of a snapshot", hint)


def check_property(name: str) -> None:
    if not _PROPERTY.fullmatch(name) or len(name) > MAX_NAME:
        raise UsageError(f"{name!r} is no name of a ZFS property")


def relative(name: str, top: str) -> str | None:
    """Return what follows `top/` in the name; "" for the top itself, None if it is not below."""
    if name == top:
        return ""
    return name[len(top) + 1 :] if name.startswith(f"{top}/") else None


def moved(name: str, top: str, new_top: str) -> str:
    """Return the name with another top in place of its own."""
    return new_top + name[len(top) :]


def parent(name: str) -> str:
    return name.rpartition("/")[0]


def excluded(names: Sequence[str], top: str, patterns: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the datasets that are left out, and the patterns that match none of all.

    A pattern that matches none below the top may be a whole name, such as POOL/DATASET/tmp.
    """
    below = {name: relative(name, top) or "" for name in names}
    left: set[str] = set()
    unused: list[str] = []
    for pattern in patterns:
        whole = relative(pattern, top)
        for each in (pattern, *([f"/{whole}"] if whole else [])):
            found = {name for name, path in below.items() if is_excluded(path, (each,))}
            if found:
                break
        left |= found
        if not found:
            unused.append(pattern)
    return left, unused


def is_excluded(below: str, patterns: Sequence[str]) -> bool:
    """Return whether this dataset, or one above it, is left out.

    A pattern with a "/" is for the path below the source, another for the last part.
    """
    parts = below.split("/") if below else []
    return any(
        fnmatch.fnmatchcase(
            "/".join(parts[:depth]) if "/" in pattern else part, pattern.lstrip("/")
        )
        for depth, part in enumerate(parts, 1)
        for pattern in patterns
    )
