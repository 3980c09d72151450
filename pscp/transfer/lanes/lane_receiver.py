"""The receiving half of a lane: frames from its channel become outcomes of its work.

Not here: the lane's life (lane.py), which chunks are awaited (lane_ends.py), what becomes of a file
(../walk/file_job.py).
"""

from __future__ import annotations

from pscp.endpoint import failures, wire
from pscp.ground.errors import ProtocolError
from pscp.transfer.lanes.lane_ends import LaneEnds
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Chunk, Failure, Pack


class LaneReceiver:
    """Takes one frame after the other.

    Only the lane's receiving thread uses it, with the near lock held.
    """

    def __init__(self, ends: LaneEnds) -> None:
        self._ends, self._near, self._share = ends, ends.near, ends.share
        self._expected = ends.expected
        self._is_stale = False  # the chunk that is arriving has landed over another lane

    def take(self, frame: wire.Frame) -> None:
        """Do what a frame asks for. Raises ProtocolError, or one of MISSHAPEN."""
        if frame.type == wire.DATA:
            self._take_block(frame)
        elif frame.type == wire.DIGEST:
            self._take_digest(frame)
        elif frame.type == wire.ACK:
            self._take_ack(frame)
        elif frame.type == wire.PACK:
            self._take_pack(frame)
        elif frame.type == wire.REPLY:
            self._take_reply(frame)

    def _first_expected(self, frame: wire.Frame) -> tuple[int, Chunk]:
        if (first := self._expected.first()) is None:
            raise ProtocolError(f"a {frame.name} frame that was not asked for")
        number, chunk = first
        inside = chunk.offset <= frame.offset <= chunk.offset + chunk.length
        if frame.id != chunk.job.number or not inside:
            raise ProtocolError(f"a {frame.name} frame for another chunk")
        return number, chunk

    # --- on pull

    def _take_block(self, frame: wire.Frame) -> None:
        _, chunk = self._first_expected(frame)
        block, check = wire.block_of(frame)
        if frame.offset + len(block) > chunk.offset + chunk.length:
            raise ProtocolError("a block outside of its chunk")
        self._is_stale = self._is_stale or chunk.is_over
        if self._is_stale:  # the file may be finished by now
            return
        self._near.the_sink().write(frame.id, frame.offset, block, check)

    def _take_digest(self, frame: wire.Frame) -> None:
        number, chunk = self._first_expected(frame)
        self._expected.take_first()
        length, rest = chunk.length, bytes(frame.payload[wire.COUNT.size :])
        if chunk.job.may_be_short:
            length = min(length, wire.COUNT.unpack_from(frame.payload)[0])
        if self._is_stale or chunk.is_over:
            self._is_stale = False
            self._near.the_sink().abandon()
            # Another lane has finished the chunk, and this does nothing; or it arrived damaged over
            # that lane while these blocks were dropped, and then it is sent once more.
            self._ends.settle(number, lambda: self._ends.context.queue.add(chunk))
            return
        if frame.flags & wire.FAILED:
            self._near.the_sink().abandon()
            failure = failures.checked(wire.Frame(0, 0, 0, 0, memoryview(rest)).json())
            of_source = answers.from_source(failure)
            self._ends.settle(number, lambda: chunk.job.failed(chunk, of_source))
            return
        matches, receipt, failed = self._near.the_sink().complete(
            frame.id, frame.offset, length, rest
        )
        digest = rest.hex() if matches else None
        self._settle_chunk(number, chunk, digest, receipt, failed)

    def _take_pack(self, frame: wire.Frame) -> None:
        """Take the far end's answer to a request for a pack."""
        number, pack = frame.id, self._share.work.get(frame.id)
        rows, bodies = wire.unpack_payload(frame.payload)
        if not isinstance(pack, Pack):
            raise ProtocolError("a PACK frame that was not asked for")
        if not self._ends.take_rows(number, pack, rows):
            return

        def done(outcome: list[Failure | None]) -> None:
            self._ends.settle(number, lambda: pack.then(pack, failures.places(outcome)))

        entries = [item.entry for item in pack.items]
        self._near.file_sink().pack(entries, pack.rows, bodies, done)

    # --- on push, and answers

    def _take_ack(self, frame: wire.Frame) -> None:
        number, chunk = self._first_expected(frame)
        self._expected.take_first()
        length, receipt = wire.LANDED.unpack_from(frame.payload)
        if (frame.offset, length) != (chunk.offset, chunk.length):
            raise ProtocolError("an ACK frame for another chunk")
        failed = None
        if frame.flags & wire.FAILED:
            rest = frame.payload[wire.LANDED.size :]
            failed = failures.checked(frame._replace(payload=rest).json())
        digest = self._expected.digests.pop(number)
        self._settle_chunk(number, chunk, None if frame.flags else digest, receipt, failed)

    def _settle_chunk(
        self, number: int, chunk: Chunk, digest: str | None, receipt: int, failed: Failure | None
    ) -> None:
        """Finish a chunk that has arrived; without a digest it has arrived damaged."""

        def tell() -> None:
            if failed is not None:
                chunk.job.failed(chunk, failed)
            elif digest is not None:
                chunk.job.landed(chunk, digest, receipt)
            else:
                chunk.job.mismatched(chunk)

        self._ends.settle(number, tell)

    def _take_reply(self, frame: wire.Frame) -> None:
        answer, is_failed = frame.json(), bool(frame.flags & wire.FAILED)
        work = self._share.work.get(frame.id)
        if isinstance(work, Ask):
            self._ends.answered(frame.id, work, answer, is_failed)
        elif isinstance(work, Pack) and self._ends.context.is_push:
            places = answers.places(answer)
            self._ends.settle(frame.id, lambda: work.then(work, places))
        elif not self._share.is_over:
            raise ProtocolError("a REPLY frame that was not asked for")
