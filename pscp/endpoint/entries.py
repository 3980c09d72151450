"""Entries and packs as they came over the wire: every field is looked at before it is used.

Not here: names, which are checked where they are resolved (paths.py).
"""

from typing import List, Tuple, Union

from . import failures, tree, wire
from .paths import to_bytes

_ENTRY_TYPES = (str, int, str, int, int, int, int, dict)


def entry(value: object) -> tree.Entry:
    """Return the Entry that came over the wire, with every field of its type. Raises WireError."""
    if not isinstance(value, (list, tuple)) or len(value) != len(_ENTRY_TYPES):
        raise wire.WireError("an entry of another shape")
    made = tree.Entry(*value)
    if (
        tuple(map(type, made)) != _ENTRY_TYPES
        or made.kind not in tree.KINDS
        or not 0 <= made.size <= (wire.MAX_OFFSET if made.kind == tree.FILE else 0)
        or not 0 <= made.mode <= 0o7777
        or abs(made.mtime_ns) > 1 << 63
        or ("x" in made.extra and not _are_attributes(made.extra["x"]))
    ):
        raise wire.WireError("an entry with a field out of bounds")
    return made


def _are_attributes(value: object) -> bool:
    """As metadata.py reads them: name -> base64."""
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def packed(value: object) -> Tuple[List[tree.Entry], List[object]]:
    """Return the entries of a PACK frame's list, and the row of each. Raises WireError."""
    if not isinstance(value, list) or not all(isinstance(e, list) and len(e) == 2 for e in value):
        raise wire.WireError("no pack")
    return [entry(each) for each, _ in value], [row for _, row in value]


def check_sizes(
    entries: List[tree.Entry], rows: List[object], count: int
) -> List[Union[str, failures.Data]]:
    """Check, before anything is opened, that the rows are for these entries, and for so many bytes.

    Returns the digest of each in hex, or its failure. Raises WireError.
    """
    found: List[Union[str, failures.Data]] = []
    for value, row in zip(entries, rows):
        if isinstance(row, dict):
            found.append(failures.checked(row))
            continue
        if not isinstance(row, list) or len(row) != 2 or row[0] != value.size:
            raise wire.WireError("a pack's row that does not fit its entry")
        if value.kind not in (tree.FILE, tree.FOLDER, tree.LINK):
            raise wire.WireError("a pack with an entry of kind %s" % ascii(value.kind))
        if value.kind == tree.LINK and not _is_target(value.target):
            raise wire.WireError("a link without a target")
        found.append(str(row[1]))
        count -= value.size
    if count:
        raise wire.WireError("a PACK frame with other bytes than its list says")
    return found


def _is_target(path: str) -> bool:
    """Return whether a symbolic link can lead there."""
    try:
        return b"\0" not in to_bytes(path) and path != ""
    except UnicodeEncodeError:
        return False
