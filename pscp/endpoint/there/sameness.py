"""The comparison of a destination's metadata with what this copy would give it.

Sent when a copy begins that may find something at its destination. Not here: how it is given
(../reading/metadata.py), the rules for a single file (../../transfer/walk/decide.py).
"""

import collections
import os
import unicodedata
from typing import List, Tuple

from ..reading import metadata, ownership, tree
from ..reading.paths import to_bytes, to_text

_UNITS_NS = (10**9, 1000, 100)  # in which file systems and SFTP keep times
_ANY = -1  # an owner that this end could not give


def unit_of(status: os.stat_result) -> int:
    """Return in what this file's times are kept, in ns: its change has one that nobody chose."""
    changed_ns = status.st_ctime_ns
    if changed_ns % _UNITS_NS[-1]:  # nearly always, and this is asked of each file
        return 1
    return next(unit for unit in _UNITS_NS if changed_ns % unit == 0)


def is_same_time(here_ns: int, there_ns: int, unit_ns: int = 0) -> bool:
    """Is the time at the destination the source's, as far as it can be kept there?

    `unit_ns` is in what it is kept; 0 if nobody knows.
    """
    if here_ns == there_ns:
        return True
    units = (unit_ns,) if unit_ns else _UNITS_NS
    return any(here_ns // unit * unit == there_ns for unit in units)


def is_owner(found: Tuple[int, int], wanted: Tuple[int, int]) -> bool:
    return wanted[0] in (_ANY, found[0]) and wanted[1] in (_ANY, found[1])


def owner(value: object) -> Tuple[int, int]:
    """Return the user and the group that a file here would be given, -1 for none."""
    uid, gid = ownership.wanted({"o": value})
    if os.geteuid() != 0:
        return _ANY, gid if gid in {os.getegid(), *os.getgroups()} else _ANY
    return uid, gid


def has_metadata(status: os.stat_result, entry: tree.Entry, policy: metadata.Policy) -> bool:
    """Has a file or link this mode, time and owner, where they are kept?"""
    is_link = entry.kind == tree.LINK
    if not is_link and status.st_mode & 0o7777 != policy.mode(entry.mode):
        return False
    if policy.preserve and not is_same_time(entry.mtime_ns, status.st_mtime_ns, unit_of(status)):
        return False
    found = status.st_uid, status.st_gid
    return not policy.archive or is_owner(found, owner(entry.extra.get("o")))


def alike(names: List[bytes]) -> List[int]:
    """Return the places of names that this folder may take for one (../../transfer/walk/names.py):
    both may be found the same here, though only one of them is there.
    """
    folded = [name.lower() for name in names]
    try:
        b"".join(folded).decode("ascii")
    except UnicodeDecodeError:
        texts = (unicodedata.normalize("NFKC", to_text(name).casefold()) for name in names)
        folded = [to_bytes(text) for text in texts]
    if len(set(folded)) == len(names):
        return []
    counts = collections.Counter(folded)
    return [place for place, name in enumerate(folded) if counts[name] > 1]
