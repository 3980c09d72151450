"""The source end of a copy: walks, reads chunks and packs, computes digests.

A pack is a frame of small files, whole; a chunk is a run of DATA frames and a DIGEST. Used by
a lane when it pushes, and by the agent when it is pulled from.

Not here: the bytes of a file (files.py), the made-up ones of -t (null_ends.py), what is sent when
(../transfer/lane.py).
Read next: ../connect/bootstrap.py, by which it goes to the other end.
"""

import functools
import glob
import os
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import failures, files, hashes, tree, wire
from .paths import Root, is_pscps_own, to_bytes, to_text

if TYPE_CHECKING:
    from typing import Protocol

    from . import system

    class ReadFile(Protocol):
        """A file that is read, or made up."""

        def blocks(self, offset: int, length: int, room: memoryview) -> Iterator[system.Block]: ...
        def extents(self, offset: int, most: int) -> List[files.Extent]: ...
        def close(self) -> None: ...


Row = Union[List[object], failures.Data]  # [size, hex digest], or why the file is not in its pack

_WALK_BATCH_BYTES = 512 * 1024  # of JSON in one answer, within wire.MAX_PAYLOAD_BYTES
PACK_FILE_BYTES = 128 * 1024  # a file up to this size travels in a pack
PACK_BYTES = 256 * 1024  # a pack's size, about
PACK_FILES = 64


class Known(NamedTuple):
    """What a source needs to find a file of its manifest again."""

    top: int
    path: str
    size: int
    mtime_ns: int
    inode: int


def listed(entry: tree.Entry) -> Known:
    """The file as its source is asked for it; known() is the way back."""
    return Known(entry.top, entry.path, entry.size, entry.mtime_ns, entry.inode)


def known(file: Known) -> tree.Entry:
    """A file of the manifest, as far as listed() tells of it."""
    return tree.Entry(tree.FILE, file.top, file.path, file.size, 0, file.mtime_ns, file.inode, {})


def identity(entry: tree.Entry) -> files.Identity:
    return files.Identity(entry.size, entry.mtime_ns, entry.inode)


class Top(NamedTuple):
    """One source: its name in the manifest ("" for the contents of a folder) and its path."""

    name: str
    path: str
    is_folder: bool


def expand(path: str, pattern: bool) -> List[Top]:
    """What a source as typed stands for: "~", and with `pattern` *, ? and [...].

    A name that exists is taken literally, whatever characters it has. A pattern means no parts.
    Refusal when there is none.
    """
    full = os.path.expanduser(to_bytes(path)) or b"."
    if os.path.lexists(full):
        return [_top(full)]
    found = sorted(glob.glob(full)) if pattern else []
    found = [each for each in found if not is_pscps_own(os.path.basename(each))]
    if not found:
        message = "no such file or folder"
        raise failures.Refusal(failures.DESTINATION, path, message)
    return [_top(each) for each in found]


def _top(full: bytes) -> Top:
    name = os.path.basename(full.rstrip(b"/"))
    if name in (b".", b".."):
        name = b""
    return Top(to_text(name), to_text(full), os.path.isdir(full))


