"""endpoint/streams: a stream cut at one end and put in order at the other, however it arrives.

Not here: commands at the far end (../e2e/test_streams.py), lanes (../core/test_stream.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, hashes, system, wire
from pscp.endpoint.streams import stream, stream_process, stream_server
from pscp.endpoint.streams.stream import SLOT_BYTES, Cutter, PipeSink, PipeSource, Reorder
from pscp.progress.progress import LiveCounters
from pscp.stream.pipe import Pull
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces.plan import Chunk

SENT_S = 20.0  # for what takes a moment
BLOCK_BYTES = 256 * 1024
HASH = "sha256"

Sent = tuple[int, int, int, bytes, int]  # as a frame: type, id, offset, payload, flags


class Frames(list[Sent]):
    """What a PipeSource sends."""

    def send(
        self, type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
    ) -> None:
        assert not isinstance(payload, system.Block)  # a stream is no file
        lies = payload.view if isinstance(payload, system.Lent) else payload
        self.append((type_, id_, offset, bytes(lies), flags))


class Pipe:
    """A pipe, with one end for the test."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)

    def end(self) -> None:
        os.close(self.write_fd)


@pytest.fixture(scope="module", autouse=True)
def quick_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_GATHER_MS", 1)
        yield


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@contextlib.contextmanager
def running(run: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(SENT_S)
        assert not thread.is_alive()


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


def read(fd: int, into: list[bytes]) -> None:
    while data := os.read(fd, 1 << 20):
        into.append(data)


def digest(data: bytes) -> bytes:
    hasher = hashes.new(HASH)
    hasher.update(data)
    return bytes(hasher.digest())


def deliver(sink: PipeSink, number: int, data: bytes, block: int = BLOCK_BYTES) -> bool:
    """One chunk, in blocks; does it match its digest?"""
    offset = number * SLOT_BYTES
    for begin in range(0, len(data), block):
        piece = data[begin : begin + block]
        sink.write(1, offset + begin, memoryview(piece))
    return sink.complete(1, offset, len(data), digest(data))[0]


# --- Cutter


@given(pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=6))
def test_a_chunk_is_what_came_until_now(pieces: list[bytes]) -> None:
    """It waits for no more than the producer has to say, and nothing but the end ends it."""
    pipe = Pipe()
    cutter = Cutter(pipe.read_fd)
    for number, piece in enumerate(pieces):
        os.write(pipe.write_fd, piece)
        assert cutter.cut() == len(piece)
        assert cutter.end is None
        assert bytes(cutter.get(number)) == piece
    pipe.end()
    assert cutter.cut() == 0
    assert cutter.end == len(pieces)
    pipe.close()


