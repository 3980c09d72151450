"""The states of a lane and of a file's copy, and which event leads from one to another.

Each has a table for a Machine (endpoint/streams/machine.py).

Not here: who reports events, with which lock held (../lanes/lane.py, ../walk/file_job.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Lane(enum.Enum):
    """The states of a lane."""

    OPENING = enum.auto()  # its ends are asked to begin
    WORKING = enum.auto()  # it takes work from the queue
    LEAVING = enum.auto()  # the copy is complete, and its agent is asked to end
    CLOSED_WELL = enum.auto()  # its agent has ended, and can serve the next copy
    CLOSED = enum.auto()  # its connection is of no further use
    LOST = enum.auto()  # its connection broke before the copy was complete


class LaneEvent(enum.Enum):
    BEGIN = enum.auto()  # both ends were asked to begin
    FINISH = enum.auto()  # the queue has no more work
    GOODBYE = enum.auto()  # the agent has answered the request to end
    BREAK = enum.auto()  # the channel ended, or the agent broke the protocol
    CLOSE = enum.auto()  # both threads have finished with the lane


LANE: Mapping[Lane, Mapping[LaneEvent, Lane]] = {
    Lane.OPENING: {
        LaneEvent.BEGIN: Lane.WORKING,
        LaneEvent.BREAK: Lane.LOST,
        LaneEvent.CLOSE: Lane.CLOSED,
    },
    Lane.WORKING: {
        LaneEvent.FINISH: Lane.LEAVING,
        LaneEvent.BREAK: Lane.LOST,
        LaneEvent.CLOSE: Lane.CLOSED,
    },
    Lane.LEAVING: {
        LaneEvent.GOODBYE: Lane.CLOSED_WELL,
        LaneEvent.BREAK: Lane.CLOSED,  # all was done, so nothing is lost
        LaneEvent.CLOSE: Lane.CLOSED,
    },
    Lane.CLOSED_WELL: {LaneEvent.BREAK: Lane.CLOSED, LaneEvent.CLOSE: Lane.CLOSED_WELL},
    Lane.CLOSED: {LaneEvent.BREAK: Lane.CLOSED, LaneEvent.CLOSE: Lane.CLOSED},
    # Both of its threads may see that the channel broke.
    Lane.LOST: {LaneEvent.BREAK: Lane.LOST, LaneEvent.CLOSE: Lane.LOST},
}


class File(enum.Enum):
    """The states of a large file's copy."""

    COPYING = enum.auto()  # chunks and questions about it are under way
    COMPARING_WHOLE = enum.auto()  # the source is asked for the digest of the whole file
    FINISHING = enum.auto()  # the sink is asked to give the part the file's name
    DISCARDING = enum.auto()  # the sink is asked to remove the part
    CLOSED = enum.auto()  # it is done, or has failed


class FileEvent(enum.Enum):
    PIECE = enum.auto()  # one of the things is over that the end waits for
    COMPARE = enum.auto()
    FINISH = enum.auto()
    DISCARD = enum.auto()
    CLOSE = enum.auto()


FILE: Mapping[File, Mapping[FileEvent, File]] = {
    File.COPYING: {
        FileEvent.PIECE: File.COPYING,
        FileEvent.COMPARE: File.COMPARING_WHOLE,
        FileEvent.FINISH: File.FINISHING,
        FileEvent.DISCARD: File.DISCARDING,
    },
    File.COMPARING_WHOLE: {
        FileEvent.FINISH: File.FINISHING,
        FileEvent.DISCARD: File.DISCARDING,
    },
    File.FINISHING: {
        FileEvent.COMPARE: File.COMPARING_WHOLE,  # the lane that asked was lost
        FileEvent.DISCARD: File.DISCARDING,
        FileEvent.CLOSE: File.CLOSED,
    },
    File.DISCARDING: {FileEvent.CLOSE: File.CLOSED},
    File.CLOSED: {},
}
