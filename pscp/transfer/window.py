"""How many bytes a lane may have in flight, by what it lately moved.

Not here: which work a lane gets (work_queue.py).
"""

from __future__ import annotations

import time
from collections import deque

_PACE_S = 1.0  # over which a lane's pace is measured
_SLACK_S = 0.2  # of work that a lane may hold beyond two round trips
_LEAST_BYTES = 2 * 1024 * 1024  # the window of an OpenSSH channel


class Window:
    """The bytes that a lane has in flight, and how many it may have.

    That is at most what it lately moved in two round trips and a bit, so that a lane that has
    become slow does not hold work that others could do. The queue's lock guards it.
    """

    def __init__(self, most_bytes: int, rtt_s: float, begins_small: bool = False) -> None:
        """With `begins_small` it grows by what lands, from the least, as TCP's does."""
        self.capacity_bytes = _LEAST_BYTES if begins_small else most_bytes
        self.in_flight_bytes = 0
        self._most_bytes, self._span_s = most_bytes, 2 * rtt_s + _SLACK_S
        self._moved: deque[tuple[float, int]] = deque()  # when, and bytes, of the last second
        self._begun_s = time.monotonic()

    @property
    def has_room(self) -> bool:
        """Whether one more piece may be taken, of any size."""
        return self.in_flight_bytes == 0 or self.in_flight_bytes < self.capacity_bytes

    def take(self, size_bytes: int) -> None:
        self.in_flight_bytes += size_bytes

    def credit(self, size_bytes: int) -> None:
        """Count bytes as in flight no more."""
        if size_bytes > self.in_flight_bytes:
            raise RuntimeError("more was acknowledged than was sent")
        self.in_flight_bytes -= size_bytes

    def follow_pace(self, size_bytes: int) -> None:
        """Adapt the capacity to the pace, now that so many bytes more were moved."""
        now_s = time.monotonic()
        self._moved.append((now_s, size_bytes))
        while self._moved[0][0] < now_s - _PACE_S:
            self._moved.popleft()
        wanted_bytes = self.capacity_bytes + size_bytes
        if now_s - self._begun_s > 2 * _PACE_S:  # before that, the connection gathers speed
            rate = sum(moved_bytes for _, moved_bytes in self._moved) / _PACE_S
            wanted_bytes = max(int(rate * self._span_s), _LEAST_BYTES)
        self.capacity_bytes = min(wanted_bytes, self._most_bytes)
