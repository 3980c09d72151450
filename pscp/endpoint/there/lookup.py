"""Files at the destination already: looked up, hashed, taken over, given its source's metadata.

Metadata is never changed through a file that has other names as well: those may be in another
snapshot (linkdest.py). Such a file is replaced by a copy of it, a link, FIFO or device by a new
one.

Sent when a copy begins that may find something at its destination. Not here: what follows from it
(../../transfer/walk/lookups.py), whether metadata is the same (sameness.py), whole folders at once
(listings.py), bytes that are taken over (reuse.py).
"""

import contextlib
import errno
import functools
import itertools
import os
import stat
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..asking import answers, requests
from ..frames import failures, system
from ..reading import files, metadata, tree, xattrs
from ..reading.paths import Root, status_of, to_text
from ..writing import fence, parts
from . import sameness

if TYPE_CHECKING:
    from ..writing import sink

OWN = "own"  # differs: modes and owners do not count, as the SFTP server gives its own
_ROOM_BYTES = 1 << 18

Extents = List[Tuple[bool, str, requests.Pieces]]


class ExtentsThere(NamedTuple):
    """Ask where a sparse file at the destination has data. Answer: as to Extents."""

    path: str
    offset: int


class DigestsThere(NamedTuple):
    """The digests of extents of files or parts at the destination. Answer: per file the digests in
    hex (null: the file is shorter), or a failure.
    """

    files: Extents  # (`[whether it is the part, path, extents]`)
    hash: str


class Lookup(NamedTuple):
    """Ask what is at the destination already. Answer: per path `[kind, size, mtime_ns, [earlier
    runs with a part], mode, what differs, the link's target, or which device, in what times are
    kept there (ns; 0: not known)]`; kind "" for nothing; a failure where it cannot be looked at.
    What differs is "owner" or "attributes", where this end would give others; "none" of another
    user's folder, which keeps its metadata; OWN; else "".
    """

    paths: List[str]
    # With -p what each is to have of `o`, its owner, and `x`, its attributes, or the same for all;
    # empty: they do not count.
    wanted: List[Dict[str, object]] = []


class Landed(NamedTuple):
    """Ask what has the names under which files of a move have landed, by their whole paths: a
    folder may have been renamed while it was open. Answer: as to Lookup, of nothing wanted.
    """

    root: str  # as BeginSink has it
    paths: List[str]


class Inherit(NamedTuple):
    """Take over an earlier run's part. Answer: whether it is this run's now."""

    entry: tree.Entry
    nonce: str  # of the earlier run


class Adopt(NamedTuple):
    """Give files and folders that are there already their metadata. Answer: `[place, failure]` of
    those that failed to take it.
    """

    entries: List[tree.Entry]


def with_wanted(request: Lookup) -> Iterator[Tuple[str, Optional[Dict[str, object]]]]:
    """Return each path with what it is to have; None where that does not count."""
    wanted: List[Optional[Dict[str, object]]] = [*request.wanted] or [None]
    return zip(request.paths, itertools.cycle(wanted))


def look(the_sink: "sink.Sink", path: str, wanted: Optional[Dict[str, object]] = None) -> object:
    """Return what Lookup says of each path."""
    if path:
        left = functools.partial(the_sink.parts.left, nonces=the_sink.copy.earlier)
        return _look_in(the_sink.root, path, wanted, left)
    status = os.fstat(the_sink.root.fd)
    differs = _what_differs(the_sink.root.fd, b".", status, wanted)
    return [tree.FOLDER, 0, 0, [], stat.S_IMODE(status.st_mode), differs, "", 0]


def _look_in(
    root: Root,
    path: str,
    wanted: Optional[Dict[str, object]] = None,
    left: "Callable[[int, bytes], List[str]]" = lambda *_: [],
) -> object:
    """Return what Lookup says of a path below a root; `left` returns the runs that left a part."""
    try:
        folder_fd, name = root.at(path)
        return _found(folder_fd, name, wanted, left(folder_fd, name))
    except failures.Refusal:  # nothing can be there: no folder is on the way
        return nothing()
    except OSError as error:
        return nothing() if error.errno in failures.ABSENT else not_seen(path, error)


def nothing(runs: Optional[List[str]] = None) -> List[object]:
    """Return what Lookup says of a path that has nothing; these runs have left a part."""
    return ["", 0, 0, runs or [], 0, "", "", 0]


