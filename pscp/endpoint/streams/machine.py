"""A state machine: a state, and a table of the transitions from it.

The table has, for each state, the events that may happen in it and the state that each leads to.
Any other event is a bug of pscp and raises RuntimeError. What the other end does wrong is no event;
it is refused before.

Not here: the tables (stream_states.py, ../../stream/states.py, ../../transfer/pieces/states.py),
and the states of a channel's session (../frames/session.py).
"""

import enum
from typing import Generic, Mapping, TypeVar

_S = TypeVar("_S", bound=enum.Enum)
_E = TypeVar("_E", bound=enum.Enum)


class Machine(Generic[_S, _E]):
    """Goes from state to state. Its owner (a thread, or who holds a lock) reports the events; any
    thread may read `state`.
    """

    def __init__(self, table: Mapping[_S, Mapping[_E, _S]], state: _S) -> None:
        self._table, self.state = table, state

    def on(self, event: _E) -> None:
        """Go to the state that this event leads to. Raises RuntimeError where it leads nowhere."""
        after = self._table[self.state].get(event)
        if after is None:
            raise RuntimeError("%s in the state %s" % (event, self.state))
        self.state = after
