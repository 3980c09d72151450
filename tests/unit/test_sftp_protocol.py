"""SFTP's client: packets, extents that are read, and the loop of a lane's program.

Not here: hash programs (test_sftp_remote_hash.py), the source end (test_sftp_source.py).
"""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.sftp.protocol import packets
from pscp.sftp.protocol.event_loop import Loop, ReadBuffer
from pscp.sftp.protocol.files import Reading
from pscp.sftp.protocol.packets import Attrs, BadPacket, Cursor, Decoder, SftpError
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
