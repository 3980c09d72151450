"""Entries and packs as they came over the wire: every field is looked at before it is used.

Not here: names, which are checked where they are resolved (paths.py).
"""

from typing import Any, List

from . import failures, tree, wire
from .paths import to_bytes

_ENTRY_TYPES = (str, int, str, int, int, int, int, dict)


def entry(value: Any) -> tree.Entry:
    """An Entry as it came over the wire, with every field of its type. WireError otherwise."""
    try:
        made = tree.Entry(*value)
    except TypeError:
        raise wire.WireError("an entry of another shape")
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


def _are_attributes(value: Any) -> bool:
    """As metadata.py reads them: name -> base64."""
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def check_sizes(entries: List[tree.Entry], rows: List[Any], count: int) -> None:
    """Before anything is opened: the rows are for these entries, and for so many bytes."""
    for value, row in zip(entries, rows):
        if isinstance(row, dict):
            failures.checked(row)
            continue
        if not isinstance(row, list) or len(row) != 2 or row[0] != value.size:
            raise wire.WireError("a pack's row that does not fit its entry")
        if value.kind not in (tree.FILE, tree.FOLDER, tree.LINK):
            raise wire.WireError("a pack with an entry of kind %s" % ascii(value.kind))
        if value.kind == tree.LINK and not _is_target(value.extra.get("to")):
            raise wire.WireError("a link without a target")
        count -= value.size
    if count:
        raise wire.WireError("a PACK frame with other bytes than its list says")


def _is_target(value: Any) -> bool:
    """Can a symbolic link point there?"""
    try:
        return isinstance(value, str) and b"\0" not in to_bytes(value) and value != ""
    except UnicodeEncodeError:
        return False
