"""SFTP's client: packets, extents that are read, its loop, and the far end's hash programs.

Not here: the source end (test_sftp_source.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable
from hypothesis import given
from hypothesis import strategies as st

from pscp.sftp.protocol import packets
from pscp.sftp.protocol.event_loop import Loop, ReadBuffer
from pscp.sftp.protocol.files import Reading
from pscp.sftp.protocol.packets import Attrs, BadPacket, Cursor, Decoder, SftpError
from pscp.sftp.protocol.remote_hash import COMMAND, TOOLS, Program
from pscp.sftp.protocol.tasks import Budget, Future, start

# --- packets


U32 = st.integers(0, 0xFFFFFFFF)
ATTRS = st.builds(
    lambda size, owner, mode, times: Attrs(size, owner[0], owner[1], mode, times[0], times[1]),
    st.none() | st.integers(0, 2**64 - 1),
    st.just((None, None)) | st.tuples(U32, U32),
    st.none() | st.integers(0, 0o7777),
    st.just((None, None)) | st.tuples(U32, U32),
)


@given(ATTRS)
def test_attributes_are_read_as_they_were_packed(value: Attrs) -> None:
    cursor = Cursor(memoryview(packets.attrs(value)))
    assert cursor.attrs() == value
    assert cursor.is_over


def test_times_that_sftp_cannot_tell_are_bounded() -> None:
    packed = packets.attrs(Attrs(atime=-5, mtime=1 << 40))
    assert Cursor(memoryview(packed)).attrs() == Attrs(atime=0, mtime=0xFFFFFFFF)


@given(st.lists(st.tuples(U32, st.binary(max_size=300)), max_size=8), st.data())
def test_packets_are_found_however_they_are_cut(
    sent: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(packets.packet(packets.STATUS, id_, payload) for id_, payload in sent)
    decoder, found = Decoder(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        space = decoder.space()
        space[:count], stream = stream[:count], stream[count:]
        decoder.filled(count)
        while (answer := decoder.next()) is not None:
            found.append((answer.id, bytes(answer.payload)))
    assert found == sent


def test_a_length_beyond_bounds_is_refused_at_once() -> None:
    decoder = Decoder()
    head = struct.pack(">IBI", packets.MAX_PACKET_BYTES + 1, packets.DATA, 1)
    decoder.space()[: len(head)] = head
    decoder.filled(len(head))
    with pytest.raises(BadPacket):
        decoder.next()


def test_a_name_count_beyond_bounds_is_refused() -> None:
    with pytest.raises(BadPacket):
        list(packets.names(memoryview(struct.pack(">I", 1 << 31))))


# --- an extent that is read


STEP = 10


class MadeUp:
    """Stands in for the Client: answers what is waiting when it is told to."""

    def __init__(self, data: bytes, budget: int) -> None:
        self.data, self.read_bytes = data, STEP
        self.reading = Budget(budget)
        self.waiting: list[tuple[int, int, Any]] = []
        self.most = 0

    def read(self, handle: bytes, offset: int, length: int, landed: Any) -> None:
        self.waiting.append((offset, length, landed))
        self.most = max(self.most, sum(each[1] for each in self.waiting))

    def answer(self, place: int, at_most: int) -> None:
        offset, length, landed = self.waiting.pop(place)
        found = self.data[offset : offset + min(length, at_most)]
        if found:
            landed(memoryview(found), None)
        else:
            landed(None, SftpError(packets.EOF))


def read_through(client: MadeUp, length: int, draw: Any, gate: Any = None) -> tuple[bytes, int]:
    got: list[bytes] = []
    made_up: Any = client
    reading = Reading(
        made_up, b"", 0, length, lambda v: got.append(bytes(v)), budget=client.reading, gate=gate
    )
    task = start(reading.run())
    while client.waiting:
        if gate is not None and not gate.done() and draw(st.booleans()):
            gate.set_result(None)
        place = draw(st.integers(0, len(client.waiting) - 1))
        client.answer(place, draw(st.integers(1, STEP)))
    if gate is not None and not gate.done():
        assert got == []
        gate.set_result(None)
        while client.waiting:
            client.answer(0, STEP)
    return b"".join(got), task.result()


@given(st.binary(max_size=200), st.integers(0, 250), st.integers(STEP, 60), st.data())
def test_the_bytes_come_in_order_and_whole(
    data: bytes, length: int, budget: int, draws: st.DataObject
) -> None:
    client = MadeUp(data, budget)
    got, count = read_through(client, length, draws.draw)
    assert got == data[:length]
    assert count == len(got)
    assert client.most <= budget
    assert client.reading._left == budget  # all of it was given back


@given(st.binary(min_size=1, max_size=100), st.data())
def test_nothing_is_handed_on_before_its_turn(data: bytes, draws: st.DataObject) -> None:
    client = MadeUp(data, 1000)
    gate: Future[None] = Future()
    got, _ = read_through(client, len(data), draws.draw, gate)
    assert got == data


# --- the loop, on pipes


class Room:
    """A decoder that keeps what came."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(64))
        self.count = 0

    def space(self) -> memoryview:
        return self._room

    def filled(self, count: int) -> None:
        self.count += count


