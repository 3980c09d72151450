"""The states of a lane, of a file's copy, and of a stream: the tables, and a lane's far end.

Not here: all of them at work (../core/test_lane.py, test_file_job.py, test_stream.py).
"""

from __future__ import annotations

import contextlib
import enum
import json
import queue as standard_queue
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import session, wire
from pscp.endpoint.reading import tree
from pscp.endpoint.streams.machine import Machine
from pscp.endpoint.streams.stream_states import (
    FAR,
    INPUT,
    OUTPUT,
    Far,
    FarEvent,
    Input,
    InputEvent,
    Output,
    OutputEvent,
)
from pscp.ground.errors import ConnectionLost, PscpError
from pscp.stream.states import PULL, PUSH, Near, NearEvent
from pscp.transfer.lanes import lane as lane_module
from pscp.transfer.lanes.in_flight import Window
from pscp.transfer.lanes.lane import Lane
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces.plan import Ask, Chunk, PlannedEntry
from pscp.transfer.pieces.states import FILE, LANE, File, FileEvent, LaneEvent
from pscp.transfer.pieces.states import Lane as State

WAIT_S = 20.0
Table = Mapping[Any, Mapping[Any, Any]]
# Each table with the state that it begins in, and the states of its enum that it does not have.
TABLES: dict[str, tuple[Table, enum.Enum, type[enum.Enum], set[enum.Enum]]] = {
    "lane": (LANE, State.OPENING, LaneEvent, set()),
    "file": (FILE, File.COPYING, FileEvent, set()),
    "input": (INPUT, Input.READING, InputEvent, set()),
    "output": (OUTPUT, Output.WRITING, OutputEvent, set()),
    "far": (FAR, Far.RUNNING, FarEvent, set()),
    "push": (PUSH, Near.MOVING, NearEvent, {Near.DELIVERED, Near.EXITED}),
    "pull": (PULL, Near.MOVING, NearEvent, {Near.LANDING, Near.CLOSING, Near.DEAF}),
}


def reached(table: Table, first: enum.Enum) -> set[enum.Enum]:
    """Return the states that events lead to from this one, itself included."""
    seen, found = {first}, [first]
    while found:
        new = set(table[found.pop()].values()) - seen
        seen |= new
        found += new
    return seen


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_only_events_of_the_table_may_come(name: str) -> None:
    table, first, events, others = TABLES[name]
    assert set(table) == set(type(first)) - others == reached(table, first)
    for state, row in table.items():
        for event in events:
            machine = Machine(table, state)
            with contextlib.nullcontext() if event in row else pytest.raises(RuntimeError):
                machine.on(event)
            assert machine.state is row.get(event, state)


def test_a_lane_may_break_and_be_closed_at_any_time() -> None:
    """Whatever its far end does: that is no bug here."""
    assert all({LaneEvent.BREAK, LaneEvent.CLOSE} <= set(row) for row in LANE.values())


# --- a lane


class FakeAgent:
    """A far end that says what the test puts into `inbox`; None: its channel ended."""

    def __init__(self) -> None:
        self.inbox: standard_queue.Queue[wire.Frame | None] = standard_queue.Queue()
        self.sent: standard_queue.Queue[tuple[int, int]] = standard_queue.Queue()
        self.decoder = SimpleNamespace(place=None)
        self.session = session.Session(session.COORDINATOR)
        self.session.advance(session.HELLO)
        self.channel = SimpleNamespace(end=lambda: self.inbox.put(None), control=None)

    def receive(self) -> wire.Frame | None:
        return self.inbox.get(timeout=WAIT_S)

    def send(self, type_: int, id_: int = 0, *rest: Any) -> None:
        self.sent.put((type_, id_))

    def explain(self) -> PscpError:
        return ConnectionLost("gone")

    def is_closed(self) -> bool:
        return False

    def reply(self, number: int) -> None:
        payload = memoryview(json.dumps("well").encode())
        self.inbox.put(wire.Frame(wire.REPLY, 0, number, 0, payload))

    def await_sent(self, type_: int, number: int) -> None:
        while self.sent.get(timeout=WAIT_S) != (type_, number):
            pass


