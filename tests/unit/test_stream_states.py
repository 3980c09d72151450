"""The tables of a stream's states, and what a Push, a Pull and a far end make of their events.

Not here: streams over lanes that fail (../core/test_stream.py). Read next: pscp/stream/states.py.
"""

from __future__ import annotations

import enum

import pytest
from state_tables import Table, assert_no_other_event_may_come, reached

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
from pscp.stream.states import PULL, PUSH, Near, NearEvent

# Each table with the state that it begins in, and the states of its enum that it does not have.
TABLES: dict[str, tuple[Table, enum.Enum, type[enum.Enum], set[enum.Enum]]] = {
    "input": (INPUT, Input.READING, InputEvent, set()),
    "output": (OUTPUT, Output.WRITING, OutputEvent, set()),
    "far": (FAR, Far.RUNNING, FarEvent, set()),
    "push": (PUSH, Near.MOVING, NearEvent, {Near.DELIVERED, Near.EXITED}),
    "pull": (PULL, Near.MOVING, NearEvent, {Near.LANDING, Near.CLOSING, Near.DEAF}),
}
EACH = pytest.mark.parametrize("name", TABLES)


@EACH
def test_every_state_has_a_row_and_can_be_reached(name: str) -> None:
    table, first, _, others = TABLES[name]
    assert set(table) == set(type(first)) - others
    assert reached(table, first) == set(table)


@EACH
def test_an_event_leads_where_the_table_says_and_no_other_may_come(name: str) -> None:
    table, _, events, _ = TABLES[name]
    assert_no_other_event_may_come(table, events)


@pytest.mark.parametrize("table", [PUSH, PULL])
def test_a_stream_can_be_cut_short_at_any_time(table: Table) -> None:
    """And what was cut short stays so, whatever comes late."""
    assert all(row[NearEvent.CUT] is Near.CUT_SHORT for row in table.values())
    assert reached(table, Near.CUT_SHORT) == {Near.CUT_SHORT}


def test_a_command_may_end_at_any_time() -> None:
    for table, over in ((PUSH, {Near.OVER}), (PULL, {Near.OVER, Near.EXITED})):
        for state in set(table) - {Near.OVER, Near.EXITED, Near.CUT_SHORT}:
            assert table[state][NearEvent.EXIT] in over
            assert table[state][NearEvent.FAIL] is Near.OVER


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


def test_a_far_end_that_was_left_or_closed_stays_so() -> None:
    assert reached(FAR, Far.LEAVING) == {Far.LEAVING, Far.LEFT, Far.CLOSED}
    assert reached(FAR, Far.CLOSED) == {Far.CLOSED}
