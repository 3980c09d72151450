"""Measures the path to a host: its round trip, each cipher, each number of connections. No disk.

What moves is a transfer test's made-up data, over the same lanes that a copy has: so a rate that
is found here is one that a copy can get. Each point is a Trial of about two seconds each way; its
rate is that of the second half, when logins are long over and TCP has gathered speed.

Not here: what follows from the figures (advice.py), their tables (tables.py), the lanes (lane.py).
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
from typing import Any

from pscp import advice, errors, hosts
from pscp.advice import Kernel, Measurement, Moved, Point
from pscp.api import Session
from pscp.board import Board, Limiter
from pscp.bootstrap import Far
from pscp.channels import Channel, open_channel
from pscp.channels.command import command
from pscp.channels.openssh import resolve
from pscp.coordinator import choose_hash
from pscp.crew import sink_question, source_question
from pscp.endpoint import files, machine, source, tree
from pscp.lane import Lane
from pscp.options import CHUNK_BYTES, KIB, Location, Options
from pscp.plan import Chunk, Failure, Placed
from pscp.worker import OPENING_MAX

SECONDS = 2.0  # of a point in one direction
_ROUND_TRIPS = 10  # and at least so many, for TCP to gather speed
_MOST_S = 55.0  # in all, about
_FOR_LOGINS = 0.7  # of the time that is left goes to moving
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
    seconds: float = SECONDS, say: Say | None = None, note: Say | None = None, **fields: Any,
) -> Measurement:  # fmt: skip
    """Measure the path to a host, without touching a disk at either end. About a minute.

    `fields` are fields of Options; `connections` is the most to try (16). With `save` the advice
    is kept for this host, and used by copies that ask for nothing else. `say` is told what is
    being done, `note` what the login says to people. Raises as copy() does.
    """
    with Session(host, options, **fields) as session:
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
        if hosts.save_advice(session.host, session.options, number, cipher):
            return dataclasses.replace(found, saved=True)
        notes = (*found.notes, "nothing was saved: the state folder cannot be written")
        return dataclasses.replace(found, notes=notes)


class _MadeUpFile:
    """Whose chunks are moved: it has no end until it is told."""

    def __init__(self, board: Board, lanes: int) -> None:
        self.number, self.is_closed = 1, False
        known = source.Known(0, "made-up", files.Identity(_FILE_BYTES, 0, 0))
        self.item = Placed(known, tree.Entry(tree.FILE, 0, "made-up", _FILE_BYTES, 0, 0, 0, {}))
        self.is_over = False
        self.landed_bytes = 0
        self.samples: list[tuple[float, int]] = []
        self._board, self._lanes, self._begun_s = board, lanes, time.monotonic()

    def chunks(self) -> Iterator[Chunk]:
        offset = 0
        while not self.is_over:
            length = self._chunk_bytes()
            yield Chunk(self, offset, length)
            offset += length
        self._board.changed.notify_all()  # it is a lane that asks, so the lock is held

    def _chunk_bytes(self) -> int:
        passed_s = max(time.monotonic() - self._begun_s, 0.001)
        fair = self.landed_bytes / passed_s / self._lanes * _CHUNK_S
        return min(max(int(fair), _LEAST_CHUNK_BYTES), CHUNK_BYTES)

    def landed(self, chunk: Chunk, digest: str, inode: int) -> None:
        self.landed_bytes += chunk.length
        self.samples.append((time.monotonic(), self.landed_bytes))

    def mismatched(self, chunk: Chunk) -> None:
        raise ValueError("it arrived damaged")

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        raise ValueError(failure["message"])


class Trial:
    """Made-up data over these connections, in one direction: what a lane takes for its crew."""

    def __init__(self, fars: list[Far], is_push: bool, rtt_s: float, algorithm: str) -> None:
        self.board = Board()
        self.is_push, self.rtt_s, self.keeps, self.umask = is_push, rtt_s, True, 0
        self.limiter = Limiter(None, self.board)
        test = Options(transfer_test=True)
        both = (
            source_question([], test, algorithm, is_push),
            sink_question("", "", test, algorithm),
        )
        self.begin_near, self.begin_far = both if is_push else both[::-1]
        self.file = _MadeUpFile(self.board, len(fars))
        self._fars = fars
        self._lanes = [Lane(f"lane {n}", self, far) for n, far in enumerate(fars, 1)]
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), daemon=True) for lane in self._lanes
        ]

    def run(self, seconds: float) -> float:
        """Bytes a second, over the second half of this time. Raises why it ended before."""
        begun_s = time.monotonic()
        try:
            with self.board.changed:
                self.board.add(self.file.chunks())
            for thread in self._threads:
                thread.start()
            self._wait(lambda: False, begun_s + seconds)
            self.file.is_over = True
            self._wait(self.board.is_idle, time.monotonic() + max(seconds, SECONDS))
            self._finish()
        except BaseException as error:
            self.board.stop(error)
            self._abort()
            raise
        return advice.rate_between(self.file.samples, begun_s + seconds / 2, begun_s + seconds)

    def alive(self) -> list[Far]:
        """The connections that the next trial can use. A slow path's still have data in flight."""
        kept = []
        for far, lane in zip(self._fars, self._lanes, strict=True):
            if lane.ended_well:
                far.session.state = "ready"
                kept.append(far)
            else:
                far.close()
        return kept

    def _serve(self, lane: Lane) -> None:
        try:
            lane.run()
        except BaseException as error:  # a bug: the main thread raises it
            self.board.stop(error)

    def _wait(self, is_so: Callable[[], bool], until_s: float) -> None:
        with self.board.changed:
            while self.board.error is None and not is_so():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                lost = [lane.error for lane in self._lanes if lane.error is not None]
                if len(lost) == len(self._lanes):
                    raise lost[0]
                self.board.changed.wait(left_s)
            if self.board.error is not None:
                raise self.board.error

    def _finish(self) -> None:
        """Lanes with nothing in flight say goodbye; the others are ended."""
        with self.board.changed:
            self.board.is_finished = True
            self.board.changed.notify_all()
        until_s = time.monotonic() + 1 + 5 * self.rtt_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0))
        self._abort()

    def _abort(self) -> None:
        for far, thread in zip(self._fars, self._threads, strict=True):
            if thread.is_alive():
                far.channel.end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


