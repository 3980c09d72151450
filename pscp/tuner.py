"""How many lanes a copy uses with -c auto, decided from what is measured (docs/tuning.md).

Pure: it knows no clock, no thread and no connection. It is shown the copy every moment (Seen) and
says how many lanes should work (`count`), and why, in a sentence. Its tests drive it over
simulated paths.

Not here: opening and parking lanes (crew.py).
Read next: crew.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

CHANNEL_BYTES = 2 * 1024 * 1024  # OpenSSH's channel window (channels.h): a round trip's worth
_PATH_BYTES_S = 1.33 * 125e6  # what a start makes room for: 1 Gbit/s, and a third for lost time
_FAR_S = 0.02  # from here on a lane that loses a packet takes long to recover
_START_MOST = 16  # connections at the start; each is a login, an ssh and an agent
_START_PAIRS = 12  # connections with two channels each, where 16 windows do not fill the path
_START_MANY = 8  # for many processors, or slow ones, or a far path
LANES_MOST = 32

_LOGIN_TRIPS = 12  # round trips of a login and of starting the agent
_SLOW_LOGIN_S = 0.7  # beyond these trips; a processor of today takes 0.2 to 0.3 s for both

_SETTLE_S, _SETTLE_TRIPS = 0.3, 8  # after a lane came: TCP doubles its window each round trip
_LOOK_S, _LOOK_TRIPS = 1.0, 5  # over which a rate is measured
_LOOK_PIECES = 5  # finished meanwhile, times the root of the lanes; fewer, and it is chance
_PATIENCE_S = 8.0  # with fewer lanes than wanted: then no more will come

_WORTH = 1.05  # of the rate before: less, and the new lanes are not worth having
_FAIR = 0.5  # of what the new lanes would bring if they did as well: less, and there is an end
_SPARE = 0.15  # of this machine's processors that must be idle before lanes are added
_STEPS_LEFT = 3  # a step pays only where the rest of the copy takes this many times as long
_MANY_STEPS = 6  # where the copy takes so many more, a step doubles the lanes, to 8 at least


class Path(NamedTuple):
    """What is known of the way there before data moves."""

    rtt_s: float
    login_s: float  # from the start of the first ssh to the agent's HELLO
    cpus: int  # of the end that has fewer


class Seen(NamedTuple):
    """Where the copy stands at one moment."""

    now_s: float
    alive: int  # lanes with a connection
    done_bytes: int  # of finished work
    done_pieces: int
    left_bytes: float  # infinite while the walk goes on
    idle_s: float  # of a processor here, on average, since it was started; infinite: not known


class Start(NamedTuple):
    """What a copy begins with, and why."""

    lanes: int
    channels: int  # of each connection
    why: str


def start(path: Path) -> Start:
    """How many lanes a copy begins with.

    A far path needs as many channel windows as fill it in a round trip; a near one as many
    connections as there are processors to encrypt them, at the end that has fewer. A login that
    took long on a near path tells of slow processors, of which there usually are many.
    """
    rtt_s = min(path.rtt_s, 1.0)
    of_path = math.ceil(_PATH_BYTES_S * rtt_s / CHANNEL_BYTES)
    of_cpus = min(max(path.cpus, 2), _START_MANY)
    slow_s = path.login_s - _LOGIN_TRIPS * rtt_s
    trip = f"a round trip takes {rtt_s * 1000:.1f} ms"
    if of_path > _START_MOST:
        why = f"{trip}: {_START_PAIRS} connections of two channels, to fill 1 Gbit/s"
        return Start(2 * _START_PAIRS, 2, why)
    if slow_s > _SLOW_LOGIN_S and of_path < _START_MANY:
        why = f"logging in took {path.login_s:.1f} s, as on slow processors"
        return Start(_START_MANY, 1, why)
    if rtt_s > _FAR_S:
        return Start(max(of_path, _START_MANY), 1, f"{trip}: enough windows for 1 Gbit/s and more")
    if of_path > of_cpus:
        return Start(of_path, 1, f"{trip}: {of_path} windows of 2 MiB fill 1 Gbit/s")
    return Start(of_cpus, 1, f"{path.cpus} processors at the end that has fewer")


class Tuner:
    """Adds lanes while they bring more, and takes away the last ones when they did not."""

    def __init__(self, path: Path, count: int, most: int = LANES_MOST) -> None:
        self.count = count  # lanes that should work
        self.needs_window = False  # lanes are held up by the channel's window, nothing else
        self._rtt_s = min(path.rtt_s, 1.0)
        self._most = most
        self._settle_s = _SETTLE_S + _SETTLE_TRIPS * self._rtt_s
        self._look_s = _LOOK_S + _LOOK_TRIPS * self._rtt_s
        self._step_s = path.login_s + self._settle_s + self._look_s
        self._alive, self._alive_s = 0, 0.0  # lanes, and since when nothing changed
        self._begin: Seen | None = None  # of what is being measured
        self._before: tuple[int, float] | None = None  # lanes, and their rate, before the last step
        self.is_done = False

    def look(self, seen: Seen) -> str | None:
        """A sentence when `count` changed, or will not change any more."""
        if self.is_done:
            return None
        if seen.alive != self._alive:
            self._alive, self._alive_s, self._begin = seen.alive, seen.now_s, None
        since_s = seen.now_s - self._alive_s
        if 0 < seen.alive < self.count and since_s > _PATIENCE_S:
            wanted, self.count = self.count, seen.alive
            return f"of {wanted} lanes {seen.alive} came: going on with these"
        if seen.alive < self.count or since_s < self._settle_s:
            return None
        if self._begin is None:
            self._begin = seen
            return None
        taken_s = seen.now_s - self._begin.now_s
        pieces = seen.done_pieces - self._begin.done_pieces
        if taken_s < self._look_s or pieces < _LOOK_PIECES * math.sqrt(self.count):
            return None
        rate = (seen.done_bytes - self._begin.done_bytes) / taken_s
        idle = (seen.idle_s - self._begin.idle_s) / taken_s if seen.idle_s < math.inf else 1.0
        self._begin = None
        return self._judged(seen, rate, idle)

    def _judged(self, seen: Seen, rate: float, idle: float) -> str | None:
        said = f"{self.count} lanes move {_mb(rate)}"
        if self._before is not None:
            count, slower = self._before
            if rate < _WORTH * slower:
                self.count, self.is_done = count, True
                return f"{said}, and {count} moved {_mb(slower)}: back to {count}"
            fair = 1 + _FAIR * (self.count / count - 1)
            if rate < fair * slower:
                self.is_done = True
                return f"{said}, and {count} moved {_mb(slower)}: enough"
        reason = self._reason_to_stop(seen, rate, idle)
        if reason:
            self.is_done = True
            return f"{said}; no more are tried: {reason}"
        self._before, self._alive_s = (self.count, rate), seen.now_s
        self.needs_window = rate / self.count * self._rtt_s > 0.6 * CHANNEL_BYTES
        self.count = min(self._most, self._next_count(seen, rate))
        held = ", held up by the channel's window" if self.needs_window else ""
        return f"{said}{held}: trying {self.count}"

    def _reason_to_stop(self, seen: Seen, rate: float, idle: float) -> str:
        if self.count >= self._most:
            return "that is the most"
        if seen.left_bytes < _STEPS_LEFT * self._step_s * rate:
            return "the copy ends soon"
        if idle < _SPARE:
            return "the processors here are busy"
        return ""

    def _next_count(self, seen: Seen, rate: float) -> int:
        """The longer the copy still takes, the larger the step."""
        if seen.left_bytes > _MANY_STEPS * self._step_s * rate:
            return max(2 * self.count, _START_MANY)
        return math.ceil(1.5 * self.count)


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
