"""How many lanes a copy uses with -c auto, decided from what is measured (docs/tuning.md).

Pure: it knows no clock, no thread and no connection. It is shown a CopyState again and again,
and says how many lanes should work (`count`), and why, in a sentence.

Not here: opening and parking lanes (../lane_pool.py), how busy processors are (../autoscaler.py).
Read next: ../lane_pool.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pscp.connect.known.host_memory import FAR_S

CHANNEL_BYTES = 2 * 1024 * 1024  # OpenSSH's channel window (channels.h): a round trip's worth
_PATH_BYTES_S = 1.33 * 125e6  # what a start makes room for: 1 Gbit/s, and a third for lost time
_START_MOST = 16  # connections at the start; each is a login, an ssh and an agent
_START_PAIRS = 12  # connections with two channels each, where 16 windows do not fill the path
_LANE_BYTES_S = 300e6  # of one lane on a near path
_START_MANY = 8  # for many processors, or slow ones, or a far path
LANES_MOST = 32

LOGIN_TRIPS = 12  # round trips of a login and of starting the agent
_TYPING_S = 1.0  # beyond these trips; a person who types a password takes longer
# Beyond these trips; a processor of today takes 0.2 to 0.3 s for both, a busy one 0.6 to 0.9.
_SLOW_LOGIN_S = 1.0

_SETTLE_S, _SETTLE_TRIPS = 0.3, 8  # after a lane came: TCP doubles its window each round trip
_LOOK_S, _LOOK_TRIPS = 1.0, 5  # over which a rate is measured
# Pieces finished meanwhile, times the root of the number of lanes; with fewer the rate is chance.
_LOOK_PIECES = 5
_PATIENCE_S = 8.0  # with fewer lanes than wanted, before it is assumed that no more will come

_WORTH = 1.05  # times the rate before: with less the new lanes are not worth having
_FAIR = 0.5  # of what the new lanes would bring if they did as well: with less no more are tried
# From this round trip on, lanes that have less of their window under way lose packets.
LOSSY_S, _LOSSY = 0.01, 0.15
_HELD_UP = 0.6  # of its window under way, on average: the window is what holds a lane up
# This machine's processors are busy with the copy when less of them is idle than the first share,
# and more of them is used by the copy than the second.
_SPARE, _OURS = 0.15, 0.25
_STEPS_LEFT = 3  # a step pays only where the rest of the copy takes this many times as long
_ALIKE = 1.25  # rates that differ by less than this factor are the same
_MANY_STEPS = 6  # where the copy lasts longer than these, a step doubles the lanes, to 8 or more


class Path(NamedTuple):
    """The path to the far end, as far as it is known before data moves."""

    rtt_s: float
    login_s: float  # from the start of the first ssh to the agent's HELLO
    cpus: int  # of the end that has fewer
    has_bbr: bool = False  # this end sends, and may choose BBR for its connections
    copies: int = 1  # that begin at once, and share this end's processors and its network
    was_crowded: bool = False  # processors here were busy during the login: its time tells nothing


class CopyState(NamedTuple):
    """The state of the copy at one moment."""

    now_s: float
    alive: int  # lanes with a connection
    done_bytes: int  # of finished work
    done_pieces: int
    left_bytes: float  # infinite while the walk goes on
    idle_s: float  # a processor here was idle for, on average, since its start; infinite: unknown
    used_s: float  # of a processor here, on average, by this process and its ssh processes


class Start(NamedTuple):
    """The lanes that a copy begins with, and why."""

    lanes: int
    channels: int  # of each connection
    why: str


def start(path: Path) -> Start:
    """Return how many lanes a copy begins with, and why.

    A far path needs as many channel windows as fill it in a round trip; a near one as many
    connections as there are processors to encrypt them, at the end that has fewer. A login that
    took long on a near path means slow processors, of which there usually are many; but not where
    it had to wait for its turn on those here. Copies that begin at once have together what one
    would begin with.
    """
    found, copies = _start(path), path.copies
    if copies == 1:
        return found
    why = f"{found.why}; {copies} copies at once"
    return found._replace(lanes=max(found.lanes // copies, 1), why=why)


def _start(path: Path) -> Start:
    rtt_s = min(path.rtt_s, 1.0)
    of_path = math.ceil(_PATH_BYTES_S * rtt_s / CHANNEL_BYTES)
    of_cpus = _of_cpus(path._replace(copies=1))
    # The logins of several copies compute side by side, and hold up each other's round trips.
    slow_s = path.login_s / path.copies - LOGIN_TRIPS * rtt_s
    trip = f"a round trip takes {rtt_s * 1000:.1f} ms"
    if of_path > _START_MOST:
        why = f"{trip}: {_START_PAIRS} connections of two channels, to fill 1 Gbit/s"
        return Start(2 * _START_PAIRS, 2, why)
    if slow_s > _SLOW_LOGIN_S and of_path < _START_MANY and not path.was_crowded:
        why = f"logging in took {path.login_s:.1f} s, as on slow processors"
        return Start(_START_MANY, 1, why)
    if rtt_s > FAR_S:
        return Start(max(of_path, _START_MANY), 1, f"{trip}: enough windows for 1 Gbit/s and more")
    if of_path > of_cpus:
        return Start(of_path, 1, f"{trip}: {of_path} windows of 2 MiB fill 1 Gbit/s")
    return Start(of_cpus, 1, f"{path.cpus} processors at the end that has fewer")


def _of_cpus(path: Path) -> int:
    return max(min(max(path.cpus, 2), _START_MANY) // path.copies, 1)


def is_far_and_unattended(path: Path) -> bool:
    """Return whether a login takes long here, and for this one nobody typed a password."""
    return path.rtt_s > FAR_S and path.login_s < LOGIN_TRIPS * path.rtt_s + _TYPING_S


def usual_lanes(path: Path) -> int:
    """Return how many lanes a copy begins with that knows nothing, where logging in is quick."""
    return start(path._replace(login_s=0.0)).lanes


def is_worth_a_login(
    path: Path, lanes: int, left_bytes: float, passed_s: float, bytes_per_s: float = math.inf
) -> bool:
    """Return whether the work left takes so many lanes longer than a login takes.

    `left_bytes` is what is known of the work so far; the walk that finds more has run for
    `passed_s`. Their rate is estimated; it is at most `bytes_per_s`, once that was measured.
    """
    lane_bytes_s = min(CHANNEL_BYTES / max(path.rtt_s, 1e-6), _LANE_BYTES_S)
    rate = min(lanes * lane_bytes_s, bytes_per_s)
    return left_bytes > rate * path.login_s or passed_s > 2 * path.login_s


def lanes_worth(rtt_s: float, work_bytes: float, wanted: int) -> int:
    """Return how many of the wanted lanes are worth a login each for so much work.

    That is before anyone has logged in: nothing but the round trip is known of the path.
    """
    path, counts = Path(rtt_s, LOGIN_TRIPS * rtt_s, cpus=1), range(1, wanted)
    return next((n for n in counts if not is_worth_a_login(path, n, work_bytes, 0.0)), wanted)


class MeasuredRate(NamedTuple):
    """The rate of the lanes while their number did not change."""

    bytes_per_s: float
    is_busy: bool  # this machine's processors were busy with the copy
    is_loaded: bool  # they were busy, with whatever


class Meter:
    """Measures what lanes move, once their number has stayed the same for a while."""

    def __init__(self, rtt_s: float) -> None:
        self.settle_s = _SETTLE_S + _SETTLE_TRIPS * rtt_s
        self.look_s = _LOOK_S + _LOOK_TRIPS * rtt_s
        self._alive, self._alive_s = 0, 0.0  # the lanes, and since when there are so many
        self._begin: CopyState | None = None  # the copy when the measurement began

    def steady_s(self, seen: CopyState) -> float:
        """Return for how long there have been as many lanes as now."""
        if seen.alive != self._alive:
            self._alive, self._alive_s, self._begin = seen.alive, seen.now_s, None
        return seen.now_s - self._alive_s

    def restart(self, now_s: float) -> None:
        """Have nothing measured until lanes have settled again."""
        self._alive_s, self._begin = now_s, None

    def measured(self, seen: CopyState, lanes: int) -> MeasuredRate | None:
        """Return the rate since the last measurement; None while that is too short ago."""
        begin = self._begin
        if begin is None:
            self._begin = seen
            return None
        taken_s = seen.now_s - begin.now_s
        pieces = seen.done_pieces - begin.done_pieces
        if taken_s < self.look_s or pieces < _LOOK_PIECES * math.sqrt(lanes):
            return None
        idle = (seen.idle_s - begin.idle_s) / taken_s if seen.idle_s < math.inf else 1.0
        used = (seen.used_s - begin.used_s) / taken_s
        self._begin = None
        bytes_per_s = (seen.done_bytes - begin.done_bytes) / taken_s
        return MeasuredRate(bytes_per_s, idle < _SPARE and used > _OURS, idle < _SPARE)


class Tuner:
    """Adds lanes while they bring more, and takes away the last ones when they did not."""

    def __init__(
        self,
        path: Path,
        count: int,
        congestion: str = "",
        enough_bytes_s: float = 0.0,
        known_bytes_s: float = 0.0,
    ) -> None:
        """Begin with `count` lanes, and this congestion control for those that are added.

        `enough_bytes_s` is the rate at which the last copy gained nothing by more lanes,
        `known_bytes_s` the one that so many lanes had in an earlier copy; 0: not known.
        """
        self.count = count  # lanes that should work
        self.awaited = 0  # lanes that did not come in time, and are welcome as long as they try
        self.needs_window = False  # only the channel's window holds lanes up
        self.congestion = congestion  # the congestion control of lanes that are added
        # What the next copy over this path should begin with, and its `enough_bytes_s`:
        self.best_congestion, self.enough_bytes_s = congestion, enough_bytes_s
        self.found = 0, 0.0  # the lanes that were seen to be good, and their rate; 0: none
        self.has_judged = False  # until then these three are only what this copy began with
        self.is_done = False
        self._usual, self._known_bytes_s = usual_lanes(path), known_bytes_s
        self._is_loaded = False  # processors here were busy during a measurement
        self._has_bbr = path.has_bbr and path.rtt_s > LOSSY_S and not congestion
        self._path, self._meter = path, Meter(min(path.rtt_s, 1.0))
        self._before: tuple[int, float] | None = None  # the lanes before the last step; their rate

    def leave_congestion(self) -> None:
        """Try no other congestion control: that is decided from what sockets say."""
        self._has_bbr, self.congestion = False, ""

    def restart(self, now_s: float) -> None:
        self._before = None
        self._meter.restart(now_s)

    def look(self, seen: CopyState) -> str | None:
        """Return a sentence when `count` changed, or will not change any more."""
        if self.is_done:
            return None
        since_s = self._meter.steady_s(seen)
        if 0 < seen.alive < self.count and since_s > _PATIENCE_S:
            wanted, self.count = self.count, seen.alive
            self.awaited = max(self.awaited, wanted)
            return f"of {wanted} lanes {seen.alive} came: going on with these"
        if self.count < seen.alive <= self.awaited:
            self.count = seen.alive
            return f"{seen.alive} lanes by now"
        if seen.alive < self.count or since_s < self._meter.settle_s:
            return None
        found = self._meter.measured(seen, self.count)
        if found is None:
            return None
        count, self._is_loaded = self.count, self._is_loaded or found.is_loaded
        sentence = self._judge(seen, found.bytes_per_s, found.is_busy)
        if self.count != count:
            self.awaited = 0
        return sentence

    def _learn(self, lanes: int, rate: float, *, is_seen: bool) -> None:
        """Keep what was found best. Of more lanes than usual it has to be seen (`is_seen`).

        It is not, where processors here were busy: those who compute beside this come and go, and
        where it is this copy, more processes than processors gain nothing.
        """
        if self._is_loaded and lanes > self._usual:
            self.found = self._usual, 0.0
        elif is_seen or lanes <= self._usual:
            self.found = lanes, rate

    def _judge(self, seen: CopyState, rate: float, is_busy: bool) -> str | None:
        moved = f"{self.count} lanes move {_mb(rate)}"
        self.has_judged = True
        of_cpus = _of_cpus(self._path) if self._path.rtt_s < FAR_S else self.count
        if is_busy and self._before is None and self.count > of_cpus:
            self.count, self.is_done = of_cpus, True
            self._learn(of_cpus, 0.0, is_seen=True)
            return f"{moved} and keep the processors here busy: going on with {self.count}"
        if self._before is None:
            if self.count > self._usual and rate * _ALIKE < self._known_bytes_s:
                earlier, self._known_bytes_s = self._known_bytes_s, 0.0
                self.count, self.enough_bytes_s = self._usual, 0.0
                self._learn(self.count, 0.0, is_seen=True)
                self._meter.restart(seen.now_s)
                return f"{moved}, and {_mb(earlier)} in an earlier copy: going on with {self.count}"
            self._learn(self.count, rate, is_seen=self._known_bytes_s > 0)
            if self._is_enough(rate):
                self.is_done = True
                return f"{moved}, as the last time, when more brought nothing"
        else:
            count, slower = self._before
            if rate < _WORTH * slower:
                self.count, self.congestion, self.is_done = count, "", True
                self.enough_bytes_s = slower
                self._learn(count, slower, is_seen=True)
                return f"{moved}, and {count} moved {_mb(slower)}: back to {count}"
            fair = 1 + _FAIR * (self.count / count - 1)
            is_trial = self.congestion != self.best_congestion  # all can have it the next time
            self.best_congestion, self.enough_bytes_s = self.congestion, 0.0
            self._learn(count if is_trial else self.count, rate, is_seen=True)
            if rate < fair * slower:
                self.is_done = True
                self.enough_bytes_s = rate
                return f"{moved}, and {count} moved {_mb(slower)}: enough"
        reason = self._reason_to_stop(seen, rate, is_busy)
        if reason:
            self.is_done = True
            return f"{moved}; no more are tried: {reason}"
        self._before = self.count, rate
        self._meter.restart(seen.now_s)
        return f"{moved}{self._step(seen, rate)}"

    def _is_enough(self, rate: float) -> bool:
        """Return whether the rate is the one of the last copy that more lanes did not raise.

        If it is not, that one is forgotten.
        """
        if self.enough_bytes_s / _ALIKE < rate < self.enough_bytes_s * _ALIKE:
            return True
        self.enough_bytes_s = 0.0
        return False

    def _step(self, seen: CopyState, rate: float) -> str:
        """Raise the number of lanes. Return the end of a sentence that says why, and to what."""
        rtt_s = min(self._path.rtt_s, 1.0)
        under_way = rate / self.count * rtt_s / CHANNEL_BYTES  # of a lane's window
        if self._has_bbr and under_way < _LOSSY:
            self._has_bbr, self.congestion = False, "bbr"
            self.count = min(LANES_MOST, 2 * self.count)
            return f", {under_way:.0%} of their windows: trying {self.count}, the new ones with bbr"
        self.needs_window = under_way > _HELD_UP
        is_long = seen.left_bytes > _MANY_STEPS * self._step_s() * rate
        count = max(2 * self.count, _START_MANY) if is_long else math.ceil(1.5 * self.count)
        self.count = min(LANES_MOST, count)
        held = ", held up by the channel's window" if self.needs_window else ""
        return f"{held}: trying {self.count}"

    def _reason_to_stop(self, seen: CopyState, rate: float, is_busy: bool) -> str:
        if self.count >= LANES_MOST:
            return "that is the most"
        if seen.left_bytes < _STEPS_LEFT * self._step_s() * rate:
            return "the copy ends soon"
        if is_busy:
            return "the processors here are busy with it"
        return ""

    def _step_s(self) -> float:
        return self._path.login_s + self._meter.settle_s + self._meter.look_s


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
