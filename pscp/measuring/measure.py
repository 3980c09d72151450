"""Measures the path to a host: its round trip, each cipher, each number of connections. No disk.

It moves a transfer test's made-up data over the lanes of a copy, so a copy can reach the same
rates. Each point is a Trial of about two seconds each way; only the second half counts, when logins
are over and TCP has gathered speed.

Not here: what follows from the figures (advice.py), their tables (cli/measure_report.py), one trial
and its connections (trial.py). Read next: advice.py.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pscp.calls.api import Session
from pscp.connect.agent_program import copy_modules
from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.known.host_memory import HostMemory
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import system
from pscp.endpoint.there import kernel
from pscp.ground import errors
from pscp.ground.locations import Location
from pscp.measuring import advice
from pscp.measuring.advice import DirectionRate, Kernel, Measurement, Point
from pscp.measuring.trial import CipherOpener, Trial
from pscp.options.keywords import in_keywords
from pscp.options.options import Options, check_concern
from pscp.transfer.begin_requests import choose_hash

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

SECONDS = 2.0  # for a point in one direction
_WARM_ROUND_TRIPS = 9  # until TCP's first 14 KB a round trip have doubled to a channel's 2 MiB
_FAR_S = 0.15  # the round trip from which fewer points are measured: each costs more
_MOST_S = 50.0  # for all points, about
_FOR_CIPHERS = 0.5  # the share of that for ciphers; the numbers of connections get the rest
_PATIENCE_S = 2.0  # for what is in flight when a trial is over; then its connections are closed
_LONG_S = 60.0  # the same, where no new connection could be opened
_QUESTIONS = 7  # to measure the round trip
_KERNEL_MAX = 32  # settings of the far end that are kept
_TEXT_MAX = 200  # characters of each

Say = Callable[[str], None]


@in_keywords()
def measure(
    host: str | Location,
    options: Options | None = None,
    *,
    save: bool = False,
    seconds: float = SECONDS,
    say: Say | None = None,
    note: Say | None = None,
    **fields: Unpack[OptionFields],
) -> Measurement:
    """Measure the path to a host in about a minute, without touching a disk at either end.

    `fields` are fields of Options; `connections` is the most to try (16). With `save` the advice
    is kept for this host, for copies that choose nothing else. `say` gets what is being done,
    `note` the login's messages. Raises as copy() does.
    """
    check_concern("measure()", fields)
    fields["direct"] = False  # that is for copies
    with Session(host, options, **fields) as session:
        if session.options.login_once:
            raise errors.UsageError("--measure logs in several times: not with --login-once")
        opener = CipherOpener(session)
        try:
            measuring = _Measuring(opener, seconds, say or (lambda text: None))
            found = measuring.run(opener.first(note or (lambda text: None)))
        finally:
            opener.close()
        if not save:
            return found
        # If only one connection could be opened, nothing is known about more.
        number = found.advice.connections if len(found.connections) > 1 else 0
        cipher = found.advice.cipher if found.advice.cipher in opener.offered else ""
        if HostMemory(session.host, session.options).save_advice(number, cipher):
            return dataclasses.replace(found, saved=True)
        notes = (*found.notes, "nothing was saved: the state folder cannot be written")
        return dataclasses.replace(found, notes=notes)


class _Measuring:
    """One measurement. For the main thread."""

    def __init__(self, opener: CipherOpener, seconds: float, say: Say) -> None:
        self._opener, self._say = opener, say
        self._seconds, self._begun_s = seconds, time.monotonic()
        self._rtt_s, self._algorithm = 0.0, ""
        self._notes: list[str] = []

    def run(self, first: RemoteAgent) -> Measurement:
        """Measure the round trip, the ciphers and the connections, beginning with this one."""
        self._say("measuring the round trip")
        trips = []
        for _ in range(_QUESTIONS):
            begun_s = time.monotonic()
            first.ask(requests.Ping())
            trips.append(time.monotonic() - begun_s)
        self._rtt_s, self._algorithm = statistics.median(trips), choose_hash(first)
        near, far = self._kernels(first)
        ciphers, agents = self._ciphers(first)
        best = advice.best_cipher(ciphers)
        lanes = self._more(best, agents)
        planes = self._planes(advice.enough_connections(lanes))
        return Measurement(
            host=self._opener.host.login,
            rtt_s=self._rtt_s,
            rtt_min_s=min(trips),
            ciphers=tuple(ciphers),
            connections=tuple(lanes),
            windows=advice.windows_of(lanes[0], self._rtt_s, near, far),
            near=near,
            far=far,
            advice=advice.advise(self._rtt_s, ciphers, lanes, near, far),
            notes=tuple(self._notes),
            seconds=time.monotonic() - self._begun_s,
            planes=planes,
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _kernels(self, far: RemoteAgent) -> tuple[Kernel, Kernel]:
        far.ask(requests.Learn(copy_modules(["kernel"])))
        answer, failed = far.ask(kernel.Kernel())
        settings = answer if isinstance(answer, dict) and not failed else {}
        there = {
            str(name)[:_TEXT_MAX]: str(value)[:_TEXT_MAX]
            for name, value in list(settings.items())[:_KERNEL_MAX]
        }
        here = Kernel(os.uname().sysname, kernel.kernel_settings())
        return here, Kernel(str(far.hello.get("system", ""))[:_TEXT_MAX], there)

    # --- the points

    def _ciphers(self, first: RemoteAgent) -> tuple[list[Point], list[RemoteAgent]]:
        """Measure each cipher over one connection; return the points and the best one's agents."""
        self._say("logging in with each cipher")
        found = self._logged_in(first)
        points: list[Point] = []
        for name in list(found):
            if points and self._is_late(_FOR_CIPHERS * _MOST_S):
                self._note(f"{name}: left out, for time")
                continue
            self._say(f"measuring {name}")
            if (point := self._point(name, found[name])) is not None:
                points.append(point)
        if not points:
            raise errors.ConnectionLost("no connection lived long enough to be measured")
        agents = found.pop(advice.best_cipher(points).cipher)
        for others in found.values():
            for far in others:
                far.close()
        return points, agents

    def _logged_in(self, first: RemoteAgent) -> dict[str, list[RemoteAgent]]:
        """Return a connection for each cipher, or the first one if no login can be repeated.

        One login is tried before the others, since sshd punishes many failed ones at once.
        """
        found: dict[str, list[RemoteAgent]] = {}
        offered = self._opener.offered
        for ciphers in (offered[:1], offered[1:]):
            for cipher, far in self._opener.open(ciphers):
                if isinstance(far, errors.AuthenticationError):
                    self._note(f"only the first connection: {far.message}")
                    return {self._opener.first_cipher: [first]}
                if isinstance(far, RemoteAgent):
                    found[cipher] = [far]
                elif "no matching cipher" not in far.message:  # ssh's words: not offered there
                    self._note(f"{cipher}: {far.message}")
        if not found:
            return {self._opener.first_cipher: [first]}
        first.close()
        return found

    def _more(self, one: Point, agents: list[RemoteAgent]) -> list[Point]:
        """Measure the best cipher over more connections, while that may bring more."""
        points = [one]
        step = 4 if self._rtt_s >= _FAR_S else 2
        most = self._opener.most_connections
        counts = advice.counts_up_to(most, step) if self._can_open(one.cipher) else [1]
        for count in counts[1:]:
            if self._is_late():
                self._note(f"{count} connections: left out, for time")
                break
            if not advice.may_gain(points):
                break
            self._say(f"measuring {count} connections")
            self._fill(one.cipher, agents, count)
            if len(agents) < count:
                self._note(f"{count} connections could not be opened")
                break
            if (point := self._point(one.cipher, agents)) is not None:
                points.append(point)
        return points

    def _planes(self, over_ssh: Point) -> tuple[Point, ...]:
        """Measure --plane over as many connections; return both, or nothing without --plane."""
        plane = self._opener.plane
        if not plane:
            return ()
        self._say(f"measuring --plane {plane}")
        agents = self._opener.direct(over_ssh.connections, self._note)
        point = self._point(plane, agents) if agents else None
        return (over_ssh, point) if point is not None else (over_ssh,)

    def _is_late(self, after_s: float = _MOST_S) -> bool:
        return time.monotonic() - self._begun_s > after_s

    def _point(self, cipher: str, agents: list[RemoteAgent]) -> Point | None:
        """Measure both directions over these connections, and take out those that were lost.

        Return None if none is left.
        """
        count, ways = len(agents), []
        warm_s = max(self._seconds / 2, _WARM_ROUND_TRIPS * self._rtt_s)
        for is_push in (True, False):
            self._fill(cipher, agents, count)
            if not agents:
                return None
            before = _cpu(agents)
            trial = Trial(agents, is_push, self._rtt_s, self._algorithm)
            rate = trial.run(
                warm_s, self._seconds / 2, _PATIENCE_S if self._can_open(cipher) else _LONG_S
            )
            for message in trial.lost():
                self._note(f"{count} connections, and one of them was lost: {message}")
            agents[:] = trial.alive()
            costs = (
                advice.per_gib(None if a is None or b is None else a - b, trial.file.landed_bytes)
                for a, b in zip(_cpu(agents), before, strict=True)
            )
            ways.append(DirectionRate(rate, *costs))
        return Point(cipher, count, *ways)

    # --- connections

    def _can_open(self, cipher: str) -> bool:
        return cipher in self._opener.offered  # else it is the first one's, which logs in only once

    def _fill(self, cipher: str, agents: list[RemoteAgent], count: int) -> None:
        """Add new connections up to `count`, if they can be opened."""
        missing = count - len(agents) if self._can_open(cipher) else 0
        for _, far in self._opener.open([cipher] * missing):
            if isinstance(far, RemoteAgent):
                agents.append(far)
            else:
                self._note(far.message)


def _cpu(agents: list[RemoteAgent]) -> tuple[float | None, float | None]:
    """Return the CPU-seconds of the ssh here and the sshd there; None for several connections."""
    if len(agents) != 1:
        return None, None
    [far] = agents
    answer, failed = far.ask(requests.Cpu())
    there = answer if isinstance(answer, float) and not failed else None
    return system.cpu_seconds(far.channel.pid), there
