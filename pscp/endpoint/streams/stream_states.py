"""The states of a stream's ends, and which event leads from one state to another.

Input and Output are the states of a descriptor that is read or written, at either end of the
stream; Far are those of the stream at the agent that runs its command. What another program,
another lane or a signal does may come late, so such events are in every row.

Not here: the state machine (machine.py), the states at the coordinator (../../stream/states.py),
who reports events with which lock held (stream.py, stream_server.py).
Read next: stream_server.py.
"""

import enum


class Input(enum.Enum):
    """The states of a descriptor that is read and cut into chunks (stream.Cutter)."""

    READING = 1  # more may come
    ENDED = 2  # all was read
    FAILED = 3  # it cannot be read any more
    STOPPED = 4  # nobody wants more


class InputEvent(enum.Enum):
    END = 1  # the descriptor has come to its end
    FAIL = 2  # reading raised an error
    STOP = 3  # the stream is over: nobody wants more


INPUT = {
    Input.READING: {
        InputEvent.END: Input.ENDED,
        InputEvent.FAIL: Input.FAILED,
        InputEvent.STOP: Input.STOPPED,
    },
    Input.ENDED: {InputEvent.STOP: Input.ENDED},
    Input.FAILED: {InputEvent.STOP: Input.FAILED},
    Input.STOPPED: {InputEvent.STOP: Input.STOPPED, InputEvent.FAIL: Input.STOPPED},
}


class Output(enum.Enum):
    """The states of a descriptor that chunks are written to in order (stream.Reorder)."""

    WRITING = 1  # chunks are written as they come
    DEAF = 2  # nobody reads any more: chunks are dropped as they come
    COMPLETE = 3  # all was written, up to the end
    DROPPED = 4  # all was written or dropped, up to the end, but not all was read
    FAILED = 5  # it cannot be written any more
    STOPPED = 6  # the stream was over before it was complete


class OutputEvent(enum.Enum):
    LEAVE = 1  # whoever read it has closed it
    FINISH = 2  # the last chunk before the end was written or dropped
    FAIL = 3  # writing raised another error
    STOP = 4  # the stream is over


OUTPUT = {
    Output.WRITING: {
        OutputEvent.LEAVE: Output.DEAF,
        OutputEvent.FINISH: Output.COMPLETE,
        OutputEvent.FAIL: Output.FAILED,
        OutputEvent.STOP: Output.STOPPED,
    },
    Output.DEAF: {OutputEvent.FINISH: Output.DROPPED, OutputEvent.STOP: Output.STOPPED},
    Output.COMPLETE: {OutputEvent.STOP: Output.COMPLETE},
    Output.DROPPED: {OutputEvent.STOP: Output.DROPPED},
    Output.FAILED: {OutputEvent.STOP: Output.FAILED},
    Output.STOPPED: {  # the writer may have been in the middle of a chunk
        OutputEvent.LEAVE: Output.STOPPED,
        OutputEvent.FAIL: Output.STOPPED,
        OutputEvent.STOP: Output.STOPPED,
    },
}


class Far(enum.Enum):
    """The states of a stream at the agent that runs the command (stream_server.py)."""

    RUNNING = 1  # the command runs, and lanes may come
    EXITED = 2  # the command has ended; lanes may come and ask for its output
    LEAVING = 3  # no lane comes any more, and the command has not ended
    LEFT = 4  # no lane comes any more, and the command has ended
    CLOSED = 5  # no request is answered any more, and the command was ended


class FarEvent(enum.Enum):
    EXIT = 1  # the command has ended
    LEAVE = 2  # the coordinator has ended the copy, or given the stream up
    CLOSE = 3  # this agent's own lane has ended, or it has waited for others in vain


FAR = {
    Far.RUNNING: {
        FarEvent.EXIT: Far.EXITED,
        FarEvent.LEAVE: Far.LEAVING,
        FarEvent.CLOSE: Far.CLOSED,
    },
    Far.EXITED: {FarEvent.LEAVE: Far.LEFT, FarEvent.CLOSE: Far.CLOSED},
    Far.LEAVING: {
        FarEvent.EXIT: Far.LEFT,
        FarEvent.LEAVE: Far.LEAVING,
        FarEvent.CLOSE: Far.CLOSED,
    },
    Far.LEFT: {FarEvent.LEAVE: Far.LEFT, FarEvent.CLOSE: Far.CLOSED},
    # Closing ends the command, and other lanes may still be in use.
    Far.CLOSED: {FarEvent.EXIT: Far.CLOSED, FarEvent.LEAVE: Far.CLOSED},
}
