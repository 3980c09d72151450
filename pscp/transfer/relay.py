"""The near end of a lane whose source is on a third host: what is asked of it is asked there.

A copy from host to host goes through this machine. Each lane then has an agent at either host: to
the sink's it pushes as always, and the source's takes the place of the source here. What that sends
is passed on as it comes; the sink compares the digests that the source has computed.

Not here: the lane (lane.py), a source that is at this end (endpoint/source.py).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Connections, Wanted
from pscp.endpoint import entries, failures, requests, session, tree, wire
from pscp.endpoint.end import Reply, not_here
from pscp.endpoint.source import Row, Source, listed
from pscp.errors import CopyError, ProtocolError, PscpError
from pscp.options import Options
from pscp.transfer.lane_context import Lost
from pscp.transfer.lane_ends import MISSHAPEN, misshapen
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.endpoint.null_ends import NullSink

Packed = Callable[[list[Row], list[bytes]], None]  # takes the rows, and the bytes
_BEGIN = 0  # the number of the first request; the others count from 1 on


class FarSource:
    """The host of the source, where that is neither this machine nor the sink's host."""

    def __init__(self, connections: Connections, options: Options) -> None:
        self.connections, self.options = connections, options
        self._lock = threading.Lock()  # guards what follows
        self.agents: list[RemoteAgent] = []  # those that no lane has
        self._opening: list[Channel] = []  # that log in
        self._is_cut = False

    def take(self, note: Callable[[str], None]) -> list[RemoteAgent]:
        """Open the first connection. Raises ConnectError."""
        self.agents += self.connections.take(self.options, note)
        return self.agents

    def connect(self) -> RemoteAgent:
        """Return a connection for a lane. Never prompts. Raises ConnectError."""
        with self._lock:
            if self.agents:
                return self.agents.pop()
        opened: list[Channel] = []
        try:
            wanted = Wanted(None, "", lambda channel: self._note(channel, opened))
            return self.connections.connect(self.options, wanted)
        finally:
            with self._lock:
                self._opening = [each for each in self._opening if each not in opened]

    def _note(self, channel: Channel, opened: list[Channel]) -> None:
        with self._lock:
            opened.append(channel)
            self._opening.append(channel)
            is_cut = self._is_cut
        if is_cut:
            channel.end()

    def cut(self) -> None:
        """End the logins that go on, as the copy stops."""
        with self._lock:
            self._is_cut = True
            opening = list(self._opening)
        for channel in opening:
            channel.end()

    def near_end(self, lost: Lost) -> RelayEnd:
        """Return the near end of a lane, which `lost` ends."""
        return RelayEnd(self.connect, lost)

    def close(self, *, is_cut: bool) -> None:
        """End all its connections."""
        for agent in self.agents:
            agent.close()
        self.connections.close(is_cut=is_cut)


class _Awaited(NamedTuple):
    """A chunk that the source was asked for, and where its frames go."""

    id_: int
    offset: int
    length: int
    send: wire.Send


