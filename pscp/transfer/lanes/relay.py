"""The near end of a lane whose source is on a third host: what is asked of it is asked there.

A copy from host to host goes through this machine. Each lane then has an agent at either host: to
the sink's it pushes as always, and the source's takes the place of the source here. What that sends
is passed on as it comes; the sink compares the digests that the source has computed.

Not here: a copy's connections to both hosts (../onward.py), a lane whose data goes straight to the
sink's host (../onward.py), the lane (lane.py), a source that is at this end
(endpoint/reading/source.py).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.connect.connections import ConnectionRequest, Connections
from pscp.connect.messages import named, noting
from pscp.endpoint.asking import entries, requests
from pscp.endpoint.asking.answers import Reply, not_here
from pscp.endpoint.frames import failures, session, system, wire
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.source import Row, Source, listed
from pscp.ground.contexts import start_thread
from pscp.ground.errors import ConnectionLost, ProtocolError, PscpError
from pscp.ground.values import LOGINS_MAX
from pscp.options.options import Options
from pscp.transfer.lanes.in_flight import never
from pscp.transfer.lanes.lane_context import Lost
from pscp.transfer.pieces.answers import as_copy_error
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.endpoint.writing.verifying import VerifyingSink
    from pscp.transfer.pieces.plan import Pack

Packed = Callable[[list[Row], list[bytes]], None]  # takes the rows, and the bytes
Connect = Callable[[Callable[[Channel], None], Callable[[], bool]], RemoteAgent]
_LOOK_S = 0.5  # a lane that waits to log in looks so often whether it still should
_BEGIN = 0  # the number of the first request; the others count from 1 on


def take_named(
    connections: Connections, options: Options, note: Callable[[str], None]
) -> list[RemoteAgent]:
    """Return the open connections, or a new one; notes and errors about it name the host."""
    try:
        return connections.take(options, noting(connections.host, note))
    except PscpError as error:
        raise named(connections.host, error) from None


class FarSource:
    """The host of the source, where that is neither this machine nor the sink's host."""

    def __init__(self, connections: Connections, options: Options) -> None:
        self.connections, self.options = connections, options
        self._changed = threading.Condition()  # guards what follows
        self.agents: list[RemoteAgent] = []  # those that no lane has
        self._opening = 0  # logins under way

    def take(self, note: Callable[[str], None]) -> list[RemoteAgent]:
        """Open the first connection. Raises ConnectError, which names the host."""
        self.agents += take_named(self.connections, self.options, note)
        return self.agents

    def connect(
        self, opened: Callable[[Channel], None], is_over: Callable[[], bool] = never
    ) -> RemoteAgent:
        """Return a connection for a lane; `opened` gets its channel before the login.

        Never prompts. It waits while too many log in, unless `is_over()`. Raises ConnectError.
        """
        with self._changed:
            while not self.agents and self._opening >= LOGINS_MAX and not is_over():
                self._changed.wait(_LOOK_S)
            if is_over():
                raise ConnectionLost("the lane was over before it had connected")
            far = self.agents.pop() if self.agents else None
            self._opening += far is None
        if far is not None:
            opened(far.channel)
            return far
        try:
            return self.connections.connect(self.options, ConnectionRequest(None, "", opened))
        except PscpError as error:
            raise named(self.connections.host, error) from None
        finally:
            with self._changed:
                self._opening -= 1
                self._changed.notify_all()

    def near_end(self, lost: Lost, far: Channel) -> RelayEnd:
        return RelayEnd(self.connect, lambda error: lost(named(self.connections.host, error)))

    def close(self, *, is_cut: bool) -> None:
        """End all its connections."""
        with self._changed:
            agents, self.agents = self.agents, []
        for agent in agents:
            agent.close()
        self.connections.close(is_cut=is_cut)


class _AwaitedChunk(NamedTuple):
    """A chunk that the source was asked for, and where its frames go."""

    id_: int
    offset: int
    length: int
    send: wire.Send


