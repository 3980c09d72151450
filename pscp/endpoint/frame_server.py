"""The frames of one channel at its far end: checks each that comes, and packs those that answer.

An agent (agent.py) and a lane's program for SFTP (../sftp/agent.py) are each the back end of a
FrameServer. The agent acts at once, in the thread that reads; over SFTP most of it is a task, and
the answer comes later.

Not here: reading and writing (agent.py, ../sftp/event_loop.py), the answers themselves (end.py).
Read next: sink.py.
"""

import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from . import entries, failures, requests, session, source, wire

if TYPE_CHECKING:
    from typing import Protocol

    class BackEnd(Protocol):
        """What acts on the frames, and answers each through the FrameServer, now or later."""

        end: Any  # an End: the sink or the source of the copy

        def answer(self, id_: int, request: Any) -> None: ...
        def send_chunk(self, id_: int, offset: int, length: int) -> None: ...
        def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None: ...
        def land_pack(self, id_: int, listed: Any, rows: Any, bodies: memoryview) -> None: ...


Send = Callable[..., None]  # (type, id, offset, payload, flags)


class FrameServer:
    """The session and the decoder of one channel. Its frames are taken by one thread."""

    def __init__(self, table: session.Table, back_end: "BackEnd", send: Send) -> None:
        self.session = session.Session(table)
        self.decoder = wire.Decoder()
        self._back_end, self._send = back_end, send
        self._is_traced = False  # by -d: requests and failures are written to standard error

    # --- in

    def take_all(self) -> bool:
        """Act on the frames that have come. False when none has come whole. Raises WireError."""
        frame = first = self.decoder.next()
        while frame is not None:
            self.session.check(frame)
            self._take(frame)
            frame = self.decoder.next()
        return first is not None

    def _take(self, frame: wire.Frame) -> None:
        back_end, payload = self._back_end, frame.payload
        if frame.type == wire.DATA:
            back_end.end.the_sink().write(frame.id, frame.offset, payload)
        elif frame.type == wire.DIGEST:
            self._complete(frame)
        elif frame.type == wire.GET:
            back_end.send_chunk(frame.id, frame.offset, wire.COUNT.unpack(payload)[0])
        elif frame.type == wire.FILE:
            self._know(frame)
        elif frame.type == wire.PACK:
            rows, bodies = wire.unpack_payload(payload)
            listed = [entries.entry(value) for value, _ in rows]
            back_end.land_pack(frame.id, listed, [row for _, row in rows], bodies)
        else:
            self._answer(frame.id, requests.from_json(frame.json()))

    def _answer(self, id_: int, request: Any) -> None:
        self._is_traced = getattr(request, "debug", self._is_traced)
        self._trace("%s %s" % (type(request).__name__, requests.path_of(request)))
        self._back_end.answer(id_, request)

    def _know(self, frame: wire.Frame) -> None:
        """The file `id` is another one from now on, or none."""
        end = self._back_end.end
        is_sink = end.sink is not None
        role = end.the_sink() if is_sink else end.the_source()
        if not frame.payload:
            role.forget(frame.id)
        elif is_sink:
            role.know(frame.id, entries.entry(frame.json()))
        else:
            role.know(frame.id, source.known(requests.known(frame.json())))

    def _complete(self, frame: wire.Frame) -> None:
        if frame.flags & wire.FAILED:
            self._back_end.end.the_sink().abandon()
            return
        length = wire.COUNT.unpack_from(frame.payload)[0]
        digest = bytes(frame.payload[wire.COUNT.size :])
        self._back_end.complete(frame.id, frame.offset, length, digest)

    def follow_role(self) -> None:
        """The end has become a sink or a source, or is neither any more."""
        end = self._back_end.end
        event = session.BEGIN_SOURCE if end.source is not None else session.END
        self.session.advance(session.BEGIN_SINK if end.sink is not None else event)
        self.decoder.place = getattr(end.sink, "place", None)

    # --- out

    def hello(self, about: Dict[str, Any]) -> None:
        self._send(wire.HELLO, 0, 0, wire.to_json(about))
        self.session.advance(session.HELLO)

    def reply(self, id_: int, answer: Any, failed: bool = False) -> None:
        if failed:
            self._trace("failed: %s" % answer)
        self._send(wire.REPLY, id_, 0, wire.to_json(answer), wire.FAILED if failed else 0)

    def reply_with_pack(self, id_: int, rows: List[Any], bodies: List[bytes]) -> None:
        self._send(wire.PACK, id_, 0, wire.pack_payload(rows, bodies))

    def acknowledge(
        self, id_: int, offset: int, length: int, *, receipt: int, matches: bool,
        failure: Optional[failures.Data],
    ) -> None:  # fmt: skip
        """Say that a chunk has landed; or that its digest is another; or the failure."""
        payload, flags = wire.LANDED.pack(length, receipt), 0 if matches else wire.MISMATCH
        if failure is not None:
            self._trace("failed: %s" % failure)
            payload, flags = payload + wire.to_json(failure), wire.FAILED
        self._send(wire.ACK, id_, offset, payload, flags)

    def _trace(self, text: str) -> None:
        """With -d: write a line; the other end knows which lane it is of (../log.py)."""
        if self._is_traced:
            sys.stderr.write("pscp agent: %s\n" % text.rstrip())
            sys.stderr.flush()