def test_what_is_removed_by_what_was_read_before_it_is_not_read() -> None:
    """A hash program is ended, with its digests waiting, once the server's bytes prove it wrong."""
    loop, rooms = Loop(), (Room(), Room())
    pipes = [os.pipe(), os.pipe()]

    def end_the_other(mine: int) -> None:
        fd = pipes[1 - mine][0]
        loop.remove(fd)
        os.close(fd)

    for place, (read_fd, write_fd) in enumerate(pipes):

        def take(mine: int = place) -> None:
            end_the_other(mine)

        loop.ins.append(ReadBuffer(read_fd, rooms[place], take))
        os.write(write_fd, b"both are readable at once")
    loop.run_until(lambda: any(room.count for room in rooms))
    assert sorted(room.count > 0 for room in rooms) == [False, True]
    left = next(pipe for pipe, room in zip(pipes, rooms, strict=True) if room.count)
    for fd in (*left, *(write_fd for _, write_fd in pipes if write_fd not in left)):
        os.close(fd)


# --- hash programs by a loop of sh: right digests for any name, and no name is run


ODD = (
    "a b", "new\nline", "tab\t", "back\\slash", "quote'", 'double"', "$(touch EVIL)",
    "`touch EVIL`", "; touch EVIL", "%41", "=x", "*", "-n", "\udcff\udcfe", "e\u0301",
    "trailing\n", "~", "#",
)  # fmt: skip


class Running:
    def __init__(self, argv: list[str]) -> None:
        self.loop = Loop()
        self.program = Program(argv, self.loop)
        self.loop.before_wait = self._before_wait
        self.wait(self.program.ready)

    def _before_wait(self) -> None:
        self.program.flush()
        self.program.check()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.close()

    def wait(self, *promises: Future[Any]) -> None:
        self.loop.run_until(lambda: all(each.done() for each in promises))


@pytest.fixture
def running(login_shell: str) -> Iterator[Running]:
    with Running([login_shell, "-c", COMMAND]) as made:
        yield made


def algorithm_of(running: Running) -> str:
    found = next(iter(running.program.tools), "")
    if not found:
        pytest.skip("no hash program is installed")
    return found


def expected(algorithm: str, data: bytes) -> bytes:
    if algorithm == "sha256":
        return hashlib.sha256(data).digest()
    if algorithm == "blake2b":
        return hashlib.blake2b(data, digest_size=32).digest()
    import xxhash

    return bytes(xxhash.xxh3_128(data).digest())


