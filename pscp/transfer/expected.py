"""The chunks whose frames a lane awaits from its channel, in the order in which they will come.

Not here: what is done with a frame (lane_receiver.py).
"""

from __future__ import annotations

import threading
from collections import deque

from pscp.transfer.plan import Chunk

Expectation = tuple[int, Chunk]  # the number under which the lane took the chunk, and the chunk


class ExpectedChunks:
    """The lane's sender adds to it while its receiver takes from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._chunks: deque[Expectation] = deque()
        # By the work's number, of chunks that were sent: the sender puts it here before the
        # chunk's last frame goes, and the receiver takes it when that is acknowledged.
        self.digests: dict[int, str] = {}

    def add(self, number: int, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append((number, chunk))

    def first(self) -> Expectation | None:
        """Return the chunk that frames must be of now, or None if there is none."""
        with self._lock:
            return self._chunks[0] if self._chunks else None

    def take_first(self) -> None:
        """Forget the first chunk: its last frame has come."""
        with self._lock:
            self._chunks.popleft()

    def remove(self, number: int, chunk: Chunk) -> None:
        """Forget a chunk of which the source could not send all."""
        with self._lock:
            self._chunks.remove((number, chunk))

    def job_numbers(self) -> set[int]:
        """Return the numbers of the files of which chunks are awaited."""
        with self._lock:
            awaited = list(self._chunks)
        return {chunk.job.number for _, chunk in awaited}