class _Measuring:
    """One measurement, in the order of its figures."""

    def __init__(self, session: Session, seconds: float, say: Say) -> None:
        self._session, self._options, self._say = session, session.options, say
        setup = resolve(session.host, session.options)
        self._setup, self.offered = (
            dataclasses.replace(setup, ciphers_are_ours=False),
            (setup.offered),
        )
        self._seconds, self._begun_s = seconds, time.monotonic()
        self._points_left = 1
        self._rtt_s, self._algorithm = 0.0, ""
        self._opened: list[Channel] = []
        self._notes: list[str] = []

    def close(self) -> None:
        for channel in self._opened:
            channel.close()

    def run(self, note: Say) -> Measurement:
        [first] = self._session.take(self._options, note)
        self._opened.append(first.channel)
        self._say("measuring the round trip")
        trips = self._round_trips(first)
        self._rtt_s, self._algorithm = statistics.median(trips), choose_hash(first)
        near, far = self._kernels(first)
        ciphers, fars = self._ciphers(first)
        best = advice.best_cipher(ciphers)
        lanes = self._more(best, fars)
        return Measurement(
            host=self._session.host.login, rtt_s=self._rtt_s, rtt_min_s=min(trips),
            ciphers=tuple(ciphers), connections=tuple(lanes), near=near, far=far,
            advice=advice.advise(self._rtt_s, ciphers, lanes, near, far),
            notes=tuple(self._notes), seconds=time.monotonic() - self._begun_s,
        )  # fmt: skip

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _round_trips(self, far: Far) -> list[float]:
        trips = []
        for _ in range(_QUESTIONS):
            begun_s = time.monotonic()
            far.ask({"ask": "end"})
            trips.append(time.monotonic() - begun_s)
        return trips

    def _kernels(self, far: Far) -> tuple[Kernel, Kernel]:
        answer, failed = far.ask({"ask": "kernel"})
        told = answer if isinstance(answer, dict) and not failed else {}
        there = {
            str(name)[:_TEXT_MAX]: str(value)[:_TEXT_MAX]
            for name, value in list(told.items())[:_KERNEL_MAX]
        }
        here = Kernel(os.uname().sysname, machine.kernel_settings())
        return here, Kernel(str(far.hello.get("system", ""))[:_TEXT_MAX], there)

    # --- the points

    def _ciphers(self, first: Far) -> tuple[list[Point], list[Far]]:
        """Each cipher that both ends offer, over one connection; and the best one's."""
        self._say("logging in with each cipher")
        found = self._open(self.offered, _is_not_offered)
        if not found:  # a login that prompts cannot be repeated
            name = self._options.cipher or "the default cipher"
            found = {name: [first]}
        else:
            first.close()
        points: list[Point] = []
        most = self._most() if len(found) > 1 else 1
        steps = len(advice.counts_up_to(most)) - 1
        for place, name in enumerate(list(found)):
            self._points_left = 2 * (len(found) - place + steps)
            if points and self._is_late():
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

    def _more(self, one: Point, fars: list[Far]) -> list[Point]:
        """The best cipher over more connections, while that may bring more."""
        points = [one]
        counts = [n for n in advice.counts_up_to(self._most()) if n > 1]
        if one.cipher not in self.offered:
            counts = []
        for place, count in enumerate(counts):
            self._points_left = 2 * (len(counts) - place)
            if self._is_late() or not advice.may_gain(points):
                break
            self._say(f"measuring {count} connections")
            fars += self._open([one.cipher] * (count - len(fars))).get(one.cipher, [])
            if len(fars) < count:
                self._note(f"{count} connections could not be opened")
                break
            point, fars = self._point(one.cipher, fars)
            if point is not None:
                points.append(point)
        return points

    def _most(self) -> int:
        return self._options.connections or _MOST_CONNECTIONS

    def _is_late(self) -> bool:
        return time.monotonic() - self._begun_s > _MOST_S

    def _point(self, cipher: str, fars: list[Far]) -> tuple[Point | None, list[Far]]:
        """Push and pull over these connections, and those that are left; no point: none was."""
        count, ways = len(fars), []
        for is_push in (True, False):
            fars += self._open([cipher] * (count - len(fars))).get(cipher, [])
            if not fars:
                return None, fars
            left_s = _MOST_S - (time.monotonic() - self._begun_s)
            fair_s = _FOR_LOGINS * left_s / self._points_left
            self._points_left = max(self._points_left - 1, 1)
            seconds = max(min(self._seconds, fair_s), _ROUND_TRIPS * self._rtt_s)
            before = _cpu(fars)
            trial = Trial(fars, is_push, self._rtt_s, self._algorithm)
            rate = trial.run(seconds)
            fars = trial.alive()
            after = _cpu(fars)
            near_s, far_s = (
                None if a is None or b is None else a - b
                for a, b in zip(after, before, strict=True)
            )
            moved = trial.file.landed_bytes
            costs = (advice.per_gib(near_s, moved), advice.per_gib(far_s, moved))
            ways.append(Moved(rate, *costs))
        return Point(cipher, count, *ways), fars

    # --- connections

    def _open(
        self, ciphers: Sequence[str], is_expected: Callable[[errors.PscpError], bool] | None = None
    ) -> dict[str, list[Far]]:
        """A connection for each of these, several at once; what fails is noted."""
        if not ciphers:
            return {}
        found: dict[str, list[Far]] = {}
        with ThreadPoolExecutor(OPENING_MAX) as pool:
            try:
                for cipher, far in zip(ciphers, pool.map(self._open_one, ciphers), strict=True):
                    if isinstance(far, Far):
                        found.setdefault(cipher, []).append(far)
                    elif is_expected is None or not is_expected(far):
                        self._note(f"{cipher}: {far.message}")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for channel in list(self._opened):
                    channel.end()
                raise
        return found

    def _open_one(self, cipher: str) -> Far | errors.PscpError:
        options = dataclasses.replace(self._options, cipher=cipher)
        try:
            channel = open_channel(self._session.host, options, self._setup, command(), False)
            self._opened.append(channel)
            return Far(channel)
        except errors.PscpError as error:
            return error


def _cpu(fars: list[Far]) -> tuple[float | None, float | None]:
    """CPU-seconds of the ssh here and the sshd there; of one connection, or unknown."""
    if len(fars) != 1:
        return None, None
    [far] = fars
    pid = getattr(far.channel, "pid", None)
    answer, failed = far.ask({"ask": "cpu"})
    known = isinstance(answer, float) and not failed
    return machine.cpu_seconds(pid) if pid is not None else None, answer if known else None


def _is_not_offered(error: errors.PscpError) -> bool:
    """ssh's words for a cipher that the far end does not have."""
    return "no matching cipher" in error.message
