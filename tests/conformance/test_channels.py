"""What a lane may rely on, whatever the way to the far end: one suite for all of them.

Not here: the remote command alone (tests/unit/test_remote_command.py), whole copies (tests/e2e).
Read next: ways_there.py.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
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
    AgentFailed,
    ConnectError,
    ConnectionLost,
    NoAgent,
    NoPython,
    ProtocolError,
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


def next_frame(far: RemoteAgent) -> wire.Frame:
    """The next frame that is no sign of life, with a payload of its own."""
    while True:
        frame = far.receive()
        if frame is None:
            raise far.explain()
        if frame.type != wire.TICK:
            return frame._replace(payload=memoryview(bytes(frame.payload)))


def begin(far: RemoteAgent, request: requests.Request, event: str) -> None:
    assert far.ask(request) == (None, False)
    far.session.advance(event)


# --- the beginning


def test_a_copy_each_way_comes_through_after_a_banner(start: Start, tmp_path: Path) -> None:
    """Nothing of the banner is taken for a frame; then frames of each kind arrive."""
    shown: list[str] = []
    banner = "printf 'Welcome\\nto the host\\n'; echo 'to people' >&2; "
    far = start(before=banner, notice=shown.append)
    assert "Welcome\nto the host" in shown and "to people" in shown
    assert far.hello["python"] == ".".join(map(str, sys.version_info[:3]))
    assert far.hashes.keys() >= {"sha256", "blake2b"} and far.session.state == "ready"
    assert_answered(far, tmp_path)
    assert_pushed(far, tmp_path)
    assert far.ask(requests.End()) == (None, False)
    far.session.advance(session.END)
    assert_pulled(far, tmp_path)
    far.close()  # start() does it again


def assert_answered(far: RemoteAgent, folder: Path) -> None:
    (folder / "there").touch()
    asked = [str(folder / "there"), str(folder / "not there")]
    answer: Any
    answer, failed = far.ask(requests.Expand(asked, glob=True))
    assert not failed
    assert answer[0] == [["there", asked[0], False]]
    assert answer[1]["kind"] == "destination" and answer[1]["path"] == asked[1]
    (folder / "there").unlink()


def assert_pushed(far: RemoteAgent, root: Path) -> None:
    """Two chunks, the last one first, become a file."""
    claimed = {"held": "", "earlier": list[str]()}
    assert far.ask(requests.Claim(str(root), TOKEN, NONCE, [])) == (claimed, False)
    sink = sink_request(str(root), TOKEN, OPTIONS, ALGORITHM, NONCE)._replace(lane=1)
    begin(far, sink, session.BEGIN_SINK)
    entry = tree.Entry(tree.FILE, 0, "file", len(CONTENT), 0o640, 1, 1, {})
    far.send(wire.FILE, 5, 0, wire.to_json(entry))
    receipts = set()
    for offset, data in ((8192, CONTENT[8192:]), (0, CONTENT[:8192])):
        for at in range(0, len(data), OPTIONS.block_bytes):
            far.send(wire.DATA, 5, offset + at, data[at : at + OPTIONS.block_bytes])
        far.send(wire.DIGEST, 5, offset, wire.COUNT.pack(len(data)) + digest(data))
        ack = next_frame(far)
        length, receipt = wire.LANDED.unpack(ack.payload)
        assert (ack.type, ack.flags, ack.id) == (wire.ACK, 0, 5)
        assert (ack.offset, length) == (offset, len(data))
        receipts.add(receipt)
    [part] = root.glob("*.pscp-part")
    assert receipts == {part.stat().st_ino} and part.read_bytes() == CONTENT
    far.send(wire.FILE, 5)
    assert far.ask(requests.Finish(entry, "", part.stat().st_ino)) == (None, False)
    assert far.ask(requests.Release()) == (None, False)
    assert os.listdir(root) == ["file"] and (root / "file").read_bytes() == CONTENT


def assert_pulled(far: RemoteAgent, folder: Path) -> None:
    """A chunk of the file comes with its digest."""
    file = folder / "file"
    tops = [source.Top(file.name, str(file), False)]
    begin(far, source_request(tops, OPTIONS, ALGORITHM), session.BEGIN_SOURCE)
    known = source.SourceFile(0, file.name, *files.identity(file.stat()))
    far.send(wire.FILE, 3, 0, wire.to_json(known))
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
    assert error_instead(open_channel, "exit 97") is NoPython


@ONE_WAY
def test_each_status_has_its_meaning(open_channel: Open) -> None:
    assert error_instead(open_channel, "exit 98") is NoPython
    banner = "echo 'Jobs: Out of memory, Resource temporarily unavailable' >&2"
    for instead in (
        "exit 0",
        "exit 1",
        "echo why >&2; exit 3",
        "/no/such/shell",
        "exit 200",
        f"{banner}; exit 1",
        f"{banner}; echo no >&2; exit 126",
    ):
        assert error_instead(open_channel, instead) is NoAgent
    for instead in ("exit 137", "echo 'sh: Cannot allocate memory' >&2; exit 126"):
        assert error_instead(open_channel, instead) is AgentFailed
    begun = "echo pscp-agent; "  # which is said where there is a python3
    assert error_instead(open_channel, f"{begun}exit 98") is NoPython
    for instead in ("exit 1", "echo MemoryError >&2; exit 1", "echo noise; exit 0"):
        assert error_instead(open_channel, begun + instead) is AgentFailed


def error_instead(open_channel: Open, instead: str) -> type[ConnectError]:
    """Return what comes of this command in the place of an agent; it is told to people."""
    with pytest.raises(ConnectError) as caught:
        RemoteAgent(open_channel(instead))
    assert caught.value.hint and "\n" not in caught.value.message
    return type(caught.value)


@ONE_WAY
def test_what_cannot_be_shown_ends_the_channel(open_channel: Open) -> None:
    def notice(text: str) -> None:
        raise LookupError(text)

    channel = open_channel("echo before >&2; echo why >&2; exit 3")
    with pytest.raises(LookupError, match="before"):
        RemoteAgent(channel, notice)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(channel.read_fd)


# --- the end


def test_a_frame_that_is_not_allowed_ends_the_agent_which_says_why(start: Start) -> None:
    far = start()
    far.send(wire.GET, 1, 0, wire.COUNT.pack(1))
    with pytest.raises(ProtocolError, match="a GET frame in state ready"):  # over the lane itself
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
    """And seen before anybody reads."""
    far = start()
    assert not far.is_closed()
    far.channel.end()
    poll = select.poll()
    poll.register(far.channel.read_fd, 0)
    assert poll.poll(ENDING_MS)
    assert far.is_closed() and far.receive() is None
    with pytest.raises(ConnectionLost):
        for _ in range(100):  # more than the pipe holds, should it still be open
            far.send(wire.FILE, 1, 0, bytes(wire.MAX_PAYLOAD_BYTES))
