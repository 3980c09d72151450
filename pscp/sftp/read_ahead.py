"""Reads an extent of a far file: many READs in flight, their bytes handed on in order.

A server may answer in any order, and with less than was asked for; what is missing is asked for
again. What came too early is kept until its turn.

Not here: what is done with the bytes (source.py, digests.py).
Read next: digests.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.packets import SftpError
from pscp.sftp.tasks import Budget, Future

Take = Callable[[memoryview], None]


class _Piece:
    """The extent of one READ, and what came of it too early to be handed on."""

    def __init__(self, offset: int, length: int) -> None:
        self.offset, self.length = offset, length
        self.data: bytes | None = None
        self.is_end = False


class Reading:
    """One extent. `take` gets its bytes in order, each view valid during the call."""

    def __init__(
        self, client: Client, handle: bytes, offset: int, length: int, take: Take, *,
        budget: Budget, gate: Future[None] | None = None,
    ) -> None:  # fmt: skip
        """Hand nothing on, and give nothing back to the budget, before the gate is done.

        So what a gate waits for must not take from that budget.
        """
        self._client, self._handle, self._take, self._budget = client, handle, take, budget
        self._offset, self._length, self._gate = offset, length, gate
        self._pieces: deque[_Piece] = deque()
        self._error: Exception | None = None
        self._stops = self._is_at_end = False  # asks for no more; hands on no more
        self._done: Future[None] = Future()
        self.sent: Future[None] = Future()  # done when every READ was sent
        self._count = 0  # bytes that were handed on

    async def run(self) -> int:
        """Read it; return how many bytes there were, fewer where the file ends before.

        Raises SftpError.
        """
        if self._gate is not None:
            self._gate.add_done_callback(self._hand_on)
        step, end = self._client.read_bytes, self._offset + self._length
        for begin in range(self._offset, end, step):
            length = min(step, end - begin)
            await self._budget.take(length)
            if self._stops:
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
        return self._count

    def _send(self, piece: _Piece, offset: int, length: int) -> None:
        def landed(view: memoryview | None, error: SftpError | None) -> None:
            self._landed(piece, view, error)

        self._client.read(self._handle, offset, length, landed)

    def _landed(self, piece: _Piece, view: memoryview | None, error: SftpError | None) -> None:
        if view is None:
            piece.is_end = self._stops = True
            if error is not None and error.code != packets.EOF:
                self._error = self._error or error
        elif piece is self._pieces[0] and self._is_open() and piece.data is None:
            self._hand(view)
            if len(view) < piece.length:  # a short answer: the rest is a piece of its own
                self._ask_for_rest(piece, len(view))
                return
            piece.data = b""
        else:
            piece.data = (piece.data or b"") + bytes(view)
            if len(piece.data) < piece.length:
                left = len(piece.data)
                self._send(piece, piece.offset + left, piece.length - left)
                return
        self._hand_on()

    def _ask_for_rest(self, piece: _Piece, count: int) -> None:
        piece.offset, piece.length = piece.offset + count, piece.length - count
        self._budget.give(count)
        self._send(piece, piece.offset, piece.length)

    def _is_open(self) -> bool:
        return self._gate is None or self._gate.done()

    def _hand(self, view: memoryview) -> None:
        if self._error is None and not self._is_at_end:
            self._count += len(view)
            self._take(view)

    def _hand_on(self) -> None:
        """Hand on what has come and is next."""
        while self._pieces and (self._is_open() or self._error is not None):
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
    """Read an extent that is not a chunk, within the budget for those; as Reading.run()."""
    return await Reading(client, handle, offset, length, take, budget=client.checking).run()