class Source:
    """Serves the files of one copy from this end. One thread at a time may use it."""

    def __init__(
        self, tops: List[Top], rules: tree.Rules, algorithm: str, block_bytes: int, strong: bool
    ) -> None:
        self._tops, self._rules = tops, rules
        self._roots = [to_bytes(top.path) for top in tops]
        self._algorithm, self._strong = algorithm, strong
        self._room = memoryview(bytearray(block_bytes))
        self._known: Dict[int, tree.Entry] = {}
        self._open: files.OpenFiles[tree.Entry, ReadFile] = files.OpenFiles(self._opened)
        self._held: Dict[int, Root] = {}  # of the top that is read from, with -a
        self._walk: Optional[Iterator[tree.Entry]] = None

    # --- the manifest

    def walk(
        self, after: Optional[Tuple[int, str]], restart: bool, most: int
    ) -> Tuple[List[tree.Entry], bool]:
        """The next entries, at most so many, and whether these were the last."""
        if restart or self._walk is None:
            tops = [(top.name, to_bytes(top.path)) for top in self._tops]
            self._walk = tree.Walk(tops, self._rules).entries(after)
        batch: List[tree.Entry] = []
        total = 0
        for entry in self._walk:
            batch.append(entry)
            total += len(wire.to_json(entry))
            if total >= _WALK_BATCH_BYTES or len(batch) >= most:
                return batch, False
        return batch, True

    def entries(self) -> Iterator[tree.Entry]:
        """The whole walk, for a source at this end."""
        tops = [(top.name, to_bytes(top.path)) for top in self._tops]
        return tree.Walk(tops, self._rules).entries()

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        """From now on `id_` is this file."""
        self._known[id_] = value

    def forget(self, id_: int) -> None:
        """Have `id_` be no file any more."""
        self._known.pop(id_, None)
        self._open.close_file(id_)

    def _opened(self, value: tree.Entry) -> "ReadFile":
        return self._read(value)

    def _read(self, value: tree.Entry) -> files.FileSource:
        place = functools.partial(self._place, value)
        return files.FileSource(place, identity(value), self._rules.follow)

    def _place(self, value: tree.Entry) -> files.Place:
        """Where a file is: with -a no link below its top leads there. Raises OSError, Changed."""
        top, path, root = value.top, value.path, self._roots[value.top]
        rest = path.partition("/")[2] if self._tops[top].name else path
        if self._rules.follow or not rest:
            return None, b"%s/%s" % (root, to_bytes(rest)) if rest else root
        if top not in self._held:  # one at a time: there may be any number, read in order
            self._drop_root()
            self._held[top] = Root(to_text(root), follow=False)
        try:
            return self._held[top].at(rest)
        except failures.Refusal:
            raise files.Changed()

    def _drop_root(self) -> None:
        while self._held:
            self._held.popitem()[1].close()

    def send_chunk(self, id_: int, offset: int, length: int, send: "wire.Send") -> None:
        """Send the chunk's blocks and its digest; or that it failed, and why."""
        value = self._known.get(id_)
        if value is None:
            raise wire.WireError("a chunk of a file that was not announced")
        hasher = hashes.new(self._algorithm)
        counted = wire.COUNT.pack(length)
        try:
            for block in self._open.get(id_, value).blocks(offset, length, self._room):
                hasher.update(block.view)
                block.check = wire.check_of(hasher.digest())
                send(wire.DATA, id_, offset, block, wire.CHECKED)
                offset += len(block.view)
        except (OSError, files.Changed) as error:
            failure = failures.from_exception(error, value.path)
            send(wire.DIGEST, id_, offset, counted + wire.to_json(failure), wire.FAILED)
            return
        send(wire.DIGEST, id_, offset - length, counted + hasher.digest())

    def extents(self, value: tree.Entry, offset: int) -> Tuple[List[files.Extent], bool]:
        """The file's next stretches of data, and whether these were the last."""
        file = self._opened(value)
        try:
            found = file.extents(offset, files.EXTENTS_MOST)
        finally:
            file.close()
        return found, len(found) < files.EXTENTS_MOST

    # --- small files, by packs

    def pack(self, asked: List[tree.Entry]) -> Tuple[List[Row], List[bytes]]:
        """Return the row of each file, and the contents of those that could be read."""
        rows: List[Row] = []
        bodies: List[bytes] = []
        new_hasher = hashes.ALGORITHMS[hashes.STRONG if self._strong else self._algorithm]
        for value in asked:
            try:
                body = self._whole(value)
            except (OSError, files.Changed) as error:
                rows.append(failures.from_exception(error, value.path))
                continue
            hasher = new_hasher()
            hasher.update(body)
            rows.append([len(body), hasher.digest().hex()])
            bodies.append(body)
        return rows, bodies

    def _whole(self, value: tree.Entry) -> bytes:
        return files.read_whole(self._place(value), identity(value), self._rules.follow)

    # --- digests, to resume and to check strongly

    def digests(
        self, value: tree.Entry, extents: List[files.Extent], algorithm: str
    ) -> List[Optional[str]]:
        """Return the hex digest of each extent. Raises OSError, Changed."""
        file = self._read(value)
        try:
            file.check()
            found = [files.digest_of(file.fd, each, algorithm, self._room) for each in extents]
            file.check()
            return [None if digest is None else digest.hex() for digest in found]
        finally:
            file.close()

    def close(self) -> None:
        """Close every file and folder."""
        self._open.close()
        self._drop_root()
