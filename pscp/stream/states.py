"""The states of a stream's near end, and which event leads from one to another.

A push and a pull have a table each. The states of the far end of both are in
endpoint/streams/stream_states.py.

Not here: who reports events (pipe.py), what an event that the table lacks leads to
(endpoint/streams/machine.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Near(enum.Enum):
    """The states of a stream's near end."""

    MOVING = enum.auto()  # chunks go over the lanes
    LANDING = enum.auto()  # push: the input has ended, and its last chunks are in flight
    CLOSING = enum.auto()  # push: all have landed, and the command's input is to be closed
    DEAF = enum.auto()  # push: the command reads no more, and nothing more is sent
    DELIVERED = enum.auto()  # pull: all was written here, and the command has not ended
    EXITED = enum.auto()  # pull: the command has ended, and its last output is not written
    OVER = enum.auto()  # the command's exit status is the result
    CUT_SHORT = enum.auto()  # an error is the result, and the command is ended if it still runs


class NearEvent(enum.Enum):
    END = enum.auto()  # push: the input has ended, and the producer has ended well
    LAND = enum.auto()  # push: the last chunk has landed
    LEAVE = enum.auto()  # push: the command has closed its input
    DELIVER = enum.auto()  # pull: the last chunk was written
    EXIT = enum.auto()  # the command has ended, and its output was passed on
    FAIL = enum.auto()  # the same, but the far end could not move the stream
    CUT = enum.auto()  # something went wrong, or the user ends the stream


_CUT: dict[NearEvent, Near] = {NearEvent.CUT: Near.CUT_SHORT}
_EXIT: dict[NearEvent, Near] = {NearEvent.EXIT: Near.OVER, NearEvent.FAIL: Near.OVER, **_CUT}

PUSH: Mapping[Near, Mapping[NearEvent, Near]] = {
    Near.MOVING: {NearEvent.END: Near.LANDING, NearEvent.LEAVE: Near.DEAF, **_EXIT},
    Near.LANDING: {NearEvent.LAND: Near.CLOSING, NearEvent.LEAVE: Near.LANDING, **_EXIT},
    Near.CLOSING: {NearEvent.LEAVE: Near.CLOSING, **_EXIT},
    Near.DEAF: {NearEvent.END: Near.LANDING, NearEvent.LEAVE: Near.DEAF, **_EXIT},
    Near.OVER: {NearEvent.END: Near.OVER, **_CUT},
    Near.CUT_SHORT: dict.fromkeys((NearEvent.END, NearEvent.LEAVE, *_EXIT), Near.CUT_SHORT),
}
PULL: Mapping[Near, Mapping[NearEvent, Near]] = {
    Near.MOVING: {NearEvent.DELIVER: Near.DELIVERED, **_EXIT, NearEvent.EXIT: Near.EXITED},
    Near.DELIVERED: _EXIT,
    Near.EXITED: {NearEvent.DELIVER: Near.OVER, **_CUT},
    Near.OVER: {NearEvent.DELIVER: Near.OVER, **_CUT},
    Near.CUT_SHORT: dict.fromkeys((NearEvent.DELIVER, *_EXIT), Near.CUT_SHORT),
}
