"""Takes what is the same from the file that is at the destination, so that it is not sent.

A request brings the digests of the source's extents. An extent is read from the old file, hashed,
and written into the part only if it has that digest: what was hashed is what is written. So it is
written as a chunk is that came over the wire, and a request that comes late or twice writes the
source's bytes again, or nothing.

Sent when a copy begins that finds something at its destination.

Not here: which extents there are, and when no more are compared (../transfer/file_job.py).
"""

import os
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

from . import end, failures, fields, files, hashes, requests, tree, wire

if TYPE_CHECKING:
    from . import sink

PIECE_BYTES = 64 * 1024  # the longest extent; what a changed byte costs
_ROOM_BYTES = 1024 * 1024  # written at once, under one lock of the part


class Reuse(NamedTuple):
    """Take extents from the file that is there into its part, if they have these digests. Answer:
    `[receipt of the part, [whether the part has each now, ...]]`; 0 where there is no part.
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
    except FileNotFoundError:  # it may be the part by now (inplace.py)
        return _look_in_part(the_sink, request)
    except (OSError, failures.Refusal):
        return 0, [False] * count
    try:
        return _Taker(the_sink, request, fd).take()
    finally:
        os.close(fd)


def _look_in_part(the_sink: "sink.Sink", request: Reuse) -> Tuple[int, List[bool]]:
    entry, extents, digests, algorithm = request
    if not the_sink.parts.has_own(entry.path, entry.size):
        return 0, [False] * len(extents)
    part = the_sink.open_part(entry)
    try:
        found = files.digests_of(part.fd, extents, algorithm, memoryview(bytearray(PIECE_BYTES)))
        taken = [here == wanted for here, wanted in zip(found, digests)]
        return the_sink.parts.receipt(part.fd), taken
    finally:
        part.close()


class _Taker:
    """Answers one request."""

    def __init__(self, the_sink: "sink.Sink", request: Reuse, fd: int) -> None:
        self._sink, self._request, self._fd = the_sink, request, fd
        self._part: Optional[files.FileSink] = None
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._held: Dict[int, memoryview] = {}  # by offset: in the room, verified, not written yet
        self._receipt = 0

    def take(self) -> Tuple[int, List[bool]]:
        taken: List[bool] = []
        used_bytes = 0
        try:
            for (offset, length), digest in zip(self._request.extents, self._request.digests):
                if used_bytes + length > _ROOM_BYTES:
                    self._write()
                    used_bytes = 0
                view = self._room[used_bytes : used_bytes + length]
                taken.append(self._is_same(view, offset, digest))
                if taken[-1]:
                    self._held[offset] = view
                    used_bytes += length
            self._write()
        finally:
            if self._part is not None:
                self._part.close()
        return self._receipt, taken

    def _is_same(self, view: memoryview, offset: int, digest: str) -> bool:
        """Read what the old file has there. Has it this digest?"""
        try:
            if files.read_at(self._fd, view, offset) != len(view):
                return False
        except OSError:  # of a bad disk, for instance; it is sent then
            return False
        hasher = hashes.new(self._request.hash)
        hasher.update(view)
        return hasher.digest().hex() == digest

    def _write(self) -> None:
        if not self._held:
            return
        entry = self._request.entry
        if self._part is None:
            self._part = self._sink.open_part(entry)
            self._receipt = self._sink.parts.receipt(self._part.fd)
        with self._sink.parts.written(self._part.fd, entry.path):
            for offset, view in self._held.items():
                self._part.write(view, offset)
        self._held = {}


_number = fields.integer(0, (1 << 64) - 1)
requests.add([Reuse], {requests.Pieces: fields.list_of(fields.row(_number, _number))})
end.ANSWERS.update({Reuse: lambda the_end, request: take(the_end.writing_sink(), request)})
