"""What the two threads of a lane share: its ends, its work, the chunks whose frames it awaits.

Not here: the threads (lane.py), what each does (lane_sender.py, lane_receiver.py).
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import failures, wire
from pscp.ground.errors import ProtocolError
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.lane_share import LaneShare
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Chunk, Pack

if TYPE_CHECKING:
    from pscp.transfer.lanes.lane_context import NearEnd

# What is raised where an answer is used that has another shape than the one it should have;
# struct.error for a frame that is too short.
_OF_TYPE = (ValueError, LookupError, ArithmeticError, TypeError, AttributeError)
MISSHAPEN = (wire.WireError, struct.error, *_OF_TYPE)

Expectation = tuple[int, Chunk]  # the number that the queue gave the chunk, and the chunk


class ExpectedChunks:
    """The chunks whose frames a lane awaits from its channel, in the order of those frames.

    The lane's sender adds to it while its receiver takes from it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._chunks: deque[Expectation] = deque()
        # The digest of each chunk that was sent, by its number: the sender puts it here before it
        # sends the chunk's last frame, and the receiver takes it when that is acknowledged.
        self.digests: dict[int, str] = {}

    def add(self, number: int, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append((number, chunk))

    def first(self) -> Expectation | None:
        """Return the chunk to which the next frame must belong; None if none is awaited."""
        with self._lock:
            return self._chunks[0] if self._chunks else None

    def take_first(self) -> None:
        """Remove the first chunk, whose last frame has come."""
        with self._lock:
            self._chunks.popleft()

    def remove(self, number: int, chunk: Chunk) -> None:
        """Remove a chunk that the source could not send to its end."""
        with self._lock:
            self._chunks.remove((number, chunk))

    def job_numbers(self) -> set[int]:
        """Return the numbers of the files to which the awaited chunks belong."""
        with self._lock:
            awaited = list(self._chunks)
        return {chunk.job.number for _, chunk in awaited}


@dataclass(frozen=True)
class LaneEnds:
    """Both ends of one lane, and its work. Either of the lane's threads may use it."""

    context: LaneContext
    far: RemoteAgent
    near: NearEnd  # used with the near lock held where, on pull, both threads use it
    share: LaneShare
    expected: ExpectedChunks = field(default_factory=ExpectedChunks)
    near_lock: AbstractContextManager[object] = field(default_factory=threading.RLock)

    def is_cut_off(self) -> bool:
        """Return whether the lane's sender should wait no longer: the lane or the copy has ended.

        If the channel has ended, it is the lane's receiver that sees it, and ends the lane.
        """
        return self.share.is_over or self.context.queue.error is not None

    def is_closed(self) -> bool:
        """Return whether the receiver should wait no longer: also when the channel has ended."""
        return self.is_cut_off() or self.far.is_closed()

    def wait_for_turn(self, size_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until so many more bytes may go (-l), or until `is_over()`.

        What goes wrong with the limit is no fault of the lane's: it stops the copy.
        """
        if not self.context.limiter.has_limit:
            return
        try:
            with self.share.on_hold():
                self.context.limiter.wait(size_bytes, is_over)
        except BaseException as error:
            self.context.queue.stop(error)

    def settle(self, number: int, tell: Callable[[], object]) -> None:
        """Finish a piece of work by calling `tell`, unless the piece was given back meanwhile."""

        def outcome() -> None:
            try:
                tell()
            except MISSHAPEN as error:
                raise misshapen(error) from None

        self.context.queue.settle(self.share, number, outcome)

    def take_rows(self, number: int, pack: Pack, rows: object) -> bool:
        """Keep a pack's rows, unless it was given back: they are another lane's then, or will be.

        Return whether they were kept. Raises ValueError.
        """

        def keep() -> bool:
            is_held = self.share.work.get(number) is pack
            if is_held:
                pack.take_rows(rows)
            return is_held

        return self.context.queue.run_alone(keep)

    def answered(self, number: int, ask: Ask, answer: object, is_failed: bool) -> None:
        """Finish a request with its answer, or with the failure that is its answer."""
        if is_failed:
            self.settle(number, lambda: ask.failed(_failure(ask, answer)))
        else:
            self.settle(number, lambda: ask.then(answer))


def _failure(ask: Ask, answer: object) -> failures.Data:
    failure = failures.checked(answer)
    return answers.from_source(failure) if ask.of_source else failure


def misshapen(error: Exception) -> ProtocolError:
    """Return the ProtocolError for an answer of another shape, whose use has raised `error`."""
    return ProtocolError(f"an answer of another shape: {error}")
