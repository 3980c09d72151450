"""The source end of a copy: walks, reads chunks and packs, computes digests.

A pack is a frame of small files, whole; a chunk is a run of DATA frames and a DIGEST. A lane that
pushes uses this, and the agent that is pulled from.

Not here: the bytes of a file (files.py), the made-up ones of -t (synthetic.py), what is
sent when (../../transfer/lanes/lane.py).
Read next: ../../connect/bootstrap.py, by which it goes to the other end.
"""

import functools
import glob
import os
import re
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from ..frames import failures, hashes, wire
from . import files, tree
from .paths import Root, is_pscps_own, to_bytes, to_text

if TYPE_CHECKING:
    from typing import Protocol

    from ..frames import system

    class ReadFile(Protocol):
        """A file whose chunks can be sent."""

        def blocks(self, offset: int, length: int, room: memoryview) -> Iterator[system.Block]: ...
        def extents(self, offset: int, most: int) -> List[files.Extent]: ...
        def close(self) -> None: ...


Row = Union[List[object], failures.Data]  # [size, hex digest], or why the file is not in its pack

WALK_BATCH_BYTES = 512 * 1024  # of JSON in one answer, within wire.MAX_PAYLOAD_BYTES


class SourceFile(NamedTuple):
    """A file of the manifest, as its source finds it again."""

    top: int
    path: str
    size: int
    mtime_ns: int
    inode: int


def listed(entry: tree.Entry) -> SourceFile:
    """Return what a request to the source has of this file; entry_of() is the way back."""
    return SourceFile(entry.top, entry.path, entry.size, entry.mtime_ns, entry.inode)


def entry_of(file: SourceFile) -> tree.Entry:
    """Return a file's entry, with what listed() kept of it."""
    return tree.Entry(tree.FILE, file.top, file.path, file.size, 0, file.mtime_ns, file.inode, {})


def identity(entry: tree.Entry) -> files.Identity:
    return files.Identity(entry.size, entry.mtime_ns, entry.inode)


NOT_THERE = "no such file or folder"
NO_MATCH = "nothing there matches"  # and the folder that the pattern looks into is there


class Top(NamedTuple):
    """One source: its name in the manifest ("" for the contents of a folder) and its path."""

    name: str
    path: str
    is_folder: bool


def expand(path: str, pattern: bool) -> List[Top]:
    """Return what a source as typed stands for: "~", and with `pattern` *, ? and [...].

    A name that exists is taken literally; else a backslash escapes. A pattern never means parts.
    Raises Refusal where nothing matches.
    """
    full = os.path.expanduser(to_bytes(path)) or b"."
    if os.path.lexists(full):
        return [_top(full)]
    matching = sorted(glob.glob(as_glob(full))) if pattern else []
    tops = [_top(match) for match in matching if not is_pscps_own(os.path.basename(match))]
    if not tops:
        raise failures.Refusal(failures.DESTINATION, path, _why_not(full, pattern))
    return tops


def _why_not(full: bytes, pattern: bool) -> str:
    folder = folder_of(full)
    try:
        if pattern and folder != full:
            os.listdir(folder or b".")
            return NO_MATCH
        os.lstat(full)
    except FileNotFoundError:
        pass
    except OSError as error:  # such as a folder above it that may not be entered
        return os.strerror(error.errno or 0)
    return NOT_THERE