def not_seen(path: str, error: OSError) -> failures.Data:
    """Return the failure for a path that may have something, which cannot be looked at."""
    failure = failures.from_exception(error, path)
    return failures.data(
        failure["kind"], path, "could not be looked at: " + failure["message"], failure["errno"]
    )


def _found(
    folder_fd: int, name: bytes, wanted: Optional[Dict[str, object]], runs: List[str]
) -> List[object]:
    """Return what Lookup says of a name, of which these runs left a part."""
    status = status_of(folder_fd, name)
    if status is None:
        return nothing(runs)
    mode = status.st_mode
    kind = tree.kind_of(mode)
    target = to_text(os.readlink(name, dir_fd=folder_fd)) if kind == tree.LINK else ""
    target = tree.device_of(status) if kind == tree.DEVICE else target
    differs = _what_differs(folder_fd, name, status, wanted)
    unit_ns = sameness.unit_of(status)
    return [kind, status.st_size, status.st_mtime_ns, runs, mode & 0o7777, differs, target, unit_ns]


def _what_differs(
    folder_fd: int, name: bytes, status: os.stat_result, wanted: Optional[Dict[str, object]]
) -> str:
    if wanted is None:
        return ""
    uid, is_root = os.geteuid(), os.geteuid() == 0
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder and not is_root and status.st_uid != uid:
        return "none"
    if stat.S_ISLNK(status.st_mode) and not is_root:  # which alone gives a link another owner
        return ""
    found = status.st_uid, status.st_gid
    if not sameness.is_owner(found, sameness.owner(wanted.get("o"))):
        return "owner"
    if "o" not in wanted or not xattrs.would_change(folder_fd, name, wanted.get("x"), is_folder):
        return ""
    return "attributes"


def digests(
    the_sink: "sink.Sink", path: str, part: bool, extents: List[files.Extent], algorithm: str
) -> List[Optional[str]]:
    """Return the hex digest of each extent of the file or its part; None past its end."""
    try:
        fd = the_sink.parts.open(path) if part else the_sink.open_file(path)
    except FileNotFoundError:
        return [None] * len(extents)
    with system.closing(fd):
        return files.digests_of(fd, extents, algorithm, memoryview(bytearray(_ROOM_BYTES)))


def extents_of(the_sink: "sink.Sink", request: ExtentsThere) -> Tuple[List[files.Extent], bool]:
    """Return the file's next stretches of data, and whether these were the last."""
    with system.closing(the_sink.open_file(request.path)) as fd:
        size_bytes = os.fstat(fd).st_size
        extents = files.data_extents(fd, size_bytes, request.offset, files.EXTENTS_MOST)
    return extents, len(extents) < files.EXTENTS_MOST


def adopt(the_sink: "sink.Sink", value: tree.Entry) -> None:
    """Give a folder, or a file that is verified, which was here already, its source's metadata
    (-p).
    """
    policy = the_sink.policy
    if not policy.preserve:
        return
    if value.kind == tree.FOLDER:
        if not _is_same_folder(the_sink, value):
            the_sink.finish_folder(value)
        return
    has_no_bytes = value.kind in (tree.FIFO, tree.DEVICE, tree.LINK)
    if has_no_bytes and _is_seen_to_by_name(the_sink, value):
        return
    if value.kind == tree.DEVICE:
        with the_sink.held():
            metadata.apply_to_device(*the_sink.root.at(value.path), value, policy)
        return
    try:
        fd = the_sink.open_file(value.path)
    except PermissionError:
        if not _make_readable(the_sink, value):
            return
        fd = the_sink.open_file(value.path)
    with system.closing(fd):
        with the_sink.held():
            if os.fstat(fd).st_nlink == 1:
                metadata.apply_to_file(fd, value, policy, None)
                return
        if not _is_as_wanted(fd, value, policy):
            _replace_by_copy(the_sink, fd, value)


def _is_same_folder(the_sink: "sink.Sink", value: tree.Entry) -> bool:
    try:
        return _is_as_wanted(the_sink.root.folder_as_is(value.path), value, the_sink.policy)
    except PermissionError:
        return False


def _is_seen_to_by_name(the_sink: "sink.Sink", value: tree.Entry) -> bool:
    """Put a new link, or a FIFO or device in the place of one of several names, if what is there
    lacks the metadata. Return False for a FIFO or device of one name.
    """
    place = the_sink.root.at(value.path)
    status = os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    if value.kind != tree.LINK and status.st_nlink == 1:
        return False
    with files.unopened(place, False) as path:
        is_same = _is_as_wanted(path, value, the_sink.policy)
    if not is_same:
        the_sink.make_by_name(value)
        the_sink.settler.sync(value.path.rpartition("/")[0])
    return True


