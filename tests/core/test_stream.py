"""A stream whose lanes fail at each of its steps, pushed into a file and pulled out of one.

Both ends are real (pscp.stream.pipe, pscp.endpoint.streams.stream_server), with two lanes: the
first is the gatherer's own, the other is handed over to it. All bytes arrive, or run() raises and
no file has the name; it always ends.

Not here: commands at the far end (../e2e/test_streams.py), agents and clients that are killed
(../faults/test_streams_lost.py), the tables of states (../unit/test_states.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.link import (
    CALL,
    CUT,
    FLIP,
    FROM,
    HOLD,
    KILL,
    LATE,
    NONSENSE,
    NONSENSES,
    PAYLOADS,
    STALL,
    TO,
    TWICE,
    Bench,
    Fault,
    asking,
    at_steps,
)
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.paths import is_pscps_own
from pscp.endpoint.serving import agent
from pscp.endpoint.streams import stream as endpoint_stream
from pscp.endpoint.streams import stream_process, stream_server
from pscp.ground import errors
from pscp.options.options import ROWS
from pscp.stream import pipe, stream
from pscp.stream.pipe import Target
from pscp.stream.stream import Stream
from pscp.transfer.lanes import in_flight, lane_context

KIB = 1024
SLOT_BYTES = 32 * KIB
DATA = random.Random(1).randbytes(3 * SLOT_BYTES + 7)
WINDOW_BYTES = 12 * SLOT_BYTES  # a pull asks for all of it at once, whatever the stream's length,
LANE_BYTES = 2 * SLOT_BYTES  # over several lanes, as this is less
HELD_S = 1.0  # after which a frame that stands still goes on: far more than another lane takes
QUESTIONS = {TO: 2, FROM: 3}  # frames of the first connection before it is a lane, HELLO included
BOTH = pytest.mark.parametrize("way", [TO, FROM])
EACH_LANE = pytest.mark.parametrize("lane", [0, 1], ids=["gatherer", "guest"])


class NoKeeper:
    """In a Keeper's place: this process has threads, and nobody kills it."""

    def __init__(self, kept_fd: int, orphaned: Callable[[], None]) -> None:
        pass

    def let_go(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Chunks are small, and a far end without lanes waits for them for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (endpoint_stream, pipe, stream):
            patch.setattr(module, "SLOT_BYTES", SLOT_BYTES)
        name, default, row = ROWS["window_bytes"]
        patch.setitem(ROWS, name, (name, default, row._replace(check=None)))
        patch.setattr(in_flight, "LEAST_BYTES", LANE_BYTES)
        patch.setattr(lane_context, "LEAST_BYTES", LANE_BYTES)
        patch.setattr(endpoint_stream, "_GATHER_MS", 1)
        patch.setattr(endpoint_stream, "_STOP_MS", 5)
        patch.setattr(stream_server, "PATIENCE_S", 0.03)
        patch.setattr(stream_server, "GRACE_S", 1.0)
        patch.setattr(in_flight, "_OVERDUE_S", 0.03)
        patch.setattr(stream_process, "Keeper", NoKeeper)
        # What an agent closes are pytest's own descriptors here.
        patch.setattr(agent.Pipes, "hang_up", lambda _: None)
        yield


class Streams:
    """Streams between two files, and what must have become of them."""

    def __init__(self, folder: Path) -> None:
        self.source, self.to = folder / "source", folder / "to"
        self.send(DATA)
        self.bench = Bench()  # of the last stream

    def send(self, data: bytes) -> None:
        """Have this be the stream."""
        self.data = data
        self.source.write_bytes(data)

    def run(self, is_push: bool, *faults: Fault, connections: int = 2) -> int:
        """Move the stream; returns the far end's exit status. Raises what run() raises."""
        self.bench = bench = Bench(*faults)
        try:
            return bench.ends(lambda: self._move(bench, is_push, connections), HELD_S)
        finally:
            bench.close()

    def _move(self, bench: Bench, is_push: bool, connections: int) -> int:
        far = self.to if is_push else self.source
        with bench.session(
            connections=connections, block_bytes=SLOT_BYTES, window_bytes=WINDOW_BYTES
        ) as session:
            one = Stream(
                session.connections, session.options, is_push=is_push, target=Target(path=str(far))
            )
            bench.call = lambda: one.cut_short()
            flags = os.O_RDONLY if is_push else os.O_WRONLY | os.O_CREAT | os.O_EXCL
            fd = os.open(self.source if is_push else self.to, flags, 0o600)
            try:
                return one.run(fd)
            finally:
                os.close(fd)

    def assert_arrived(self) -> None:
        assert self.to.read_bytes() == self.data
        self.assert_no_parts()

    def assert_not_taken_for_whole(self, is_push: bool) -> None:
        """At the far end only what is whole has the name; here a part may have come out."""
        if self.to.exists():
            arrived = self.to.read_bytes()
            assert arrived == self.data if is_push else self.data.startswith(arrived)
        self.assert_no_parts()

    def assert_no_parts(self) -> None:
        left = [name for name in os.listdir(self.to.parent) if is_pscps_own(os.fsencode(name))]
        assert not left

    def clear(self) -> None:
        self.to.unlink(missing_ok=True)

    def assert_arrives(self, is_push: bool, *faults: Fault, connections: int = 2) -> None:
        self.clear()
        assert self.run(is_push, *faults, connections=connections) == 0, faults
        self.assert_arrived()

    def assert_arrives_or_fails(self, is_push: bool, *faults: Fault) -> None:
        """Whatever comes of it, nobody is told that all is well when it is not."""
        self.clear()
        try:
            assert self.run(is_push, *faults) == 0, faults
        except errors.PscpError as error:
            assert str(error), faults
            self.assert_not_taken_for_whole(is_push)
        else:
            self.assert_arrived()


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    return Streams(tmp_path)


def has_guest(is_push: bool) -> Fault:
    """Return a fault by which the gatherer's own lane is slow, so that the other one has work."""
    return Fault(0, TO if is_push else FROM, 0, LATE, 0, wire.DATA)


def each_frame(
    streams: Streams, is_push: bool, lane: int, way: str, do: str, step: int = 1
) -> Iterator[list[Fault]]:
    """Yield the faults for each frame of a lane of an undisturbed stream, the first questions not.

    With a step only for every second, third... of them.

    Who asks how often what was written or said depends on the time: some may not come.
    """
    others = [has_guest(is_push)] if lane else []
    for _ in range(20):  # until the guest has come in time
        streams.assert_arrives(is_push, *others)
        if lane < len(streams.bench.links):
            break
    first = 1 if lane else QUESTIONS[way]
    for nth in range(first, streams.bench.links[lane].carried[way], step):
        yield [Fault(lane, way, nth, do, nth), *others]


def test_nothing_happens_to_it(streams: Streams, is_push: bool) -> None:
    for connections in (1, 2, 3):
        streams.assert_arrives(is_push, connections=connections)


@pytest.mark.parametrize(
    ("lane", "way", "do"),
    [
        (0, TO, KILL), (0, TO, CUT), (0, TO, LATE), (0, FROM, KILL), (0, FROM, LATE),
        (1, TO, KILL), (1, FROM, KILL),
    ],
)  # fmt: skip
def test_a_lane_is_lost_or_late_at_each_frame(
    streams: Streams, is_push: bool, lane: int, way: str, do: str
) -> None:
    """All arrives, be it the gatherer's own lane (0) or one that was handed over to it (1)."""
    for faults in each_frame(streams, is_push, lane, way, do):
        streams.assert_arrives(is_push, *faults)


@BOTH
def test_its_only_lane_is_lost_at_each_frame(streams: Streams, is_push: bool, way: str) -> None:
    for faults in each_frame(streams, is_push, 0, way, KILL):
        streams.assert_arrives(is_push, *faults, connections=1)


def test_its_connections_are_lost_again_and_again(streams: Streams, is_push: bool) -> None:
    """More often than a lane may fail to connect: each of them had done some work."""
    streams.send(8 * DATA)
    done = wire.ACK if is_push else wire.DIGEST
    faults = [Fault(number, FROM, 1, KILL, 0, done) for number in range(8)]
    streams.assert_arrives(is_push, *faults, connections=1)
    assert len(streams.bench.links) == 9


@EACH_LANE
@BOTH
@pytest.mark.parametrize("do", [TWICE, FLIP])
def test_a_frame_comes_twice_or_damaged(
    streams: Streams, is_push: bool, lane: int, way: str, do: str
) -> None:
    for faults in each_frame(streams, is_push, lane, way, do, step=3):
        streams.assert_arrives_or_fails(is_push, *faults)


@EACH_LANE
def test_a_lane_is_answered_with_nonsense(streams: Streams, is_push: bool, lane: int) -> None:
    for fault, *others in each_frame(streams, is_push, lane, FROM, NONSENSE):
        for at in range(fault.nth % 11, NONSENSES, 11):
            streams.assert_arrives_or_fails(is_push, fault._replace(at=at), *others)


def test_the_end_of_the_next_chunk_is_no_answer_for_one(streams: Streams) -> None:
    """A chunk that had not come was taken for one that had, and the stream never ended."""
    others = sorted(wire.NAMES.keys() - {wire.DIGEST, wire.TICK})
    is_data = len(PAYLOADS) + others.index(wire.DATA)
    for nth in range(-(-len(DATA) // SLOT_BYTES) + 1):
        fault = Fault(0, FROM, nth, NONSENSE, is_data, wire.DIGEST)
        streams.assert_arrives_or_fails(False, fault)


STEPS = {
    "push": [
        (TO, wire.ASK, asking(requests.BeginStream)), (TO, wire.DATA, ""), (TO, wire.DIGEST, ""),
        (TO, wire.ASK, asking(requests.AwaitOutput)), (TO, wire.ASK, asking(requests.CloseInput)),
        (FROM, wire.ACK, ""), (FROM, wire.REPLY, '"status":null'), (FROM, wire.REPLY, '"status":0'),
    ],
    "pull": [
        (TO, wire.ASK, asking(requests.BeginStream)), (TO, wire.GET, ""),
        (TO, wire.ASK, asking(requests.AwaitOutput)), (FROM, wire.DATA, ""),
        (FROM, wire.DIGEST, ""),
        (FROM, wire.REPLY, '"status":0'),
    ],
}  # fmt: skip


@at_steps({name: found[::2] for name, found in STEPS.items()})
def test_a_path_stands_still(streams: Streams, is_push: bool, step: tuple[str, int, str]) -> None:
    """It is given up after a while of silence."""
    way, type_, contains = step
    streams.assert_arrives(is_push, Fault(0, way, 0, STALL, 0, type_, contains), connections=1)


@at_steps(STEPS)
def test_one_frame_stands_still(
    streams: Streams, is_push: bool, step: tuple[str, int, str]
) -> None:
    """Another lane does its work, or it comes late."""
    way, type_, contains = step
    streams.assert_arrives(is_push, Fault(0, way, 0, HOLD, 0, type_, contains))


@BOTH
def test_it_is_cut_short_at_each_frame(streams: Streams, is_push: bool, way: str) -> None:
    """By this end: what is over by then stays so, and everything else is no whole stream."""
    for faults in each_frame(streams, is_push, 0, way, CALL):
        streams.assert_arrives_or_fails(is_push, *faults)