def test_many_small_files_take_few_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were asked for while the run before was at work go into one."""
    runs, programs = tmp_path / "runs", tmp_path / "programs"
    programs.mkdir()
    for name in {name for name, _ in TOOLS}:
        if real := shutil.which(name):
            counted = f'#!/bin/sh\necho >>{runs}\nexec {real} "$@"\n'
            (programs / name).write_text(counted)
            (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with Running(["sh", "-c", COMMAND]) as running:
        algorithm, asked = algorithm_of(running), []
        runs.unlink()  # of the trial
        for number in range(100):
            (tmp_path / f"a name {number}").write_bytes(b"%d" % number)
            path = os.fsencode(tmp_path / f"a name {number}")
            asked.append(running.program.of_file(algorithm, path))
            running.program.flush()
        running.wait(*asked)
    found = [each.result() for each in asked]
    assert found == [expected(algorithm, b"%d" % number) for number in range(100)]
    assert len(runs.read_text().splitlines()) == 3  # of 1, 64 and 35


def test_files_of_any_name_are_hashed_and_nothing_is_run(running: Running, tmp_path: Path) -> None:
    algorithm = algorithm_of(running)
    contents = {name: os.urandom(100 + place) for place, name in enumerate(ODD)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    asked = {
        name: running.program.of_file(algorithm, os.fsencode(tmp_path / name)) for name in contents
    }
    missing = running.program.of_file(algorithm, os.fsencode(tmp_path / "missing"))
    running.wait(*asked.values(), missing)
    assert {name: each.result() for name, each in asked.items()} == {
        name: expected(algorithm, data) for name, data in contents.items()
    }
    assert missing.result() is None
    assert sorted(os.listdir(tmp_path)) == sorted(contents)


def test_extents_are_hashed(running: Running, tmp_path: Path) -> None:
    algorithm, data = algorithm_of(running), os.urandom(5000)
    path = tmp_path / "odd 'one'"
    path.write_bytes(data)
    for offset, length in ((0, 5000), (4096, 904), (512, 1024), (7, 3000), (3, 1)):
        found = running.program.of_extent(algorithm, os.fsencode(path), offset, length)
        running.wait(found)
        assert found.result() == expected(algorithm, data[offset : offset + length])


@pytest.mark.parametrize(("tool", "algorithm"), [each for each in TOOLS if each[0] != "sha256"])
def test_each_program_tells_what_we_would(
    tool: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But BSD's sha256, which no Linux has."""
    (tmp_path / "bin").mkdir()
    for name in (tool, "sh", "dd", "head", "tail"):
        found = shutil.which(name) or unavailable(f"{name} is not installed")
        (tmp_path / "bin" / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    data = os.urandom(5000)
    (tmp_path / "file").write_bytes(data)
    path = os.fsencode(tmp_path / "file")
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        assert {name: made[1] for name, made in running.program.tools.items()} == {algorithm: tool}
        asked = [running.program.of_file(algorithm, path) for _ in range(2)]
        of_extent = running.program.of_extent(algorithm, path, 512, 1024)
        running.wait(*asked, of_extent)
        assert [each.result() for each in asked] == 2 * [expected(algorithm, data)]
        assert of_extent.result() == expected(algorithm, data[512 : 512 + 1024])


def test_one_that_ends_leaves_nobody_waiting(tmp_path: Path) -> None:
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        algorithm = algorithm_of(running)
        running.program._child.kill()
        found = running.program.of_file(algorithm, b"/etc/passwd")
        running.wait(found)
        assert found.result() is None


def test_one_that_stands_still_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(["/bin/sh", "-c", COMMAND]) as running:
        for name, value in (("_SILENT_S", 0.2), ("_END_S", 0.1)):
            monkeypatch.setattr(f"pscp.sftp.protocol.remote_hash.{name}", value)
        os.kill(running.program._child.pid, signal.SIGSTOP)
        found = running.program.of_extent(algorithm_of(running), b"/etc/passwd", 0, 100)
        running.loop.call_later(0.3, lambda: None)  # as a lane's program looks from time to time
        running.wait(found)
        assert found.result() is None


@pytest.mark.parametrize("argv", [["false"], ["cat"], ["/nonexistent-program"]])
def test_what_is_no_such_loop_offers_nothing(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pscp.sftp.protocol.remote_hash._PATIENCE_S", 0.2)
    if shutil.which(argv[0]) is None:
        argv = ["sh", "-c", "exec " + argv[0]]
    with Running(argv) as running:
        assert running.program.tools == {}


def test_the_command_has_no_text_that_a_login_shell_would_change() -> None:
    inner = COMMAND.removeprefix("exec sh -c '").removesuffix("'")
    assert not set(inner) & set("'!\\\n")
    assert subprocess.run(["sh", "-n", "-c", inner], check=False).returncode == 0


def test_an_error_of_the_program_itself_takes_little_room() -> None:
    """Its standard error is a pipe of 64 KiB, which is read once it has ended."""
    code = (
        "from pscp.sftp import agent\n"
        "def run(*of): again(*of)\n"
        "def again(*of): run(*of)\n"
        "agent.SftpAgent.run = run\n"
        'agent.main(\'{"fds": [0, 1], "verify": "auto", "program": []}\')'
    )
    argv = [sys.executable, "-c", code]
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    assert ran.returncode == 1 and len(ran.stderr) < 4096
    assert ran.stderr.decode().splitlines()[-1].startswith("RecursionError: ")
