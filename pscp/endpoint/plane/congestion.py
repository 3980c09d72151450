"""The choice of BBR for lanes that send, by what their sockets say (docs/tuning.md). Only
Linux says how the sending of a connected TCP socket goes.

A Choice knows no clock and no socket. It is shown all lanes' sockets again and again, and says in a
sentence when it has changed its mind. On a push this end has one for all its lanes; on a pull over
the direct plane each lane's process at the far end has its own.

Not here: how this end reaches the sockets of its lanes (../../transfer/autoscaler.py), options that
are set before a socket connects (link.py).
"""

import _socket as socket  # socket.py would take 9 ms more to load
import contextlib
import math
import struct
import sys
import threading
import time
from collections import deque
from typing import Deque, Mapping, NamedTuple, Optional, Tuple

LOOK_S = 0.25  # between two looks at how the sending goes
NEAR_S = 0.01  # a path with a round trip up to this gains nothing
_WINDOW_BYTES = 2 * 1024 * 1024  # of an SSH channel; more is seldom under way over one lane
_NO_QUEUE = 1.25  # of the least round trip: what is lost below that was not dropped by a full queue
_LOSSES = 4.0  # looks at a lane in which it had lost something so, of all lanes together
_FORGOTTEN = 0.95  # a look counts less with each that comes after it
_LOSSES_ALONE = 2.0  # likewise, where one lane is all that is seen
_SHARE = 3.0  # times as many as those in which a queue was full
_HELD_UP = 0.5  # of a lane's window under way: with more it does not matter what is lost
_BEFORE_S, _BEFORE_TRIPS = 0.2, 2  # over which the rate before is measured
_SETTLE_S, _SETTLE_TRIPS = 0.2, 8  # until BBR has gathered speed
_LOOK_S, _LOOK_TRIPS = 0.5, 8  # over which its rate is measured
_WORTH = 1.25  # times the rate before: with less BBR is let go
_LOGIN_BYTES = 100_000  # more than a login and the agent send
_SENDER_BYTES = 1_000_000  # fewer were only answers: the other end sends
_BURST_S = 0.5  # after the first loss: until then a lane has more under way than it will keep
_PAUSE_S = 1.0  # until it is tried again, doubled each time
_INFO_BYTES = 160
# Of struct tcp_info (linux/tcp.h): rtt in microseconds, segments sent again, bytes acknowledged,
# the least rtt.
_RTT_AT, _RESENT_AT, _ACKED_AT, _MIN_RTT_AT = 68, 100, 120, 148


class Sending(NamedTuple):
    """How the sending over a connection goes."""

    acked_bytes: int  # since it was made
    resent: int  # segments, likewise
    rtt_s: float  # lately, with what waits in queues
    min_rtt_s: float


class LiveSocket:
    """A connected TCP socket of Linux, or a duplicate of one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def sending(self) -> Optional[Sending]:
        """Return how the sending goes; None where the kernel does not say."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return None
        if len(info) < _INFO_BYTES:
            return None
        [acked_bytes] = struct.unpack_from("Q", info, _ACKED_AT)
        rtt_us, resent, least_us = (
            struct.unpack_from("I", info, at)[0] for at in (_RTT_AT, _RESENT_AT, _MIN_RTT_AT)
        )
        return Sending(acked_bytes, resent, rtt_us / 1e6, least_us / 1e6)

    def congestion(self) -> str:
        """Return the congestion control of the connection; "" where that is not known."""
        try:
            name = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return ""
        return name.rstrip(b"\0").decode("ascii", "replace")

    def set_congestion(self, name: str) -> bool:
        """Change the congestion control. Return False where the kernel refuses."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            return False
        return True

    def hasten(self) -> None:
        """Send what is small without waiting, and acknowledge now what has come. Only Linux can."""
        with contextlib.suppress(OSError):  # the connection is lost
            for option in (socket.TCP_NODELAY, socket.TCP_QUICKACK):
                self._socket.setsockopt(socket.IPPROTO_TCP, option, 1)

    def close(self) -> None:
        """Close the duplicate; the connection is the process's own."""
        self._socket.close()


_Lanes = Mapping[object, Sending]  # by what stands for the lane's connection


