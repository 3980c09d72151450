"""frame_server.py: what each frame makes the back end do, and the frames that answer.

Read next: pscp/endpoint/serving/frame_server.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import session, wire
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving.frame_server import FrameServer

ENTRY = tree.Entry(tree.FILE, 0, "file", 10, 0o644, 1, 1, {})
KNOWN = source.SourceFile(0, "file", 10, 1, 1)
FAILURE = {"kind": "system", "path": "file", "message": "full", "errno": 28}


class Recorder:
    """Notes the calls of its methods, whatever they are."""

    def __init__(self, calls: list[Any], methods: tuple[str, ...]) -> None:
        self._calls, self._methods = calls, methods

    def __getattr__(self, name: str) -> Any:
        if name not in self._methods:
            raise AttributeError(name)
        return lambda *args: self._calls.append((name, *map(plain, args)))


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


class End:
    """An end that is the sink or the source of a copy, or neither."""

    def __init__(self, calls: list[Any]) -> None:
        self._sink = Recorder(calls, ("know", "forget", "write", "abandon", "place"))
        self._source = Recorder(calls, ("know", "forget"))
        self.sink: Recorder | None = None
        self.source: Recorder | None = None

    def be(self, role: str) -> None:
        self.sink = self._sink if role == "sink" else None
        self.source = self._source if role == "source" else None

    def the_sink(self) -> Recorder:
        assert self.sink is not None
        return self.sink

    def the_source(self) -> Recorder:
        assert self.source is not None
        return self.source


class Channel:
    """A FrameServer whose back end notes what it is to do, and whose answers are kept."""

    def __init__(self, role: str) -> None:
        self.calls: list[Any] = []
        self.sent: list[wire.Frame] = []
        self.end = End(self.calls)
        back_end: Any = Recorder(self.calls, ("answer", "send_chunk", "complete", "land_pack"))
        back_end.end = self.end
        self.server = FrameServer(session.AGENT, back_end, self._send)
        self.server.hello({})
        del self.sent[:]
        if role != "ready":
            self.end.be(role)
            self.server.follow_role()

    def _send(self, type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        self.sent.append(wire.Frame(type_, flags, id_, offset, memoryview(payload)))

    def came(self, *frames: bytes) -> bool:
        self.server.decoder.feed(b"".join(frames))
        return self.server.take_all()


LENGTH = wire.COUNT.pack(10)
CHECK = wire.check_of(b"the digest")
PACKED = wire.pack_payload([[ENTRY, [10, "ab"]]], [b"0123456789"])


@pytest.mark.parametrize(
    ("role", "frame", "call"),
    [
        ("ready", wire.frame(wire.ASK, requests.to_json(requests.Ping()), 7),
         ("answer", 7, requests.Ping())),
        ("sink", wire.frame(wire.FILE, wire.to_json(ENTRY), 7), ("know", 7, ENTRY)),
        ("sink", wire.frame(wire.FILE, b"", 7), ("forget", 7)),
        ("sink", wire.frame(wire.DATA, b"block", 7, 3), ("write", 7, 3, b"block", b"")),
        ("sink", wire.frame(wire.DATA, b"block" + CHECK, 7, 3, wire.CHECKED),
         ("write", 7, 3, b"block", CHECK)),
        ("sink", wire.frame(wire.DIGEST, LENGTH + b"xy", 7, 3), ("complete", 7, 3, 10, b"xy")),
        ("sink", wire.frame(wire.DIGEST, LENGTH + b"{}", 7, 3, wire.FAILED), ("abandon",)),
        ("sink", wire.frame(wire.PACK, PACKED, 7),
         ("land_pack", 7, [ENTRY], [[10, "ab"]], b"0123456789")),
        ("source", wire.frame(wire.FILE, wire.to_json(KNOWN), 7),
         ("know", 7, source.entry_of(KNOWN))),
        ("source", wire.frame(wire.FILE, b"", 7), ("forget", 7)),
        ("source", wire.frame(wire.GET, LENGTH, 7, 3), ("send_chunk", 7, 3, 10)),
    ],
)  # fmt: skip
def test_each_frame_makes_one_call(role: str, frame: bytes, call: tuple[Any, ...]) -> None:
    channel = Channel(role)
    assert channel.came(frame) is True
    assert (channel.calls, channel.sent) == ([call], [])


def test_frames_are_taken_in_order_and_none_before_it_is_whole() -> None:
    channel = Channel("sink")
    first, second = (wire.frame(wire.DATA, block, 7) for block in (b"one", b"two"))
    assert channel.came(first, second[:-1]) is True
    assert channel.calls == [("write", 7, 0, b"one", b"")]
    assert channel.came() is False
    assert channel.came(second[-1:]) is True
    assert channel.calls[1:] == [("write", 7, 0, b"two", b"")]


def test_a_frame_of_another_state_does_nothing() -> None:
    channel = Channel("source")
    with pytest.raises(wire.WireError, match="a DATA frame in state source"):
        channel.came(wire.frame(wire.DATA, b"block", 7))
    assert channel.calls == []


@pytest.mark.parametrize("role", ["sink", "source"])
def test_the_session_follows_the_end(role: str) -> None:
    channel = Channel(role)
    assert channel.server.session.state == role
    assert (channel.server.decoder.place is not None) == (role == "sink")
    channel.end.be("neither")
    channel.server.follow_role()
    assert (channel.server.session.state, channel.server.decoder.place) == ("ready", None)


def test_an_answer_that_no_frame_has_room_for_is_a_failure() -> None:
    channel = Channel("source")
    channel.server.reply(7, ["x" * wire.MAX_PAYLOAD_BYTES])
    [sent] = channel.sent
    assert (sent.type, sent.id, sent.flags) == (wire.REPLY, 7, wire.FAILED)
    assert b"more names than an answer has room for" in bytes(sent.payload)


def test_no_frame_may_come_before_the_hello() -> None:
    server = FrameServer(session.AGENT, Recorder([], ()), lambda *frame: None)
    server.decoder.feed(wire.frame(wire.ASK, requests.to_json(requests.Ping())))
    with pytest.raises(wire.WireError, match=r"an? ASK frame in state new"):
        server.take_all()


@pytest.mark.parametrize(
    ("matches", "failure", "flags", "rest"),
    [
        (True, None, 0, b""),
        (False, None, wire.MISMATCH, b""),
        (True, FAILURE, wire.FAILED, wire.to_json(FAILURE)),
        (False, FAILURE, wire.FAILED, wire.to_json(FAILURE)),
    ],
)
def test_a_chunk_is_acknowledged(matches: bool, failure: Any, flags: int, rest: bytes) -> None:
    channel = Channel("sink")
    channel.server.acknowledge(7, 3, 10, receipt=42, matches=matches, failure=failure)
    payload = memoryview(wire.LANDED.pack(10, 42) + rest)
    assert channel.sent == [wire.Frame(wire.ACK, flags, 7, 3, payload)]


def test_requests_are_answered() -> None:
    channel = Channel("source")
    channel.server.reply(7, [1])
    channel.server.reply(8, FAILURE, True)
    channel.server.reply_with_pack(9, [[1, "ab"]], [b"x"])
    reply, failed, pack = channel.sent
    assert (reply.type, reply.id, reply.flags, reply.json()) == (wire.REPLY, 7, 0, [1])
    assert (failed.id, failed.flags, failed.json()) == (8, wire.FAILED, FAILURE)
    rows, bodies = wire.unpack_payload(pack.payload)
    assert (pack.type, pack.id, rows, bytes(bodies)) == (wire.PACK, 9, [[1, "ab"]], b"x")


def test_a_file_of_a_source_that_there_is_not_is_refused() -> None:
    """It was an IndexError, which ended the agent with a traceback."""
    rules = tree.Rules(False, True, False, False, ())
    top = source.Top("file", "/nowhere/file", False)
    of = source.Source([top], rules, "sha256", 1 << 16, False)
    of.know(1, source.entry_of(KNOWN._replace(top=1)))
    with pytest.raises(wire.WireError, match="of a source that there is not"):
        of.send_chunk(1, 0, 10, lambda *args: None)
    for asked in (of.place, lambda value: of.extents(value, 0), lambda value: of.pack([value])):
        with pytest.raises(wire.WireError, match="of a source that there is not"):
            asked(source.entry_of(KNOWN._replace(top=1)))
