"""Measures the path to a host: its round trip, each cipher, each number of connections. No disk.

What moves is a transfer test's made-up data, over the same lanes that a copy has: so a rate that
is found here is one that a copy can get. Each point is a Trial of about two seconds each way; its
rate is that of the last one, when logins are long over and TCP has gathered speed.

Not here: what follows from the figures (advice.py), their tables (cli/measure_report.py), the lanes
(transfer/lane.py).
Read next: advice.py.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pscp import errors
from pscp.api import Session
from pscp.connect import host_cache
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import requests, system, tree
from pscp.measuring import advice
from pscp.measuring.advice import Kernel, Measurement, Moved, Point
from pscp.options import CHUNK_BYTES, KIB, Location, Options
from pscp.transfer.begin import sink_request, source_request
from pscp.transfer.coordinator import choose_hash
from pscp.transfer.lane import Lane
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.plan import Chunk, Failure, Placed
from pscp.transfer.work_queue import WorkQueue
from pscp.transfer.worker import OPENING_MAX
from pscp.transports import Channel, open_channel, resolve
from pscp.transports.remote_command import command

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.option_fields import OptionFields

SECONDS = 2.0  # of a point in one direction
_WARM_ROUND_TRIPS = 9  # until TCP's first 14 KB a round trip have doubled to a channel's 2 MiB
_FAR_S = 0.15  # round trip from which fewer points are taken: each costs more
_MOST_S = 50.0  # in all, about
_FOR_CIPHERS = 0.5  # of it; the connections get the rest
_LANDINGS = 4  # that a rate is made from; a slow path gets longer for them
_LONGER_S = 5.0
_PATIENCE_S = 2.0  # for what is in flight when a trial is over; then its connections are ended
_LONG_S = 60.0  # the same, where there could be no new ones
_PAUSE_S = 1.0
_MOST_CONNECTIONS = 16
_QUESTIONS = 7  # for the round trip
_LEAST_CHUNK_BYTES = 256 * KIB
_CHUNK_S = 0.05  # of a lane's rate: small chunks on slow paths, or their arrivals tell no rate
_FILE_BYTES = 1 << 60  # more than any trial moves
_KERNEL_MAX = 32  # settings of the far end that are kept
_TEXT_MAX = 200  # and characters of each

Say = Callable[[str], None]


def measure(
    host: str | Location, options: Options | None = None, *, save: bool = False,
    seconds: float = SECONDS, say: Say | None = None, note: Say | None = None,
    **fields: Unpack[OptionFields],
) -> Measurement:  # fmt: skip
    """Measure the path to a host, without touching a disk at either end. About a minute.

    `fields` are fields of Options; `connections` is the most to try (16). With `save` the advice
    is kept for this host, and used by copies that ask for nothing else. `say` is told what is
    being done, `note` what the login says to people. Raises as copy() does.
    """
    with Session(host, options, **fields) as session:
        if session.options.login_once:
            raise errors.UsageError("--measure logs in several times: not with --login-once")
        measuring = _Measuring(session, seconds, say or (lambda text: None))
        try:
            found = measuring.run(note or (lambda text: None))
        finally:
            measuring.close()
        if not save:
            return found
        # Where there could be only one connection, nothing is known of more.
        number = found.advice.connections if len(found.connections) > 1 else 0
        cipher = found.advice.cipher if found.advice.cipher in measuring.offered else ""
        if host_cache.save_advice(session.host, session.options, number, cipher):
            return dataclasses.replace(found, saved=True)
        notes = (*found.notes, "nothing was saved: the state folder cannot be written")
        return dataclasses.replace(found, notes=notes)


class _MadeUpFile:
    """Whose chunks are moved: it has no end until it is told."""

    def __init__(self, queue: WorkQueue, lanes: int) -> None:
        self.number, self.is_closed, self.may_be_short = 1, False, False
        self.was_shared = False
        entry = tree.Entry(tree.FILE, 0, "made-up", _FILE_BYTES, 0, 0, 0, {})
        self.item = Placed(entry, entry)
        self.is_over = False
        self.landed_bytes = 0
        self.samples: list[tuple[float, int]] = []
        self._queue, self._lanes, self._begun_s = queue, lanes, time.monotonic()

    def chunks(self) -> Iterator[Chunk]:
        offset = 0
        while not self.is_over:
            length = self._chunk_bytes()
            yield Chunk(self, offset, length)
            offset += length

    def _chunk_bytes(self) -> int:
        passed_s = max(time.monotonic() - self._begun_s, 0.001)
        fair = self.landed_bytes / passed_s / self._lanes * _CHUNK_S
        return min(max(int(fair), _LEAST_CHUNK_BYTES), CHUNK_BYTES)

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self.landed_bytes += chunk.length
        self.samples.append((time.monotonic(), self.landed_bytes))
        self._queue.wake()

    def landings(self, since_s: float) -> int:
        return sum(at_s >= since_s for at_s, _ in self.samples)

    def mismatched(self, chunk: Chunk) -> None:
        raise ValueError("it arrived damaged")

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        raise ValueError(failure["message"])


class Trial:
    """Made-up data over these connections, in one direction."""

    def __init__(
        self, agents: list[RemoteAgent], is_push: bool, rtt_s: float, algorithm: str
    ) -> None:
        self.queue, self._rtt_s = WorkQueue(), rtt_s
        test = Options(transfer_test=True)
        context = LaneContext(self.queue, is_push=is_push, rtt_s=rtt_s, keeps=True)
        of_source = source_request([], test, algorithm)
        context.set_ends(of_source, sink_request("", "", test, algorithm))
        self.file = _MadeUpFile(self.queue, len(agents))
        self._agents = agents
        self._lanes = [Lane(f"lane {n}", context, far) for n, far in enumerate(agents, 1)]
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), name=f"lane {n}", daemon=True)
            for n, lane in enumerate(self._lanes, 1)
        ]

    def run(self, warm_s: float, seconds: float, patience_s: float) -> float:
        """Bytes a second over these seconds, once warm. Raises why it ended before."""
        from_s = time.monotonic() + warm_s
        to_s = from_s + seconds
        try:
            self.queue.add(self.file.chunks())
            for thread in self._threads:
                thread.start()
            self._wait(lambda: False, to_s)
            self._wait(lambda: self.file.landings(from_s) >= _LANDINGS, to_s + _LONGER_S)
            to_s = time.monotonic()
            self.file.is_over = True
            rate = advice.rate_between(self.file.samples, from_s, to_s)
            # Else there is no use in waiting.
            if self.queue.in_flight_bytes() <= 2 * rate * patience_s:
                self._wait(self.queue.is_idle, time.monotonic() + patience_s)
            self._finish()
            return rate
        except BaseException as error:
            self.queue.stop(error)
            self._abort()
            raise

    def lost(self) -> list[str]:
        """Why lanes were lost, if any were."""
        return [lane.error.message for lane in self._lanes if lane.error is not None]

    def alive(self) -> list[RemoteAgent]:
        """The connections that the next trial can use. A slow path's still have data in flight."""
        kept = []
        for far, lane in zip(self._agents, self._lanes, strict=True):
            if lane.ended_well:
                kept.append(far)
            else:
                far.close()
        return kept

    def _serve(self, lane: Lane) -> None:
        try:
            lane.run()
        except BaseException as error:  # a bug: the main thread raises it
            self.queue.stop(error)

    def _wait(self, is_so: Callable[[], bool], until_s: float) -> None:
        def is_over() -> bool:
            if is_so():
                return True
            if all(lane.error is not None for lane in self._lanes):
                raise self._lanes[0].error or errors.ConnectionLost("the connection closed")
            return False

        self.queue.wait_until(is_over, until_s - time.monotonic())
        self.queue.check()

    def _finish(self) -> None:
        """Lanes with nothing in flight say goodbye; the others are ended."""
        self.queue.close()
        until_s = time.monotonic() + 1 + 5 * self._rtt_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0))
        self._abort()

    def _abort(self) -> None:
        for far, thread in zip(self._agents, self._threads, strict=True):
            if thread.is_alive():
                far.channel.end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


