"""A move's work at its source (--remove-source-files): it removes what has landed, or
renames it into a folder.

A request may come late or twice: only what is still the very file that was copied is removed, never
through a link, and never a folder. Nothing in the folder is replaced.

Sent to both ends where it is needed. Not here: what has landed (../../transfer/ending/moving.py),
how a name goes (../writing/removal.py).
"""

import contextlib
import errno
import functools
import os
import re
import stat
from typing import Iterator, List, NamedTuple, Optional, Tuple

from ..asking import answers
from ..frames import failures, system
from ..reading import files, source, tree
from ..reading.paths import Root, check, is_unfinished, open_named, status_of, to_bytes, to_text
from ..reading.source import SourceFile
from ..writing import sink
from ..writing.fence import keeping_times
from ..writing.removal import remove_user_name

Moved = Tuple[str, SourceFile]
Beside = Tuple[int, str, str]
_NOREPLACE = 1  # RENAME_NOREPLACE of renameat2(2)
_BOOT_ID, _MOUNTS = "/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo"  # of Linux


class SamePlace(NamedTuple):
    """Ask whether sources are what lies at the destination: whether what only the destination
    should have is beside them. Answer: per path whether it is so.
    """

    sources: List[Beside]  # (`[number of the source, path, or "" for its contents, name]`)


class Mark(NamedTuple):
    """Make an empty file beside a source, or remove it again. Answer: null."""

    beside: Beside  # (`[number of the source, path, name of the file]`)
    is_made: bool  # else it is removed


class MakeDurable(NamedTuple):
    """Sync files that were there already, and the folders above them. Answer: `[place, failure]` of
    those that cannot be.
    """

    paths: List[str]


class Destination(NamedTuple):
    """Ask what tells a folder of the destination from any other. Answer: `[a text that no other
    folder has, or "", [paths below the root of what is mounted there from elsewhere]]`.
    """

    folder: str  # below the root; "" is the root


class RemoveSources(NamedTuple):
    """Remove files, links and special files that have landed, if they are unchanged. Answer:
    `[place, failure]` of those that stay.
    """

    moved: List[Moved]  # (`[kind, known]`)
    folder: str  # absolute; where they are renamed to, below it by their paths; "": removed


def same_place(of: source.Source, top: int, path: str, name: str) -> bool:
    """Is a file of this name beside the source's path, or in its contents?"""
    return os.path.lexists(os.path.join(folder_beside(*of.where(top, path), path), to_bytes(name)))


def mark(of: source.Source, request: Mark) -> None:
    """Answer the request. Raises OSError, and Refusal as remove() does for what lies there."""
    top, path, name = request.beside
    with system.closing(_folder(of, SourceFile(top, path, 0, 0, 0))[0]) as fd, keeping_times(fd):
        if request.is_made:
            flags = files.PART_FLAGS | os.O_CREAT
            os.close(os.open(check(name), flags, 0o600, dir_fd=fd))
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(check(name), dir_fd=fd)


def make_durable(the_sink: sink.Sink, request: MakeDurable) -> answers.Failed:
    """Answer the request."""
    paths = request.paths
    outcome = answers.results((path, functools.partial(_sync, the_sink, path)) for path in paths)
    ways = [list(_way_to(path)) for path in paths]
    names = sorted(set().union(*ways))
    synced = dict(zip(names, the_sink.settler.make_names_durable(names)))
    for place, way in enumerate(ways):
        outcome[place] = outcome[place] or next(filter(None, map(synced.get, way)), None)
    return failures.places(outcome)


def _sync(the_sink: sink.Sink, path: str) -> None:
    folder_fd, name = the_sink.root.at(path)
    if not stat.S_ISREG(_look(folder_fd, name).st_mode):
        return
    with system.closing(files.open_for_reading((folder_fd, name), False)) as fd:
        os.fsync(fd)


def _way_to(path: str) -> Iterator[str]:
    """Yield the path, and those of the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def folder_beside(root: bytes, rest: str, path: str) -> bytes:
    """Return the folder that a path of the source is in; "" is the source's contents."""
    if not path:
        return root
    return os.path.dirname(os.path.join(root, to_bytes(rest)) if rest else root.rstrip(b"/"))


def folder_identity(status: os.stat_result) -> str:
    """Return what tells a folder from all of all machines; "" where the system cannot tell.

    By whatever name the machine is reached: containers of one kernel may share a folder.
    """
    boot_id = _read(_BOOT_ID).decode("ascii").strip()
    return "%s %d %d" % (boot_id, status.st_dev, status.st_ino) if boot_id else ""


