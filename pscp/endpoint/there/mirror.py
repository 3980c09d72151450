"""A mirror's work at the ends of a copy (--delete): it looks for names that the source does not
have, and removes them at the destination.

Three requests, each of which may come late or twice. The sink lists what is not in a list of names;
the source looks whether it has these after all; the sink removes what is still as it was listed,
while this run owns the copy. What is pscp's own is in no list, and nothing is looked for, or
removed, through a link.

Sent with BeginSource and BeginSink where a copy is to be a mirror. Not here: when any of this is
asked, and what the filters protect (../../transfer/ending/mirror.py).
"""

import contextlib
import errno
import functools
import os
import stat
import unicodedata
from itertools import zip_longest
from typing import Iterable, List, NamedTuple, Set, Tuple

from ..asking import answers
from ..frames import failures, system, wire
from ..reading import source, tree
from ..reading.paths import (
    PART_SUFFIX,
    Root,
    mount_id,
    mount_of,
    names_in,
    open_named,
    status_of,
    to_bytes,
    to_text,
    without_own,
)
from ..writing import sink
from ..writing.removal import remove_user_name

MOUNT = "mount"  # a kind beside those of ../reading/tree.py, which is never removed

ANSWER_BYTES = 768 * 1024  # of rows in one answer
_ROW_BYTES = 80  # of a row, beside the name

Piece = Tuple[str, str, str, List[str]]
Row = List[str]  # the name, its kind, and what was seen of it, which remove() compares
Listed = Tuple[int, str, int, List[str]]
Extra = Tuple[str, str, str]


class Extras(NamedTuple):
    """Ask what is in folders of the destination and not in a list of names. Answer: per piece
    `[[[name, kind, what was seen of it], ...], whether there is more]`, by name, or a failure; null
    for whether, where the folder is in another file system than its top.
    """

    pieces: List[Piece]  # (`[folder, after this name, up to this one or "", the list]`)
    # The folder that each is not to be apart from (-x); empty: other file systems count.
    tops: List[str] = []


class InTheWay(NamedTuple):
    """Ask what has these names, where the source has another kind of thing. Answer: per path
    `[kind, what was seen of it]`, kind "" where there is nothing, or a failure.
    """

    paths: List[str]


class Absent(NamedTuple):
    """Ask whether the source still lacks names. Answer: per folder those that are there, or a
    failure.
    """

    folders: List[Listed]  # (`[number of the source, folder, its inode or 0, names]`)
    crosses: bool  # whether other filesystems count; else a folder of one lacks nothing


class Remove(NamedTuple):
    """Remove what a mirror should not have, if it is as it was listed, and of folders only empty
    ones. Answer: `[place, failure]` of those that stay.
    """

    extras: List[Extra]  # (`[path, kind, what was seen of it]`)


# --- of the sink


def extras(root: Root, request: Extras) -> List[object]:
    """Return for each piece its rows and whether there is more, or why that cannot be told."""
    left_bytes = ANSWER_BYTES
    answers: List[object] = []
    for piece, top in zip_longest(request.pieces, request.tops[: len(request.pieces)]):
        if left_bytes <= 0:
            answers.append([[], True])
            continue
        try:
            if top is not None and _is_apart(root, top, piece[0]):
                answers.append([[], None])
                continue
            rows, is_all = _rows(root, piece, left_bytes)
        except (OSError, failures.Refusal) as error:
            if not (isinstance(error, FileNotFoundError) or is_no_folder(error)):
                answers.append(failures.from_exception(error, piece[0]))
                continue
            rows, is_all = [], True  # there is nothing
        left_bytes -= sum(weight_bytes(row[0]) for row in rows)
        answers.append([rows, not is_all])
    return answers


def is_no_folder(error: Exception) -> bool:
    """Is there a file or a link where the copy has a folder? Then nothing is in it; where the copy
    has not replaced it that has been told.
    """
    return isinstance(error, failures.Refusal) and error.kind == failures.UNSAFE


