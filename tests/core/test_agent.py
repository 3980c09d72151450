"""One agent, spoken to frame by frame: what it answers, and what ends it
(pscp.endpoint.serving.agent).

Not here: what its sink does with a chunk (test_sink.py), agents in a copy (test_lane.py), a source
that lacks a file (test_file_job.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving import agent
from pscp.endpoint.there import leftovers, lookup
from pscp.endpoint.writing import fence

ENDING_S = 10.0
TOKEN, NONCE = "0" * 8, "1" * 8
BEGIN_SOURCE = requests.BeginSource(
    [], tree.Rules(False, True, False, False, ()), "sha256", 1 << 16, False, False
)
ENTRY = tree.Entry(tree.FILE, 0, "large", 10, 0o644, 10**18, 1, {})


class Talk:
    """A coordinator's side of a channel to an agent in a thread."""

    def __init__(self) -> None:
        self._socket, far = socket.socketpair()
        self._decoder = wire.Decoder()
        self.ended: list[BaseException | None] = []  # what ended the agent; None: end of input

        def serve() -> None:
            with far:
                try:
                    agent.Agent(agent.Pipes(far.fileno(), far.fileno())).run()
                    self.ended.append(None)
                except (wire.WireError, OSError) as error:
                    self.ended.append(error)

        self._thread = threading.Thread(target=serve, name="agent", daemon=True)
        self._thread.start()

    def greet(self) -> None:
        """Take the HELLO."""
        hello = self.receive()
        assert hello is not None and hello.type == wire.HELLO

    def send(self, type_: int, payload: bytes = b"", id_: int = 0, offset: int = 0) -> None:
        self.raw(wire.frame(type_, payload, id_, offset))

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, request: requests.Request, id_: int = 0) -> Any:
        """The answer; fails for a failure."""
        self.send(wire.ASK, requests.to_json(request), id_)
        frame = self.receive()
        assert frame is not None and (frame.type, frame.id, frame.flags) == (wire.REPLY, id_, 0)
        return frame.json()

    def receive(self) -> wire.Frame | None:
        """The next frame but ticks; None at the end."""
        while True:
            while (frame := self._decoder.next()) is None:
                count = self._socket.recv_into(self._decoder.space())
                if not count:
                    return None
                self._decoder.filled(count)
            if frame.type != wire.TICK:
                return frame

    def end(self) -> BaseException | None:
        """End the agent's input, if it has not ended itself; return what ended it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        while self.receive() is not None:
            pass
        self._thread.join(ENDING_S)
        self._socket.close()
        return self.ended[0]


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    yield made
    if not made.ended:
        made.end()
    made._socket.close()


def sink_of(root: Path) -> requests.BeginSink:
    return requests.BeginSink(
        root=str(root), token=TOKEN, nonce=NONCE, earlier=[], hash="sha256", strong=False,
        preserve=False, archive=False, test=False, server={}, lane=1,
    )  # fmt: skip


def make_sink(talk: Talk, root: Path) -> None:
    """Have the agent be the sink of a copy that its run owns."""
    talk.greet()
    talk.ask(requests.Claim(str(root), TOKEN, NONCE, []))
    talk.ask(sink_of(root))


def test_it_ticks_while_nothing_is_asked(talk: Talk) -> None:
    talk.greet()
    data = b""
    while len(data) < wire.HEADER.size:
        data += talk._socket.recv(wire.HEADER.size)
    assert wire.HEADER.unpack(data)[0] == wire.TICK


@pytest.mark.parametrize(
    "raw",
    [
        bytes(wire.HEADER.size),
        b"\xff" * 64,
        wire.frame(wire.ASK, b"{"),
        wire.frame(wire.ASK, b"{}"),
        wire.frame(wire.ASK, b'{"ask":"Nothing"}'),
        wire.frame(wire.ASK, b'{"ask":"Ping","more":1}'),
        wire.frame(wire.ASK, requests.to_json(requests.Ping()))[:-1] + b"x",
    ],
    ids=["zeros", "ones", "no JSON", "nothing", "unknown", "more", "damaged"],
)
def test_what_is_no_question_ends_it(talk: Talk, raw: bytes) -> None:
    talk.raw(raw)
    assert isinstance(talk.end(), wire.WireError)


@pytest.mark.parametrize("role", ["sink", "source", "neither"])
@pytest.mark.parametrize(
    "request_",
    [
        lookup.Lookup(["file"]),
        requests.Finish(ENTRY, "", 1),
        requests.Release(),
        requests.Walk(None, True, 1),
        requests.Pack([source.listed(ENTRY)]),
        requests.Digests([(source.listed(ENTRY), [])], "sha256"),
        requests.AwaitOutput([], False),
        requests.Abort(),
        leftovers.Clean(None, False),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_to_another_role_breaks_the_protocol(
    talk: Talk, tmp_path: Path, role: str, request_: requests.Request
) -> None:
    if type(request_) in {
        "sink": (*requests.OF_SINK, lookup.Lookup),
        "source": requests.OF_SOURCE,
    }.get(role, ()):
        return
    if role == "sink":
        make_sink(talk, tmp_path)
    else:
        talk.greet()
        if role == "source":
            talk.ask(BEGIN_SOURCE)
    talk.send(wire.ASK, requests.to_json(request_), 7)
    error = talk.end()
    assert isinstance(error, wire.WireError)
    assert "which this end is not" in str(error)


def as_sink(type_: int, payload: bytes = b"", id_: int = 1, offset: int = 0) -> Callable[..., None]:
    return lambda talk: talk.send(type_, payload, id_, offset)


def announced(size: int) -> Callable[[Talk], None]:
    return lambda talk: talk.send(wire.FILE, wire.to_json(ENTRY._replace(size=size)), 1)


DIGEST = wire.COUNT.pack(10) + bytes(32)


@pytest.mark.parametrize(
    "sent",
    [
        [as_sink(wire.DATA, b"x" * 10)],
        [announced(10), as_sink(wire.DATA, b"")],
        [announced(10), as_sink(wire.DATA, b"x" * 11)],
        [announced(10), as_sink(wire.DATA, b"x" * 5, 1, 6)],
        [announced(10), as_sink(wire.DATA, b"x" * 5), as_sink(wire.DATA, b"x" * 5)],
        [announced(10), as_sink(wire.DIGEST, DIGEST)],
        [announced(10), as_sink(wire.DATA, b"x" * 5), as_sink(wire.DIGEST, DIGEST)],
        [announced(10), as_sink(wire.DATA, b"x" * 10), as_sink(wire.DIGEST, DIGEST, 2)],
        [as_sink(wire.FILE, b'["file"]')],
        [as_sink(wire.PACK, b"")],
        [as_sink(wire.PACK, wire.pack_payload([[7, 7]], []))],
        [as_sink(wire.GET, wire.COUNT.pack(1))],
        [as_sink(wire.ACK)],
    ],
    ids=[
        "not announced", "no bytes", "beyond its file", "beyond its end", "twice", "no chunk",
        "half a chunk", "of another file", "no entry", "no pack", "a strange pack", "a request",
        "an answer",
    ],
)  # fmt: skip
def test_a_sink_that_is_sent_what_cannot_be_ends_and_leaves_nothing(
    talk: Talk, tmp_path: Path, sent: list[Callable[[Talk], None]]
) -> None:
    make_sink(talk, tmp_path)
    for each in sent:
        each(talk)
    assert isinstance(talk.end(), wire.WireError)
    assert [path.name for path in tmp_path.iterdir()] == [fence.fence_name(TOKEN).decode()]


def test_a_failure_is_an_answer(talk: Talk, tmp_path: Path) -> None:
    """With its kind and path; the agent goes on."""
    talk.greet()
    talk.send(wire.ASK, requests.to_json(sink_of(tmp_path / "nowhere")), 5)
    frame = talk.receive()
    assert frame is not None and (frame.type, frame.id, frame.flags) == (wire.REPLY, 5, wire.FAILED)
    assert failures.parse_failure(frame.json())["message"]
    talk.ask(requests.Ping())
    assert talk.end() is None