def test_a_producer_that_never_pauses_and_never_fills_a_chunk(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte every moment: what came is sent, although more comes all the time."""
    monkeypatch.setattr(stream, "_GATHER_MS", 1000)
    cutter, cut = Cutter(pipe.read_fd), threading.Event()

    def trickle() -> None:
        for _ in range(4000):
            os.write(pipe.write_fd, b"x")
            if cut.wait(0.0002):
                break

    with running(trickle):
        length = cutter.cut()
        was_early = not cut.is_set() and length < 4000
        cut.set()
    assert was_early


def test_stop_is_no_end(pipe: Pipe) -> None:
    """Neither for who waits for input, nor for who waits for a chunk, and ever after."""
    cutter = Cutter(pipe.read_fd)
    os.write(pipe.write_fd, b"some")
    assert cutter.cut() == 4
    raised: list[BaseException] = []

    def wait_for(call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            raised.append(error)

    with running(lambda: wait_for(cutter.cut)), running(lambda: wait_for(lambda: cutter.get(1))):
        cutter.stop()
    assert len(raised) == 2
    assert cutter.end is None
    pipe.end()
    wait_for(cutter.cut)
    wait_for(lambda: cutter.get(1))
    assert len(raised) == 4 and cutter.end is None


def test_input_that_cannot_be_read_is_no_end(tmp_path: object) -> None:
    fd = os.open(str(tmp_path), os.O_RDONLY)
    cutter = Cutter(fd)
    cutter.want(0)
    cutter.run()
    os.close(fd)
    assert cutter.error is not None and cutter.end is None
    with pytest.raises(OSError, match="Is a directory"):
        cutter.get(0)


@given(order=st.permutations(range(6)), below=st.integers(0, 8))
def test_what_has_landed_is_held_no_more(order: list[int], below: int) -> None:
    pipe = Pipe()
    cutter = Cutter(pipe.read_fd)
    for number in range(6):
        os.write(pipe.write_fd, b"%d" % number)
        cutter.cut()
    cutter.drop_below(below)
    for number in order:
        if number < below:
            with pytest.raises(OSError, match="landed"):
                cutter.get(number)
        else:
            assert bytes(cutter.get(number)) == b"%d" % number
            cutter.drop(number)
            cutter.drop(number)  # a second time does no harm
    pipe.close()


def test_lanes_that_say_at_once_what_has_landed(pipe: Pipe) -> None:
    """None of it is forgotten, or it would be held for ever."""
    cutter = Cutter(pipe.read_fd)
    for _ in range(400):
        os.write(pipe.write_fd, b"x")
        assert cutter.cut() == 1

    def drop() -> None:
        for number in range(401):
            cutter.drop_below(number)

    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(running(drop))
    for number in range(400):
        with pytest.raises(OSError, match="landed"):
            cutter.get(number)


# --- PipeSource


@pytest.mark.parametrize("why", ["stopped", "landed"])
def test_a_source_that_has_no_such_chunk_says_that_it_failed(pipe: Pipe, why: str) -> None:
    """It is not the end of the stream, and it ends no lane."""
    os.write(pipe.write_fd, b"x")
    cutter, frames = Cutter(pipe.read_fd), Frames()
    cutter.cut()
    if why == "landed":
        cutter.drop(0)
    else:
        cutter.stop()
    place = 0 if why == "landed" else 1
    source = PipeSource(cutter, HASH, 4096)
    source.send_chunk(7, place * SLOT_BYTES, SLOT_BYTES, frames.send)
    [(type_, _, offset, _, flags)] = frames
    assert (type_, offset, flags) == (wire.DIGEST, place * SLOT_BYTES, wire.FAILED)


# --- Reorder and PipeSink


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[int, list[bytes], list[int]]:
    """A window, chunks, and an order in which they may come: twice now and then."""
    window = draw(st.integers(1, 6))
    chunks = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=15))
    order: list[int] = []
    missing = list(range(len(chunks)))
    while missing:
        ahead = [number for number in missing if number < missing[0] + window]
        order.append(draw(st.sampled_from(ahead)))
        missing.remove(order[-1])
        if draw(st.booleans()):
            order.append(draw(st.sampled_from(order)))
    return window, chunks, order


class Written:
    """Counts what a Reorder wrote."""

    def __init__(self) -> None:
        self.changed, self.count = threading.Condition(), 0

    def __call__(self) -> None:
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, SENT_S)


@given(arrivals(), st.integers(1, 50), st.integers(1, 3), st.booleans())
def test_the_bytes_come_out_in_order(
    arrived: tuple[int, list[bytes], list[int]], block: int, lanes: int, end_first: bool
) -> None:
    """Whatever the order, the lanes, the blocks and the window; a chunk twice counts once."""
    window, chunks, order = arrived
    pipe, written = Pipe(), Written()
    reorder = Reorder(pipe.write_fd, window)
    sinks = [PipeSink(reorder, HASH) for _ in range(lanes)]
    seen: set[int] = set()

    def end() -> None:
        assert deliver(sinks[0], len(chunks), b"")

    with running(lambda: reorder.run(written)):
        if end_first and len(chunks) < window:
            end()
        for turn, number in enumerate(order):
            first_missing = next(n for n in range(len(chunks) + 1) if n not in seen)
            written.wait(min(first_missing, len(chunks)))  # as a sender waits, who knows the window
            assert deliver(sinks[turn % lanes], number, chunks[number], block)
            seen.add(number)
        written.wait(len(chunks))
        end()
    assert reorder.is_complete and reorder.written == len(chunks)
    assert reorder.arrived_bytes == sum(map(len, chunks))
    pipe.end()
    out: list[bytes] = []
    read(pipe.read_fd, out)
    assert b"".join(out) == b"".join(chunks)
    pipe.close()


def test_stop_while_nobody_reads(pipe: Pipe) -> None:
    """All has arrived, the end as well: but not all was written."""
    fcntl.fcntl(pipe.write_fd, 1031, 4096)  # F_SETPIPE_SZ
    os.set_blocking(pipe.write_fd, False)
    reorder = Reorder(pipe.write_fd, 4)
    sink = PipeSink(reorder, HASH)
    assert deliver(sink, 0, bytes(100_000)) and deliver(sink, 1, b"")
    with running(reorder.run):
        assert os.read(pipe.read_fd, 1) == b"\0"  # it has begun
        reorder.stop()
    assert not reorder.is_complete


def test_a_descriptor_that_does_not_block(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    reorder = Reorder(pipe.write_fd, 4)
    out: list[bytes] = []
    sink, data = PipeSink(reorder, HASH), os.urandom(3 * SLOT_BYTES)
    for number in range(3):
        assert deliver(sink, number, data[number * SLOT_BYTES :][:SLOT_BYTES])
    assert deliver(sink, 3, b"")

    def run() -> None:
        reorder.run()
        pipe.end()

    with running(run), running(lambda: read(pipe.read_fd, out)):
        pass
    assert b"".join(out) == data


@pytest.mark.parametrize("window", [1, 2, 7])
def test_a_chunk_beyond_the_window_is_refused(pipe: Pipe, window: int) -> None:
    reorder = Reorder(pipe.write_fd, window)
    sink = PipeSink(reorder, HASH)
    assert deliver(sink, window - 1, b"x")
    for data in (b"x", b""):
        with pytest.raises(wire.WireError, match="beyond the window"):
            deliver(PipeSink(reorder, HASH), window, data)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_a_damaged_chunk_is_refused_and_may_come_again(data: bytes, draw: st.DataObject) -> None:
    place, bit = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 7))
    damaged = bytearray(data)
    damaged[place] ^= 1 << bit
    reorder = Reorder(os.open(os.devnull, os.O_WRONLY), 4)
    sink = PipeSink(reorder, HASH)
    sink.write(1, 0, memoryview(bytes(damaged)))
    assert sink.complete(1, 0, len(data), digest(data)) == (False, 0, None)
    assert not reorder._waiting and reorder.arrived_bytes == 0
    assert deliver(sink, 0, data)
    assert reorder.arrived_bytes == len(data)
    os.close(reorder.fd)


def test_a_digest_of_nothing_with_another_digest_is_no_end(pipe: Pipe) -> None:
    reorder = Reorder(pipe.write_fd, 4)
    sink = PipeSink(reorder, HASH)
    assert not sink.complete(1, 0, 0, digest(b"x"))[0]
    assert reorder.end is None


MISPLACED = {
    "not at its slot's beginning": [(5, b"x")],
    "over its slot's end": [(0, bytes(SLOT_BYTES)), (SLOT_BYTES, b"x")],
    "with a gap": [(0, b"x"), (2, b"x")],
    "backwards": [(0, b"xx"), (1, b"x")],
    "empty": [(0, b"")],
}


@pytest.mark.parametrize("case", MISPLACED)
def test_a_block_outside_of_its_place_is_refused(pipe: Pipe, case: str) -> None:
    reorder = Reorder(pipe.write_fd, 4)
    sink = PipeSink(reorder, HASH)
    *before, (offset, block) = MISPLACED[case]
    for begin, data in before:
        sink.write(1, begin, memoryview(data))
    with pytest.raises(wire.WireError, match=r"block|chunk"):
        sink.write(1, offset, memoryview(block))
    assert not reorder._waiting


@pytest.mark.parametrize("data", [b"som", b""], ids=["other bytes", "nothing"])
def test_a_digest_for_other_bytes_than_came_is_refused(pipe: Pipe, data: bytes) -> None:
    reorder = Reorder(pipe.write_fd, 4)
    sink = PipeSink(reorder, HASH)
    sink.write(1, 0, memoryview(b"some"))
    with pytest.raises(wire.WireError, match="digest"):
        sink.complete(1, 0, len(data), digest(data))
    assert reorder.end is None


@pytest.mark.parametrize("has_come", [True, False])
def test_a_chunk_that_had_come_when_its_lane_was_lost(pipe: Pipe, has_come: bool) -> None:
    """It is asked for again, and the far end has it no more: that is no failure."""
    counters = LiveCounters()
    reorder = Reorder(pipe.write_fd, 4)
    pull = Pull(reorder, WorkQueue(is_stream=True), 4, counters, lambda place, text: None)
    _, sink = reorder.lane(requests.BeginStream("", HASH, 4096, ""))
    assert sink is not None
    if has_come:
        assert deliver(sink, 0, b"x")
    pull.failed(Chunk(pull, 0, SLOT_BYTES), failures.data(failures.SYSTEM, "", "gone"))
    assert (pull._error is None) is has_come
    assert counters.bytes_done == int(has_come)


def test_buffers_are_used_again(pipe: Pipe) -> None:
    """As many as the window holds, however long the stream is."""
    written = Written()
    reorder = Reorder(pipe.write_fd, 3)
    sink = PipeSink(reorder, HASH)
    with running(lambda: reorder.run(written)):
        for number in range(50):
            assert deliver(sink, number, b"x")
            written.wait(number + 1)
        reorder.stop()
    assert len(reorder.room._free) <= 3


def test_a_stream_that_cannot_begin_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where nothing can connect to it any more."""

    def fail(self: stream_server.Gathering, *given: object) -> None:
        os.unlink(self.path)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(stream_server.Gathering, "_open_program", fail)
    request = requests.Gather(True, 8, "true", None, "")
    with pytest.raises(OSError, match="Too many"):
        stream_server.Gathering(request, 0o022, lambda *given: None)
    assert os.listdir(tmp_path) == []


def test_a_gatherer_ends_though_its_command_removed_the_socket() -> None:
    """Whoever ends last removes it: this process, or what keeps the command's input open."""
    listening = stream_server._Listening()
    thread = threading.Thread(target=listening.accept)
    thread.start()
    listening.remove()
    listening.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_file_that_has_ended_may_be_ended_again(tmp_path: Path, is_whole: bool) -> None:
    """The agent ends it once more when it leaves, and its folder's number may be another's then."""
    (tmp_path / "file").write_bytes(b"before")
    program = stream_process.ToFile(str(tmp_path / "file"), 0o022, lambda: None)
    os.write(program.fd, b"after")
    if is_whole:
        program.close_input()
    program.close()
    program.kill()
    assert program.wait() == (0 if is_whole else 1)
    assert (tmp_path / "file").read_bytes() == (b"after" if is_whole else b"before")
    assert os.listdir(tmp_path) == ["file"]
