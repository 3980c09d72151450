"""The meaning of DEST for these sources: scp's rule, and rsync's where DEST ends in a slash.

A folder that is copied AS a new name is there when the same command runs again. Until that copy is
complete DEST still means that folder, if the folder itself shows that the copy has made it: its
marker (../reading/paths.py) lies in it. That something has this name proves nothing.

Not here: how SFTP finds out what lies at DEST (../../sftp/placing.py).
Read next: sink.py.
"""

import contextlib
import os
import stat
from typing import List, NamedTuple, Optional

from ..frames import system
from ..frames.failures import ABSENT, DESTINATION, Refusal
from ..reading.paths import marker_name, open_named, to_bytes, to_text
from . import removal
from .fence import fence_name

INTO, MAKE, AS = "into", "make", "as"
NO_FOLDER = "no such folder: "


class FileStatus(NamedTuple):
    """The answer of lstat(2) for a file or folder."""

    is_file: bool
    owner: Optional[int]  # None where SFTP does not tell


class Target(NamedTuple):
    """The place where a copy lands."""

    root: str  # the folder
    names: List[str]  # of the sources, in the folder
    existing: List[str]  # those names that exist there; "" where anything is in the folder
    made: str = ""  # the name of the folder that this copy makes AS its source, if it makes one


def resolve(
    destination: str,
    names: List[str],
    folders: List[bool],
    *,
    make: bool,
    mkpath: bool = False,
    token: str,
) -> Target:
    """Return where these sources land at this end. Raises Refusal, OSError.

    With `make` a folder to copy into is made where it is missing, and with `mkpath` those above it;
    a dry run makes none. `token` names the copy.
    """
    full = os.path.realpath(os.path.expanduser(to_bytes(destination)) or b".")
    is_folder = os.path.isdir(full)
    is_own = is_folder and may_be_own(destination, folders) and _is_own(full, token)
    exists = is_folder or _exists(full)
    step = decide(destination, folders, is_folder=is_folder, exists=exists, is_own=is_own)
    if step == INTO:
        if make:
            _make(full)
        return existing(full, names)
    parent, name = os.path.split(full)
    if mkpath and make:
        with contextlib.suppress(NotADirectoryError):
            _make(parent)
    while mkpath and not _exists(parent):
        parent, above = os.path.split(parent)
        name = os.path.join(above, name)
    if not os.path.isdir(parent):
        raise Refusal(DESTINATION, destination, NO_FOLDER + to_text(parent))
    if step == AS:
        return as_new(existing(parent, [to_text(name)]), folders)
    if not make:
        return Target(to_text(parent), below(to_text(name), names), [])
    _make(full)
    return existing(full, names)


def as_new(target: Target, folders: List[bool]) -> Target:
    """Return the target of a source that lands AS a new name."""
    return target._replace(made=target.names[0] if folders[0] else "")


def _make(folder: bytes) -> None:
    """Make a folder, and those above it, where they are missing; bring their names to the disk.

    That of an empty one as well: a run that was cut may have made it.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        if next(found, None):
            return
    above = os.path.dirname(folder)
    if not os.path.isdir(folder):
        _make(above)
        with contextlib.suppress(FileExistsError):  # another copy made it first, or it is no folder
            os.mkdir(folder)
    # One may make names in it, but not list them.
    with contextlib.suppress(PermissionError), system.closing(open_named(above)) as fd:
        removal.sync_folder(fd)


def existing(root: bytes, names: List[str]) -> Target:
    """Return the target with these names in this folder."""
    is_empty = "" in names and _is_empty(root)
    there = [n for n in names if (_exists(os.path.join(root, to_bytes(n))) if n else not is_empty)]
    return Target(to_text(root), names, there)


def _is_empty(folder: bytes) -> bool:
    """Is it known that nothing is in the folder?"""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return not next(found, None)
    return False


def _exists(path: bytes) -> bool:
    """Is anything there? Raises OSError where that cannot be told."""
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in ABSENT:
            return False
        raise
    return True


def is_beside(folder: str) -> bool:
    """Is a folder for backups not meant to be below the root?"""
    return folder.startswith(("/", "../"))


def beside(path: str, folder: str) -> str:
    """Return the whole path of a folder for backups that is_beside() the root `path`. Raises
    Refusal where it lies in the root, has the root in it, or is on another file system.
    """
    there = os.path.realpath(os.path.join(path, folder))
    root, other = os.path.join(os.path.realpath(path), ""), os.path.join(there, "")
    if root.startswith(other) or other.startswith(root):
        raise Refusal(DESTINATION, there, "--backup-dir is DEST, in it or above")
    above = there
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if os.stat(above).st_dev != os.stat(root).st_dev:
        why = "--backup-dir is on another file system than DEST"
        raise Refusal(DESTINATION, there, why)
    return there


def _is_own(folder: bytes, token: str) -> bool:
    """Did a run of this copy, which is not complete, make this folder for its source?"""
    marker = _seen(os.path.join(folder, marker_name(token)))
    fence = _seen(os.path.join(os.path.dirname(folder), fence_name(token)))
    is_empty = marker is None and fence is not None and _is_empty(folder)
    return is_own(os.stat(folder).st_uid, marker, fence, is_empty=is_empty)


def _seen(path: bytes) -> Optional[FileStatus]:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return FileStatus(stat.S_ISREG(status.st_mode), status.st_uid)


def may_be_own(destination: str, folders: List[bool]) -> bool:
    """May a folder at DEST be one that this copy made for its source, by what was typed?"""
    return folders == [True] and not _has_slash(destination)


def is_own(
    owner: Optional[int],
    marker: Optional[FileStatus],
    fence: Optional[FileStatus],
    *,
    is_empty: bool,
) -> bool:
    """Tell whether a run of this copy made the folder, by what lies in it, and beside it.

    A marker that another user might have put there counts for nothing: who may write to a folder
    could have it deleted by a mirror. A run that was killed before it made the marker has left an
    empty folder, from which nothing can be deleted, beside its fence.

    Args:
        owner: who owns the folder.
        marker: what has the marker's name in the folder, if anything.
        fence: what has the name of this copy's fence beside the folder, if anything.
        is_empty: whether nothing is in the folder.
    """
    if marker is None:
        return is_empty and fence is not None and fence.is_file
    return marker.is_file and marker.owner in (None, 0, owner)


def decide(
    destination: str, folders: List[bool], *, is_folder: bool, exists: bool, is_own: bool
) -> str:
    """Return whether to copy INTO the folder that is there, into one to MAKE, or AS a new name.

    `folders` has for each source whether it is a folder; `is_own` says that this copy made the one
    that is there. Raises Refusal.
    """
    if is_folder:
        return AS if is_own else INTO
    needs_folder = len(folders) != 1 or _has_slash(destination)
    if exists and (needs_folder or folders[0]):
        raise Refusal(DESTINATION, destination, "is a file, not a folder")
    return MAKE if needs_folder else AS


def _has_slash(destination: str) -> bool:
    return destination.endswith(("/", "/."))


def below(folder: str, names: List[str]) -> List[str]:
    """Return the sources' names as seen from the parent of this folder."""
    return [folder + "/" + name if name else folder for name in names]
