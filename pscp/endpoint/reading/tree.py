"""The walk of a source: an Entry for each file, folder and link, always in the same order.

The order is by name within a folder, and a folder comes before what is in it: so a walk that was
cut off can go on after any entry, whatever changed meanwhile. What cannot be read becomes an entry
of kind ERROR, and the walk goes on.

Not here: the use of entries (../../transfer/pieces/plan.py), metadata as the sink applies it
(metadata.py), owners (ownership.py), extended attributes (xattrs.py).
Read next: source.py.
"""

import functools
import os
import re
import stat
from typing import (
    Any,
    Dict,
    Generator,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Pattern,
    Sequence,
    Tuple,
    Union,
)

from ..frames import failures
from . import files
from .paths import FOLDER_FLAGS, names_in, to_bytes, to_text, without_own

FILE, FOLDER, LINK, HARDLINK, ERROR = "file", "folder", "link", "hardlink", "error"
FIFO, DEVICE, SPECIAL = "fifo", "device", "special"  # the last: a socket, which no copy makes
NEEDS_R = "is a folder (use -r)"
KINDS = frozenset([FILE, FOLDER, LINK, HARDLINK, ERROR, FIFO, DEVICE, SPECIAL])
_OF_MODES = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFCHR: DEVICE,
    stat.S_IFBLK: DEVICE,
}


class Entry(NamedTuple):
    """One item of a manifest. `path` is relative and begins with the source's name."""

    kind: str
    top: int  # the number of the source that it belongs to
    path: str
    size: int
    mode: int
    mtime_ns: int
    inode: int
    # "to" of a link or a device, and "in" which top it is; "linked" of a file with other names;
    # "sparse", or "dig" where zeros may be a hole; "ct", a large file's ctime in ns; with -p "a",
    # the atime in ns; with -a "o", the owner, and "x", attributes. Or a failure.
    extra: Dict[str, object]

    @property
    def target(self) -> str:
        """Return where a symbolic link leads, the first name of a hard link, which device it is;
        "" for none.
        """
        to = self.extra.get("to")
        return to if isinstance(to, str) else ""


def error_entry(top: int, path: str, failure: failures.Data) -> Entry:
    """Return the entry that tells why there is no other of this path."""
    return Entry(ERROR, top, path, 0, 0, 0, 0, dict(failure))


class Rules(NamedTuple):
    """Which files a walk includes, and which metadata it reads."""

    recursive: bool
    follow: bool  # whether a symbolic link counts as the file that it leads to
    preserve: bool
    archive: bool
    filters: Sequence[Tuple[str, str]]  # ("exclude" | "include", regular expression)
    one_file_system: bool = False  # whether a folder on another device than its top stays empty


# The path of a name in the manifest, and its whole path; or an entry as it is.
Step = Union[Tuple[str, bytes], Entry]
Filters = Sequence[Tuple[bool, Pattern[bytes]]]  # whether it excludes, and what it matches


def compiled(filters: Sequence[Tuple[str, str]]) -> Filters:
    """Return a Rules' filters as is_excluded() takes them."""
    return [(kind == "exclude", re.compile(text.encode(), re.DOTALL)) for kind, text in filters]


def is_excluded(filters: Filters, path: str, is_folder: bool) -> bool:
    """Do the filters leave this path out? The first that matches decides. "" is never left out."""
    if filters and path:
        subject = b"/%s%s" % (to_bytes(path), b"\0" if is_folder else b"")
        for excludes, pattern in filters:
            if pattern.match(subject):
                return excludes
    return False


def kind_of(mode: int) -> str:
    """Return the kind of what has this mode (inode(7))."""
    return _OF_MODES.get(stat.S_IFMT(mode), SPECIAL)


def device_of(status: os.stat_result) -> str:
    """Return which device has this status: "c" or "b", and its numbers (mknod(2))."""
    letter = "b" if stat.S_ISBLK(status.st_mode) else "c"
    return "%s %d:%d" % (letter, os.major(status.st_rdev), os.minor(status.st_rdev))


