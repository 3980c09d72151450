"""Keeps lanes together under a rate, which may change while they work: those of one copy (-l), or
those of all copies that share a limit (job_terms.py).

Not here: how long a lane's work may take (lane_share.py), which frames wait (lane_sender.py,
lane.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pscp.errors import UsageError

KbitS = Callable[[], int | None]  # returns the limit that holds now; None: none

# The longest turn of a lane, of which a lane that is lost wastes one; how often a lane that waits
# looks whether it still should; and how long the rate that held before still counts.
_TURN_S = 0.1


class RateLimiter:
    """Each lane waits for its turns; one with much to send takes many small ones."""

    def __init__(self, kbit_s: KbitS | None, condition: threading.Condition | None = None) -> None:
        """Limit all lanes together to what `kbit_s()` returns; with None there is no limit."""
        self._kbit_s = kbit_s
        self._turns = condition or threading.Condition()  # guards what follows; nobody notifies
        self._free_at_s = 0.0

    @property
    def has_limit(self) -> bool:
        """Whether there is a limit, or may be one later."""
        return self._kbit_s is not None

    def wait(self, size_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until so many more bytes may go, or until `is_over()`, called every 0.1 s.

        Raises what the limit's function raises, and UsageError for a limit that is none.
        """
        if self._kbit_s is None:
            return
        left_bytes = float(size_bytes)
        with self._turns:
            while left_bytes > 0 and (kbit_s := self._kbit_s()) is not None and not is_over():
                if kbit_s < 1:
                    raise UsageError(f"a limit of {kbit_s} kbit/s: nothing would be copied")
                bytes_per_s = kbit_s * 1000 / 8
                turn_bytes = min(left_bytes, bytes_per_s * _TURN_S)
                self._wait_for_turn(turn_bytes / bytes_per_s, is_over)
                left_bytes -= turn_bytes

    def _wait_for_turn(self, length_s: float, is_over: Callable[[], bool]) -> None:
        self._free_at_s = turn_s = max(self._free_at_s, time.monotonic()) + length_s
        while (left_s := turn_s - time.monotonic()) > 0 and not is_over():
            self._turns.wait(min(left_s, _TURN_S))
