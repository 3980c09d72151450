"""The frames of one channel at its far end: checks those that arrive, and makes those that answer.

An agent (agent.py) and a lane's program for SFTP (../../sftp/agent.py) are each the back end of a
FrameServer. The agent acts at once, in the thread that reads; over SFTP most requests become a
task, and are answered later.

Not here: reading and writing (agent.py, ../../sftp/protocol/event_loop.py), the answers (end.py).
Read next: ../writing/sink.py.
"""

import contextlib
import sys
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

from ..asking import entries, requests
from ..frames import failures, session, wire
from ..reading import source, tree

if TYPE_CHECKING:
    from typing import Protocol

    class Role(Protocol):
        """The sink or the source of a copy."""

        def know(self, id_: int, value: tree.Entry) -> None: ...
        def forget(self, id_: int) -> None: ...

    class Sink(Role, Protocol):
        """The sink of a copy."""

        @property
        def place(self) -> Optional[wire.Place]: ...  # where a block may be read to

        def write(self, id_: int, offset: int, block: memoryview, check: bytes) -> None: ...
        def abandon(self) -> None: ...

    class End(Protocol):
        """The end of a copy that a back end serves."""

        @property
        def source(self) -> Optional[Role]: ...
        @property
        def sink(self) -> Optional[Sink]: ...
        def the_source(self) -> Role: ...
        def the_sink(self) -> Sink: ...

    class BackEnd(Protocol):
        """Acts on the frames, and answers each through the FrameServer, at once or later."""

        @property
        def end(self) -> End: ...
        def answer(self, id_: int, request: requests.Request) -> None: ...
        def send_chunk(self, id_: int, offset: int, length: int) -> None: ...
        def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None: ...
        def land_pack(
            self, id_: int, listed: List[tree.Entry], rows: List[object], bodies: memoryview
        ) -> None: ...


_TOO_LONG = "more names than an answer has room for (1 MiB): copy the folder that they are in"
_WHY_MAX = 1000  # characters


class FrameServer:
    """The session and the decoder of one channel. One thread takes its frames."""

    def __init__(self, table: session.Table, back_end: "BackEnd", send: "wire.Send") -> None:
        self.session = session.Session(table)
        self.decoder = wire.Decoder()
        self._back_end, self._send = back_end, send
        self._is_traced = False  # with -d: write requests and failures to standard error

    # --- in

    def take_all(self) -> bool:
        """Act on the frames that have arrived. False where none is whole. Raises WireError."""
        frame = first = self.decoder.next()
        while frame is not None:
            self.session.check(frame)
            self._take(frame)
            frame = self.decoder.next()
        return first is not None

    def _take(self, frame: wire.Frame) -> None:
        back_end, payload = self._back_end, frame.payload
        if frame.type == wire.DATA:
            back_end.end.the_sink().write(frame.id, frame.offset, *wire.block_of(frame))
        elif frame.type == wire.DIGEST:
            self._complete(frame)
        elif frame.type == wire.GET:
            back_end.send_chunk(frame.id, frame.offset, frame.number())
        elif frame.type == wire.FILE:
            self._know(frame)
        elif frame.type == wire.PACK:
            packed, bodies = wire.unpack_payload(payload)
            back_end.land_pack(frame.id, *entries.parse_pack(packed), bodies)
        elif frame.type == wire.ASK:
            self._answer(frame.id, requests.from_json(frame.json()))
        else:
            raise wire.WireError("a frame that an end does not take: %d" % frame.type)

    def _answer(self, id_: int, request: "requests.Request") -> None:
        if isinstance(request, requests.BEGINNINGS):
            self._is_traced = request.debug
        self._trace("%s %s" % (type(request).__name__, requests.path_of(request)))
        self._back_end.answer(id_, request)

    def _know(self, frame: wire.Frame) -> None:
        """Have the source or the sink learn which file an id is from now on, or that it is none."""
        end = self._back_end.end
        role: Role = end.sink if end.sink is not None else end.the_source()
        if not frame.payload:
            role.forget(frame.id)
        elif end.sink is not None:
            role.know(frame.id, entries.entry(frame.json()))
        else:
            role.know(frame.id, source.entry_of(requests.parse_source_file(frame.json())))

    def _complete(self, frame: wire.Frame) -> None:
        if frame.flags & wire.FAILED:
            self._back_end.end.the_sink().abandon()
            return
        digest = bytes(frame.payload[wire.COUNT.size :])
        self._back_end.complete(frame.id, frame.offset, frame.number(), digest)

    def follow_role(self) -> None:
        """Bring the session and the decoder in step with the role that the end has now."""
        end = self._back_end.end
        event = session.BEGIN_SOURCE if end.source is not None else session.END
        self.session.advance(session.BEGIN_SINK if end.sink is not None else event)
        self.decoder.place = end.sink.place if end.sink is not None else None

    # --- out

    def hello(self, about: Dict[str, object]) -> None:
        self._send(wire.HELLO, 0, 0, wire.to_json(about))
        self.session.advance(session.HELLO)

    def reply(self, id_: int, answer: object, failed: bool = False) -> None:
        payload = wire.to_json(answer)
        if len(payload) > 1 << 20:  # what a pattern matches
            failed, answer = True, failures.data(failures.DESTINATION, "", _TOO_LONG)
            payload = wire.to_json(answer)
        if failed:
            self._trace("failed: %s" % answer)
        self._send(wire.REPLY, id_, 0, payload, wire.FAILED if failed else 0)

    def refuse(self, error: Exception) -> None:
        """Send why the agent ends, as the last frame. The coordinator raises it as its own error.

        A failure to send it is let pass: then the channel is lost anyway.
        """
        why = str(error) if isinstance(error, wire.WireError) else repr(error)
        with contextlib.suppress(OSError):
            self._send(wire.REFUSED, 0, 0, wire.to_json(why[:_WHY_MAX]))

    def reply_with_pack(self, id_: int, rows: Sequence[object], bodies: List[bytes]) -> None:
        self._send(wire.PACK, id_, 0, wire.pack_payload(rows, bodies))

    def acknowledge(
        self,
        id_: int,
        offset: int,
        length: int,
        *,
        receipt: int,
        matches: bool,
        failure: Optional[failures.Data],
    ) -> None:
        """Send that a chunk has landed, that its digest is another, or why it failed."""
        payload, flags = wire.LANDED.pack(length, receipt), 0 if matches else wire.MISMATCH
        if failure is not None:
            self._trace("failed: %s" % failure)
            payload, flags = payload + wire.to_json(failure), wire.FAILED
        self._send(wire.ACK, id_, offset, payload, flags)

    def _trace(self, text: str) -> None:
        """Write, with -d, a line to standard error; the other end adds the lane."""
        if self._is_traced:
            sys.stderr.write("pscp agent: %s\n" % text.rstrip())
            sys.stderr.flush()
