"""What the two threads of a lane share: its ends, its work, and how that comes to its end.

Not here: the threads (lane.py), what each does (lane_sender.py, lane_receiver.py).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import failures, wire
from pscp.endpoint.end import End
from pscp.errors import ProtocolError
from pscp.transfer.expected import ExpectedChunks
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.lane_share import LaneShare
from pscp.transfer.plan import Ask

# What is raised where an answer is used that has another shape than the one it should have.
MISSHAPEN = (
    wire.WireError, struct.error, ValueError, LookupError, ArithmeticError, TypeError,
    AttributeError,
)  # fmt: skip


@dataclass(frozen=True)
class LaneEnds:
    """Both ends of one lane, and what it has taken. Either of the lane's threads may use it."""

    context: LaneContext
    far: RemoteAgent
    near: End  # used with the near lock held where, on pull, both threads use it
    share: LaneShare
    expected: ExpectedChunks = field(default_factory=ExpectedChunks)
    near_lock: AbstractContextManager[object] = field(default_factory=threading.RLock)

    def is_cut_off(self) -> bool:
        """Return whether the lane's sender has no reason to wait any more.

        The lane's receiver sees that the channel ends.
        """
        return self.share.is_over or self.context.queue.error is not None

    def is_closed(self) -> bool:
        """Return the same for the receiver: while that waits, nobody else would see the end."""
        return self.is_cut_off() or self.far.is_closed()

    def settle(self, number: int, tell: Callable[[], object]) -> None:
        """End a piece of work: say what came of it, unless it was given back meanwhile."""

        def outcome() -> None:
            try:
                tell()
            except MISSHAPEN as error:
                raise misshapen(error) from None

        self.context.queue.settle(self.share, number, outcome)

    def answered(self, number: int, ask: Ask, answer: object, is_failed: bool) -> None:
        """End a request with its answer, or with why it failed."""
        if is_failed:
            self.settle(number, lambda: ask.failed(failures.checked(answer)))
        else:
            self.settle(number, lambda: ask.then(answer))


def misshapen(error: Exception) -> ProtocolError:
    """Return the error that means what was raised for an answer of another shape."""
    return ProtocolError(f"an answer of another shape: {error}")
