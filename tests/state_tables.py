"""What holds for every table of states (pscp/endpoint/streams/machine.py): for the tests of each.

Not here: the tables (unit/test_states.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import pytest

from pscp.endpoint.streams.machine import Machine

Table = Mapping[Any, Mapping[Any, Any]]


def reached(table: Table, first: enum.Enum) -> set[enum.Enum]:
    """Return the states that events lead to from this one, itself included."""
    seen, found = {first}, [first]
    while found:
        new = set(table[found.pop()].values()) - seen
        seen |= new
        found += new
    return seen


def assert_no_other_event_may_come(table: Table, events: type[enum.Enum]) -> None:
    """Each event leads where the table says, in every state; another is an error."""
    for state, row in table.items():
        for event in events:
            machine = Machine(table, state)
            if event in row:
                machine.on(event)
                assert machine.state is row[event]
            else:
                with pytest.raises(RuntimeError, match=event.name):
                    machine.on(event)
                assert machine.state is state