class Choice:
    """Tries BBR where packets are lost though no queue is full, and keeps it if it is faster."""

    def __init__(self, losses: float = _LOSSES) -> None:
        """`losses` is how many looks at lanes that lost something are needed to try it."""
        self._needed = losses
        self.name = ""  # the congestion control that lanes are to have; "": the system's
        self._rtt_s = 0.0
        self._seen: Deque[Tuple[float, _Lanes]] = deque()  # lately, while BBR is not tried
        self._losses, self._drops = 0.0, 0.0  # looks at lanes that lost something; by full queues
        self._rate_before = 0.0  # of a lane, while BBR is tried
        self._tried_s: Optional[float] = None  # when BBR was tried; None: it is not, or it is kept
        self._begun: Optional[Tuple[float, _Lanes]] = None  # the measurement of BBR
        self._again_s, self._pause_s = math.inf, _PAUSE_S

    def look(self, now_s: float, lanes: _Lanes) -> Optional[str]:
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
        is_lossy = self._losses >= max(self._needed, _SHARE * self._drops)
        if not is_lossy or now_s < self._again_s or now_s - self._seen[0][0] < before_s:
            return None
        rate = _rate(self._seen[0], (now_s, lanes))
        if rate * self._rtt_s > _HELD_UP * _WINDOW_BYTES:
            return None
        self.name, self._tried_s, self._rate_before = "bbr", now_s, rate
        return "lanes move %s each and lose packets, though no queue is full: trying bbr" % _mb(
            rate
        )

    def _judge(self, now_s: float, lanes: _Lanes) -> Optional[str]:
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
        said = "lanes move %s each with bbr, and %s without" % (_mb(rate), _mb(before))
        if rate >= _WORTH * before:
            return said + ": going on with it"
        self.name = ""
        self._again_s, self._pause_s = now_s + self._pause_s, 2 * self._pause_s
        return said + ": going on without"


def _lost(before: _Lanes, now: _Lanes) -> Tuple[int, int]:
    """Return how many lanes lost something while no queue was full, and while one was."""
    both = [(before[number], lane) for number, lane in now.items() if number in before]
    lossy = [after for earlier, after in both if after.resent > earlier.resent]
    drops = sum(lane.rtt_s >= _NO_QUEUE * lane.min_rtt_s for lane in lossy)
    return len(lossy) - drops, drops


def _rate(begin: Tuple[float, _Lanes], end: Tuple[float, _Lanes]) -> float:
    """Return the bytes per second of a lane, on average of those that were at work."""
    both = begin[1].keys() & end[1].keys()
    moved = [end[1][each].acked_bytes - begin[1][each].acked_bytes for each in both]
    at_work = [each for each in moved if each > _LOGIN_BYTES]
    return sum(at_work) / max(len(at_work), 1) / max(end[0] - begin[0], 1e-3)


def _mb(rate: float) -> str:
    return "%.1f MB/s" % (rate / 1e6)


class Follower:
    """Gives a lane's socket, in the process that has it, the congestion control of a Choice."""

    def __init__(self, lane: LiveSocket) -> None:
        self._lane, self._own = lane, lane.congestion()
        self._choice = Choice(_LOSSES_ALONE)

    def look(self, now_s: float) -> bool:
        """Look at the sending once. Return False where nothing is to be decided any more."""
        sending, before = self._lane.sending(), self._choice.name
        if sending is None or sending.min_rtt_s <= NEAR_S or self._own in ("", "bbr"):
            return False
        if sending.acked_bytes < _SENDER_BYTES:
            return True
        self._choice.look(now_s, {0: sending})
        wanted = self._choice.name
        return wanted == before or self._lane.set_congestion(wanted or self._own)

    def run(self) -> None:
        """Look again and again, until all is decided; that may be never."""
        while self.look(time.monotonic()):
            time.sleep(LOOK_S)


def follow(lane: LiveSocket) -> None:
    """Have a thread choose the congestion control of this lane's socket; on Linux, else nothing."""
    if sys.platform != "linux":
        return
    threading.Thread(target=Follower(lane).run, name="congestion", daemon=True).start()
