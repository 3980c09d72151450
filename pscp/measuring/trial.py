"""One trial: opens connections, of which one may prompt and others have given ciphers; moves
made-up data over some lanes in one direction, and measures its rate.

Not here: which trials there are (measure.py), the rate from the samples (advice.py), the lanes
(../transfer/lanes/lane.py), the connections of a copy (../connect/connections.py).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pscp.calls.api import Session
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint.reading import tree
from pscp.ground import errors
from pscp.ground.contexts import with_context
from pscp.ground.values import KIB, LOGINS_MAX
from pscp.measuring import advice
from pscp.options.option_rows import CHUNK_BYTES
from pscp.options.options import Options
from pscp.transfer.begin_requests import sink_request, source_request
from pscp.transfer.lanes.lane import Lane
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces.plan import Chunk, Failure, PlannedEntry
from pscp.transports import Channel, open_channel, resolve
from pscp.transports.remote_command import command

_LANDINGS = 4  # chunks from whose landing a rate is computed
_LONGER_S = 5.0  # that a slow path gets for them
_LEAST_CHUNK_BYTES = 256 * KIB
_CHUNK_S = 0.05  # a chunk is what a lane moves meanwhile: on a slow path chunks must be small
_FILE_BYTES = 1 << 60  # more than any trial moves
_PAUSE_S = 1.0
_MOST_CONNECTIONS = 16


class CipherOpener:
    """Opens connections to a session's host. For the main thread."""

    def __init__(self, session: Session) -> None:
        self.host, self._connections = session.host, session.connections
        asked = session.options.with_agent("--measure")
        self._direct = asked  # for the lanes of --plane
        self._options = dataclasses.replace(asked, plane="ssh")
        self.most_connections = asked.connections or _MOST_CONNECTIONS
        setup = resolve(session.host, session.options)
        # Those of OpenSSH's own first: where time is short, the others are left out.
        self.offered = sorted(setup.offered, key=lambda name: "@" not in name)
        self._setup = dataclasses.replace(setup, ciphers_are_ours=False)
        self._opened: list[Channel] = []  # each thread adds the channel that it opens
        self._is_over = False  # no more logins

    @property
    def first_cipher(self) -> str:
        """The name by which the first connection's cipher is shown."""
        return self._options.cipher or "as configured"

    @property
    def plane(self) -> str:
        """The direct plane that is to be measured; "" for none."""
        return self._direct.plane if self._direct.has_plane else ""

    def first(self, note: Callable[[str], None]) -> RemoteAgent:
        """Return the first connection, whose login may prompt; `note` gets the login's messages."""
        [first] = self._connections.take(self._options, note)
        self._opened.append(first.channel)
        return first

    def close(self) -> None:
        for channel in self._opened:
            channel.close()

    def direct(self, count: int, note: Callable[[str], None]) -> list[RemoteAgent]:
        """Return so many lanes of the direct plane; none where there can be none."""
        agents = self._connections.take(self._options, note)
        self._connections.spread(self._direct, agents, count, note)
        self._opened += [far.channel for far in agents]
        return [far for far in agents if far.plane == self.plane]

    def open(self, ciphers: Sequence[str]) -> list[tuple[str, RemoteAgent | errors.PscpError]]:
        """Return a connection with each of these ciphers, or the error. Several log in at once."""
        with ThreadPoolExecutor(LOGINS_MAX) as pool:
            try:
                return list(
                    zip(ciphers, pool.map(with_context(self._open_one), ciphers), strict=True)
                )
            except BaseException:
                self._is_over = True
                pool.shutdown(wait=False, cancel_futures=True)
                for channel in list(self._opened):
                    channel.end()
                raise

    def _open_one(self, cipher: str, attempts: int = 2) -> RemoteAgent | errors.PscpError:
        # That a cipher is not offered ssh prints at level INFO, which may be switched off.
        words = ("LogLevel=INFO", *self._options.ssh_options)
        options = dataclasses.replace(self._options, cipher=cipher, ssh_options=words)
        try:
            channel = open_channel(
                self.host,
                options,
                self._setup,
                command(),
                may_prompt=False,
                number=len(self._opened),
                control=None,
            )
            self._opened.append(channel)
            if self._is_over:  # open() has ended the others
                channel.end()
            return RemoteAgent(channel)
        except errors.PscpError as error:
            if not error.retry or attempts == 1 or self._is_over:
                return error
        time.sleep(_PAUSE_S)  # sshd's MaxStartups, most likely
        return self._open_one(cipher, attempts - 1)