def parse_device(text: str) -> Tuple[int, int]:
    """Return the kind, as in st_mode, and the number of what device_of() has. Raises ValueError."""
    match = re.match("([bc]) ([0-9]{1,8}):([0-9]{1,8})$", text)
    if match is None:
        raise ValueError("no device")
    kind = stat.S_IFBLK if match.group(1) == "b" else stat.S_IFCHR
    return kind, os.makedev(int(match.group(2)), int(match.group(3)))


def place(top: int, path: str) -> Tuple[int, List[bytes]]:
    """Return an entry's key in the order of a walk."""
    return top, to_bytes(path).split(b"/")


class Walk:
    """A walk of several tops, each (name in the manifest, absolute path)."""

    def __init__(self, tops: Sequence[Tuple[str, bytes]], rules: Rules) -> None:
        self._tops, self._rules, self._filters = tops, rules, compiled(rules.filters)
        self._linked: Dict[Tuple[int, int], Tuple[int, str]] = {}  # first names of hard links

    def entries(self, after: Optional[Tuple[int, str]] = None) -> Iterator[Entry]:
        """Yield all entries; with `after` (top, path) only those behind it in the order."""
        last = (0, [b""]) if after is None else place(*after)
        for top, (name, path) in enumerate(self._tops):
            if top < last[0] and not self._rules.archive:
                continue  # with -a all is walked again, as hard links may lead there
            for entry in self._below(top, name, path):
                if after is None or place(top, entry.path) > last:
                    yield entry

    def _below(self, top: int, name: str, path: bytes, fd: Optional[int] = None) -> Iterator[Entry]:
        """Yield the entries of one top, depth first; no recursion, for trees may be very deep.

        `fd` is of the folder that it is in, and closed at the end.
        """
        pending: List[Iterator[Step]] = [iter([(name, path)])]
        ancestors = [(0, 0)]
        fds = [fd]  # of the folders that the walk is in
        try:
            while pending:
                step = next(pending[-1], None)
                if step is None:
                    pending.pop()
                    ancestors.pop()
                    _close(fds.pop())
                    continue
                if isinstance(step, Entry):
                    yield step
                    continue
                entry, key = self._entry(top, *step, fd=fds[-1], ancestors=ancestors)
                if entry is None:
                    continue
                if entry.kind != FOLDER or key is None:
                    yield entry
                    continue
                opened = yield from self._opened(entry, step[1], above=fds[-1], key=key)
                if opened is not None:
                    fds.append(opened[0])
                    ancestors.append(key)
                    pending.append(opened[1])
        finally:
            for open_fd in fds:
                _close(open_fd)

    def _opened(
        self, entry: Entry, full: bytes, above: Optional[int], key: Tuple[int, int]
    ) -> "Generator[Entry, None, Optional[Tuple[Optional[int], Iterator[Step]]]]":
        """Yield a folder's entry, or why it cannot be entered; return its descriptor and steps."""
        yield entry
        try:
            fd, names = self._enter(full, above, key)
            return fd, within(entry.path, full, names)
        except (OSError, failures.FileChanged) as error:
            yield self._not_entered(entry, error)
            return None

    def _not_entered(self, folder: Entry, error: Exception) -> Entry:
        # The "/" puts it behind the folder, so that a later walk yields it.
        failure = failures.from_exception(error, folder.path)
        return error_entry(folder.top, folder.path + "/", failure)

    def _enter(
        self, full: bytes, above: Optional[int], key: Tuple[int, int]
    ) -> Tuple[Optional[int], List[bytes]]:
        """Open a folder; return its descriptor (None with -r, which follows links) and its names.

        Raises FileChanged where something else has its name by now, and OSError.
        """
        fd = None
        try:
            if not self._rules.follow:
                fd = os.open(_name(full, above), FOLDER_FLAGS, dir_fd=above)
                if _key(os.fstat(fd)) != key:
                    raise failures.FileChanged()
            names = sorted(without_own(os.listdir(full) if fd is None else names_in(fd)))
        except BaseException:
            _close(fd)
            raise
        return fd, names

    def _entry(
        self, top: int, path: str, full: bytes, fd: Optional[int], ancestors: List[Tuple[int, int]]
    ) -> Tuple[Optional[Entry], Optional[Tuple[int, int]]]:
        """Return the entry (None: left out), and the key of a folder that is to be entered."""
        try:
            name = _name(full, fd)
            status = os.stat(name, dir_fd=fd, follow_symlinks=self._rules.follow)
        except OSError as error:
            if any(is_excluded(self._filters, path, is_folder) for is_folder in (False, True)):
                return None, None
            if self._rules.follow and os.path.islink(full):
                failure = failures.data(failures.UNSUPPORTED, path, _link_problem(error, full))
            else:
                failure = failures.from_exception(error, path)
            return error_entry(top, path, failure), None
        is_folder = stat.S_ISDIR(status.st_mode)
        if is_excluded(self._filters, path, is_folder):
            return None, None
        key = _key(status)
        if is_folder and key in ancestors:
            failure = failures.data(failures.UNSUPPORTED, path, "a loop of links")
            return error_entry(top, path, failure), None
        entry = self._described(top, path, full, (fd, name), status)
        rules = self._rules
        is_mount = rules.one_file_system and ancestors[1:] and key[0] != ancestors[1][0]
        return entry, key if is_folder and rules.recursive and not is_mount else None

    def _described(
        self, top: int, path: str, full: bytes, place: files.Place, status: os.stat_result
    ) -> Entry:
        kind = kind_of(status.st_mode)
        if kind == FOLDER and not self._rules.recursive:
            failure = failures.data(failures.UNSUPPORTED, path, NEEDS_R)
            return error_entry(top, path, failure)
        try:
            extra = self._metadata(full, place, status)
            if kind == LINK:
                extra["to"] = to_text(os.readlink(place[1], dir_fd=place[0]))
            elif kind == DEVICE:
                extra["to"] = device_of(status)
        except OSError as error:
            return error_entry(top, path, failures.from_exception(error, path))
        if kind == FILE:
            kind = self._file(top, path, status, extra)
        size = status.st_size if kind in (FILE, HARDLINK) else 0
        mtime_ns = status.st_mtime_ns
        return Entry(kind, top, path, size, status.st_mode & 0o7777, mtime_ns, status.st_ino, extra)

    def _metadata(
        self, full: bytes, place: files.Place, status: os.stat_result
    ) -> Dict[str, object]:
        """Return what a sink needs beyond mode and mtime, as in an Entry's extra."""
        extra: Dict[str, object] = {}
        if self._rules.preserve:
            extra["a"] = status.st_atime_ns
        if self._rules.archive:
            ownership, xattrs = of_archives()
            extra["o"] = ownership.owner(status.st_uid, status.st_gid)
            attributes = xattrs.read(full, place, status.st_mode, self._rules.follow)
            if attributes:
                extra["x"] = attributes
        return extra

    def _file(self, top: int, path: str, status: os.stat_result, extra: Dict[str, object]) -> str:
        if status.st_blocks * 512 < status.st_size:
            extra["sparse"] = 1
        if status.st_size > files.PACK_FILE_BYTES:
            extra["ct"] = status.st_ctime_ns
        if self._rules.archive and status.st_nlink > 1:
            first = self._linked.setdefault(_key(status), (top, path))
            if first != (top, path):
                extra["in"], extra["to"] = first
                return HARDLINK
            extra["linked"] = 1
        return FILE


@functools.lru_cache(maxsize=None)
def of_archives() -> "Tuple[Any, Any]":
    """Return the modules ownership and xattrs, which few copies need. An import for each file takes
    as long as a system call.
    """
    from . import ownership, xattrs

    return ownership, xattrs


def within(path: str, full: bytes, names: List[bytes]) -> "Iterator[Step]":
    """Yield the path in the manifest and the whole path of each name in a folder."""
    prefix, before = path + "/" if path else "", os.path.join(full, b"")
    return ((prefix + to_text(name), before + name) for name in names)


def _name(full: bytes, fd: Optional[int]) -> bytes:
    return full if fd is None else full.rpartition(b"/")[2]


def _key(status: os.stat_result) -> Tuple[int, int]:
    return status.st_dev, status.st_ino


def _close(fd: Optional[int]) -> None:
    if fd is not None:
        os.close(fd)


def _link_problem(error: OSError, full: bytes) -> str:
    if isinstance(error, FileNotFoundError):
        return "is a dangling link (to %s)" % to_text(os.readlink(full))
    return "is a link that cannot be followed: %s" % os.strerror(error.errno or 0)
