"""An extent that is read over SFTP: in order, whole, whatever order the server answers in."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pscp.sftp.protocol import packets
from pscp.sftp.protocol.files import Reading
from pscp.sftp.protocol.packets import SftpError
from pscp.sftp.protocol.tasks import Budget, Future, start

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