def weight_bytes(name: str) -> int:
    """Return how many bytes a row with this name takes in an answer, about."""
    return _ROW_BYTES + len(wire.to_json(name))


def _rows(root: Root, piece: Piece, most_bytes: int) -> Tuple[List[Row], bool]:
    """Return the first of a piece's rows, at least one, and whether these were all."""
    folder, low, high, names = piece
    fd = root.folder(folder)
    there = set(names_in(fd))
    listed = {to_bytes(name) for name in names}
    found = in_piece(without_own(there - listed), low, high)
    if not found:
        return [], True
    # Where the filesystem takes two names for one, the copy's own file may have another.
    same = _keys(fd, listed - there)
    device, rows = os.fstat(fd).st_dev, []  # type: Tuple[int, List[Row]]
    for name in found:
        if most_bytes <= 0:
            return rows, False
        status = status_of(fd, name)
        if status is None:
            continue
        key = status.st_dev, status.st_ino
        if key in same or ((low or high) and key in _keys(fd, variants(name) - there)):
            continue
        rows.append([to_text(name), _kind(fd, device, name, status), _seen(status)])
        most_bytes -= weight_bytes(rows[-1][0])
    return rows, True


def _kind(folder_fd: int, device: int, name: bytes, status: os.stat_result) -> str:
    """Return the kind of what is in a folder of this device; MOUNT where that is mounted there."""
    kind = tree.kind_of(status.st_mode) if status.st_dev == device else MOUNT
    if kind == tree.FOLDER and mount_id(folder_fd) != mount_id(folder_fd, name):  # bound there
        kind = MOUNT
    return kind


def _is_apart(root: Root, top: str, folder: str) -> bool:
    """Is the folder in another file system than its top, or mounted below that?"""
    fds = root.folder(top), root.folder(folder)
    return len({mount_of(fd) for fd in fds}) > 1


def _in_the_way(root: Root, path: str) -> List[str]:
    folder_fd, name = root.at(path)
    status = status_of(folder_fd, name)
    if status is None:
        return ["", ""]
    return [_kind(folder_fd, os.fstat(folder_fd).st_dev, name, status), _seen(status)]


def in_piece(names: Iterable[bytes], low: str, high: str) -> List[bytes]:
    """Return those names that come after `low` and, unless `high` is "", not after it, sorted."""
    first, last = to_bytes(low), to_bytes(high)
    return sorted(name for name in names if name > first and (not last or name <= last))