class RelayEnd:
    """A source at another host, as a lane sees its near end.

    The lane's sending thread asks; a thread of its own passes the answers on.
    """

    sink: VerifyingSink | None = None
    is_onward = False  # the data goes to the sink's host, and not through here

    def __init__(self, connect: Connect, lost: Lost) -> None:
        """`connect` opens the connection, which begin() waits for."""
        self._connect, self._lost = connect, lost
        self._agent: RemoteAgent | None = None
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count(_BEGIN + 1)
        # The sending thread puts in what its thread takes out of these, by one operation each.
        self._chunks: deque[_AwaitedChunk] = deque()  # in the order in which they come
        # What takes the answer to each request, by its number, and the type of that frame.
        self._replies: dict[int, tuple[int, Callable[[wire.Frame], None]]] = {}
        self._lock = threading.Lock()  # guards what follows
        self._is_closed = False
        self._channel: Channel | None = None  # once the connection is being opened

    # --- what a lane knows of an end: this is the source, and there is no other here

    @property
    def source(self) -> RelayEnd:
        return self

    def the_source(self) -> RelayEnd:
        return self

    def file_source(self) -> Source:
        raise not_here("source of files here")

    def the_sink(self) -> VerifyingSink:
        raise not_here("sink")

    def file_sink(self) -> VerifyingSink:
        raise not_here("sink of files")

    def begin(self, request: requests.Begin) -> None:
        """Connect, and have the agent there be the source.

        Raises ConnectError, CopyError, ProtocolError.
        """
        self._agent = agent = self._connect(self._opened, lambda: self._is_closed)
        answer, is_failed = agent.ask(request)
        if is_failed:
            with shaped():
                raise as_copy_error(failures.parse_failure(answer))
        agent.session.advance(session.BEGIN_SOURCE)
        self._thread = start_thread("relay", self._receive)

    def _opened(self, channel: Channel) -> None:
        with self._lock:
            self._channel, is_closed = channel, self._is_closed
        if is_closed:
            channel.end()

    def cut(self) -> None:
        """End the connection, so that nobody waits for it any more. From any thread."""
        with self._lock:
            self._is_closed, channel = True, self._channel
        if channel is not None:
            channel.end()

    def close(self) -> None:
        """End the connection, and wait until nothing more is passed on."""
        self.cut()
        if self._agent is not None:
            if self._thread is not None:
                self._thread.join()
            self._agent.close()

    # --- what a lane asks for

    def know(self, id_: int, value: tree.Entry) -> None:
        self._send(wire.FILE, id_, 0, wire.to_json(listed(value)))

    def forget(self, id_: int) -> None:
        self._send(wire.FILE, id_, 0, b"")

    def send_chunk(self, id_: int, offset: int, length: int, send: wire.Send) -> None:
        self._chunks.append(_AwaitedChunk(id_, offset, length, send))
        self._send(wire.GET, id_, offset, wire.COUNT.pack(length))

    def pack(self, number: int, pack: Pack, done: Packed, take: Callable[[object], object]) -> None:
        """Ask for small files, whole; `done` is called with their rows and their bytes.

        `number` is that of the pack in its lane, and `take` gets rows alone (../onward.py).
        """
        values = pack.files

        def packed(frame: wire.Frame) -> None:
            rows, bodies = wire.unpack_payload(frame.payload)
            if not isinstance(rows, list) or len(rows) != len(values):
                raise ProtocolError("a pack of other files than were asked for")
            entries.check_sizes(values, rows, len(bodies))
            done(rows, [bytes(bodies)])

        self._ask(requests.Pack([listed(value) for value in values]), wire.PACK, packed)

    def answer(self, request: requests.Request, reply: Reply) -> None:
        def replied(frame: wire.Frame) -> None:
            reply(frame.json(), bool(frame.flags & wire.FAILED))

        self._ask(request, wire.REPLY, replied)

    def _ask(
        self, request: requests.Request, type_: int, take: Callable[[wire.Frame], None]
    ) -> None:
        number = next(self._numbers)
        self._replies[number] = type_, take
        self._send(wire.ASK, number, 0, requests.to_json(request))

    def _send(self, type_: int, id_: int, offset: int, payload: bytes) -> None:
        assert self._agent is not None  # begin() was called
        self._agent.send(type_, id_, offset, payload)

    # --- what comes; on a thread of its own

    def _receive(self) -> None:
        agent = self._agent
        assert agent is not None
        try:
            with shaped():
                while (frame := agent.receive()) is not None:
                    self._take(frame)
                raise agent.explain()
        except PscpError as error:
            self._lose(error)

    def _lose(self, error: PscpError) -> None:
        if not self._is_closed:
            self._lost(error)

    def _take(self, frame: wire.Frame) -> None:
        if frame.type in (wire.DATA, wire.DIGEST):
            self._take_of_chunk(frame)
        elif frame.type in (wire.PACK, wire.REPLY):
            type_, take = self._replies.pop(frame.id, (None, None))
            if take is None or type_ != frame.type:
                raise ProtocolError(f"a {frame.name} frame that was not asked for")
            take(frame)

    def _take_of_chunk(self, frame: wire.Frame) -> None:
        chunk = self._chunks[0] if self._chunks else None
        if chunk is None or frame.id != chunk.id_:
            raise ProtocolError(f"a {frame.name} frame that was not asked for")
        if frame.type == wire.DIGEST:
            self._chunks.popleft()
        payload: system.Payload = frame.payload
        if frame.type == wire.DATA:
            block, _ = wire.block_of(frame)
            end = frame.offset + len(block)
            if frame.offset < chunk.offset or end > chunk.offset + chunk.length:
                raise ProtocolError("a block outside of its chunk")
        else:
            payload = bytes(frame.payload)
        chunk.send(frame.type, frame.id, frame.offset, payload, frame.flags)
