"""Checks of entries and packs that came over the wire, before any field of theirs is used.

Not here: names, which are checked where they are resolved (../reading/paths.py).
"""

from typing import List, Tuple, Union

from ..frames import failures, wire
from ..reading import tree
from ..reading.paths import to_bytes

_ENTRY_TYPES = (str, int, str, int, int, int, int, dict)
_HAVE_SIZES = (tree.FILE, tree.HARDLINK)
_PACKED = frozenset([tree.FILE, tree.FOLDER, tree.LINK, tree.FIFO, tree.DEVICE])


def entry(value: object) -> tree.Entry:
    """Return the Entry that came as JSON, with every field of its type. Raises WireError."""
    if not isinstance(value, (list, tuple)) or len(value) != len(_ENTRY_TYPES):
        raise wire.WireError("an entry of another shape")
    result = tree.Entry(*value)
    if (
        tuple(map(type, result)) != _ENTRY_TYPES
        or result.kind not in tree.KINDS
        or not 0 <= result.size <= (wire.MAX_OFFSET if result.kind in _HAVE_SIZES else 0)
        or not 0 <= result.mode <= 0o7777
        or abs(result.mtime_ns) > wire.MAX_TIME_NS
        or ("x" in result.extra and not _are_attributes(result.extra["x"]))
    ):
        raise wire.WireError("an entry with a field out of bounds")
    return result


def _are_attributes(value: object) -> bool:
    """Is it a dictionary of base64 texts by name, as ../reading/metadata.py makes them?"""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def parse_pack(value: object) -> Tuple[List[tree.Entry], List[object]]:
    """Return the entries of a PACK frame's list, and the row of each. Raises WireError."""
    if not isinstance(value, list) or not all(isinstance(e, list) and len(e) == 2 for e in value):
        raise wire.WireError("no pack")
    return [entry(item) for item, _ in value], [row for _, row in value]


def check_sizes(
    entries: List[tree.Entry], rows: List[object], count_bytes: int
) -> List[Union[str, failures.Data]]:
    """Return the hex digest of each entry, or its failure, as the rows of the pack have them.

    Raises WireError where a row does not fit its entry, or the pack has another number of bytes.
    """
    digests: List[Union[str, failures.Data]] = []
    for value, row in zip(entries, rows):
        if isinstance(row, dict):
            digests.append(failures.parse_failure(row))
            continue
        if not isinstance(row, list) or len(row) != 2 or row[0] != value.size:
            raise wire.WireError("a pack's row that does not fit its entry")
        if value.kind not in _PACKED:
            raise wire.WireError("a pack with an entry of kind %s" % ascii(value.kind))
        if value.kind == tree.DEVICE:
            _check_device(value.target)
        if value.kind == tree.LINK and not _is_target(value.target):
            raise wire.WireError("a link without a target")
        digests.append(str(row[1]))
        count_bytes -= value.size
    if count_bytes:
        raise wire.WireError("a PACK frame with other bytes than its list says")
    return digests


def _check_device(text: str) -> None:
    try:
        tree.parse_device(text)
    except (ValueError, OverflowError):
        raise wire.WireError("a device without numbers")


def _is_target(path: str) -> bool:
    """Can a symbolic link lead to this path?"""
    try:
        return b"\0" not in to_bytes(path) and path != ""
    except UnicodeEncodeError:
        return False
