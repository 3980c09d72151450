"""Something that is in one state of a table at a time.

A table has, for each state, the events that may come then and the state that each leads to. Any
other event is a bug of pscp's: it raises. What the other end does wrong is no event; it is refused
before.

Not here: the tables (stream_states.py, ../stream/states.py, ../transfer/states.py), and the
session of a channel, which has one of its own (session.py).
"""

import enum
from typing import Generic, Mapping, TypeVar

_S = TypeVar("_S", bound=enum.Enum)
_E = TypeVar("_E", bound=enum.Enum)


class Machine(Generic[_S, _E]):
    """Its owner, a thread or the holder of a lock, reports events; any thread may read `state`."""

    def __init__(self, table: Mapping[_S, Mapping[_E, _S]], state: _S) -> None:
        self._table, self.state = table, state

    def on(self, event: _E) -> None:
        """Go where this event leads. Raises RuntimeError for one that must not come now."""
        after = self._table[self.state].get(event)
        if after is None:
            raise RuntimeError("%s in the state %s" % (event, self.state))
        self.state = after