def _make_readable(the_sink: "sink.Sink", value: tree.Entry) -> bool:
    """Let the owner open a file that its mode keeps closed, until it has its source's mode. Return
    whether that was called for: not where nothing would be changed. Raises PermissionError, also
    where that is not for us, or takes more than this system has.
    """
    with the_sink.held():
        folder_fd, name = the_sink.root.at(value.path)
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        is_same = sameness.has_metadata(status, value, the_sink.policy)
        may_have = the_sink.policy.archive and (
            value.extra.get("x") or xattrs.with_some(folder_fd, [name])
        )
        if is_same and not may_have:
            return False
        if status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
            raise system.os_error(errno.EACCES)
        with files.unopened((folder_fd, name), False) as path:
            mode = os.stat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, stat.S_IMODE(mode) | 0o600)
    return True


def _is_as_wanted(file: xattrs.File, value: tree.Entry, policy: metadata.Policy) -> bool:
    if not sameness.has_metadata(os.stat(file), value, policy):
        return False
    has = xattrs.of(file)
    if not policy.archive or has is None:
        return True
    wanted = xattrs.wanted(value.extra.get("x"))
    return wanted == has


def _replace_by_copy(the_sink: "sink.Sink", fd: int, value: tree.Entry) -> None:
    """Put a copy of an open file, with the metadata of its source, in its place."""
    whole = the_sink.new_small(value, "")
    whole.compared = files.identity(os.fstat(fd)), True
    try:
        part = files.FileSink(whole.fd, True)
        room = memoryview(bytearray(_ROOM_BYTES))
        offset = 0
        while True:
            count = files.read_at(fd, room, offset)
            if not count:
                break
            part.write(room[:count], offset)
            offset += count
        os.ftruncate(whole.fd, offset)
        os.fsync(whole.fd)
        with the_sink.held():
            the_sink.settler.name(whole)
    except BaseException:
        if whole.kind == parts.PRIVATE:
            with contextlib.suppress(OSError, failures.Refusal):
                the_sink.parts.unlink_private(value.path)
        raise
    finally:
        whole.close()
    the_sink.settler.sync(value.path.rpartition("/")[0])


# --- the requests


def _digests_there(the_sink: "sink.Sink", request: DigestsThere) -> List[object]:
    act = functools.partial(digests, the_sink)
    return answers.results(
        (path, functools.partial(act, path, is_part, extents, request.hash))
        for is_part, path, extents in request.files
    )


def _landed(of: "sink.Sink", request: Landed) -> List[object]:
    try:
        root = Root(request.root)
    except OSError as error:
        return [not_seen(path, error) for path in request.paths]
    try:
        return [_look_in(root, path) for path in request.paths]
    finally:
        root.close()


def inherit(the_sink: "sink.Sink", request: Inherit) -> bool:
    """Make an earlier run's part this run's own. False where there is none of this size.

    Raises Refusal where another process holds it, or the run is superseded.
    """
    path, size_bytes = request.entry.path, request.entry.size
    own = the_sink.parts
    try:
        fd = own.open(path, request.nonce)
    except (OSError, failures.Refusal):
        return _has_own(own, path, size_bytes)
    with system.closing(fd):
        status = os.fstat(fd)
        if not parts.is_private(status) or status.st_size != size_bytes:
            return False
        with own.lock_for_renaming(fd, path, 0.0), the_sink.held():
            folder_fd, name = the_sink.root.at(path)
            before = own.name(name, request.nonce)
            if not fence.is_named(fd, folder_fd, before):
                return _has_own(own, path, size_bytes)
            os.rename(before, own.name(name), src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            return True


def _has_own(own: parts.Parts, path: str, size_bytes: int) -> bool:
    """Has this run a part of this size? A lane that died before it could report that may have made
    it one.
    """
    try:
        fd = own.open(path)
    except (OSError, failures.Refusal):
        return False
    with system.closing(fd):
        return os.fstat(fd).st_size == size_bytes


def _adopt(the_sink: "sink.Sink", request: Adopt) -> answers.Failed:
    return answers.failed_of(request.entries, functools.partial(adopt, the_sink))


answers.add(
    answers.WRITING_SINK,
    {
        ExtentsThere: extents_of,
        DigestsThere: _digests_there,
        Lookup: lambda of, request: [look(of, *each) for each in with_wanted(request)],
        Landed: _landed,
        Inherit: inherit,
        Adopt: _adopt,
    },
)