class FakeSink:
    """A near end that takes what comes."""

    place = None

    def __init__(self) -> None:
        self.landed: list[int] = []  # offsets
        self.before_it_settles: Callable[[], None] = lambda: None

    def write(self, id_: int, offset: int, block: memoryview, check: bytes) -> None:
        self.landed.append(offset)

    def complete(self, *chunk: Any) -> tuple[bool, int, None]:
        return True, 0, None

    def abandon(self) -> None:
        self.before_it_settles()

    def know(self, *file: Any) -> None:
        pass


class Running:
    """A lane at work in a thread."""

    def __init__(self, is_push: bool = True) -> None:
        self.queue, self.agent, self.sink = WorkQueue(), FakeAgent(), FakeSink()
        near = SimpleNamespace(
            begin=lambda request: None, close=lambda: None, source=None,
            sink=None if is_push else self.sink, the_sink=lambda: self.sink,
        )  # fmt: skip
        pool: Any = SimpleNamespace(
            queue=self.queue, is_push=is_push, begin_near=requests.Ping(),
            begin_far=requests.Ping(), new_window=lambda: Window(1 << 40, 0.0),
            limiter=None, keeps=True, wants=None,
            new_end=lambda lost, far: near, next_number=lambda: 1,
        )  # fmt: skip
        agent: Any = self.agent
        self.lane = Lane("lane 1", pool, agent)
        self._thread = threading.Thread(target=self.lane.run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Its channel ends."""
        self.agent.inbox.put(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def test_a_goodbye_that_nobody_asked_for_is_none() -> None:
    running = Running()
    running.queue.add(Ask(False, requests.Ping(), lambda answer: None, lambda failure: None))
    running.agent.await_sent(wire.ASK, 1)
    for number in (lane_module._END, 1):
        running.agent.reply(number)
    assert running.queue.wait_until(running.queue.is_idle, WAIT_S)
    running.queue.close()
    running.agent.await_sent(wire.ASK, lane_module._END)
    running.wait()
    assert running.lane.share.has_worked and not running.lane.ended_well


def test_a_chunk_dropped_while_another_lane_finds_it_damaged_is_sent_again() -> None:
    """While the other lane says so, the chunk is over for a moment."""
    running, landed = Running(is_push=False), threading.Event()
    entry = tree.Entry(tree.FILE, 0, "file", 4, 0o644, 0, 1, {})
    job: Any = SimpleNamespace(
        number=7, item=PlannedEntry(entry, entry),
        may_be_short=False, is_closed=False, was_shared=False,
        landed=lambda *chunk: landed.set(),
    )  # fmt: skip
    chunk = Chunk(job, 0, 4)
    running.queue.add(chunk)

    def send() -> None:
        for type_, payload in ((wire.DATA, b"some"), (wire.DIGEST, wire.COUNT.pack(4) + b"digest")):
            running.agent.inbox.put(wire.Frame(type_, 0, 7, 0, memoryview(payload)))

    running.agent.await_sent(wire.GET, 7)
    chunk.is_over = True
    running.sink.before_it_settles = lambda: setattr(chunk, "is_over", False)
    send()
    running.agent.await_sent(wire.GET, 7)
    send()
    assert landed.wait(WAIT_S) and running.sink.landed == [0]
    running.queue.close()
    running.wait()


# --- streams


@pytest.mark.parametrize("table", [PUSH, PULL])
def test_a_stream_can_be_cut_short_at_any_time(table: Table) -> None:
    """And what was cut short stays so, whatever comes late."""
    assert all(row[NearEvent.CUT] is Near.CUT_SHORT for row in table.values())
    assert reached(table, Near.CUT_SHORT) == {Near.CUT_SHORT}


def test_what_is_pulled_is_over_only_when_it_was_delivered() -> None:
    assert NearEvent.EXIT not in PULL[Near.EXITED]
    assert {PULL[state].get(NearEvent.DELIVER) for state in (Near.MOVING, Near.EXITED)} == {
        Near.DELIVERED, Near.OVER
    }  # fmt: skip


def test_a_descriptor_may_be_stopped_at_any_time_and_only_its_own_end_is_one() -> None:
    assert all(InputEvent.STOP in row for row in INPUT.values())
    assert all(OutputEvent.STOP in row for row in OUTPUT.values())
    assert Input.ENDED not in reached(INPUT, Input.STOPPED) | reached(INPUT, Input.FAILED)
    ends = {Output.COMPLETE, Output.DROPPED}
    assert not ends & (reached(OUTPUT, Output.STOPPED) | reached(OUTPUT, Output.FAILED))
