"""Whether lanes are to send with BBR, decided from what their sockets say (docs/tuning.md).

Pure: it knows no clock and no socket. It is shown all lanes' sockets again and again, and says in a
sentence when it has changed its mind.

Not here: how sockets are reached (lane_sockets.py), how many lanes there are (autotune.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pscp.transfer.autotune import CHANNEL_BYTES

if TYPE_CHECKING:
    from pscp.transports.live_socket import Sending

_NO_QUEUE = 1.25  # of the least round trip: what is lost below that was not dropped by a full queue
_LOSSES = 4.0  # looks at a lane in which it had lost something so, of all lanes together
_FORGOTTEN = 0.95  # a look counts less with each that comes after it
_SHARE = 3.0  # times as many as those in which a queue was full
_HELD_UP = 0.5  # of a lane's window under way: with more it does not matter what is lost
_BEFORE_S, _BEFORE_TRIPS = 0.2, 2  # over which the rate before is measured
_SETTLE_S, _SETTLE_TRIPS = 0.2, 8  # until BBR has gathered speed
_LOOK_S, _LOOK_TRIPS = 0.5, 8  # over which its rate is measured
_WORTH = 1.25  # times the rate before: with less BBR is let go
_LOGIN_BYTES = 100_000  # more than a login and the agent send
_BURST_S = 0.5  # after the first loss: until then a lane has more under way than it will keep
_PAUSE_S = 1.0  # until it is tried again, doubled each time

_Lanes = Mapping[int, "Sending"]  # by a number that belongs to the lane's connection


class Choice:
    """Tries BBR where packets are lost though no queue is full, and keeps it if it is faster."""

    def __init__(self) -> None:
        self.name = ""  # the congestion control that lanes are to have; "": the system's
        self._rtt_s = 0.0
        self._seen: deque[tuple[float, _Lanes]] = deque()  # lately, while BBR is not tried
        self._losses, self._drops = 0.0, 0.0  # looks at lanes that lost something; by full queues
        self._rate_before = 0.0  # of a lane, while BBR is tried
        self._tried_s: float | None = None  # when BBR was tried; None: it is not, or it is kept
        self._begun: tuple[float, _Lanes] | None = None  # the measurement of BBR
        self._again_s, self._pause_s = math.inf, _PAUSE_S

    def look(self, now_s: float, lanes: _Lanes) -> str | None:
        """Return a sentence when `name` changed, or when BBR was found to be worth it."""
        self._rtt_s = min((lane.min_rtt_s for lane in lanes.values()), default=self._rtt_s)
        if self._tried_s is not None:
            return self._judge(now_s, lanes)
        if self.name:
            return None
        if self._seen:
            losses, drops = _lost(self._seen[-1][1], lanes)
            self._losses = self._losses * _FORGOTTEN + losses
            self._drops = self._drops * _FORGOTTEN + drops
            if losses and self._again_s == math.inf:
                self._again_s = now_s + _BURST_S
        self._seen.append((now_s, lanes))
        before_s = _BEFORE_S + _BEFORE_TRIPS * self._rtt_s
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= before_s:
            self._seen.popleft()
        is_lossy = self._losses >= max(_LOSSES, _SHARE * self._drops)
        if not is_lossy or now_s < self._again_s or now_s - self._seen[0][0] < before_s:
            return None
        rate = _rate(self._seen[0], (now_s, lanes))
        if rate * self._rtt_s > _HELD_UP * CHANNEL_BYTES:
            return None
        self.name, self._tried_s, self._rate_before = "bbr", now_s, rate
        return f"lanes move {_mb(rate)} each and lose packets, though no queue is full: trying bbr"

    def _judge(self, now_s: float, lanes: _Lanes) -> str | None:
        assert self._tried_s is not None
        if now_s - self._tried_s < _SETTLE_S + _SETTLE_TRIPS * self._rtt_s:
            return None
        if self._begun is None:
            self._begun = now_s, lanes
        if now_s - self._begun[0] < _LOOK_S + _LOOK_TRIPS * self._rtt_s:
            return None
        rate, before = _rate(self._begun, (now_s, lanes)), self._rate_before
        self._tried_s = self._begun = None
        self._losses = self._drops = 0.0
        self._seen.clear()
        said = f"lanes move {_mb(rate)} each with bbr, and {_mb(before)} without"
        if rate >= _WORTH * before:
            return f"{said}: going on with it"
        self.name = ""
        self._again_s, self._pause_s = now_s + self._pause_s, 2 * self._pause_s
        return f"{said}: going on without"


def _lost(before: _Lanes, now: _Lanes) -> tuple[int, int]:
    """Return how many lanes lost something while no queue was full, and while one was."""
    both = [(before[number], lane) for number, lane in now.items() if number in before]
    lossy = [after for earlier, after in both if after.resent > earlier.resent]
    drops = sum(lane.rtt_s >= _NO_QUEUE * lane.min_rtt_s for lane in lossy)
    return len(lossy) - drops, drops


def _rate(begin: tuple[float, _Lanes], end: tuple[float, _Lanes]) -> float:
    """Return the bytes per second of a lane, on average of those that were at work."""
    both = begin[1].keys() & end[1].keys()
    moved = [end[1][each].acked_bytes - begin[1][each].acked_bytes for each in both]
    at_work = [each for each in moved if each > _LOGIN_BYTES]
    return sum(at_work) / max(len(at_work), 1) / max(end[0] - begin[0], 1e-3)


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.1f} MB/s"