class MadeUpFile:
    """The file whose chunks are moved, until the main thread sets `is_over`.

    Only what the queue runs changes anything else.
    """

    number, is_closed, may_be_short, was_shared = 1, False, False, False

    def __init__(self, queue: WorkQueue, lanes: int) -> None:
        entry = tree.Entry(tree.FILE, 0, "made-up", _FILE_BYTES, 0, 0, 0, {})
        self.item = PlannedEntry(entry, entry)
        self.is_over = False
        self.landed_bytes = 0
        self.samples: list[tuple[float, int]] = []  # times, and how many bytes had landed by then
        self._queue, self._lanes, self._begun_s = queue, lanes, time.monotonic()

    def chunks(self) -> Iterator[Chunk]:
        offset = 0
        while not self.is_over:
            passed_s = max(time.monotonic() - self._begun_s, 0.001)
            fair = self.landed_bytes / passed_s / self._lanes * _CHUNK_S
            length = min(max(int(fair), _LEAST_CHUNK_BYTES), CHUNK_BYTES)
            yield Chunk(self, offset, length)
            offset += length

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self.landed_bytes += chunk.length
        self.samples.append((time.monotonic(), self.landed_bytes))
        self._queue.wake()

    def mismatched(self, chunk: Chunk) -> None:
        raise ValueError("it arrived damaged")

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        raise ValueError(failure["message"])


class Trial:
    """Moves made-up data over these connections in one direction. For the main thread."""

    def __init__(
        self, agents: list[RemoteAgent], is_push: bool, rtt_s: float, algorithm: str
    ) -> None:
        self.queue, self._rtt_s = WorkQueue(), rtt_s
        test = Options(transfer_test=True)
        context = LaneContext(self.queue, is_push=is_push, rtt_s=rtt_s, keeps=True)
        of_source = source_request([], test, algorithm)
        context.set_ends(of_source, sink_request("", "", test, algorithm))
        self.file = MadeUpFile(self.queue, len(agents))
        self._agents = agents
        self._lanes = [Lane(f"lane {n}", context, far) for n, far in enumerate(agents, 1)]
        self._threads = [
            threading.Thread(
                target=with_context(self._serve), args=(lane,), name=f"lane {n}", daemon=True
            )
            for n, lane in enumerate(self._lanes, 1)
        ]

    def run(self, warm_s: float, seconds: float, patience_s: float) -> float:
        """Return the bytes a second over so many seconds after `warm_s`. Raises what stops it."""
        from_s = time.monotonic() + warm_s
        to_s = from_s + seconds
        try:
            self.queue.add(self.file.chunks())
            for thread in self._threads:
                thread.start()
            self._wait(lambda: False, to_s)
            samples = self.file.samples

            def has_landed() -> bool:
                return sum(at_s >= from_s for at_s, _ in samples) >= _LANDINGS

            self._wait(has_landed, to_s + _LONGER_S)
            to_s = time.monotonic()
            self.file.is_over = True
            rate = advice.rate_between(samples, from_s, to_s)
            # What would not land within the patience is not waited for.
            if self.queue.in_flight_bytes() <= 2 * rate * patience_s:
                self._wait(self.queue.is_idle, time.monotonic() + patience_s)
            self._finish()
            return rate
        except BaseException as error:
            self.queue.stop(error)
            self._abort()
            raise

    def lost(self) -> list[str]:
        """Return the messages of the errors by which lanes were lost."""
        return [lane.error.message for lane in self._lanes if lane.error is not None]

    def alive(self) -> list[RemoteAgent]:
        """Return the connections that the next trial can use; close those with data in flight."""
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
        """End the lanes: those with nothing in flight say goodbye, the others are cut off."""
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
