"""Takes what is the same from the file that is at the destination, so that it is not sent.

A request brings the digests of the source's extents. An extent is read from the old file, hashed,
and written into the part only if it has that digest: what was hashed is what is written. So it is
written as a chunk is that came over the wire, and a request that comes late or twice writes the
source's bytes again, or nothing.

Where the file system can share blocks, the part begins as a clone of the old file before it has a
name. Then nothing but what differs is written. But nothing of a clone counts unless it is read from
the part and has the digest. In the holes of a sparse file nothing is ever read, so its part begins
empty.

Sent when a copy begins that finds something at its destination.

Not here: which extents there are, and when no more are compared (../../transfer/walk/file_job.py).
"""

import contextlib
import fcntl
import os
import stat
import sys
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Tuple

from ..asking import answers, requests
from ..frames import failures, hashes, system, wire
from ..reading import files, tree

if TYPE_CHECKING:
    from ..writing import sink

PIECE_BYTES = 64 * 1024  # the longest extent; what a changed byte costs
_ROOM_BYTES = 1024 * 1024  # written at once, under one lock of the part
_CLONE = 0x40049409  # Linux's FICLONE
_IS_CLONE = stat.S_IXUSR  # in a part's mode: it pays to look in it first, and nothing more


class Reuse(NamedTuple):
    """Take extents from the file that is there into its part, if they have these digests. Answer:
    `[receipt of the part, [whether the part has each now, ...]]`; 0 where there is no old file.
    """

    entry: tree.Entry
    extents: requests.Pieces
    digests: List[str]
    hash: str


def take(the_sink: "sink.Sink", request: Reuse) -> Tuple[int, List[bool]]:
    """Answer the request. Raises OSError and Refusal where the part cannot be written."""
    size_bytes, count = request.entry.size, len(request.digests)
    fits = all(0 < n <= PIECE_BYTES and at + n <= size_bytes for at, n in request.extents)
    if not fits or len(request.extents) != count:
        raise wire.WireError("extents that are not the file's")
    try:
        fd = the_sink.open_file(request.entry.path)
    except (OSError, failures.Refusal):
        return 0, [False] * count
    with system.closing(fd):
        return _Taker(the_sink, request, fd).take()


def _begun(the_sink: "sink.Sink", entry: tree.Entry, old_fd: int) -> files.FileSink:
    """Open the part; make it where there is none, as a clone of the old file if that can be."""
    try:
        os.close(the_sink.parts.open(entry.path))
    except FileNotFoundError:
        if sys.platform == "linux" and not {"sparse", "dig"} & entry.extra.keys():
            with contextlib.suppress(OSError):  # this file system cannot do it, for instance
                _make_clone(the_sink, entry, old_fd)
    return the_sink.open_part(entry)


def _make_clone(the_sink: "sink.Sink", entry: tree.Entry, old_fd: int) -> None:
    """Make a clone of the old file, and then the part of it, unless another lane made that.

    It has no name before: no lane may have written into it yet.
    """
    fd = files.new_small(the_sink.root.at(entry.path)[0])
    if fd is None:
        return
    with system.closing(fd):
        fcntl.ioctl(fd, _CLONE, old_fd)
        files.make_room(fd, entry.size, False)
        os.fchmod(fd, 0o600 | _IS_CLONE)
        with the_sink.held():
            folder_fd, name = the_sink.root.at(entry.path)
            files.name_new(fd, folder_fd, the_sink.parts.name(name))


class _Taker:
    """Answers one request."""

    def __init__(self, the_sink: "sink.Sink", request: Reuse, fd: int) -> None:
        self._sink, self._request, self._fd = the_sink, request, fd
        self._part = _begun(the_sink, request.entry, fd)
        self._is_clone = os.fstat(self._part.fd).st_mode & _IS_CLONE
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._held: Dict[int, memoryview] = {}  # by offset: in the room, verified, not written yet

    def take(self) -> Tuple[int, List[bool]]:
        taken: List[bool] = []
        used_bytes = 0
        try:
            for (offset, length), digest in zip(self._request.extents, self._request.digests):
                if used_bytes + length > _ROOM_BYTES:
                    self._write()
                    used_bytes = 0
                view = self._room[used_bytes : used_bytes + length]
                is_in_part = self._is_clone and self._is_same(self._part.fd, view, offset, digest)
                taken.append(bool(is_in_part) or self._is_same(self._fd, view, offset, digest))
                if taken[-1] and not is_in_part:
                    self._held[offset] = view
                    used_bytes += length
            self._write()
            if any(taken) and not self._is_clone:
                self._start_writing_back()
            self._sink.sync(self._part.fd)
            return self._sink.parts.receipt(self._part.fd), taken
        finally:
            self._part.close()

    def _start_writing_back(self) -> None:
        """Have the disk at work beside the network: the file's fsync would wait for all of it."""
        begin, (last, length) = self._request.extents[0][0], self._request.extents[-1]
        files.start_writing_back(self._part.fd, begin, last + length - begin)

    def _is_same(self, fd: int, view: memoryview, offset: int, digest: str) -> bool:
        """Read what a file has there. Has it this digest?"""
        try:
            if files.read_at(fd, view, offset) != len(view):
                return False
        except OSError:  # of a bad disk, for instance; it is sent then
            return False
        hasher = hashes.new(self._request.hash)
        hasher.update(view)
        return hasher.digest().hex() == digest

    def _write(self) -> None:
        if not self._held:
            return
        with self._sink.parts.lock_for_writing(self._part.fd, self._request.entry.path):
            for offset, view in self._held.items():
                self._part.write(view, offset)
        self._held = {}


answers.add(answers.WRITING_SINK, {Reuse: take})