class _Measuring:
    """One measurement, in the order of its figures."""

    def __init__(self, session: Session, seconds: float, say: Say) -> None:
        self._session, self._say = session, say
        self._options = session.options.with_agent("--measure")
        setup = resolve(session.host, session.options)
        # Those of OpenSSH's own first: where time is short, the others are left out.
        self.offered = sorted(setup.offered, key=lambda name: "@" not in name)
        self._setup = dataclasses.replace(setup, ciphers_are_ours=False)
        self._seconds, self._begun_s = seconds, time.monotonic()
        self._rtt_s, self._algorithm = 0.0, ""
        self._opened: list[Channel] = []
        self._is_over = False  # no login is begun again
        self._notes: list[str] = []

    def close(self) -> None:
        for channel in self._opened:
            channel.close()

    def run(self, note: Say) -> Measurement:
        [first] = self._session.connections.take(self._options, note)
        self._opened.append(first.channel)
        self._say("measuring the round trip")
        trips = self._round_trips(first)
        self._rtt_s, self._algorithm = statistics.median(trips), choose_hash(first)
        near, far = self._kernels(first)
        ciphers, agents = self._ciphers(first)
        best = advice.best_cipher(ciphers)
        lanes = self._more(best, agents)
        return Measurement(
            host=self._session.host.login, rtt_s=self._rtt_s, rtt_min_s=min(trips),
            ciphers=tuple(ciphers), connections=tuple(lanes),
            windows=advice.windows_of(lanes[0], self._rtt_s, near, far), near=near, far=far,
            advice=advice.advise(self._rtt_s, ciphers, lanes, near, far),
            notes=tuple(self._notes), seconds=time.monotonic() - self._begun_s,
        )  # fmt: skip

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _round_trips(self, far: RemoteAgent) -> list[float]:
        trips = []
        for _ in range(_QUESTIONS):
            begun_s = time.monotonic()
            far.ask(requests.Ping())
            trips.append(time.monotonic() - begun_s)
        return trips

    def _kernels(self, far: RemoteAgent) -> tuple[Kernel, Kernel]:
        answer, failed = far.ask(requests.Kernel())
        settings = answer if isinstance(answer, dict) and not failed else {}
        there = {
            str(name)[:_TEXT_MAX]: str(value)[:_TEXT_MAX]
            for name, value in list(settings.items())[:_KERNEL_MAX]
        }
        here = Kernel(os.uname().sysname, system.kernel_settings())
        return here, Kernel(str(far.hello.get("system", ""))[:_TEXT_MAX], there)

    # --- the points

    def _ciphers(self, first: RemoteAgent) -> tuple[list[Point], list[RemoteAgent]]:
        """Each cipher that both ends offer, over one connection; and the best one's."""
        self._say("logging in with each cipher")
        found = self._logged_in(first)
        points: list[Point] = []
        for name in list(found):
            if points and self._is_late(_FOR_CIPHERS * _MOST_S):
                self._note(f"{name}: left out, for time")
                continue
            self._say(f"measuring {name}")
            point, found[name] = self._point(name, found[name])
            if point is not None:
                points.append(point)
        if not points:
            raise errors.ConnectionLost("no connection lived long enough to be measured")
        best = advice.best_cipher(points).cipher
        for name in found:
            for far in found[name] if name != best else ():
                far.close()
        return points, found[best]

    def _logged_in(self, first: RemoteAgent) -> dict[str, list[RemoteAgent]]:
        """A connection with each cipher. Where a login cannot be repeated, the first one, as it is.

        One is tried before the others: many failed logins at once would bring a penalty.
        """
        found: dict[str, list[RemoteAgent]] = {}
        for ciphers in (self.offered[:1], self.offered[1:]):
            for cipher, far in self._open(ciphers):
                if isinstance(far, errors.AuthenticationError):
                    self._note(f"only the first connection: {far.message}")
                    return {self._options.cipher or "as configured": [first]}
                if isinstance(far, RemoteAgent):
                    found[cipher] = [far]
                elif "no matching cipher" not in far.message:  # ssh's words: not offered there
                    self._note(f"{cipher}: {far.message}")
        if not found:
            return {self._options.cipher or "as configured": [first]}
        first.close()
        return found

    def _more(self, one: Point, agents: list[RemoteAgent]) -> list[Point]:
        """The best cipher over more connections, while that may bring more."""
        points = [one]
        step = 4 if self._rtt_s >= _FAR_S else 2
        counts = advice.counts_up_to(self._most(), step) if self._can_open(one.cipher) else [1]
        for count in counts[1:]:
            if self._is_late():
                self._note(f"{count} connections: left out, for time")
                break
            if not advice.may_gain(points):
                break
            self._say(f"measuring {count} connections")
            agents = self._filled(one.cipher, agents, count)
            if len(agents) < count:
                self._note(f"{count} connections could not be opened")
                break
            point, agents = self._point(one.cipher, agents)
            if point is not None:
                points.append(point)
        return points

    def _most(self) -> int:
        return self._options.connections or _MOST_CONNECTIONS

    def _is_late(self, after_s: float = _MOST_S) -> bool:
        return time.monotonic() - self._begun_s > after_s

    def _point(
        self, cipher: str, agents: list[RemoteAgent]
    ) -> tuple[Point | None, list[RemoteAgent]]:
        """Push and pull over these connections, and those that are left; no point: none was."""
        count, ways = len(agents), []
        warm_s = max(self._seconds / 2, _WARM_ROUND_TRIPS * self._rtt_s)
        for is_push in (True, False):
            agents = self._filled(cipher, agents, count)
            if not agents:
                return None, agents
            before = _cpu(agents)
            trial = Trial(agents, is_push, self._rtt_s, self._algorithm)
            rate = trial.run(
                warm_s, self._seconds / 2, _PATIENCE_S if self._can_open(cipher) else _LONG_S
            )
            for message in trial.lost():
                self._note(f"{count} connections, and one of them was lost: {message}")
            agents = trial.alive()
            costs = (
                advice.per_gib(None if a is None or b is None else a - b, trial.file.landed_bytes)
                for a, b in zip(_cpu(agents), before, strict=True)
            )
            ways.append(Moved(rate, *costs))
        return Point(cipher, count, *ways), agents

    # --- connections

    def _can_open(self, cipher: str) -> bool:
        return cipher in self.offered  # else it is the first connection's, which cannot be repeated

    def _filled(self, cipher: str, agents: list[RemoteAgent], count: int) -> list[RemoteAgent]:
        """These connections, and new ones for those that are missing, as far as they open."""
        missing = count - len(agents) if self._can_open(cipher) else 0
        opened = self._open([cipher] * missing)
        for error in {far.message for _, far in opened if not isinstance(far, RemoteAgent)}:
            self._note(error)
        return agents + [far for _, far in opened if isinstance(far, RemoteAgent)]

    def _open(self, ciphers: Sequence[str]) -> list[tuple[str, RemoteAgent | errors.PscpError]]:
        """A connection for each of these, or why there is none; several log in at once."""
        with ThreadPoolExecutor(OPENING_MAX) as pool:
            try:
                return list(zip(ciphers, pool.map(self._open_one, ciphers), strict=True))
            except BaseException:
                self._is_over = True
                pool.shutdown(wait=False, cancel_futures=True)
                for channel in list(self._opened):
                    channel.end()
                raise

    def _open_one(self, cipher: str, attempts: int = 2) -> RemoteAgent | errors.PscpError:
        # ssh tells of a cipher that is not offered at level INFO, which may be switched off.
        words = ("LogLevel=INFO", *self._options.ssh_options)
        options = dataclasses.replace(self._options, cipher=cipher, ssh_options=words)
        try:
            number, host = len(self._opened), self._session.host
            channel = open_channel(
                host, options, self._setup, command(), may_prompt=False, number=number, control=None
            )
            self._opened.append(channel)
            if self._is_over:  # _open() did not see this one
                channel.end()
            return RemoteAgent(channel)
        except errors.PscpError as error:
            if not error.retry or attempts == 1 or self._is_over:
                return error
        time.sleep(_PAUSE_S)  # sshd's MaxStartups, most likely
        return self._open_one(cipher, attempts - 1)


def _cpu(agents: list[RemoteAgent]) -> tuple[float | None, float | None]:
    """CPU-seconds of the ssh here and the sshd there; of one connection, or unknown."""
    if len(agents) != 1:
        return None, None
    [far] = agents
    answer, failed = far.ask(requests.Cpu())
    there = answer if isinstance(answer, float) and not failed else None
    return system.cpu_seconds(far.channel.pid), there
