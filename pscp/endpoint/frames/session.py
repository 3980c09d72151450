"""Which frame is legal when. No input or output.

Each end has a table: per state the frames that it may receive, and per event the state that
follows. Nothing else changes a state.

    agent        new --hello--> ready --begin--> sink | source --end--> ready
    coordinator  new --hello--> ready --begin--> push | pull   --end--> ready

A lane of a stream is handed over to the agent that gathers the stream. Its own agent has it "lent"
until it comes back; the other one serves it by the table GUEST, without a hello and to the end of
one copy.

Not here: the bytes of a frame (wire.py), what either end does for one (../serving/frame_server.py,
../../transfer/lanes/lane.py).
Read next: ../reading/files.py.
"""

from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple

from . import wire

# The events. A Begin that fails makes the agent as free as End does.
HELLO = "hello"  # the agent has sent its HELLO; the coordinator has received it
BEGIN_SINK = "begin sink"  # the far end is the sink of a copy from now on
BEGIN_SOURCE = "begin source"
END = "end"  # the far end is neither sink nor source
HAND_OVER = "hand over"  # another agent serves the channel from now on
TAKE_BACK = "take back"  # the channel's own agent serves it again


class State(NamedTuple):
    """The events that may happen to one end in a state."""

    frames: FrozenSet[int]  # the types of frames that it may receive
    events: Dict[str, str]  # the state that each event leads to


Table = Dict[str, State]

_NOTHING: FrozenSet[int] = frozenset()
_ASK = frozenset([wire.ASK])
_TO_SINK = frozenset([wire.ASK, wire.FILE, wire.DATA, wire.DIGEST, wire.PACK])
_TO_SOURCE = frozenset([wire.ASK, wire.FILE, wire.GET])
_REPLY = frozenset([wire.REPLY, wire.TICK, wire.REFUSED])
_FROM_SINK = _REPLY | {wire.ACK}
_FROM_SOURCE = _REPLY | {wire.DATA, wire.DIGEST, wire.PACK}

AGENT: Table = {
    "new": State(_NOTHING, {HELLO: "ready"}),
    "ready": State(
        _ASK, {BEGIN_SINK: "sink", BEGIN_SOURCE: "source", END: "ready", HAND_OVER: "lent"}
    ),
    "sink": State(_TO_SINK, {END: "ready"}),
    "source": State(_TO_SOURCE, {END: "ready"}),
    "lent": State(_NOTHING, {TAKE_BACK: "ready"}),
}

GUEST: Table = {
    "new": State(_ASK, {BEGIN_SINK: "sink", BEGIN_SOURCE: "source", END: "over"}),
    "sink": State(_TO_SINK, {END: "over"}),
    "source": State(_TO_SOURCE, {END: "over"}),
    "over": State(_NOTHING, {}),
}

COORDINATOR: Table = {
    "new": State(frozenset([wire.HELLO]), {HELLO: "ready"}),
    "ready": State(_REPLY, {BEGIN_SINK: "push", BEGIN_SOURCE: "pull"}),
    "push": State(_FROM_SINK, {END: "ready"}),
    "pull": State(_FROM_SOURCE, {END: "ready"}),
}


class Session:
    """One end's state; it begins as "new". One thread at a time may use it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._enter("new")

    def _enter(self, state: str) -> None:
        self._state = state
        self._frames, self._events = self._table[state]

    @property
    def state(self) -> str:
        """The state's name in the table."""
        return self._state

    def advance(self, event: str) -> None:
        """Go to the state that this event leads to. Raises WireError where it leads nowhere."""
        state = self._events.get(event)
        if state is None:
            raise wire.WireError("%s in state %s" % (event, self._state))
        self._enter(state)

    def check(self, frame: wire.Frame) -> None:
        """Raise WireError for a frame that this end may not receive in this state."""
        if frame.type not in self._frames:
            raise wire.WireError("a %s frame in state %s" % (frame.name, self._state))


class Arriving:
    """The chunk that is arriving on a channel: its blocks must follow each other without a gap."""

    def __init__(self) -> None:
        self._extent: Optional[Tuple[int, int, int]] = None  # id, offset, next offset

    @property
    def is_over(self) -> bool:
        """Does the next block begin a chunk?"""
        return self._extent is None

    def block(self, id_: int, offset: int, length: int, size: int) -> bool:
        """Note a block of `length` bytes of a file of `size` bytes; return whether it begins a
        chunk. Raises WireError for one that does not follow the block before, or ends too late.
        """
        if length == 0 or offset + length > size:
            raise wire.WireError("a block outside of its file")
        begins = self._extent is None
        if self._extent is not None and (id_, offset) != (self._extent[0], self._extent[2]):
            raise wire.WireError("a block that does not follow the one before")
        start = offset if self._extent is None else self._extent[1]
        self._extent = (id_, start, offset + length)
        return begins

    def complete(self, id_: int, offset: int, length: int) -> None:
        """End the chunk. Raises WireError where its digest is for other bytes than arrived."""
        if self._extent != (id_, offset, offset + length):
            raise wire.WireError("a digest for other bytes than those that came")
        self._extent = None

    def abandon(self) -> None:
        """Forget the chunk: its source gave it up."""
        self._extent = None
