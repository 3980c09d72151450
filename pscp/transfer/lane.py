"""One lane: work from the queue becomes frames on its channel, and frames become outcomes.

Two threads: one takes work and sends; the other receives, so that blocks and chunks are in
flight while acknowledgements come back. A lane never waits a round trip for a chunk. When its
channel ends, what it had in flight goes back to the queue at once.

On push the near end is the source and the far end the sink; on pull it is the other way round.

Not here: which chunks are awaited (expected.py), in which states a lane can be (states.py), which
work there is (coordinator.py), what an end does with it (endpoint/), connecting again (worker.py).
Read next: endpoint/source.py.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import failures, requests, session, source, wire
from pscp.errors import CopyError, CopyRunning, ProtocolError, PscpError
from pscp.transfer import states
from pscp.transfer.expected import ExpectedChunks
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.lane_share import LaneShare
from pscp.transfer.plan import Ask, Chunk, Pack

# The two requests that are no work of the queue's, which numbers its own from 1 on.
_BEGIN, _END = 0, (1 << 64) - 1


# What comes of taking an answer for what it should be, when it is something else.
_MISSHAPEN = (
    wire.WireError, struct.error, ValueError, LookupError, ArithmeticError, TypeError,
    AttributeError,
)  # fmt: skip


class Lane:
    """A lane, from its first question to the end of the copy or the loss of its channel."""

    def __init__(
        self, name: str, context: LaneContext, far: RemoteAgent,
        is_parked: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """While `is_parked()` it takes no more work."""
        self.error: PscpError | None = None  # why it was lost
        self.has_worked = False  # it brought at least one piece of work to its end
        # Its state changes only in steps that the queue runs, so both threads may have it change.
        self._life = states.Machine(states.LANE, states.Lane.OPENING)
        self._context, self._far, self._queue = context, far, context.queue
        self._number = context.next_number()
        self._share = LaneShare(
            context.window_bytes, context.rtt_s, context.is_stream, self._number, is_parked
        )
        self._near = context.new_end()
        self._near_lock = threading.RLock()  # both threads use the near end on pull
        self._announced: dict[int, Any] = {}
        self._expected = ExpectedChunks()
        self._digests: dict[int, str] = {}  # of chunks that were sent, by the work's number
        self._is_stale = False  # the receiver's: what is arriving has landed by another lane
        self._reader = threading.Thread(target=self._receive, name=f"{name} in", daemon=True)

    def run(self) -> None:
        """Send until there is nothing more to do; then wait for the agent's goodbye."""
        try:
            self._begin_near()
            self._far.decoder.place = self._near.sink.place if self._near.sink is not None else None
            is_push = self._context.is_push
            self._far.session.advance(session.BEGIN_SINK if is_push else session.BEGIN_SOURCE)
            begin = requests.to_json(self._numbered(self._context.begin_far))
            self._far.send(wire.ASK, _BEGIN, 0, begin)
            self._queue.run_alone(self._join)
            self._reader.start()
            while (taken := self._queue.take(self._share)) is not None:
                self._start(*taken)
            self._say_goodbye()
        except PscpError as error:
            self._lose(error)
        finally:
            self._close()

    def _begin_near(self) -> None:
        try:
            self._near.begin(self._numbered(self._context.begin_near))
        except failures.EXPECTED as error:
            failure = failures.from_exception(error, "")
            problem = _as_copy_error(failure, self._context.begin_near)
            self._queue.stop(problem)
            raise problem from None

    def _numbered(self, begin: requests.Begin) -> requests.Begin:
        """As it is for this lane."""
        return begin._replace(lane=self._number) if isinstance(begin, requests.BeginSink) else begin

    def _say_goodbye(self) -> None:
        """All is acknowledged: the connection is kept for the next copy, or of no use any more."""
        if not self._queue.run_alone(self._leave):
            return
        if self._context.keeps and not self._share.work:
            self._far.send(wire.ASK, _END, 0, requests.to_json(requests.End()))
        else:
            self._far.channel.end()

    def _close(self) -> None:
        if self._state not in (states.Lane.LEAVING, states.Lane.CLOSED_WELL):
            self._far.channel.end()
        if self._reader.ident is not None:
            self._reader.join()
        self._far.decoder.place = None
        self._queue.run_alone(self._end)
        self._near.close()

    @property
    def _state(self) -> states.Lane:
        return self._life.state

    @property
    def ended_well(self) -> bool:
        """Is the agent ready for the next copy?"""
        return self._state is states.Lane.CLOSED_WELL

    # --- steps that the queue runs

    def _join(self) -> None:
        self._life.on(states.LaneEvent.BEGIN)
        self._queue.join(self._share)

    def _leave(self) -> bool:
        """Is the lane about to end because all is done?"""
        if self._queue.is_finished and self._state is states.Lane.WORKING:
            self._life.on(states.LaneEvent.FINISH)
            return True
        return False

    def _break(self, error: PscpError) -> bool:
        """Is it lost by that? Not where all was done, or the other thread has seen it already."""
        before = self._state
        self._life.on(states.LaneEvent.BREAK)
        if self._state is before or self._state is not states.Lane.LOST:
            return False
        if self._queue.error is None and not self._queue.is_finished:
            self.error = error
        self._queue.give_back(self._share)
        return True

    def _end(self) -> None:
        self._life.on(states.LaneEvent.CLOSE)
        self._queue.give_back(self._share)

    # --- the loss of its channel

    def _lose(self, error: PscpError) -> None:
        """The connection is of no use any more. What was in flight goes back at once."""
        if self._queue.run_alone(lambda: self._break(error)):
            self._far.channel.end()

    def _is_cut_off(self) -> bool:
        """Has the sender no reason to wait any more? Its receiver sees that the channel ends."""
        return self._share.is_over or self._queue.error is not None

    def _is_closed(self) -> bool:
        """The same for the receiver: while it waits, nobody else would see that."""
        return self._is_cut_off() or self._far.is_closed()

    # --- sending

    def _start(self, number: int, work: Chunk | Pack | Ask) -> None:
        if isinstance(work, Chunk):
            self._announce(work)
            if self._context.is_push:
                self._send_chunk(number, work)
            else:
                self._get_chunk(number, work)
        elif isinstance(work, Pack):
            if self._context.is_push:
                self._send_pack(number, work)
            else:
                pack = requests.Pack([source.listed(known) for known in work.files])
                self._far.send(wire.ASK, number, 0, requests.to_json(pack))
        else:
            self._ask(number, work)

    def _announce(self, chunk: Chunk) -> None:
        """Both ends know the files of the chunks that follow, and forget those that are done."""
        job = chunk.job
        if job.number in self._announced:
            return
        busy = self._expected.job_numbers()
        closed = [n for n, known in self._announced.items() if known.is_closed and n not in busy]
        for number in closed:
            del self._announced[number]
            self._far.send(wire.FILE, number)
            with self._near_lock:
                (self._near.source or self._near.the_sink()).forget(number)
        self._announced[job.number] = job
        known, entry = job.item.known, job.item.entry
        there: Any = entry if self._context.is_push else source.listed(known)
        self._far.send(wire.FILE, job.number, 0, wire.to_json(there))
        with self._near_lock:
            if self._near.source is not None:
                self._near.source.know(job.number, known)
            else:
                self._near.the_sink().know(job.number, entry)

    def _send_chunk(self, number: int, chunk: Chunk) -> None:
        failure: list[failures.Data] = []
        self._expected.add(number, chunk)

        def send(type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
            if type_ == wire.DIGEST and flags & wire.FAILED:
                content = wire.Frame(type_, 0, 0, 0, payload[wire.COUNT.size :]).json()
                failure.append(failures.checked(content))
            elif type_ == wire.DIGEST:
                self._digests[number] = payload[wire.COUNT.size :].hex()
            self._context.limiter.wait(len(payload), self._is_cut_off)
            self._far.send(type_, id_, offset, payload, flags)

        self._near.the_source().send_chunk(chunk.job.number, chunk.offset, chunk.length, send)
        if failure:
            self._expected.remove(number, chunk)
            self._done(number, lambda: chunk.job.failed(chunk, failure[0]))

    def _get_chunk(self, number: int, chunk: Chunk) -> None:
        self._expected.add(number, chunk)
        length = wire.COUNT.pack(chunk.length)
        self._far.send(wire.GET, chunk.job.number, chunk.offset, length)

    def _send_pack(self, number: int, pack: Pack) -> None:
        rows, bodies = self._near.file_source().pack(pack.files)
        pack.take_rows(rows)
        listed = [[item.entry, row] for item, row in zip(pack.items, pack.rows, strict=True)]
        payload = wire.pack_payload(listed, bodies)
        self._context.limiter.wait(len(payload), self._is_cut_off)
        self._far.send(wire.PACK, number, 0, payload)

    def _ask(self, number: int, ask: Ask) -> None:
        if ask.of_source is not self._context.is_push:
            self._far.send(wire.ASK, number, 0, requests.to_json(ask.request_for(self._share)))
            return

        def reply(answer: Any, failed: bool) -> None:
            self._answered(number, ask, answer, failed)

        with self._near_lock:
            self._near.answer(ask.request_for(self._share), reply)

    def _answered(self, number: int, ask: Ask, answer: Any, failed: bool) -> None:
        then = ask.failed if failed else ask.then
        self._done(number, lambda: then(failures.checked(answer) if failed else answer))

    def _done(self, number: int, tell: Callable[[], None]) -> None:
        """A piece of work is over: say what came of it, unless it was given back meanwhile."""

        def outcome() -> None:
            self.has_worked = True
            try:
                tell()
            except _MISSHAPEN as error:
                raise _misshapen(error) from None

        self._queue.settle(self._share, number, outcome)

    # --- receiving

    def _receive(self) -> None:
        try:
            while True:
                frame = self._far.receive()
                if frame is None:
                    if self._state in (states.Lane.OPENING, states.Lane.WORKING):
                        self._lose(self._far.explain())
                    return
                if frame.type in (wire.DATA, wire.PACK):  # not with the near end's lock held
                    self._context.limiter.wait(len(frame.payload), self._is_closed)
                with self._near_lock:
                    if self._take_frame(frame):
                        return
        except PscpError as error:
            self._lose(error)
        except _MISSHAPEN as error:
            self._lose(_misshapen(error))
        except BaseException as error:
            self._queue.stop(error)
            self._far.channel.end()

    def _take_frame(self, frame: wire.Frame) -> bool:
        """True for the last frame of this copy."""
        if frame.type == wire.DATA:
            self._take_block(frame)
        elif frame.type == wire.DIGEST:
            self._take_digest(frame)
        elif frame.type == wire.ACK:
            self._take_ack(frame)
        elif frame.type == wire.PACK:
            self._take_pack(frame)
        elif frame.type == wire.REPLY:
            return self._take_reply(frame)
        return False

    def _first_expected(self, frame: wire.Frame) -> tuple[int, Chunk]:
        if (first := self._expected.first()) is None:
            raise ProtocolError(f"a {frame.name} frame that was not asked for")
        number, chunk = first
        inside = chunk.offset <= frame.offset <= chunk.offset + chunk.length
        if frame.id != chunk.job.number or not inside:
            raise ProtocolError(f"a {frame.name} frame for another chunk")
        return number, chunk

    def _take_block(self, frame: wire.Frame) -> None:
        _, chunk = self._first_expected(frame)
        block, check = wire.block_of(frame)
        if frame.offset + len(block) > chunk.offset + chunk.length:
            raise ProtocolError("a block outside of its chunk")
        self._is_stale = self._is_stale or chunk.is_over
        if self._is_stale:  # it may be part of a finished file by now: leave that alone
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
            # Nothing, if another lane has finished it. It may also have found it damaged, just
            # while these blocks came and were dropped: then it is to be sent once more.
            self._done(number, lambda: self._queue.add(chunk))
            return
        if frame.flags & wire.FAILED:
            self._near.the_sink().abandon()
            failure = failures.checked(wire.Frame(0, 0, 0, 0, memoryview(rest)).json())
            self._done(number, lambda: chunk.job.failed(chunk, failure))
            return
        matches, receipt, failed = self._near.the_sink().complete(
            frame.id, frame.offset, length, rest
        )
        self._chunk_done(
            number, chunk, matches=matches, digest=rest.hex(), receipt=receipt, failed=failed
        )

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
        digest = self._digests.pop(number)
        self._chunk_done(
            number, chunk, matches=not frame.flags, digest=digest, receipt=receipt, failed=failed
        )

    def _chunk_done(
        self, number: int, chunk: Chunk, *, matches: bool, digest: str, receipt: int,
        failed: failures.Data | None,
    ) -> None:  # fmt: skip
        def tell() -> None:
            if failed is not None:
                chunk.job.failed(chunk, failed)
            elif matches:
                chunk.job.landed(chunk, digest, receipt)
            else:
                chunk.job.mismatched(chunk)

        self._done(number, tell)

    def _take_pack(self, frame: wire.Frame) -> None:
        """On pull: the far end's answer to a question for a pack."""
        number, pack = frame.id, self._share.work.get(frame.id)
        rows, bodies = wire.unpack_payload(frame.payload)
        if not isinstance(pack, Pack):
            raise ProtocolError("a PACK frame that was not asked for")
        pack.take_rows(rows)

        def done(outcome: list[failures.Data | None]) -> None:
            self._done(number, lambda: pack.then(pack, failures.places(outcome)))

        entries = [item.entry for item in pack.items]
        self._near.file_sink().pack(entries, pack.rows, bodies, done)

    def _take_reply(self, frame: wire.Frame) -> bool:
        """True when it is the answer to End."""
        answer, failed = frame.json(), bool(frame.flags & wire.FAILED)
        if frame.id in (_BEGIN, _END):
            if failed:
                problem = _as_copy_error(failures.checked(answer), self._context.begin_far)
                if isinstance(problem, CopyRunning):
                    self._queue.stop(problem)
                raise problem
            if frame.id != _END or self._state is not states.Lane.LEAVING:
                return False  # to an End that nobody sent there is no answer
            self._far.session.advance(session.END)
            self._queue.run_alone(lambda: self._life.on(states.LaneEvent.GOODBYE))
            return True
        work = self._share.work.get(frame.id)
        if isinstance(work, Ask):
            self._answered(frame.id, work, answer, failed)
        elif isinstance(work, Pack) and self._context.is_push:
            if not isinstance(answer, list):
                raise ProtocolError("an answer of another shape: no list of failures")
            places = [(int(place), failures.checked(f)) for place, f in answer]
            self._done(frame.id, lambda: work.then(work, places))
        elif not self._share.is_over:
            raise ProtocolError("a REPLY frame that was not asked for")
        return False


def _as_copy_error(data: failures.Data, begin: requests.Begin) -> PscpError:
    """The failure of an end to begin, which is that of its folder where it names no other."""
    if data["kind"] == failures.SUPERSEDED:
        return CopyRunning(data["message"])
    root = begin.root if isinstance(begin, requests.BeginSink) else ""
    return CopyError(f"{data['path'] or root}: {data['message']}".lstrip(": "))


def _misshapen(error: Exception) -> ProtocolError:
    return ProtocolError(f"an answer of another shape: {error}")
