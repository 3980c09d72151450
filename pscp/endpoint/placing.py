"""What DEST means for these sources: scp's rule, and rsync's where DEST ends in a slash.

Not here: how SFTP finds out what lies at DEST (../sftp/placing.py).
Read next: sink.py.
"""

import os
from typing import List, NamedTuple, Optional, Tuple

from .failures import DESTINATION, Refusal
from .paths import to_bytes, to_text

Again = Tuple[str, List[str]]  # a root, and the names there

INTO, MAKE, AS = "into", "make", "as"


class Target(NamedTuple):
    """Where a copy lands: the folder, each source's name in it, and which of them exist there."""

    root: str
    names: List[str]
    existing: List[str]


def resolve(
    destination: str,
    names: List[str],
    folders: List[bool],
    *,
    make: bool,
    again: Optional[Again] = None,
) -> Target:
    """Return what DEST means at this end. Raises Refusal, OSError.

    With `make` a folder to copy into is made where it is missing; a dry run makes none. `again`
    is what it meant to a run that was cut short: a root, and the names there.
    """
    full = os.path.realpath(os.path.expanduser(to_bytes(destination)) or b".")
    is_folder = os.path.isdir(full)
    if again is not None and may_mean(full, is_folder, names, folders, again):
        root = to_bytes(again[0])
        if os.path.isdir(root):
            return existing(root, again[1])
    step = decide(destination, folders, is_folder=is_folder, exists=os.path.lexists(full))
    if step == INTO:
        return existing(full, names)
    parent, name = os.path.split(full)
    if not os.path.isdir(parent):
        raise Refusal(DESTINATION, destination, "no such folder: %s" % to_text(parent))
    if step == AS:
        return existing(parent, [to_text(name)])
    if not make:
        return Target(to_text(parent), below(to_text(name), names), [])
    try:
        os.mkdir(full)
    except FileExistsError:  # another copy was first
        pass
    return existing(full, names)


def existing(root: bytes, names: List[str]) -> Target:
    """The target that these names in this folder are."""
    there = [n for n in names if not n or os.path.lexists(os.path.join(root, to_bytes(n)))]
    return Target(to_text(root), names, there)


def may_mean(
    full: bytes, is_folder: bool, names: List[str], folders: List[bool], again: Again
) -> bool:
    """May DEST, which is `full`, still mean what it meant to a run that was cut short?

    Not where a link leads elsewhere now, or where there is a folder that no copy of a file made.
    """
    root, there = to_bytes(again[0]), again[1]
    if root == full:
        return bool(there == names)
    is_whole = root == os.path.dirname(full) and there == [to_text(os.path.basename(full))]
    return is_whole and (folders[0] or not is_folder)


def decide(destination: str, folders: List[bool], *, is_folder: bool, exists: bool) -> str:
    """Copy INTO the folder that is there, into one to MAKE, or AS what DEST names?

    `folders` says of each source whether it is a folder. Raises Refusal.
    """
    if is_folder:
        return INTO
    needs_folder = len(folders) != 1 or destination.endswith(("/", "/."))
    if exists and (needs_folder or folders[0]):
        raise Refusal(DESTINATION, destination, "is a file, not a folder")
    return MAKE if needs_folder else AS


def below(folder: str, names: List[str]) -> List[str]:
    """The sources' names, seen from the place where this folder would be made."""
    return [folder + "/" + name if name else folder for name in names]
