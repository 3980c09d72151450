"""What a lane may rely on, whatever the way to the far end: one suite for all of them.

Not here: the remote command alone (tests/unit/test_remote_command.py), whole copies (tests/e2e).
Read next: ways_there.py.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import started_processes
from ways_there import WAYS, Open, opener

from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes, session, wire
from pscp.endpoint.reading import files, source, tree
from pscp.ground.errors import (
    ConnectError,
    ConnectionLost,
    NoAgent,
    NoPython,
    ProtocolError,
    PscpError,
)
from pscp.options.options import Options
from pscp.transfer.begin_requests import sink_request, source_request
from pscp.transports.remote_command import command

OPTIONS = Options(block_bytes=4096)
ALGORITHM = "sha256"
TOKEN, NONCE = "01234567", "89abcdef"
CONTENT = os.urandom(10_000)  # three blocks
ENDING_MS = 10_000

Start = Callable[..., RemoteAgent]
# What an agent answers is the same over each way once frames of each kind come through.
ONE_WAY = pytest.mark.parametrize("open_channel", ["local"], indirect=True)


@pytest.fixture(params=WAYS)
def open_channel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Open:
    return opener(request.param, request, tmp_path_factory.mktemp("way"))


@pytest.fixture
def start(open_channel: Open) -> Iterator[Start]:
    """start(before="echo hello; ", notice=function): an agent that runs; ended after the test."""
    with ExitStack() as stack:

        def begin(before: str = "", notice: Callable[[str], None] | None = None) -> RemoteAgent:
            far = RemoteAgent(open_channel(before + command()), notice)
            stack.callback(far.close)
            return far

        yield begin


def digest(data: bytes) -> bytes:
    hasher = hashes.new(ALGORITHM)
    hasher.update(data)
    return bytes(hasher.digest())


def a_sink(root: Path) -> requests.BeginSink:
    """The request that makes a far end the sink of the first lane of this run."""
    return sink_request(str(root), TOKEN, OPTIONS, ALGORITHM, NONCE)._replace(lane=1)


def claim(far: RemoteAgent, root: Path, nonce: str = NONCE, known: Sequence[str] = ()) -> Any:
    answer: Any
    answer, failed = far.ask(requests.Claim(str(root), TOKEN, nonce, list(known)))
    assert not failed
    return answer


def become_sink(far: RemoteAgent, root: Path) -> None:
    assert claim(far, root)["held"] == ""
    assert far.ask(a_sink(root)) == (None, False)
    far.session.advance(session.BEGIN_SINK)


def released(far: RemoteAgent, root: Path) -> list[str]:
    """The names in the root once the copy is complete."""
    assert far.ask(requests.Release()) == (None, False)
    return [path.name for path in root.iterdir()]


def become_source(far: RemoteAgent, file: Path) -> tree.Entry:
    top = source.Top(file.name, str(file), False)
    assert far.ask(source_request([top], OPTIONS, ALGORITHM)) == (None, False)
    far.session.advance(session.BEGIN_SOURCE)
    return source.entry_of(source.SourceFile(0, file.name, *files.identity(file.stat())))


def next_frame(far: RemoteAgent) -> wire.Frame:
    """The next frame that is no sign of life, with a payload of its own."""
    while True:
        frame = far.receive()
        if frame is None:
            raise far.explain()
        if frame.type != wire.TICK:
            return frame._replace(payload=memoryview(bytes(frame.payload)))


def push(far: RemoteAgent, id_: int, offset: int, data: bytes, sent_digest: bytes) -> wire.Frame:
    """Send a chunk; the agent's answer."""
    for begin in range(0, len(data), OPTIONS.block_bytes):
        block = data[begin : begin + OPTIONS.block_bytes]
        far.send(wire.DATA, id_, offset + begin, block)
    payload = wire.COUNT.pack(len(data)) + sent_digest
    far.send(wire.DIGEST, id_, offset, payload)
    return next_frame(far)


def an_entry(name: str = "file", size: int = len(CONTENT)) -> tree.Entry:
    return tree.Entry(tree.FILE, 0, name, size, 0o640, 1, 1, {})


