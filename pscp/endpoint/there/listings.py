"""The quick check of whole folders: a source lists what each holds, a sink tells what differs.

A listing has the name, mode, size and time of each plain file and link of a folder, compressed to
some ten bytes a file. So what is unchanged costs each end a stat(2), and no entry, no look-up and
no digest. What a listing cannot say gets an entry of its own: files with several names, extended
attributes or another owner than the first one.

Not here: the rules for a single file (../../transfer/walk/decide.py), what is done about what
differs (../../transfer/walk/folder_check.py).
"""

import array
import base64
import functools
import os
import stat
import struct
import sys
import zlib
from typing import TYPE_CHECKING, Dict, FrozenSet, Generator, List, NamedTuple, Optional, Tuple

from ..asking import answers, requests
from ..frames import failures, system, wire
from ..reading import files, ownership, source, tree, xattrs
from ..reading.paths import is_pscps_own, is_unfinished, to_bytes, to_text
from . import sameness
from .sameness import alike, is_owner, is_same_time

if TYPE_CHECKING:
    from ..writing import sink

_NAMES_MOST = 16384  # in one listing: some 200 KB as it travels, in a frame of 1 MiB
_TEXT_MOST_BYTES = 384 * 1024
_RAW_MOST_BYTES = 8 * 1024 * 1024  # _NAMES_MOST of the longest names, and some targets of links
_ANSWER_BYTES = 512 * 1024  # of entries in one answer


class Listing(NamedTuple):
    """The content of one folder of a source, but for what gets entries of its own."""

    text: str  # as Rows makes it
    files: int  # and links, which are in the text
    is_whole: bool  # whether only folders get entries of their own
    owner: Optional[List[object]]  # of all files, as an Entry has it; null without -a


class Rows(NamedTuple):
    """The names in a folder, and what is compared of each; of folders only that they are some."""

    names: List[bytes]
    modes: List[int]
    sizes: List[int]
    mtimes_ns: List[int]
    targets: Dict[int, bytes]  # of links, by their places

    def add(self, name: bytes, mode: int, size: int, mtime_ns: int) -> None:
        self.names.append(name)
        self.modes.append(mode)
        self.sizes.append(size)
        self.mtimes_ns.append(mtime_ns)

    def is_file(self, place: int) -> bool:
        """Is it a file or a link?"""
        return self.modes[place] != stat.S_IFDIR

    def folders(self) -> int:
        return self.modes.count(stat.S_IFDIR)

    def read_targets(self, fd: Optional[int], before: bytes) -> None:
        """Read where the links lead, in the folder `fd`, or where names have this `before` them."""
        for place, mode in enumerate(self.modes):
            if stat.S_ISLNK(mode):
                name = self.names[place]
                self.targets[place] = _target(fd, name if fd is not None else before + name)

    def pack(self) -> str:
        numbers = _swapped(array.array("q", self.modes + self.sizes + self.mtimes_ns)).tobytes()
        texts = b"\0".join([*self.names, *(self.targets[place] for place in sorted(self.targets))])
        raw = struct.pack(">I", len(self.names)) + numbers + texts
        # With a small window: of most folders the usual one takes longer to set up than to use.
        deflate = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
        return base64.b64encode(deflate.compress(raw) + deflate.flush()).decode("ascii")