def folder_of(pattern: bytes) -> bytes:
    """Return the folder that a pattern looks into: what is before its first *, ? or [...]."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def as_glob(pattern: bytes) -> bytes:
    """Return the pattern for glob.glob(), which knows no backslash: what one escapes is itself."""
    return re.sub(rb"(?s)\\(.)", lambda match: glob.escape(match.group(1)), pattern)


def _top(full: bytes) -> Top:
    name = os.path.basename(full.rstrip(b"/"))
    if name in (b".", b".."):
        name = b""
    return Top(to_text(name), to_text(full), os.path.isdir(full))


class FileTable:
    """The files of one copy that have an id at this end."""

    def __init__(self) -> None:
        self._known: Dict[int, tree.Entry] = {}

    def know(self, id_: int, value: tree.Entry) -> None:
        """Have `id_` be this file from now on."""
        self._known[id_] = value

    def forget(self, id_: int) -> None:
        """Have `id_` be no file any more."""
        self._known.pop(id_, None)

    def _entry(self, id_: int) -> tree.Entry:
        if id_ not in self._known:
            raise wire.WireError("bytes for a file that was not announced")
        return self._known[id_]


class Source(FileTable):
    """Serves the files of one copy from this end. One thread at a time may use it."""

    def __init__(
        self, tops: List[Top], rules: tree.Rules, algorithm: str, block_bytes: int, strong: bool
    ) -> None:
        super().__init__()
        self.tops, self.rules, self.follows = tops, rules, rules.follow
        self.named = [(top.name, to_bytes(top.path)) for top in tops]  # as a Walk takes them
        self._algorithm, self._strong = algorithm, strong
        self._room = memoryview(bytearray(block_bytes))
        self._open: files.OpenFiles[tree.Entry, ReadFile] = files.OpenFiles(self._open_file)
        self._held: Dict[int, Root] = {}  # with -a: the root of the top that is read from
        self.walking: Optional[Iterator[tree.Entry]] = None  # whose entries walk() returns

    # --- the manifest

    def walk(
        self,
        after: Optional[Tuple[int, str]],
        restart: bool,
        most: int,
        kind: "Callable[..., tree.Walk]" = tree.Walk,
    ) -> Tuple[List[tree.Entry], bool]:
        """Return the next entries, at most so many, and whether these were the last."""
        if restart or self.walking is None:
            self.walking = self.entries(after, kind)
        batch: List[tree.Entry] = []
        batch_bytes = 0
        for entry in self.walking:
            batch.append(entry)
            batch_bytes += len(wire.to_json(entry))
            if batch_bytes >= WALK_BATCH_BYTES or len(batch) >= most:
                return batch, False
        return batch, True

    def entries(
        self, after: Optional[Tuple[int, str]] = None, kind: "Callable[..., tree.Walk]" = tree.Walk
    ) -> Iterator[tree.Entry]:
        """Walk all sources; with `after` (top, path), from behind that entry on."""
        return kind(self.named, self.rules).entries(after)

    # --- large files, by chunks

    def forget(self, id_: int) -> None:
        super().forget(id_)
        self._open.close_file(id_)

    def _open_file(self, value: tree.Entry) -> "ReadFile":
        return self._read(value)

    def _read(self, value: tree.Entry) -> files.FileSource:
        place = functools.partial(self.place, value)
        return files.FileSource(place, identity(value), self.follows)

    def where(self, top: int, path: str) -> Tuple[bytes, str]:
        """Return the path of a source, and what comes after it in that of a file; "": itself.

        Raises WireError where there is no such source.
        """
        if top >= len(self.named):
            raise wire.WireError("a file of a source that there is not")
        name, root = self.named[top]
        return root, path.partition("/")[2] if name else path

    def place(self, value: tree.Entry) -> files.Place:
        """Return where a file is. With -a no link below its top is followed on the way there.

        Raises OSError, and FileChanged where there is a link by now.
        """
        top = value.top
        root, rest = self.where(top, value.path)
        if self.follows or not rest:
            return None, b"%s/%s" % (root, to_bytes(rest)) if rest else root
        if top not in self._held:  # only one is held: there may be many, and they come in order
            self._drop_root()
            self._held[top] = Root(to_text(root), follow=False)
        try:
            return self._held[top].at(rest)
        except failures.Refusal:
            raise failures.FileChanged()

    def _drop_root(self) -> None:
        while self._held:
            self._held.popitem()[1].close()

    def send_chunk(self, id_: int, offset: int, length: int, send: "wire.Send") -> None:
        """Send a chunk's blocks and its digest, or the failure to read it."""
        value = self._entry(id_)
        hasher = hashes.new(self._algorithm)
        counted = wire.COUNT.pack(length)
        try:
            for block in self._open.get(id_, value).blocks(offset, length, self._room):
                hasher.update(block.view)
                block.check = wire.check_of(hasher.digest())
                send(wire.DATA, id_, offset, block, wire.CHECKED)
                offset += len(block.view)
        except (OSError, failures.FileChanged) as error:
            failure = failures.from_exception(error, value.path)
            send(wire.DIGEST, id_, offset, counted + wire.to_json(failure), wire.FAILED)
            return
        send(wire.DIGEST, id_, offset - length, counted + hasher.digest())

    def extents(self, value: tree.Entry, offset: int) -> Tuple[List[files.Extent], bool]:
        """Return the file's next stretches of data, and whether these were the last."""
        file = self._open_file(value)
        try:
            extents = file.extents(offset, files.EXTENTS_MOST)
        finally:
            file.close()
        return extents, len(extents) < files.EXTENTS_MOST

    # --- small files, by packs

    def pack(self, values: List[tree.Entry]) -> Tuple[List[Row], List[bytes]]:
        """Return the row of each file, and the contents of those that could be read."""
        rows: List[Row] = []
        bodies: List[bytes] = []
        algorithm = hashes.STRONG if self._strong else self._algorithm
        for value in values:
            try:
                body = self._whole(value)
            except (OSError, failures.FileChanged) as error:
                rows.append(failures.from_exception(error, value.path))
                continue
            rows.append([len(body), hashes.digest_of(algorithm, body).hex()])
            bodies.append(body)
        return rows, bodies

    def _whole(self, value: tree.Entry) -> bytes:
        return files.read_whole(self.place(value), identity(value), self.follows)

    # --- digests, to resume and to check strongly

    def digests(
        self, value: tree.Entry, extents: List[files.Extent], algorithm: str
    ) -> List[Optional[str]]:
        """Return the hex digest of each extent. Raises OSError, FileChanged."""
        file = self._read(value)
        try:
            file.check()
            digests = files.digests_of(file.fd, extents, algorithm, self._room)
            file.check()
            return digests
        finally:
            file.close()

    def close(self) -> None:
        """Close every file and folder."""
        self.walking = None  # which closes its folders
        self._open.close()
        self._drop_root()
