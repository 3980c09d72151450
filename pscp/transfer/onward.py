"""The near end of a lane whose data goes from the source's host to the sink's (--direct), and the
connections of a copy from host to host, for as long as it takes.

The agent of the source's host is asked for each chunk and pack. It sends them to the sink's agent,
and tells here the digests and what could not be read.

Not here: a lane whose data passes through here (lanes/relay.py), the way to the sink's agent
(../connect/onward.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Connections
from pscp.connect.one_host import OneHost
from pscp.connect.onward import OnwardChannel, OnwardOpener
from pscp.endpoint.asking import requests
from pscp.endpoint.asking.answers import Reply
from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading.source import listed
from pscp.endpoint.serving import onward
from pscp.ground.errors import ProtocolError
from pscp.ground.locations import Location
from pscp.transfer.far_hosts import connections_to
from pscp.transfer.lanes.lane_context import Lost
from pscp.transfer.lanes.relay import FarSource, Packed, RelayEnd
from pscp.transfer.pieces.answers import as_copy_error
from pscp.transfer.pieces.plan import Pack
from pscp.transfer.terms.copy_terms import CopyRequest
from pscp.transports import Channel


@contextlib.contextmanager
def with_far_source(request: CopyRequest) -> Iterator[CopyRequest]:
    """Yield the request with the connections to the source's host, if neither end is here."""
    source, sink = request.froms[0], request.to
    if not (source.is_remote and sink.is_remote):
        yield request
        return
    far_source: FarSource
    if request.options.direct:
        far_source = direct = DirectSource(request.connections, request.options)
        request = dataclasses.replace(request, connections=direct.onward(source, sink))
    else:
        far_source = FarSource(connections_to(source), request.options)
    is_cut = True
    try:
        yield dataclasses.replace(request, far_source=far_source)
        is_cut = False
    finally:
        if request.options.direct:
            request.connections.close(is_cut=is_cut)
        far_source.close(is_cut=is_cut)


class DirectSource(FarSource):
    """The host of the source, where that connects to the sink's host itself."""

    def onward(self, source: Location, sink: Location) -> Connections:
        """Return the connections to the sink's host, of which none is made yet."""
        made = OneHost(sink, OnwardOpener(self.connect, source, sink))
        made.keeps = False
        return made

    def near_end(self, lost: Lost, far: Channel) -> RelayEnd:
        assert isinstance(far, OnwardChannel)
        return OnwardEnd(far, lost)


class OnwardEnd(RelayEnd):
    """A source at another host, which sends to the sink by itself.

    The lane's sending thread asks; the channel's thread takes the answers.
    """

    is_onward = True

    def __init__(self, channel: OnwardChannel, lost: Lost) -> None:
        super().__init__(_no_connection, lost)
        self._onward = channel

    def begin(self, request: requests.Begin) -> None:
        """Have the agent be the source; what it cannot begin ends the lane."""

        def begun(answer: object, is_failed: bool) -> None:
            if is_failed:
                self._lost(as_copy_error(failures.parse_failure(answer)))

        self.answer(request, begun)

    def cut(self) -> None:
        self._onward.end()

    def close(self) -> None:
        self._onward.close()

    def send_chunk(self, id_: int, offset: int, length: int, send: wire.Send) -> None:
        """Have a chunk go to the sink; `send` gets its DIGEST frame alone."""

        def passed(answer: object, is_failed: bool) -> None:
            if is_failed or not isinstance(answer, list):
                raise ProtocolError("a chunk that did not go to the sink")
            flags, digest = answer
            send(wire.DIGEST, id_, offset, bytes.fromhex(digest), flags)

        self.answer(onward.PassChunk(id_, offset, length), passed)

    def pack(self, number: int, pack: Pack, done: Packed, take: Callable[[object], object]) -> None:
        """Have small files go to the sink, as a frame with this number; `take` gets their rows."""
        files = [listed(file) for file in pack.files]

        def passed(rows: object, is_failed: bool) -> None:
            if is_failed or not isinstance(rows, list) or len(rows) != len(files):
                raise ProtocolError("a pack of other files than were asked for")
            take(rows)

        placed = [item.entry for item in pack.items]
        self.answer(onward.PassPack(number, files, placed), passed)

    def answer(self, request: requests.Request, reply: Reply) -> None:
        self._onward.ask(request, reply)

    def _send(self, type_: int, id_: int, offset: int, payload: bytes) -> None:
        self._onward.send(type_, id_, payload)


def _no_connection(opened: object, is_over: object) -> RemoteAgent:
    raise AssertionError("the channel has the connection")
