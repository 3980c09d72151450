"""What DEST means for these sources: scp's rule, and rsync's where DEST ends in a slash.

Not here: how SFTP finds out what lies at DEST (../sftp/placing.py).
Read next: sink.py.
"""

import contextlib
import os
from typing import List, NamedTuple, Optional, Tuple

from . import letting_go
from .failures import DESTINATION, Refusal
from .paths import FOLDER_FLAGS, to_bytes, to_text

Again = Tuple[str, List[str]]  # a root, and the names there

INTO, MAKE, AS = "into", "make", "as"
NO_FOLDER = "no such folder: "


class Target(NamedTuple):
    """Where a copy lands."""

    root: str  # the folder
    names: List[str]  # of the sources, in the folder
    existing: List[str]  # those names that exist there


def resolve(
    destination: str,
    names: List[str],
    folders: List[bool],
    *,
    make: bool,
    mkpath: bool = False,
    again: Optional[Again] = None,
) -> Target:
    """Return where these sources land at this end. Raises Refusal, OSError.

    With `make` a folder to copy into is made where it is missing, and with `mkpath` those above it;
    a dry run makes none. `again` is where they landed in a run that was cut short.
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
    if mkpath and make:
        with contextlib.suppress(NotADirectoryError):
            _make(parent)
    while mkpath and not os.path.lexists(parent):
        parent, above = os.path.split(parent)
        name = os.path.join(above, name)
    if not os.path.isdir(parent):
        raise Refusal(DESTINATION, destination, NO_FOLDER + to_text(parent))
    if step == AS:
        return existing(parent, [to_text(name)])
    if not make:
        return Target(to_text(parent), below(to_text(name), names), [])
    _make(full)
    return existing(full, names)


def _make(folder: bytes) -> None:
    """Make a folder, and those above it, where they are missing; bring their names to the disk."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    _make(above)
    with contextlib.suppress(FileExistsError):  # another copy made it first, or it is no folder
        os.mkdir(folder)
    with contextlib.suppress(PermissionError):  # one may make names in it, but not list them
        fd = os.open(above, FOLDER_FLAGS & ~os.O_NOFOLLOW)
        try:
            letting_go.sync_folder(fd)
        finally:
            os.close(fd)


def existing(root: bytes, names: List[str]) -> Target:
    """Return the target with these names in this folder."""
    there = [n for n in names if not n or os.path.lexists(os.path.join(root, to_bytes(n)))]
    return Target(to_text(root), names, there)


def may_mean(
    full: bytes, is_folder: bool, names: List[str], folders: List[bool], again: Again
) -> bool:
    """May the destination `full` still mean what it meant to a run that was cut short (`again`)?

    Not where a link leads elsewhere now, or where there is a folder that no copy of a file made.
    """
    root, there = to_bytes(again[0]), again[1]
    if root == full:
        return bool(there == names)
    is_whole = root == os.path.dirname(full) and there == [to_text(os.path.basename(full))]
    return is_whole and (folders[0] or not is_folder)


def decide(destination: str, folders: List[bool], *, is_folder: bool, exists: bool) -> str:
    """Return whether to copy INTO the folder that is there, into one to MAKE, or AS a new name.

    `folders` has for each source whether it is a folder. Raises Refusal.
    """
    if is_folder:
        return INTO
    needs_folder = len(folders) != 1 or destination.endswith(("/", "/."))
    if exists and (needs_folder or folders[0]):
        raise Refusal(DESTINATION, destination, "is a file, not a folder")
    return MAKE if needs_folder else AS


def below(folder: str, names: List[str]) -> List[str]:
    """Return the sources' names as seen from the parent of this folder."""
    return [folder + "/" + name if name else folder for name in names]
