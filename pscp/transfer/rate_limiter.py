"""Keeps all lanes of a copy together under a rate (-l).

Not here: how much a lane may have in flight (work_queue.py), who must wait (lane.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A lane that leaves has taken at most so much of the others' time, and while a lane waits it is
# asked so often whether it still has a reason to.
_TURN_S = 0.1


class RateLimiter:
    """Has each lane wait for its turns: a lane with much to send takes many small ones."""

    def __init__(
        self, bytes_per_s: float | None, condition: threading.Condition | None = None
    ) -> None:
        """Limit to this rate, or not at all."""
        self._rate = bytes_per_s
        self._turns = condition or threading.Condition()  # guards what follows; nobody notifies
        self._free_at_s = 0.0

    def wait(self, size_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until so many bytes more may go, or until `is_over()`, which is asked each 0.1 s."""
        if self._rate is None:
            return
        most_bytes = self._rate * _TURN_S
        left_bytes = float(size_bytes)
        with self._turns:
            while left_bytes > 0 and not is_over():
                self._wait_for_turn(min(left_bytes, most_bytes) / self._rate, is_over)
                left_bytes -= most_bytes

    def _wait_for_turn(self, length_s: float, is_over: Callable[[], bool]) -> None:
        self._free_at_s = turn_s = max(self._free_at_s, time.monotonic()) + length_s
        while (left_s := turn_s - time.monotonic()) > 0 and not is_over():
            self._turns.wait(min(left_s, _TURN_S))