# --- the beginning


def test_the_agent_says_hello_and_may_be_closed_twice(start: Start) -> None:
    far = start()
    assert far.hello["python"] == ".".join(map(str, sys.version_info[:3]))
    assert far.hashes.keys() >= {"sha256", "blake2b"}
    assert far.session.state == "ready"
    far.close()  # start() does it again


def test_a_question_is_answered(start: Start, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    far = start()
    asked = [str(tmp_path / "there"), str(tmp_path / "not there")]
    answer: Any
    answer, failed = far.ask(requests.Expand(asked, glob=True))
    assert not failed
    assert answer[0] == [["there", asked[0], False]]
    assert answer[1]["kind"] == "destination" and answer[1]["path"] == asked[1]


@ONE_WAY
def test_a_question_that_fails_is_answered_too(start: Start, tmp_path: Path) -> None:
    far = start()
    answer: Any
    answer, failed = far.ask(a_sink(tmp_path / "nowhere"))
    assert failed and answer["kind"] == "system"


def test_a_banner_is_skipped_and_shown(start: Start, tmp_path: Path) -> None:
    shown: list[str] = []
    banner = "printf 'Welcome\\nto the host\\n'; echo 'to people' >&2; "
    far = start(before=banner, notice=shown.append)
    assert "Welcome\nto the host" in shown and "to people" in shown
    become_sink(far, tmp_path)  # and nothing of it is taken for a frame


def test_a_banner_of_any_usual_size_is_skipped(start: Start) -> None:
    far = start(before="head -c 60000 /dev/zero | tr '\\0' x; ")
    assert "sha256" in far.hashes


def test_noise_without_an_end_is_no_agent(open_channel: Open) -> None:
    assert_quoted(open_channel, "yes noise")


@ONE_WAY
@pytest.mark.parametrize(
    "noise",
    ["head -c 70000 /dev/zero | tr '\\0' x", "echo This account is not available."],
    ids=["70 kB", "a line"],
)
def test_what_is_no_agent_is_an_error_that_quotes_it(open_channel: Open, noise: str) -> None:
    assert_quoted(open_channel, noise)


def assert_quoted(open_channel: Open, noise: str) -> None:
    with pytest.raises(NoAgent, match=r"it said: (n|x{9}|This account)") as caught:
        RemoteAgent(open_channel(noise))
    assert len(caught.value.message) < 1000


def test_a_command_that_ends_at_once_tells_why(open_channel: Open) -> None:
    for instead, error in (("exit 97", NoPython), ("echo why >&2; exit 3", NoAgent)):
        assert error_instead(open_channel, instead) is error


@ONE_WAY
def test_what_cannot_be_shown_ends_the_channel(open_channel: Open) -> None:
    def notice(text: str) -> None:
        raise LookupError(text)

    channel = open_channel("echo before >&2; echo why >&2; exit 3")
    with pytest.raises(LookupError, match="before"):
        RemoteAgent(channel, notice)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(channel.read_fd)


@ONE_WAY
def test_each_status_has_its_meaning(open_channel: Open) -> None:
    assert error_instead(open_channel, "exit 98") is NoPython
    for instead in ("exit 0", "exit 1", "/no/such/shell"):
        assert error_instead(open_channel, instead) is NoAgent


def error_instead(open_channel: Open, instead: str) -> type[ConnectError]:
    """Return what comes of this command in the place of an agent."""
    with pytest.raises(ConnectError) as caught:
        RemoteAgent(open_channel(instead))
    return type(caught.value)


# --- whose the copy is


@ONE_WAY
def test_a_run_that_is_not_known_holds_the_copy_until_it_is_named(
    start: Start, tmp_path: Path
) -> None:
    far = start()
    other = "11111111"
    assert claim(far, tmp_path) == {"held": "", "earlier": []}
    assert claim(far, tmp_path, other) == {"held": NONCE, "earlier": [NONCE]}
    assert claim(far, tmp_path, other, [NONCE]) == {"held": "", "earlier": [NONCE]}
    answer: Any
    answer, failed = far.ask(a_sink(tmp_path))
    assert failed and answer["kind"] == "superseded"


# --- push


def test_a_chunk_is_pushed_acknowledged_and_made_a_file(start: Start, tmp_path: Path) -> None:
    far = start()
    become_sink(far, tmp_path)
    far.send(wire.FILE, 5, 0, wire.to_json(an_entry()))
    acks = [push(far, 5, begin, CONTENT[begin:end], digest(CONTENT[begin:end]))
            for begin, end in ((8192, 10_000), (0, 8192))]  # fmt: skip
    [part] = tmp_path.glob("*.pscp-part")
    for ack, extent in zip(acks, [(8192, 1808), (0, 8192)], strict=True):
        assert (ack.type, ack.flags, ack.id) == (wire.ACK, 0, 5)
        length, receipt = wire.LANDED.unpack(ack.payload)
        assert (ack.offset, length) == extent
        assert receipt == part.stat().st_ino
    assert part.name.endswith(".pscp-part") and part.read_bytes() == CONTENT
    far.send(wire.FILE, 5)
    assert far.ask(requests.Finish(an_entry(), "", part.stat().st_ino)) == (None, False)
    assert released(far, tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == CONTENT


@ONE_WAY
def test_a_digest_that_does_not_match_is_a_mismatch_and_the_chunk_can_be_sent_again(
    start: Start, tmp_path: Path
) -> None:
    far = start()
    become_sink(far, tmp_path)
    far.send(wire.FILE, 1, 0, wire.to_json(an_entry()))
    damaged = CONTENT[:5000] + bytes([CONTENT[5000] ^ 1]) + CONTENT[5001:]
    ack = push(far, 1, 0, damaged, digest(CONTENT))
    assert (ack.type, ack.flags, ack.offset) == (wire.ACK, wire.MISMATCH, 0)
    assert wire.LANDED.unpack(ack.payload)[0] == len(CONTENT)
    assert push(far, 1, 0, CONTENT, digest(CONTENT)).flags == 0


@ONE_WAY
def test_a_chunk_that_cannot_be_written_is_refused_with_the_reason(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("not a folder")
    far = start()
    become_sink(far, tmp_path)
    far.send(wire.FILE, 1, 0, wire.to_json(an_entry("taken/file")))
    ack = push(far, 1, 0, CONTENT, digest(CONTENT))
    assert (ack.type, ack.flags) == (wire.ACK, wire.FAILED)
    failure: Any = ack._replace(payload=ack.payload[wire.LANDED.size :]).json()
    assert (failure["kind"], failure["path"]) == ("unsafe", "taken/file")


@ONE_WAY
def test_a_pack_is_answered_by_its_place(start: Start, tmp_path: Path) -> None:
    far = start()
    become_sink(far, tmp_path)
    bodies = [b"one", b"two!"]
    rows = [(len(body), digest(body).hex()) for body in bodies]
    names = ("good", "../bad")
    listed = [[an_entry(n, row[0]), row] for n, row in zip(names, rows, strict=True)]
    far.send(wire.PACK, 9, 0, wire.pack_payload(listed, bodies))
    reply = next_frame(far)
    answer: Any = reply.json()
    [[place, failure]] = answer
    assert (reply.type, reply.id, place, failure["kind"]) == (wire.REPLY, 9, 1, "unsafe")
    assert released(far, tmp_path) == ["good"]
    assert (tmp_path / "good").read_bytes() == b"one"


# --- pull


def test_a_chunk_is_pulled_with_its_digest(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    far = start()
    known = become_source(far, tmp_path / "file")
    far.send(wire.FILE, 3, 0, wire.to_json(source.listed(known)))
    far.send(wire.GET, 3, 1000, wire.COUNT.pack(9000))
    blocks, offset = b"", 1000
    while (frame := next_frame(far)).type == wire.DATA:
        assert (frame.id, frame.offset) == (3, offset + len(blocks))
        block, check = wire.block_of(frame)
        blocks += bytes(block)
        assert check in (b"", wire.check_of(digest(blocks)))  # SFTP has none
    assert blocks == CONTENT[1000:]
    assert (frame.type, frame.flags, frame.id, frame.offset) == (wire.DIGEST, 0, 3, 1000)
    assert wire.COUNT.unpack_from(frame.payload)[0] == 9000
    assert frame.payload[wire.COUNT.size :] == digest(blocks)


@ONE_WAY
def test_a_file_that_changed_is_a_digest_that_says_so(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    far = start()
    known = become_source(far, tmp_path / "file")
    os.truncate(tmp_path / "file", 5000)
    far.send(wire.FILE, 3, 0, wire.to_json(source.listed(known)))
    far.send(wire.GET, 3, 0, wire.COUNT.pack(len(CONTENT)))
    while (frame := next_frame(far)).type == wire.DATA:
        pass
    assert (frame.type, frame.flags) == (wire.DIGEST, wire.FAILED)
    failure: Any = frame._replace(payload=frame.payload[wire.COUNT.size :]).json()
    assert (failure["kind"], failure["path"]) == ("changed", "file")


# --- the end


def test_a_frame_that_is_not_allowed_ends_the_agent_which_says_why(start: Start) -> None:
    far = start()
    far.send(wire.GET, 1, 0, wire.COUNT.pack(1))
    with pytest.raises(ProtocolError, match="a GET frame in state ready"):  # over the lane itself
        far.receive()


@ONE_WAY
def test_what_the_agent_may_not_send_is_a_protocol_error(start: Start) -> None:
    far = start()
    far.session = session.Session(session.COORDINATOR)  # as if its HELLO were still to come
    far.send(wire.ASK, 0, 0, requests.to_json(requests.End()))
    with pytest.raises(ProtocolError, match="a REPLY frame in state new"):
        far.receive()


def agents() -> set[int]:
    """The agents that this run's tests have started, by their command lines."""
    found = set()
    for process in started_processes():
        try:
            argv = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[1:3] == [b"-IS", b"-c"]:
            found.add(process.pid)
    return found


def test_the_agent_ends_when_its_input_ends(start: Start) -> None:
    before = agents()
    far = start()
    [pid] = agents() - before
    ending = os.pidfd_open(pid)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, far.channel.write_fd)  # closes the pipe; the channel keeps its number
        assert far.receive() is None
        poll = select.poll()
        poll.register(ending, select.POLLIN)
        assert poll.poll(ENDING_MS), "the agent still runs"
    finally:
        os.close(ending)
        os.close(nothing)


def test_a_channel_that_is_ended_from_another_thread_ends_for_who_reads_it(start: Start) -> None:
    far = start()
    is_waiting = threading.Event()
    wait = far._wait

    def tell_and_wait() -> None:
        is_waiting.set()
        wait()

    far._wait = tell_and_wait  # type: ignore[method-assign]

    def end() -> None:
        is_waiting.wait()
        far.channel.end()
        far.channel.end()  # once more does no harm

    other = threading.Thread(target=end)
    other.start()
    try:
        assert far.receive() is None
    finally:
        is_waiting.set()
        other.join()
    assert isinstance(far.explain(), ConnectionLost)


def test_a_channel_that_has_ended_is_an_error_for_who_writes_it(start: Start) -> None:
    far = start()
    far.channel.end()
    assert far.receive() is None
    with pytest.raises(ConnectionLost):
        for _ in range(100):  # more than the pipe holds, should it still be open
            far.send(wire.FILE, 1, 0, bytes(wire.MAX_PAYLOAD_BYTES))


def test_a_lost_channel_is_seen_without_reading(start: Start) -> None:
    far = start()
    assert not far.is_closed()
    far.channel.end()
    poll = select.poll()
    poll.register(far.channel.read_fd, 0)
    assert poll.poll(ENDING_MS)
    assert far.is_closed()


@ONE_WAY
def test_errors_are_for_people(open_channel: Open) -> None:
    with pytest.raises(PscpError) as caught:
        RemoteAgent(open_channel("exit 97"))
    assert caught.value.hint and "\n" not in caught.value.message