def unpack(text: str) -> Rows:
    """Return the rows that pack() has made a text of. Raises WireError for any other."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text), _RAW_MOST_BYTES)
        if not inflate.eof:
            raise ValueError
        (count,) = struct.unpack_from(">I", raw)
        numbers = array.array("q", raw[4 : 4 + 24 * count])
        texts = raw[4 + 24 * count :].split(b"\0")
        modes, sizes, mtimes_ns = (
            _swapped(numbers)[n * count : (n + 1) * count].tolist() for n in range(3)
        )
        links = [place for place, mode in enumerate(modes) if stat.S_ISLNK(mode)]
    except (ValueError, OverflowError, struct.error, zlib.error):
        raise wire.WireError("a listing of another shape")
    if len(mtimes_ns) != count or len(texts) != max(count + len(links), 1):
        raise wire.WireError("a listing of another shape")
    return Rows(texts[:count], modes, sizes, mtimes_ns, dict(zip(links, texts[count:])))


def _swapped(numbers: "array.array[int]") -> "array.array[int]":
    """Return the numbers in the other order of bytes where this machine has another than most."""
    if sys.byteorder == "little":
        return numbers
    numbers = numbers[:]
    numbers.byteswap()
    return numbers


def listing(value: object) -> Listing:
    """Return the listing that came as JSON. Raises WireError."""
    row = list(value) if isinstance(value, tuple) else value
    text, count, is_whole, owner = requests.row(row, 4)
    if not isinstance(text, str) or type(count) is not int or not 0 <= count <= _NAMES_MOST:
        raise wire.WireError("a listing of another shape")
    return Listing(text, count, is_whole is True, owner if isinstance(owner, list) else None)


# --- requests


class WalkFolders(NamedTuple):
    """Walk; but what is plain in a folder is in the `list` of the folder's extra, a Listing.
    Answer: as to Walk.
    """

    after: Optional[Tuple[int, str]]  # as with Walk
    restart: bool
    most: int  # entries


Names = List[Tuple[int, str, List[str]]]
Compared = Tuple[bool, List[int], int]


class Describe(NamedTuple):
    """The entries of what listings have. Answer: `[entries, of how many names]`; of fewer where a
    frame has no room for more.
    """

    names: Names  # (`[top, the folder's path, [name, ...]]` of each folder)


class Compare(NamedTuple):
    """Ask what differs at the destination, once --link-dest has linked what it can. Answer: per
    folder `[whether it is the same itself, with all in it, [places in the listing of files and
    links that differ], how many were linked]`; null where that is not known.
    """

    folders: List[tree.Entry]  # each with a Listing as `list` of its extra
    parts: bool  # whether earlier runs may have left parts


# --- at the source


class ListingWalk(tree.Walk):
    """A walk that lists what is plain in a folder's own entry."""

    def _opened(
        self, entry: tree.Entry, full: bytes, above: Optional[int], key: Tuple[int, int]
    ) -> "Generator[tree.Entry, None, Optional[Tuple[Optional[int], List[bytes]]]]":
        try:
            fd, names = self._enter(full, above, key)
        except (OSError, failures.FileChanged) as error:
            yield entry
            yield self._not_entered(entry, error)
            return None
        try:
            listed, rest = self._listed(entry, fd, full, names)
            yield listed
        except BaseException:  # the walk does not know of it yet
            if fd is not None:
                os.close(fd)
            raise
        return fd, rest

    def _listed(
        self, entry: tree.Entry, fd: Optional[int], full: bytes, names: List[bytes]
    ) -> Tuple[tree.Entry, List[bytes]]:
        """Return the folder's entry with its listing, and the names that get entries."""
        before, archive = os.path.join(full, b""), self._rules.archive
        chosen = names[:_NAMES_MOST]
        paths = [before + name for name in chosen]
        statuses = _statuses(paths if fd is None else chosen, fd, self._rules.follow)
        more = _with_attributes(paths, self._rules.follow) if archive else frozenset()
        found = [status for status in statuses if status is not None]
        owners = {(each.st_uid, each.st_gid) for each in found} if archive else set()
        if len(found) == len(names) and not more and self._are_plain(found) and len(owners) < 2:
            # Most folders, in half the time of what follows.
            rows, rest = Rows(chosen, *_columns(found), {}), []  # type: Tuple[Rows, List[bytes]]
            owner = next(iter(owners), None)
        else:
            rows, rest, owner = self._chosen(entry, chosen, statuses, more)
        if archive:
            rows.read_targets(fd, before)
        listed = _as_listing(
            rows, owner, is_whole=len(rest) == rows.folders() and len(names) == len(chosen)
        )
        if listed is None:
            return entry, names
        return entry._replace(extra=dict(entry.extra, list=listed)), rest + names[_NAMES_MOST:]

    def _are_plain(self, found: List[os.stat_result]) -> bool:
        """Are all files, with -a of one name, and none left out?"""
        if self._filters or not all([stat.S_ISREG(each.st_mode) for each in found]):
            return False
        return not self._rules.archive or all([each.st_nlink == 1 for each in found])

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


