"""The quick check of whole folders: a source lists what each holds, a sink tells what differs.

A listing has the name, mode, size and time of each plain file and link of a folder, compressed to
some ten bytes a file. So what is unchanged costs each end a stat(2), and no entry, no look-up and
no digest. What a listing cannot say gets an entry of its own: files with several names, extended
attributes or another owner than the first one.

Not here: the rules for a single file (../../transfer/walk/decide.py), what is done about what
differs (../../transfer/walk/folder_check.py), the text of a listing (../reading/rows.py).
"""

import contextlib
import functools
import os
import stat
from typing import (
    TYPE_CHECKING,
    Collection,
    FrozenSet,
    Generator,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from ..asking import answers, requests
from ..frames import failures, system, wire
from ..reading import files, ownership, source, tree, xattrs
from ..reading.paths import is_pscps_own, is_unfinished, names_in, to_bytes, to_text, without_own
from ..reading.rows import NAMES_MOST, Listing, Rows, as_listing, target_of, unpack
from . import sameness
from .sameness import alike, is_owner, is_same_time, unit_of

if TYPE_CHECKING:
    from ..writing import sink

_ANSWER_BYTES = 512 * 1024  # of entries in one answer


def listing(value: object) -> Listing:
    """Return the listing that came as JSON. Raises WireError."""
    row = list(value) if isinstance(value, tuple) else value
    text, count, is_whole, owner, up_to, after = requests.row(row, 6)
    if not (isinstance(text, str) and isinstance(up_to, str) and isinstance(after, str)):
        raise wire.WireError("a listing of another shape")
    if type(count) is not int or not 0 <= count <= NAMES_MOST:
        raise wire.WireError("a listing of another shape")
    owner = owner if isinstance(owner, list) else None
    return Listing(text, count, is_whole is True, owner, up_to, after)


# --- requests


class WalkFolders(NamedTuple):
    """Walk; but what is plain in a folder is in the `list` of the folder's extra, a Listing; what
    it has no room for, in those of further entries of the folder, of the path `FOLDER/NAME/` with
    the name that comes before. Answer: as to Walk.
    """

    after: Optional[Tuple[int, str]]  # as with Walk
    restart: bool
    most: int  # entries


Names = List[Tuple[int, str, List[str]]]
Compared = Tuple[bool, List[int], List[int], bool]


class Describe(NamedTuple):
    """The entries of what listings have. Answer: `[entries, of how many names]`; of fewer where a
    frame has no room for more.
    """

    names: Names  # (`[top, the folder's path, [name, ...]]` of each folder)


class Compare(NamedTuple):
    """Ask what differs at the destination, once --link-dest has linked what it can of what is not
    there. Answer: per folder `[whether it is the same itself, with all in it, [places in the
    listing of files and links that differ], [places of those that were linked], whether it has
    names that the listing has not]`; null where that is not known.
    """

    folders: List[tree.Entry]  # each with a Listing as `list` of its extra
    parts: bool  # whether earlier runs may have left parts
    extras: bool  # whether it matters which names the listing has not
    seconds: bool  # whether files' times count in whole seconds, as SFTP at either end tells them


# --- at the source


class _Folder(NamedTuple):
    """A folder that a walk is in."""

    entry: tree.Entry
    fd: Optional[int]
    full: bytes
    apart: "FrozenSet[bytes]" = frozenset()  # names that get entries, as others are like them


class _Stretch(NamedTuple):
    """A stretch of a folder's names: up to NAMES_MOST."""

    listing: Optional[Listing]
    rest: List[bytes]  # names that get entries of their own
    up_to: str  # the last name of the stretch
    behind: List[bytes]  # the names behind it


class ListingWalk(tree.Walk):
    """A walk that lists what is plain in a folder's own entry."""

    def _opened(
        self, entry: tree.Entry, full: bytes, above: Optional[int], key: Tuple[int, int]
    ) -> "Generator[tree.Entry, None, Optional[Tuple[Optional[int], Iterator[tree.Step]]]]":
        try:
            fd, names = self._enter(full, above, key)
        except (OSError, failures.FileChanged) as error:
            yield entry
            yield self._not_entered(entry, error)
            return None
        folder = _Folder(entry, fd, full, apart_of(names))
        try:
            first = self._stretch(folder, names, "")
            listed = first.listing
            yield entry if listed is None else entry._replace(extra=dict(entry.extra, list=listed))
        except BaseException:  # the walk does not know of it yet
            if fd is not None:
                os.close(fd)
            raise
        return fd, self._steps(folder, first)

    def _steps(self, folder: _Folder, stretch: _Stretch) -> "Iterator[tree.Step]":
        """Yield what gets entries of its own, and before that of each further stretch an entry with
        its listing, whose path is in the order behind the name that ends the stretch before it.
        """
        entry = folder.entry
        yield from tree.within(entry.path, folder.full, stretch.rest)
        while stretch.behind:
            after = stretch.up_to
            stretch = self._stretch(folder, stretch.behind, after)
            if stretch.listing is not None:
                path = "%s/%s/" % (entry.path, after) if entry.path else after + "/"
                yield entry._replace(path=path, extra={"list": stretch.listing})
            yield from tree.within(entry.path, folder.full, stretch.rest)

    def _stretch(self, folder: _Folder, names: List[bytes], after: str) -> _Stretch:
        """List the first of these names. If others are behind them, the last is that of no folder,
        so that what is in folders comes before the next stretch.
        """
        fd, before, archive = folder.fd, os.path.join(folder.full, b""), self._rules.archive
        chosen, behind = names[:NAMES_MOST], names[NAMES_MOST:]
        paths = [before + name for name in chosen] if fd is None else chosen
        statuses = _statuses(paths, fd, self._rules.follow)
        count = _without_last_folders(statuses) if behind else 0
        if count:
            chosen, statuses, behind = chosen[:count], statuses[:count], names[count:]
        more = _with_attributes(fd, before, chosen, self._rules.follow) if archive else frozenset()
        found = [status for status in statuses if status is not None]
        owners = _owners(found) if archive else set()
        rows, rest = Rows(chosen, *_columns(found), {}), []  # type: Tuple[Rows, List[bytes]]
        owner = next(iter(owners), None)
        if folder.apart:
            more = more.union(at for at, name in enumerate(chosen) if name in folder.apart)
        is_alike = len(found) == len(chosen) and not more and len(owners) < 2
        if not (is_alike and self._are_plain(found, rows)):  # few folders
            rows, rest, owner = self._chosen(folder.entry, chosen, statuses, more)
        if archive:
            rows.read_targets(fd, before)
        up_to = to_text(chosen[-1]) if behind else ""
        is_whole = not (up_to or after) and 0 not in rows.modes
        who = None if owner is None else ownership.owner(*owner)
        listed = as_listing(rows, who, is_whole, up_to, after)
        if listed is None:
            rest = chosen
        if behind and not count:  # folders alone: the others get entries of their own
            rest, behind = rest + behind, []
        return _Stretch(listed, rest, up_to, behind)

    def _are_plain(self, found: List[os.stat_result], rows: Rows) -> bool:
        """Are all files, with -a of one name, and none left out?"""
        if self._filters or not all(map(stat.S_ISREG, set(rows.modes))):
            return False
        return not self._rules.archive or {each.st_nlink for each in found} <= {1}

    def _chosen(
        self,
        entry: tree.Entry,
        chosen: List[bytes],
        statuses: "List[Optional[os.stat_result]]",
        more: "FrozenSet[int]",
    ) -> Tuple[Rows, List[bytes], Optional[Tuple[int, int]]]:
        """Return the rows, the names that get entries, and the owner of all in the rows."""
        rows, rest = Rows([], [], [], [], {}), []  # type: Tuple[Rows, List[bytes]]
        owner: Optional[Tuple[int, int]] = None
        for place, (name, status) in enumerate(zip(chosen, statuses)):
            mode = 0 if status is None else status.st_mode
            if self._filters and self._leaves_out(entry, name, stat.S_ISDIR(mode)):
                continue
            if stat.S_ISDIR(mode):
                rest.append(name)
                rows.add(name, stat.S_IFDIR, 0, 0)
            elif status is None or place in more or not self._is_plain(status, owner):
                rest.append(name)
                rows.add(name, 0, 0, 0)
            else:
                rows.add(name, mode, status.st_size, status.st_mtime_ns)
                owner = (status.st_uid, status.st_gid) if self._rules.archive else None
        return rows, rest, owner

    def _is_plain(self, status: os.stat_result, owner: Optional[Tuple[int, int]]) -> bool:
        """Is it a file or link of which a listing says all? `owner` is that of those before."""
        is_file = stat.S_ISREG(status.st_mode)
        if not self._rules.archive:
            return is_file
        has_one_name = is_file and status.st_nlink == 1
        is_plain = has_one_name or stat.S_ISLNK(status.st_mode)
        return is_plain and owner in (None, (status.st_uid, status.st_gid))

    def _leaves_out(self, folder: tree.Entry, name: bytes, is_folder: bool) -> bool:
        path = "%s/%s" % (folder.path, to_text(name)) if folder.path else to_text(name)
        return tree.is_excluded(self._filters, path, is_folder)

    def describe(self, top: int, path: str, place: files.Place) -> Optional[tree.Entry]:
        """Return the entry of a file or link at this place."""
        name, full = self._tops[top]
        rest = path.partition("/")[2] if name else path
        entry, _ = self._entry(top, path, os.path.join(full, to_bytes(rest)), place[0], [])
        if entry is not None and entry.kind == tree.FOLDER:
            return tree.error_entry(
                top, path, failures.from_exception(failures.FileChanged(), path)
            )
        return entry


def apart_of(names: List[bytes]) -> "FrozenSet[bytes]":
    """Return those of so many names that may be one at a sink, which sees one stretch at a time."""
    found = alike(names) if len(names) > NAMES_MOST else []
    return frozenset(names[place] for place in found)


def _without_last_folders(statuses: "List[Optional[os.stat_result]]") -> int:
    """Return how many there are up to the last that is of no folder."""
    count = len(statuses)
    for status in reversed(statuses):
        if status is None or not stat.S_ISDIR(status.st_mode):
            break
        count -= 1
    return count


def _statuses(
    paths: List[bytes], fd: Optional[int], follow: bool
) -> "List[Optional[os.stat_result]]":
    """Return the status of each, None where there is none to be had."""
    try:
        return [os.stat(path, dir_fd=fd, follow_symlinks=follow) for path in paths]
    except OSError:
        return [_status(path, fd, follow) for path in paths]


def _owners(found: List[os.stat_result]) -> Set[Tuple[int, int]]:
    return {(status.st_uid, status.st_gid) for status in found}


def _columns(found: List[os.stat_result]) -> Tuple[List[int], List[int], List[int]]:
    """Return the modes, sizes and times of Rows."""
    return (
        [status.st_mode for status in found],
        [status.st_size for status in found],
        [status.st_mtime_ns for status in found],
    )


def _status(path: bytes, fd: Optional[int], follow: bool) -> Optional[os.stat_result]:
    try:
        return os.stat(path, dir_fd=fd, follow_symlinks=follow)
    except OSError:
        return None


def _with_attributes(
    fd: Optional[int], before: bytes, names: List[bytes], follow: bool
) -> "FrozenSet[int]":
    """Return the places of those that have attributes which are copied, or may have."""
    if not hasattr(os, "listxattr"):
        return frozenset()
    with contextlib.suppress(OSError):  # of most folders, in the least time
        if not any(xattrs.in_folder(fd, before, names, follow)):
            return frozenset()
    found = set()
    for place, name in enumerate(names):
        try:
            if any(map(xattrs.is_copied, os.listxattr(before + name, follow_symlinks=follow))):
                found.add(place)
        except OSError:
            found.add(place)
    return frozenset(found)


def _describe(of: source.Source, request: Describe) -> Tuple[List[tree.Entry], int]:
    """Return the entries, and of how many names they are."""
    walk = ListingWalk(of.named, of.rules)
    entries: List[tree.Entry] = []
    count = size_bytes = 0
    for top, folder, names in request.names:
        for name in names:
            entry = _described(of, walk, top, "%s/%s" % (folder, name) if folder else name)
            if entry is not None:
                entries.append(entry)
                size_bytes += len(wire.to_json(entry))
            count += 1
            if size_bytes >= _ANSWER_BYTES:
                return entries, count
    return entries, count


def _described(of: source.Source, walk: ListingWalk, top: int, path: str) -> Optional[tree.Entry]:
    try:
        known = source.entry_of(source.SourceFile(top, path, 0, 0, 0))
        return walk.describe(top, path, of.place(known))
    except failures.EXPECTED as error:
        return tree.error_entry(top, path, failures.from_exception(error, path))


# --- at the sink


def _compare(the_sink: "sink.Sink", entry: tree.Entry, asked: Compare) -> "Optional[Compared]":
    """Return what Compare does of one folder."""
    try:
        there = listing(entry.extra.get("list"))
        rows = unpack(there.text)
    except wire.WireError:
        return None  # the coordinator, which reads it then, says so
    try:
        with system.closing(_open_folder(the_sink, entry.path)) as fd:
            is_there = stat.S_ISDIR(os.fstat(fd).st_mode)  # else --link-dest has found it missing
            if is_there and asked.parts and any(map(is_pscps_own, names_in(fd))):
                return None  # what became of them, a look at each file tells
            owner, archive = sameness.owner(there.owner), the_sink.policy.archive
            unit_ns = 10**9 if asked.seconds else 1
            find = functools.partial(
                _differing, rows=rows, owner=owner, archive=archive, unit_ns=unit_ns
            )
            differing = find(fd)
            is_same = is_there and not differing and _is_same_folder(os.fstat(fd), entry)
            places = list(filter(rows.is_file, differing))
            is_more = is_there and asked.extras
            is_more = is_more and has_more(names_in(fd), rows, there, is_all=not differing)
            if the_sink.linker is None or not places:
                return is_same, places, [], is_more
            # A read-only folder is opened up once it was looked at: for each file by itself.
            if is_there and not os.access(b".", os.W_OK, dir_fd=fd):
                return is_same, places, [], is_more
            linked = the_sink.linker.link_listed(entry.path, rows.names, places, find)
            left = [place for place in places if place not in linked]
            return is_same, left, sorted(linked), is_more
    except OSError:
        return None
    except failures.Refusal as error:
        if error.kind == failures.SUPERSEDED:
            raise
        return None


def _open_folder(the_sink: "sink.Sink", path: str) -> int:
    if the_sink.linker is not None:
        return the_sink.linker.folder(path)
    return os.dup(the_sink.root.folder(path))


def _differing(
    fd: int, rows: Rows, owner: Tuple[int, int], archive: bool, unit_ns: int = 1
) -> List[int]:
    """Return the places of the names with which there is not in the folder what their rows say."""
    statuses = _statuses(rows.names, fd, False)
    differing = alike(rows.names)
    if _are_same(statuses, rows, owner):
        statuses = []
    for place, (status, mode, size, mtime_ns) in enumerate(zip(statuses, *rows[1:4])):
        if status is None:
            differing.append(place)
        elif mode == 0:
            pass
        elif mode == stat.S_IFDIR:
            if not stat.S_ISDIR(status.st_mode) or is_unfinished(status.st_mode):
                differing.append(place)
        elif (
            status.st_mode != mode
            or status.st_size != size
            or not is_same_time(mtime_ns, status.st_mtime_ns // unit_ns * unit_ns, unit_of(status))
            or not is_owner((status.st_uid, status.st_gid), owner)
            or (place in rows.targets and target_of(fd, rows.names[place]) != rows.targets[place])
        ):
            differing.append(place)
    if archive:  # none of these has attributes at the source
        differing += xattrs.with_some(fd, rows.names)
    return sorted(set(differing))


def _are_same(
    statuses: "List[Optional[os.stat_result]]", rows: Rows, owner: Tuple[int, int]
) -> bool:
    """Is all as its row says? That is told of files alone, in half the time that a loop takes."""
    found = [status for status in statuses if status is not None]
    if rows.targets or len(found) < len(statuses) or _columns(found) != rows[1:4]:
        return False
    return all(is_owner(each, owner) for each in _owners(found))


def has_more(names: Collection[bytes], rows: Rows, listed: Listing, is_all: bool = False) -> bool:
    """Are there any of these names in its stretch that a listing has not? Not pscp's own.

    `is_all`: there are all those of the listing.
    """
    after, up_to = to_bytes(listed.after), to_bytes(listed.up_to)
    if after or up_to:
        names = [name for name in names if name > after and (not up_to or name <= up_to)]
    is_same = is_all and len(names) == len(rows.names)
    return not is_same and bool(without_own(set(names).difference(rows.names)))


def _is_same_folder(status: os.stat_result, entry: tree.Entry) -> bool:
    """Has a folder the metadata that it is to have? One with attributes is given them again."""
    return (
        stat.S_IMODE(status.st_mode) == entry.mode
        and not is_unfinished(status.st_mode)
        and is_same_time(entry.mtime_ns, status.st_mtime_ns, unit_of(status))
        and is_owner((status.st_uid, status.st_gid), sameness.owner(entry.extra.get("o")))
        and "x" not in entry.extra
    )


answers.add(
    answers.SOURCE,
    {
        WalkFolders: lambda of, request: of.walk(*request, kind=ListingWalk),
        Describe: _describe,
    },
)
answers.add(
    answers.WRITING_SINK,
    {Compare: lambda of, request: [_compare(of, each, request) for each in request.folders]},
)