def bind_mounts(root: bytes) -> List[bytes]:
    """Return paths below a folder where a file, or a folder, of elsewhere is mounted (proc(5)).

    A file mounted so may be the source itself; then what is removed there is lost here as well.
    """
    above = root.rstrip(b"/") + b"/"
    found = []
    for line in _read(_MOUNTS).splitlines():
        words = line.split(b" ")
        place = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), words[4])
        if words[3] != b"/" and place.startswith(above):
            found.append(place[len(above) :])
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def remove(of: source.Source, into: Optional[Root], moved: Moved) -> None:
    """Remove a file of the source, or rename it into a folder.

    Raises FileChanged where it is another by now, Refusal, OSError.
    """
    kind, known = moved
    fd, name = _folder(of, known)
    with system.closing(fd):
        status = status_of(fd, name)
        if status is None:  # removed already, maybe by a lane that was lost then
            return
        if kind != tree.LINK and stat.S_ISLNK(status.st_mode):
            raise through_a_link(known.path)
        if not _is_same(status, kind, known):
            raise failures.FileChanged()
        if into is None:
            remove_user_name(fd, name)
        else:
            into.at(known.path, make=True)
            _give_modes(of, into, known)
            _rename(fd, name, into, known.path)


def _give_modes(of: source.Source, into: Root, known: SourceFile) -> None:
    """Give the folders that were made above a file's place the modes that the source's have."""
    root, rest = of.where(known.top, known.path)
    folders = known.path.split("/")[:-1]
    for level in range(1, len(folders) + 1):
        fd = into.folder("/".join(folders[:level]))
        if is_unfinished(os.fstat(fd).st_mode):
            below = rest.split("/")[: level - 1 if of.tops[known.top].name else level]
            status = os.stat(os.path.join(root, to_bytes("/".join(below))))
            os.fchmod(fd, stat.S_IMODE(status.st_mode))


def _rename(fd: int, name: bytes, into: Root, path: str) -> None:
    """Rename a file to its place, unless that is taken. Raises Refusal, OSError."""
    to_fd, to_name = into.at(path)
    try:
        rename_alone(fd, name, to_fd, to_name)
    except FileExistsError:
        one, other = _look(fd, name), _look(to_fd, to_name)
        if not os.path.samestat(one, other) or os.path.samestat(os.fstat(fd), os.fstat(to_fd)):
            message = "stays at the source: the folder to move it to has another file of this name;"
            message += " rename or remove that one"
            raise failures.Refusal(failures.DESTINATION, path, message)
        remove_user_name(fd, name)  # a run was killed when it had both names
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        message = "stays at the source: where it is to be moved is another file system"
        raise failures.Refusal(failures.DESTINATION, path, message)


def _look(fd: int, name: bytes) -> os.stat_result:
    return os.stat(name, dir_fd=fd, follow_symlinks=False)


def rename_alone(fd: int, name: bytes, to_fd: int, to_name: bytes) -> None:
    """Rename a file. Raises FileExistsError where the name is taken, OSError."""
    renameat2 = system.libc_function("renameat2")  # Linux; not on every filesystem
    if renameat2 is not None:
        import ctypes

        if renameat2(fd, name, to_fd, to_name, _NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise system.os_error(number)
    os.link(name, to_name, src_dir_fd=fd, dst_dir_fd=to_fd, follow_symlinks=False)
    remove_user_name(fd, name)


def _is_same(status: os.stat_result, kind: str, known: SourceFile) -> bool:
    """Is it the file that was copied? Only a file's entry has a size."""
    size = known.size if kind == tree.FILE else status.st_size
    seen = tree.kind_of(status.st_mode), status.st_size, status.st_mtime_ns, status.st_ino
    return seen == (kind, size, known.mtime_ns, known.inode)


def _folder(of: source.Source, known: SourceFile) -> Tuple[int, bytes]:
    """Return the open folder that a file is in, and its name."""
    root, rest = of.where(known.top, known.path)
    if not rest:  # the source itself, and its path is the user's
        folder, name = os.path.split(root)
        return open_named(folder or b"."), name
    held = Root(to_text(root), follow=of.follows)
    try:
        folder_fd, name = held.at(rest)
        return os.dup(folder_fd), name
    except failures.Refusal:
        raise through_a_link(known.path)
    finally:
        held.close()


def through_a_link(path: str) -> failures.Refusal:
    message = "was reached through a link, so it stays at the source"
    return failures.Refusal(failures.UNSUPPORTED, path, message)


# --- the requests


def _destination(of: sink.Sink, request: Destination) -> Tuple[str, List[str]]:
    identity = ""
    try:
        path = os.readlink(b"/proc/self/fd/%d" % of.root.fd)
    except OSError:  # no Linux
        return "", []
    with contextlib.suppress(OSError, failures.Refusal):  # nothing has landed in it
        identity = folder_identity(os.fstat(of.root.folder(request.folder)))
    return identity, list(map(to_text, bind_mounts(path)))


def _remove_sources(of: source.Source, request: RemoveSources) -> answers.Failed:
    into = None
    if request.folder:
        os.makedirs(to_bytes(request.folder), exist_ok=True)
        into = Root(request.folder)
    try:
        act = functools.partial(remove, of, into)
        calls = ((each[1].path, functools.partial(act, each)) for each in request.moved)
        return failures.places(answers.results(calls))
    finally:
        if into is not None:
            into.close()


answers.add(
    answers.SOURCE,
    {
        SamePlace: lambda of, request: [same_place(of, *each) for each in request.sources],
        Mark: mark,
        RemoveSources: _remove_sources,
    },
)
answers.add(answers.WRITING_SINK, {MakeDurable: make_durable, Destination: _destination})
