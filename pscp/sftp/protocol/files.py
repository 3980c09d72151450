"""Far files: their handles, kept open while there is work, and READs of an extent, many in flight.

A server may answer in any order, and with less than was requested.

Not here: what is done with the bytes (../source.py, ../sink.py, ../digests.py).
Read next: ../digests.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pscp.endpoint.reading import tree
from pscp.sftp.protocol import packets
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.packets import SftpError
from pscp.sftp.protocol.tasks import Budget, Future, Steps, Task, outcomes, start

_KEPT = 16  # open files, before those without chunks at work are closed
Take = Callable[[memoryview], None]


class Extent(NamedTuple):
    """An extent of a far file."""

    path: bytes
    offset: int
    length: int
    is_small_file: bool = False  # is it the whole of a small file?


class File:
    """A file that is open, or being opened."""

    def __init__(self, value: tree.Entry, opening: Task[bytes]) -> None:
        self.value, self.opening = value, opening
        self.chunks = 0  # at work


class Files:
    """The large files, by the coordinator's numbers for them."""

    def __init__(self, client: Client, open_file: Callable[[tree.Entry], Steps[bytes]]) -> None:
        self._client, self._open_file = client, open_file
        self.known: dict[int, tree.Entry] = {}
        self._open: dict[int, File] = {}

    def know(self, id_: int, value: tree.Entry) -> None:
        self.known[id_] = value

    def forget(self, id_: int) -> None:
        self.known.pop(id_, None)
        start(self.close_handle(id_))

    def get(self, id_: int) -> File:
        file = self._open.get(id_)
        if file is None:
            idle = [known for known, each in self._open.items() if not each.chunks]
            for known in idle[: max(0, len(self._open) - _KEPT)]:
                start(self.close_handle(known))
            value = self.known[id_]
            file = self._open[id_] = File(value, start(self._open_file(value)))
        return file

    async def close_handle(self, id_: int) -> None:
        """Close the file's handle, if it is open."""
        file = self._open.pop(id_, None)
        if file is not None:
            [handle] = await outcomes(file.opening)
            if isinstance(handle, bytes):
                await outcomes(self._client.close(handle))

    def close(self) -> None:
        for id_ in list(self._open):
            start(self.close_handle(id_))


class _Piece:
    """The extent of one READ, and those of its bytes that came too early to be handed on."""

    def __init__(self, offset: int, length: int) -> None:
        self.offset, self.length = offset, length
        self.data: bytes | None = None
        self.is_end = False


class Reading:
    """Reads one extent."""

    def __init__(
        self,
        client: Client,
        handle: bytes,
        offset: int,
        length: int,
        take: Take,
        *,
        budget: Budget,
        gate: Future[None] | None = None,
    ) -> None:
        """Read an extent, once run() is called.

        Args:
            take: gets the bytes in order, each view valid during the call.
            budget: bytes that are requested, or not handed on yet, are taken from it.
            gate: nothing is handed on, nor given back to the budget, before it is done. So what it
                waits for must not take from the same budget.
        """
        self._client, self._handle, self._take, self._budget = client, handle, take, budget
        self._offset, self._length, self._gate = offset, length, gate
        self._pieces: deque[_Piece] = deque()
        self._error: Exception | None = None
        self._is_stopping = self._is_at_end = False  # requests no more; hands on no more
        self._done: Future[None] = Future()
        self.sent: Future[None] = Future()  # done when every READ was sent
        self._handed_on_bytes = 0

    async def run(self) -> int:
        """Read; return the number of bytes, which is smaller where the file ends before.

        Raises SftpError.
        """
        if self._gate is not None:
            self._gate.add_done_callback(self._hand_on)
        step, end = self._client.read_bytes, self._offset + self._length
        for begin in range(self._offset, end, step):
            length = min(step, end - begin)
            await self._budget.take(length)
            if self._is_stopping:
                self._budget.give(length)
                break
            piece = _Piece(begin, length)
            self._pieces.append(piece)
            self._send(piece, begin, length)
        self.sent.set_result(None)
        self._hand_on()
        await self._done
        if self._error is not None:
            raise self._error
        return self._handed_on_bytes

    def _send(self, piece: _Piece, offset: int, length: int) -> None:
        self._client.read(self._handle, offset, length, partial(self._landed, piece))

    def _landed(self, piece: _Piece, view: memoryview | None, error: SftpError | None) -> None:
        if view is None:
            piece.is_end = self._is_stopping = True
            if error is not None and error.code != packets.EOF:
                self._error = self._error or error
        elif piece is self._pieces[0] and self._is_open and piece.data is None:
            self._hand(view)
            if len(view) < piece.length:  # a short answer: the piece is now the rest
                piece.offset, piece.length = piece.offset + len(view), piece.length - len(view)
                self._budget.give(len(view))
                self._send(piece, piece.offset, piece.length)
                return
            piece.data = b""
        else:
            piece.data = (piece.data or b"") + bytes(view)
            if len(piece.data) < piece.length:
                left = len(piece.data)
                self._send(piece, piece.offset + left, piece.length - left)
                return
        self._hand_on()

    @property
    def _is_open(self) -> bool:
        return self._gate is None or self._gate.done()

    def _hand(self, view: memoryview) -> None:
        if self._error is None and not self._is_at_end:
            self._handed_on_bytes += len(view)
            self._take(view)

    def _hand_on(self) -> None:
        """Hand on the bytes that have come and whose turn it is."""
        while self._pieces and (self._is_open or self._error is not None):
            piece = self._pieces[0]
            if not piece.is_end and (piece.data is None or 0 < len(piece.data) < piece.length):
                return
            if piece.data:
                self._hand(memoryview(piece.data))
            self._pieces.popleft()
            self._budget.give(piece.length)
            self._is_at_end = self._is_at_end or piece.is_end
        if self.sent.done() and not self._pieces and not self._done.done():
            self._done.set_result(None)


async def read_all(client: Client, handle: bytes, offset: int, length: int, take: Take) -> int:
    """Read an extent that is not a chunk, within client.checking; else as Reading.run()."""
    return await Reading(client, handle, offset, length, take, budget=client.checking).run()


def extents_behind(offset: int, size_bytes: int) -> tuple[list[list[int]], bool]:
    """Return the extent from an offset to the end, if any, and that it is the last.

    SFTP tells of no holes.
    """
    return ([[offset, size_bytes - offset]] if size_bytes > offset else []), True
