"""Traffic of one lane: pieces of work become frames or calls of the near end, and the frames
that come become outcomes of the work.

Not here: which work there is (../walk/items.py), the lane's life and its threads (lane.py), what an
end does (endpoint/), what becomes of a file (../walk/file_job.py).
Read next: ../../endpoint/reading/source.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, system, wire
from pscp.endpoint.reading import source, tree
from pscp.ground.contexts import with_context
from pscp.ground.errors import ProtocolError
from pscp.transfer.lanes.in_flight import LaneShare
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.relay import RelayEnd
from pscp.transfer.lanes.turns import turns
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Chunk, Failure, Job, Pack, Work

if TYPE_CHECKING:
    from pscp.transfer.lanes.lane_context import NearEnd

Expectation = tuple[int, Chunk]  # the number that the queue gave the chunk, and the chunk


class ExpectedChunks:
    """The chunks whose frames a lane awaits from its channel, in the order of those frames.

    The sending thread adds to it while the receiving one takes from it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._chunks: deque[Expectation] = deque()
        # The digest of each chunk that was sent, by its number: the sender puts it here before it
        # sends the chunk's last frame, and the receiver takes it when that is acknowledged.
        self.digests: dict[int, str] = {}

    def add(self, number: int, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append((number, chunk))

    def first(self) -> Expectation | None:
        """Return the chunk to which the next frame must belong; None if none is awaited."""
        with self._lock:
            return self._chunks[0] if self._chunks else None

    def take_first(self) -> None:
        with self._lock:
            self._chunks.popleft()

    def remove(self, number: int, chunk: Chunk) -> None:
        """Remove a chunk that the source could not send to its end."""
        with self._lock:
            self._chunks.remove((number, chunk))

    def job_numbers(self) -> set[int]:
        with self._lock:
            awaited = list(self._chunks)
        return {chunk.job.number for _, chunk in awaited}


class LaneTraffic:
    """Both ends of one lane, and its work.

    The lane's sending thread calls send(), its receiving thread take().
    """

    def __init__(
        self, context: LaneContext, far: RemoteAgent, near: NearEnd, share: LaneShare
    ) -> None:
        self.context, self.far, self.near, self.share = context, far, near, share
        # A near end's own threads settle, too, and know nothing of the call's context variables.
        self._settle_work = with_context(context.queue.settle)
        self._near_lock = threading.RLock()  # for the near end, which on pull both threads use
        self._expected = ExpectedChunks()
        self._announced: dict[int, Job] = {}  # files that both ends know; for the sending thread
        self._is_stale = False  # the chunk that arrives has landed over another lane; for the other

    def is_cut_off(self) -> bool:
        """Return whether the sending thread should wait no longer: the lane or the copy has ended.

        If the channel has ended, it is the receiving thread that sees it, and ends the lane.
        """
        return self.share.is_over or self.context.queue.error is not None

    def is_closed(self) -> bool:
        """Return whether the receiving thread should wait no longer: also for an ended channel."""
        return self.is_cut_off() or self.far.is_closed()

    def wait_for_rate(self, size_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until so many more bytes may go (-l), or until `is_over()`.

        What goes wrong with the limit is no fault of the lane's: it stops the copy.
        """
        limiter = self.context.limiter
        if limiter is None:
            return
        try:
            with self.share.on_hold():
                limiter.wait(size_bytes, is_over)
        except BaseException as error:
            self.context.queue.stop(error)

    # --- finishing a piece of work; for either thread

    def _settle(self, number: int, tell: Callable[[], object]) -> None:
        """Finish a piece of work by calling `tell`, unless the piece was given back meanwhile."""

        self._settle_work(self.share, number, shaped()(tell))

    def take_rows(self, number: int, pack: Pack, rows: object) -> bool:
        """Keep a pack's rows, unless it was given back: they are another lane's then, or will be.

        Return whether they were kept. Raises ValueError.
        """

        def keep() -> bool:
            is_held = self.share.work.get(number) is pack
            if is_held:
                pack.take_rows(rows)
            return is_held

        return self.context.queue.run_alone(keep)

    def _answered(self, number: int, ask: Ask, answer: object, is_failed: bool) -> None:
        """Finish a request with its answer, or with the failure that is its answer."""

        def tell() -> None:
            if not is_failed:
                ask.then(answer)
                return
            failure = failures.parse_failure(answer)
            ask.failed(answers.from_source(failure) if ask.of_source else failure)

        self._settle(number, tell)

    def _source_failed(self, number: int, chunk: Chunk, payload: bytes) -> None:
        frame = wire.Frame(wire.DIGEST, 0, 0, 0, memoryview(payload))
        of_source = answers.of_known(failures.parse_failure(frame.json()))
        self._settle(number, lambda: chunk.job.failed(chunk, of_source))

    # --- sending

    def send(self, number: int, work: Work) -> None:
        """Send what begins this piece of work. Raises ConnectionLost."""
        if isinstance(work, Chunk):
            self._announce(work)
            self._expected.add(number, work)
            if self.context.is_push:
                self._send_chunk(number, work)
            else:
                length = wire.COUNT.pack(work.length)
                self.far.send(wire.GET, work.job.number, work.offset, length)
        elif isinstance(work, Ask):
            self._ask(number, work)
        elif self.context.is_push:
            self._send_pack(number, work)
        else:
            pack = requests.Pack([source.listed(known) for known in work.files])
            self.far.send(wire.ASK, number, 0, requests.to_json(pack))

    def _announce(self, chunk: Chunk) -> None:
        """Announce the chunk's file to both ends, and have them forget the files that are done."""
        job = chunk.job
        if job.number in self._announced:
            return
        busy = self._expected.job_numbers()
        closed = [n for n, known in self._announced.items() if known.is_closed and n not in busy]
        for number in closed:
            del self._announced[number]
            self.far.send(wire.FILE, number)
        self._announced[job.number] = job
        known, entry = job.item.known, job.item.entry
        there: tree.Entry | source.SourceFile = (
            entry if self.context.is_push else source.listed(known)
        )
        self.far.send(wire.FILE, job.number, 0, wire.to_json(there))
        near = self.near.source or self.near.the_sink()
        with self._near_lock:
            for number in closed:
                near.forget(number)
            near.know(job.number, known if self.context.is_push else entry)

    def _send_chunk(self, number: int, chunk: Chunk) -> None:
        is_onward = isinstance(self.near, RelayEnd) and self.near.is_onward

        def send(
            type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
        ) -> None:
            is_failed, digest = bool(flags & wire.FAILED), b""
            if type_ == wire.DIGEST and isinstance(payload, bytes):
                digest = payload[wire.COUNT.size :]
            if type_ == wire.DIGEST and not is_failed:
                self._expected.digests[number] = digest.hex()
            if not is_onward:
                self.wait_for_rate(len(payload), self.is_cut_off)
                self.far.send(type_, id_, offset, payload, flags)
            if type_ == wire.DIGEST and is_failed:
                self._expected.remove(number, chunk)
                self._source_failed(number, chunk, digest)

        if is_onward:  # the data does not come by
            self.wait_for_rate(chunk.length, self.is_cut_off)
        self.near.the_source().send_chunk(chunk.job.number, chunk.offset, chunk.length, send)

    def _send_pack(self, number: int, pack: Pack) -> None:
        take = partial(self.take_rows, number, pack)

        def send(rows: list[source.Row], bodies: list[bytes]) -> None:
            if take(rows):
                listed = [
                    [item.entry, row] for item, row in zip(pack.items, pack.rows, strict=True)
                ]
                payload = wire.pack_payload(listed, bodies)
                self.wait_for_rate(len(payload), self.is_cut_off)
                self.far.send(wire.PACK, number, 0, payload)

        if not isinstance(self.near, RelayEnd):
            with turns.take():
                rows, bodies = self.near.file_source().pack(pack.files)
            send(rows, bodies)
            return
        if self.near.is_onward:
            self.wait_for_rate(pack.size_bytes, self.is_cut_off)
        self.near.pack(number, pack, send, take)

    def _ask(self, number: int, ask: Ask) -> None:
        request = ask.request_for(self.share)
        if ask.of_source is not self.context.is_push:
            self.far.send(wire.ASK, number, 0, requests.to_json(request))
            return

        with self._near_lock:
            self.near.answer(request, partial(self._answered, number, ask))

    # --- receiving

    def take(self, frame: wire.Frame) -> None:
        """Do what a frame asks for. Raises ProtocolError, and what another shape does."""
        with self._near_lock:
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

    def _first_expected(self, frame: wire.Frame) -> Expectation:
        if (first := self._expected.first()) is None:
            raise ProtocolError(f"a {frame.name} frame that was not asked for")
        chunk = first[1]
        inside = chunk.offset <= frame.offset <= chunk.offset + chunk.length
        if frame.id != chunk.job.number or not inside:
            raise ProtocolError(f"a {frame.name} frame for another chunk")
        return first

    def _take_block(self, frame: wire.Frame) -> None:
        _, chunk = self._first_expected(frame)
        block, check = wire.block_of(frame)
        if frame.offset + len(block) > chunk.offset + chunk.length:
            raise ProtocolError("a block outside of its chunk")
        self._is_stale = self._is_stale or chunk.is_over
        if not self._is_stale:  # else the file may be finished by now
            self.near.the_sink().write(frame.id, frame.offset, block, check)

    def _take_digest(self, frame: wire.Frame) -> None:
        number, chunk = self._first_expected(frame)
        self._expected.take_first()
        length, rest = chunk.length, bytes(frame.payload[wire.COUNT.size :])
        if chunk.job.may_be_short:
            length = min(length, wire.COUNT.unpack_from(frame.payload)[0])
        sink = self.near.the_sink()
        if self._is_stale or chunk.is_over:
            self._is_stale = False
            sink.abandon()
            # Another lane has finished the chunk, and this does nothing; or it arrived damaged over
            # that lane while these blocks were dropped, and then it is sent once more.
            self._settle(number, lambda: self.context.queue.add(chunk))
        elif frame.flags & wire.FAILED:
            sink.abandon()
            self._source_failed(number, chunk, rest)
        elif frame.offset != chunk.offset:  # such as the empty one of a stream's next chunk
            raise ProtocolError("a DIGEST frame for another chunk")
        else:
            matches, receipt, failed = sink.complete(frame.id, frame.offset, length, rest)
            digest = rest.hex() if matches else None
            self._settle(number, partial(chunk.tell, digest, receipt, failed))

    def _take_ack(self, frame: wire.Frame) -> None:
        number, chunk = self._first_expected(frame)
        self._expected.take_first()
        length, receipt = wire.LANDED.unpack_from(frame.payload)
        if (frame.offset, length) != (chunk.offset, chunk.length):
            raise ProtocolError("an ACK frame for another chunk")
        failed = None
        if frame.flags & wire.FAILED:
            rest = frame.payload[wire.LANDED.size :]
            failed = failures.parse_failure(frame._replace(payload=rest).json())
        digest = self._expected.digests.pop(number)
        self._settle(number, partial(chunk.tell, None if frame.flags else digest, receipt, failed))

    def _take_pack(self, frame: wire.Frame) -> None:
        number, pack = frame.id, self.share.work.get(frame.id)
        rows, bodies = wire.unpack_payload(frame.payload)
        if not isinstance(pack, Pack):
            raise ProtocolError("a PACK frame that was not asked for")
        if not self.take_rows(number, pack, rows):
            return

        def done(outcome: list[Failure | None]) -> None:
            self._settle(number, lambda: pack.then(pack, failures.places(outcome)))

        entries = [item.entry for item in pack.items]
        self.near.file_sink().pack(entries, pack.rows, bodies, done)

    def _take_reply(self, frame: wire.Frame) -> None:
        answer, is_failed = frame.json(), bool(frame.flags & wire.FAILED)
        work = self.share.work.get(frame.id)
        if isinstance(work, Ask):
            self._answered(frame.id, work, answer, is_failed)
        elif isinstance(work, Pack) and self.context.is_push:
            places = answers.places(answer)
            self._settle(frame.id, lambda: work.then(work, places))
        elif not self.share.is_over:
            raise ProtocolError("a REPLY frame that was not asked for")