class RelayEnd:
    """A source at another host, as a lane sees its near end.

    The lane's sending thread asks; a thread of its own passes the answers on.
    """

    sink: NullSink | None = None

    def __init__(self, connect: Callable[[], RemoteAgent], lost: Lost) -> None:
        """`connect` opens the connection, which begin() waits for."""
        self._connect, self._lost = connect, lost
        self._agent: RemoteAgent | None = None
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count(_BEGIN + 1)
        self._lock = threading.Lock()  # guards what follows
        self._is_closed = False
        self._chunks: deque[_Awaited] = deque()  # in the order in which they come
        self._replies: dict[int, Reply] = {}
        self._packs: dict[int, tuple[list[tree.Entry], Packed]] = {}

    # --- what a lane knows of an end

    @property
    def source(self) -> RelayEnd:
        """The source that this end is."""
        return self

    def the_source(self) -> RelayEnd:
        """Return the source that this end is."""
        return self

    def file_source(self) -> Source:
        """Raise WireError: the source is not here."""
        raise not_here("source of files here")

    def the_sink(self) -> NullSink:
        """Raise WireError: this end is no sink."""
        raise not_here("sink")

    def file_sink(self) -> NullSink:
        """Raise WireError: this end is no sink."""
        raise not_here("sink of files")

    def begin(self, request: requests.Begin) -> None:
        """Connect, and have the agent there be the source. Raises ConnectError, CopyError."""
        agent = self._connect()
        with self._lock:
            self._agent = agent
            is_closed = self._is_closed
        if is_closed:
            agent.close()
            return
        answer, is_failed = agent.ask(request)
        if is_failed:
            failure = failures.checked(answer)
            raise CopyError(f"{failure['path']}: {failure['message']}".lstrip(": "))
        agent.session.advance(session.BEGIN_SOURCE)
        self._thread = threading.Thread(target=self._receive, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection, and wait until nothing more is passed on."""
        with self._lock:
            self._is_closed = True
            agent = self._agent
        if agent is not None:
            agent.channel.end()
            if self._thread is not None:
                self._thread.join()
            agent.close()

    # --- what a lane asks for

    def know(self, id_: int, value: tree.Entry) -> None:
        """Announce a file to the source."""
        self._send(wire.FILE, id_, 0, wire.to_json(listed(value)))

    def forget(self, id_: int) -> None:
        """Have the source close a file."""
        self._send(wire.FILE, id_, 0, b"")

    def send_chunk(self, id_: int, offset: int, length: int, send: wire.Send) -> None:
        """Ask for a chunk; `send` is called with its frames as they come."""
        with self._lock:
            self._chunks.append(_Awaited(id_, offset, length, send))
        self._send(wire.GET, id_, offset, wire.COUNT.pack(length))

    def pack(self, values: list[tree.Entry], done: Packed) -> None:
        """Ask for small files, whole; `done` is called with their rows and their bytes."""
        number = self._next()
        with self._lock:
            self._packs[number] = values, done
        request = requests.Pack([listed(value) for value in values])
        self._send(wire.ASK, number, 0, requests.to_json(request))

    def answer(self, request: requests.Request, reply: Reply) -> None:
        """Call `reply` with the source's answer, once it has come."""
        number = self._next()
        with self._lock:
            self._replies[number] = reply
        self._send(wire.ASK, number, 0, requests.to_json(request))

    def _next(self) -> int:
        return next(self._numbers)

    def _send(self, type_: int, id_: int, offset: int, payload: bytes) -> None:
        assert self._agent is not None  # begin() was called
        self._agent.send(type_, id_, offset, payload)

    # --- what comes; on a thread of its own

    def _receive(self) -> None:
        agent = self._agent
        assert agent is not None
        try:
            while (frame := agent.receive()) is not None:
                self._take(frame)
            raise agent.explain()
        except PscpError as error:
            self._lose(error)
        except MISSHAPEN as error:
            self._lose(misshapen(error))

    def _lose(self, error: PscpError) -> None:
        with self._lock:
            is_closed = self._is_closed
        if not is_closed:
            self._lost(error)

    def _take(self, frame: wire.Frame) -> None:
        if frame.type in (wire.DATA, wire.DIGEST):
            self._take_of_chunk(frame)
        elif frame.type == wire.PACK:
            self._take_pack(frame)
        elif frame.type == wire.REPLY:
            with self._lock:
                reply = self._replies.pop(frame.id, None)
            if reply is None:
                raise ProtocolError("a REPLY frame that was not asked for")
            reply(frame.json(), bool(frame.flags & wire.FAILED))

    def _take_of_chunk(self, frame: wire.Frame) -> None:
        with self._lock:
            chunk = self._chunks[0] if self._chunks else None
        if chunk is None or frame.id != chunk.id_:
            raise ProtocolError(f"a {frame.name} frame that was not asked for")
        if frame.type == wire.DATA:
            block, _ = wire.block_of(frame)
            end = frame.offset + len(block)
            if frame.offset < chunk.offset or end > chunk.offset + chunk.length:
                raise ProtocolError("a block outside of its chunk")
            chunk.send(frame.type, frame.id, frame.offset, frame.payload, frame.flags)
            return
        with self._lock:
            self._chunks.popleft()
        chunk.send(frame.type, frame.id, frame.offset, bytes(frame.payload), frame.flags)

    def _take_pack(self, frame: wire.Frame) -> None:
        with self._lock:
            values, done = self._packs.pop(frame.id, (None, None))
        if values is None or done is None:
            raise ProtocolError("a PACK frame that was not asked for")
        rows, bodies = wire.unpack_payload(frame.payload)
        if not isinstance(rows, list) or len(rows) != len(values):
            raise ProtocolError("a pack of other files than were asked for")
        entries.check_sizes(values, rows, len(bodies))
        done(rows, [bytes(bodies)])
