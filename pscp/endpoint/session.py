"""Which frame is legal when, and how many bytes may be in flight. No input or output.

The conversation, per end, is a table: what it may receive in each state.

    agent        new     --ASK begin--> sink | source        (and again, for the next copy)
    coordinator  new     --HELLO--> ready --(begin)--> push | pull

Not here: the bytes of a frame (wire.py), and what is done about one (agent.py,
../transfer/lane.py).
Read next: files.py.
"""

from typing import Dict, FrozenSet, Optional, Tuple

from . import wire

AGENT: Dict[str, FrozenSet[int]] = {
    "new": frozenset([wire.ASK]),
    "sink": frozenset([wire.ASK, wire.FILE, wire.DATA, wire.DIGEST, wire.PACK]),
    "source": frozenset([wire.ASK, wire.FILE, wire.GET]),
}

COORDINATOR: Dict[str, FrozenSet[int]] = {
    "new": frozenset([wire.HELLO]),
    "ready": frozenset([wire.REPLY, wire.TICK]),
    "push": frozenset([wire.REPLY, wire.TICK, wire.ACK]),
    "pull": frozenset([wire.REPLY, wire.TICK, wire.DATA, wire.DIGEST, wire.PACK]),
}


class Session:
    """One end's state; says whether a frame may come now."""

    def __init__(self, table: Dict[str, FrozenSet[int]], state: str = "new") -> None:
        self._table = table
        self.state = state

    def check(self, frame: wire.Frame) -> None:
        if frame.type not in self._table[self.state]:
            raise wire.WireError("a %s frame in state %s" % (frame.name, self.state))


class Arriving:
    """The chunk that is arriving on a channel: its blocks must follow each other without a gap."""

    def __init__(self) -> None:
        self._extent: Optional[Tuple[int, int, int]] = None  # id, offset, next offset

    def block(self, id_: int, offset: int, length: int, size: int) -> bool:
        """A block of the file `id_`, which has `size` bytes. True when it begins a chunk."""
        if length == 0 or offset + length > size:
            raise wire.WireError("a block outside of its file")
        begins = self._extent is None
        if self._extent is not None and (id_, offset) != (self._extent[0], self._extent[2]):
            raise wire.WireError("a block that does not follow the one before")
        start = offset if self._extent is None else self._extent[1]
        self._extent = (id_, start, offset + length)
        return begins

    def place(self, id_: int, offset: int) -> Optional[int]:
        """Where in its chunk a block lies; None where it does not follow the one before."""
        if self._extent is None:
            return 0
        known, begin, end = self._extent
        return offset - begin if (id_, offset) == (known, end) else None

    def complete(self, id_: int, offset: int, length: int) -> None:
        """The chunk's digest is here: it must be for the blocks that came."""
        if self._extent != (id_, offset, offset + length):
            raise wire.WireError("a digest for other bytes than those that came")
        self._extent = None

    def abandon(self) -> None:
        """The source gave the chunk up."""
        self._extent = None


class Window:
    """Bytes allowed unacknowledged on a lane, and bytes now in flight."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.in_flight_bytes = 0

    def has_room(self, count: int) -> bool:
        """May `count` bytes more be sent? One chunk always may, however large."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes + count <= self.capacity_bytes

    def take(self, count: int) -> None:
        self.in_flight_bytes += count

    def credit(self, count: int) -> None:
        if count > self.in_flight_bytes:
            raise wire.WireError("more was acknowledged than was sent")
        self.in_flight_bytes -= count