def variants(name: bytes) -> Set[bytes]:
    """Return other spellings of a name, of case and of accents, that a filesystem may take for it.

    With pieces of a large folder, the spelling that the source has may be in another one's list.
    """
    text = to_text(name)
    found = {text.swapcase(), text.upper(), text.lower()}
    found |= {unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    return {to_bytes(each) for each in found if 0 < len(to_bytes(each)) < 256} - {name}


def _keys(fd: int, names: Iterable[bytes]) -> Set[Tuple[int, int]]:
    """Return device and inode of those names that there are, though a listing has none of them."""
    keys: Set[Tuple[int, int]] = set()
    for name in names:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue
        keys.add((status.st_dev, status.st_ino))
    return keys


def _seen(status: os.stat_result) -> str:
    """Return what tells whether something is still the same; a folder's time changes by itself."""
    mtime_ns = 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
    return "%d %d %d" % (status.st_dev, status.st_ino, mtime_ns)


def remove(of: sink.Sink, extra: Extra) -> None:
    """Remove a name. Raises Refusal where it is another thing by now, or this run is superseded."""
    path, kind, seen = extra
    with of.held():
        try:
            folder_fd, name = of.root.at(path)
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:  # removed already, maybe by a lane that was lost then
            return
        if (tree.kind_of(status.st_mode), _seen(status)) != (kind, seen) or not without_own([name]):
            raise not_as_listed(path)
        try:
            _take_away(of, path, status)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _remove_parts(of, path)
            remove_user_name(*of.root.at(path), True)


def make_way(of: sink.Sink, path: str) -> None:
    """Remove a file or link in whose place a folder comes. The caller holds the fence. Raises
    OSError.
    """
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # another lane was first
        folder_fd, name = of.root.at(path)
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            _take_away(of, path, status)


def _take_away(of: sink.Sink, path: str, status: os.stat_result) -> None:
    """Remove a name that has this status, and keep what had it where that is wanted."""
    of.root.at(path, make=True)  # the folder is there: it is to be written in
    if of.settler.keeper is not None and not stat.S_ISDIR(status.st_mode):
        of.settler.keeper.keep_removed(path, status)
    folder_fd, name = of.root.at(path)
    with contextlib.suppress(FileNotFoundError):  # a backup took it
        remove_user_name(folder_fd, name, stat.S_ISDIR(status.st_mode))


def _remove_parts(of: sink.Sink, folder: str) -> None:
    """Remove the parts of earlier runs of this copy from a folder that goes, so that it can.

    This run has taken the copy over from them. Raises Refusal where only other copies' are left.
    """
    fd = of.root.folder(folder)
    names = set(names_in(fd))
    if without_own(names):
        return
    own = {name for name in names if is_part_of(name, of.copy.token)}
    for name in own:
        os.unlink(name, dir_fd=fd)
    if names - own:
        raise parts_of_others(folder)


def is_part_of(name: bytes, token: str) -> bool:
    """Is it the name of a part of this copy, of whichever run?"""
    return name.endswith(PART_SUFFIX) and name.split(b".")[-2][:8] == token.encode("ascii")


def parts_of_others(folder: str) -> failures.Refusal:
    message = "stays: parts that other copies left are in it; `pscp --clean` removes those"
    return failures.Refusal(failures.DESTINATION, folder, message)


def not_as_listed(path: str) -> failures.Refusal:
    message = "is not what it was when it was listed, so it stays"
    return failures.Refusal(failures.DESTINATION, path, message)


# --- of the source


def names_at_source(of: source.Source, crosses: bool, listed: Listed) -> List[str]:
    """Return those names that the folder has. Raises FileChanged where it is another by now."""
    top, folder, inode, names = listed
    with system.closing(_open_folder(of, top, folder)) as fd:
        status = os.fstat(fd)
        if inode and status.st_ino != inode:
            raise failures.FileChanged()
        if not crosses and status.st_dev != os.stat(of.where(top, "")[0]).st_dev:
            return names
        there = set(names_in(fd))
        return [name for name in names if _is_there(fd, to_bytes(name), there)]


def _open_folder(of: source.Source, top: int, folder: str) -> int:
    """Open a folder of the source, through links only where the walk follows them."""
    root, rest = of.where(top, folder)
    if of.follows:
        return open_named(os.path.join(root, to_bytes(rest)))
    held = Root(to_text(root), follow=False)  # opened anew: nothing is kept from the walk
    try:
        return os.dup(held.folder(rest))
    finally:
        held.close()


def _is_there(fd: int, name: bytes, listed: Set[bytes]) -> bool:
    """Has the folder this name, if only when asked for it, and not as another spelling of one?"""
    return name in listed or (status_of(fd, name) is not None and not variants(name) & listed)


# --- the requests


def _absent(of: source.Source, request: Absent) -> List[object]:
    act = functools.partial(names_at_source, of, request.crosses)
    return answers.results((each[1], functools.partial(act, each)) for each in request.folders)


def _remove(of: sink.Sink, request: Remove) -> answers.Failed:
    calls = ((each[0], functools.partial(remove, of, each)) for each in request.extras)
    return failures.places(answers.results(calls))


def _all_in_the_way(of: sink.Sink, request: InTheWay) -> List[object]:
    act = functools.partial(_in_the_way, of.root)
    return answers.results((path, functools.partial(act, path)) for path in request.paths)


answers.add(answers.SOURCE, {Absent: _absent})
answers.add(
    answers.WRITING_SINK,
    {
        Extras: lambda of, request: extras(of.root, request),
        InTheWay: _all_in_the_way,
        Remove: _remove,
    },
)