def _statuses(
    paths: List[bytes], fd: Optional[int], follow: bool
) -> "List[Optional[os.stat_result]]":
    """Return the status of each, None where there is none to be had."""
    try:
        return [os.stat(path, dir_fd=fd, follow_symlinks=follow) for path in paths]
    except OSError:
        return [_status(path, fd, follow) for path in paths]


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


def _with_attributes(paths: List[bytes], follow: bool) -> "FrozenSet[int]":
    """Return the places of those that have attributes which are copied, or may have."""
    if not hasattr(os, "listxattr"):
        return frozenset()
    found = set()
    for place, path in enumerate(paths):
        try:
            attributes = os.listxattr(path, follow_symlinks=follow)
            if attributes and any(map(xattrs.is_copied, attributes)):
                found.add(place)
        except OSError:
            found.add(place)
    return frozenset(found)


def _as_listing(rows: Rows, owner: Optional[Tuple[int, int]], is_whole: bool) -> Optional[Listing]:
    """Return the listing, None where it is too long, or a time is out of all bounds."""
    try:
        text = rows.pack()
    except OverflowError:
        return None
    if len(text) > _TEXT_MOST_BYTES:
        return None
    who = None if owner is None else ownership.owner(*owner)
    return Listing(text, len(rows.names) - rows.folders(), is_whole, who)


def _target(fd: Optional[int], path: bytes) -> bytes:
    try:
        return os.readlink(path, dir_fd=fd)
    except OSError:
        return b""  # no link has this target, so that it gets an entry, which says why


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


def _compare(the_sink: "sink.Sink", entry: tree.Entry, parts: bool) -> "Optional[Compared]":
    """Return what Compare does of one folder."""
    try:
        there = listing(entry.extra.get("list"))
        rows = unpack(there.text)
    except wire.WireError:
        return None  # the coordinator, which reads it then, says so
    try:
        with system.closing(_open_folder(the_sink, entry.path)) as fd:
            if parts and any(map(is_pscps_own, map(os.fsencode, os.listdir(fd)))):
                return None  # what became of them, a look at each file tells
            owner, archive = sameness.owner(there.owner), the_sink.policy.archive
            find = functools.partial(_differing, rows=rows, owner=owner, archive=archive)
            differing = find(fd)
            is_same = not differing and _is_same_folder(os.fstat(fd), entry)
            places = list(filter(rows.is_file, differing))
            if the_sink.linker is None or not places:
                return is_same, places, 0
            linked = the_sink.linker.link_listed(entry.path, rows.names, places, find)
            return is_same, [place for place in places if place not in linked], len(linked)
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


def _differing(fd: int, rows: Rows, owner: Tuple[int, int], archive: bool) -> List[int]:
    """Return the places of the names with which there is not in the folder what their rows say."""
    statuses = _statuses(rows.names, fd, False)
    differing = alike(rows.names)
    for place, (status, mode, size, mtime_ns) in enumerate(zip(statuses, *rows[1:4])):
        if status is None:
            differing.append(place)
        elif mode == stat.S_IFDIR:
            if not stat.S_ISDIR(status.st_mode) or is_unfinished(status.st_mode):
                differing.append(place)
        elif (
            status.st_mode != mode
            or status.st_size != size
            or (status.st_mtime_ns != mtime_ns and not is_same_time(mtime_ns, status.st_mtime_ns))
            or not is_owner((status.st_uid, status.st_gid), owner)
            or (place in rows.targets and _target(fd, rows.names[place]) != rows.targets[place])
        ):
            differing.append(place)
    if archive:  # none of these has attributes at the source
        differing += xattrs.with_some(fd, rows.names)
    return sorted(set(differing))


def _is_same_folder(status: os.stat_result, entry: tree.Entry) -> bool:
    """Has a folder the metadata that it is to have? One with attributes is given them again."""
    return (
        stat.S_IMODE(status.st_mode) == entry.mode
        and not is_unfinished(status.st_mode)
        and is_same_time(entry.mtime_ns, status.st_mtime_ns)
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
    {Compare: lambda of, request: [_compare(of, each, request.parts) for each in request.folders]},
)
