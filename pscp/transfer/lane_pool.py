"""The lanes of one copy: how many, when they connect, what happens when they cannot.

Not here: what a worker does (worker.py), what there is to do (coordinator.py), how many lanes are
good (autotune.py), what all lanes share (lane_context.py), the requests that make an end the source
or the sink (begin.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Wanted
from pscp.connect.early_logins import LET_GO_S
from pscp.connect.host_cache import Known
from pscp.connect.latecomers import Latecomers
from pscp.endpoint import requests
from pscp.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionFull,
    ConnectionLost,
    CopyError,
    PscpError,
    Unreachable,
)
from pscp.log import Log
from pscp.options import CHUNK_BYTES, Options
from pscp.progress import Counters, count
from pscp.transfer import cpu_load
from pscp.transfer.autotune import (
    Path,
    Seen,
    Start,
    Tuner,
    is_far_and_unattended,
    is_worth_a_login,
    start,
)
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.plan import MEMORY_BYTES
from pscp.transfer.work_queue import WorkQueue
from pscp.transfer.worker import OPENING_MAX, Worker

_ATTEMPTS_ALONE = 8  # connecting again, with no lane alive: one to one and a half minutes of pauses
_LOGINS_LIKELY = 3  # that will pass at once the next time, where nobody typed a password
_OUTAGE_S = 180.0  # with no lane alive, where each attempt may take as long as its timeout
_STEADY_S = 10.0  # a connection that lived for so long ends an outage
_END_S = 3.0  # for a lane to come to its end; one that stands still, or is slow, is not kept
_LOOK_S = 0.25  # between two looks at how the copy goes
_CHANNELS_ALONE = 4  # of the only connection there is; TCP's buffer has room for two windows


_log = Log("transfer")


class LanePool:
    """What lanes share, and the lanes themselves."""

    def __init__(
        self, options: Options, counters: Counters, *, is_push: bool, algorithm: str,
        connect: Callable[[Wanted], RemoteAgent], note: Callable[[str], None], keeps: bool,
        path: Path, known: Known, has_early: Callable[[], bool], is_once: bool = False,
        stream: Any = None,
    ) -> None:  # fmt: skip
        """`connect` opens a lane's connection; with `keeps` they stay open in `kept`. With
        `has_early` there is one that logs in already; with `is_once` all are channels of one.

        `known` is what the last copy over this path came to; `stream` this end of a stream, whose
        length nobody knows.
        """
        rate = options.limit_kbit_s * 1000 / 8 if options.limit_kbit_s else None
        self.context = LaneContext(
            WorkQueue(stream is not None), is_push=is_push, rtt_s=path.rtt_s, keeps=keeps,
            bytes_per_s=rate, stream=stream,
        )  # fmt: skip
        self.queue = self.context.queue
        self._lock = threading.Lock()  # guards counts, and what workers show of themselves
        self.algorithm, self.algorithms = algorithm, {algorithm}  # that of the copy; of both ends
        self._opening, self._may_open = 0, OPENING_MAX  # logins; fewer once refused
        self.connect, self.most_alive = connect, 0
        self._path, self._known, self._has_early = path, known, has_early
        self._begun_s = time.monotonic()
        self.kept: list[RemoteAgent] = []
        self.late: Latecomers | None = None  # what takes connections for the next copy
        self.count, self._channels, self.why = _first(options, path, known.lanes)
        if is_once:
            self._become_one(options)
        is_tuned = options.connections is None and rate is None and not options.dry_run
        is_tuned = is_tuned and not is_once
        self.congestion = known.congestion if path.has_bbr and is_tuned else ""
        enough = known.enough_bytes_s if known.lanes == self.count else 0.0
        self._tuner = Tuner(path, self.count, self.congestion, enough) if is_tuned else None
        self._counters, self._note, self._is_verbose = counters, note, options.verbose
        self._has_told = self._has_told_full = False
        self._is_once, self._is_full = is_once, False
        self._retry_for_s = options.retry_for_s
        self._outage = -1, 0.0  # the pieces done when it began, and when that was
        # At the start a chunk is a fourth of a later one (coordinator.py).
        self._chunk_bytes = options.chunk_bytes or CHUNK_BYTES // 4
        self._workers: list[Worker] = []
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="tuner", daemon=True)

    def _become_one(self, options: Options) -> None:
        """All lanes are channels of the only connection, which connect() sees to."""
        if options.connections is None:
            self.count = options.channels or min(self.count, _CHANNELS_ALONE)
            self.why = "channels of one connection"
        self._channels = 1

    def begin(
        self, of_source: requests.Begin, of_sink: requests.Begin, agents: list[RemoteAgent]
    ) -> None:
        """Start the lanes; `agents` are connections that are open already, 1 to `count`."""
        self.context.set_ends(of_source, of_sink)
        self._add_lanes(agents)
        if self._tuner is not None:
            self._looking.start()

    def _add_lanes(self, agents: list[RemoteAgent]) -> None:
        """As many as are missing, each connection with its channels.

        None begins before all are there: one that fails at once would seem to be the last.
        """
        added: list[Worker] = []
        while len(self._workers) < self.count:
            far = agents.pop(0) if agents else None
            master = self._master_with_room()
            worker = Worker(len(self._workers) + 1, self, far, master, self.congestion)
            with self._lock:
                self._workers.append(worker)
            added.append(worker)
        for worker in added:
            worker.start()
        self._counters.set(lanes_wanted=self.count)

    def _master_with_room(self) -> Worker | None:
        """A connection that may carry one more channel. Connections come first, being slow."""
        masters = [each for each in self._workers if each.master is None]
        if len(masters) * self._channels < self.count:
            return None
        riders = [each.master for each in self._workers]
        return next((m for m in masters if riders.count(m) + 1 < self._channels), None)

    # --- how the copy goes

    def _look(self) -> None:
        """Have the tuner decide, until it has or the copy ends."""
        assert self._tuner is not None
        while not (self._ended.wait(_LOOK_S) or self._tuner.is_done):
            sentence = self._tuner.look(self._seen())
            if sentence:
                _log.debug("%s", sentence)
                if self._is_verbose:
                    self._note(sentence)
            self.congestion = self._tuner.congestion
            if self._tuner.count != self.count:
                self._resize(self._tuner.count)

    def _seen(self) -> Seen:
        counters, queue = self._counters, self.queue
        left = self._left_bytes()
        return Seen(
            time.monotonic(), counters.lanes_alive, queue.done_bytes, queue.done_pieces,
            left if counters.plan_complete else math.inf, cpu_load.idle_s(),
            cpu_load.used_s(self._pids()),
        )  # fmt: skip

    def _left_bytes(self) -> int:
        """Of what the walk has found so far."""
        counters = self._counters
        return counters.bytes_total - counters.bytes_done - counters.bytes_resumed

    def _pids(self) -> list[int]:
        """Of the processes that encrypt."""
        channels = [worker.channel for worker in self._workers]
        return [channel.pid for channel in channels if channel is not None]

    def _resize(self, count: int) -> None:
        assert self._tuner is not None
        if self._tuner.needs_window and self._channels == 1:
            self._channels = 2
        self.count = count
        self._add_lanes([])
        with self._lock:
            best_first = sorted(self._workers, key=lambda worker: not worker.is_up)
            for place, worker in enumerate(best_first):
                worker.is_parked = place >= count
        self.queue.wake_lanes()

    def lesson(self) -> Known:
        """What the next copy over this path should know."""
        logins = self.most_alive
        if not self._has_told and is_far_and_unattended(self._path):
            logins = max(logins, _LOGINS_LIKELY)
        known = self._known._replace(logins=logins, rtt_s=self._path.rtt_s)
        if self._tuner is None or not self._tuner.has_judged:
            return known
        lanes, congestion, enough = self._tuner.lesson
        return known._replace(lanes=lanes, congestion=congestion, enough_bytes_s=enough)

    def end(self) -> None:
        """All is done, or the copy stops: have every lane end, and wait for it."""
        self._ended.set()
        if self._looking.ident is not None:
            self._looking.join()
        self.queue.close()
        if self.queue.error is not None:
            for worker in self._workers:
                worker.abort()
        until_s = time.monotonic() + _END_S
        leaving = []
        for worker in self._workers:
            if worker.ident is None:  # a signal came before it was started
                worker.give_up_unused()
            while worker.is_alive():
                if self.queue.error is None and worker.is_connecting:
                    leaving.append(worker)
                    break
                if self.queue.error is not None or time.monotonic() > until_s:
                    worker.abort()
                worker.join(0.05)  # one that is just about to connect is found next time
        self.queue.finish_writing()
        if leaving:
            late = self.late or Latecomers()
            late.expect(len(leaving))
            args = leaving, late
            threading.Thread(target=_let_go, args=args, name="leaving", daemon=True).start()

    def may_connect(self, worker: Worker) -> bool:
        """Return whether the worker may connect now; if so, it is counted as connecting.

        The queue runs this, with its lock held. A further channel is no login, and needs its
        connection.
        """
        with self._lock:
            if worker.master is None:
                may_connect = self._opening < self._may_open and self._is_worth_a_login()
                self._opening += may_connect
            else:
                may_connect = worker.master.is_up
            worker.is_connecting = may_connect
            return may_connect

    def _is_worth_a_login(self) -> bool:
        """Return whether one more lane may be worth it. With the lock held.

        There are no more lanes than pieces of work.
        """
        lanes = self._opening + sum(each.has_connection for each in self._workers)
        if not lanes or self._has_early():
            return True
        if not self.context.is_stream:
            pieces = self.queue.pieces_known(self._left_bytes(), self._chunk_bytes)
            if lanes >= pieces:
                return False
        if self._tuner is None:
            return True
        counters = self._counters
        left: float = self._left_bytes()
        left += MEMORY_BYTES * (counters.files_total - counters.files_done)
        if self.context.is_stream and not counters.plan_complete:
            left = math.inf
        passed_s = 0.0 if counters.plan_complete else time.monotonic() - self._begun_s
        return is_worth_a_login(self._path, lanes, left, passed_s)

    # --- what lanes tell

    def keep(self, far: RemoteAgent) -> None:
        """A connection that the next copy can use."""
        with self._lock:
            self.kept.append(far)

    def come_late(self, far: RemoteAgent) -> None:
        """A connection that the copy does not need any more."""
        if self.context.keeps and self.late is not None:
            self.late.accept(far)
        else:
            far.close()

    def lane_up(self, worker: Worker) -> None:
        self._counters.add(lanes_alive=1)
        with self._lock:
            self.most_alive = max(self.most_alive, self._counters.lanes_alive)
            worker.is_up, worker.up_at_s = True, time.monotonic()
        self.queue.wake_lanes()  # its further channels can be opened now
        self._tell_full()

    def lane_down(self, worker: Worker, error: PscpError | None) -> None:
        self._counters.add(lanes_alive=-1, connections_lost=int(error is not None))
        with self._lock:
            worker.is_up = False
            if time.monotonic() - worker.up_at_s > _STEADY_S:  # a stream's may have had no work
                self._outage = -1, 0.0
        self.queue.wake_lanes()  # another may log in in its place

    def connected(self, worker: Worker, is_refused: bool) -> None:
        """The worker has connected, or has not: `is_refused` where the server closed its login."""
        with self._lock:
            is_login = worker.master is None
            self._opening -= is_login
            worker.is_connecting = False
            if is_refused and is_login:
                self._may_open = max(1, self._may_open // 2)
        self.queue.wake_lanes()

    def may_try_again(self, worker: Worker, error: PscpError, attempt: int) -> bool:
        """A lost connection is opened again while others work; alone only so many times."""
        if self.queue.error is not None or self.queue.is_finished:
            return False
        if isinstance(error, CopyError):  # an end refused to begin: it would refuse again
            self.queue.stop(error)
            return False
        if isinstance(error, ConnectionFull):
            self._give_up(worker, error)
            self._full()
            return False
        # There was a login before, so "connection refused" and the like will pass as well.
        is_passing = isinstance(error, ConnectionLost | Unreachable)
        is_passing = is_passing or type(error) is ConnectError
        is_alone = self._counters.lanes_alive == 0
        if is_passing and (not is_alone or self._rides_out(error, attempt)):
            return True
        if isinstance(error, AuthenticationError) and self._rides_instead(worker):
            self._tell_once("no other login passes without asking: using channels of this one")
            return True
        if not self._give_up(worker, error) and not is_passing:
            self._tell_once(f"no more connections, going on with those open: {error.message}")
        return False

    def _give_up(self, worker: Worker, error: PscpError) -> bool:
        """The worker connects no more. Stops the copy if it was the last one: then True."""
        with self._lock:
            worker.stays_away = True
            is_last = all(each.gave_up for each in self._workers)
        self.queue.wake_lanes()  # its further channels give up too
        if is_last:
            self.queue.stop(error)
        return is_last

    def _rides_out(self, error: PscpError, attempt: int) -> bool:
        """No lane is alive: may one be tried again? Ends the copy where it has taken too long.

        An outage begins with the first failure after a piece of work was done.
        """
        with self._lock:
            if self._outage[0] != self.queue.done_pieces:
                self._outage = self.queue.done_pieces, time.monotonic()
            left_s = self._outage[1] + (self._retry_for_s or _OUTAGE_S) - time.monotonic()
            is_over = left_s <= 0 and not self._opening
        if left_s > 0:
            return self._retry_for_s is not None or attempt < _ATTEMPTS_ALONE
        if is_over:
            self.queue.stop(error)
        return False

    def _full(self) -> None:
        """A connection carries no more channels than it has."""
        with self._lock:
            self._is_full = True
            lanes = sum(not each.gave_up for each in self._workers)
        self._counters.set(lanes_wanted=lanes)
        self._tell_full()

    def _tell_full(self) -> None:
        """Once it is known how many channels a connection carries."""
        with self._lock:
            most = self._most_channels() if self._is_full and not self._has_told_full else 0
            if not most:
                return
            self._has_told_full = True
            if not self._is_once:
                self._channels = most  # of connections that are still to come
        if self._is_verbose:
            self._note(f"the server lets {count(most, 'channel')} on a connection (MaxSessions)")

    def _most_channels(self) -> int:
        """Those of the connection that has most; 0 while some are still to come."""
        riders = [each for each in self._workers if each.master is not None or self._is_once]
        if not all(each.is_up or each.gave_up for each in riders):
            return 0
        of_each: dict[Worker | None, int] = {}
        for each in riders:
            of_each[each.master] = of_each.get(each.master, 0 if self._is_once else 1) + each.is_up
        return max(of_each.values(), default=0)

    def _rides_instead(self, worker: Worker) -> bool:
        """Where only one login passes (a password, a token), its connection carries more."""
        with self._lock:
            alive = [each for each in self._workers if each.is_up and each.master is None]
            riders = sum(each.master is not None for each in self._workers)
            if worker.master is not None or len(alive) != 1 or riders + 1 >= _CHANNELS_ALONE:
                return False
            worker.master = alive[0]
            return True

    def _tell_once(self, text: str) -> None:
        if not self._has_told:
            self._has_told = True
            self._note(text)


def _let_go(workers: list[Worker], late: Latecomers) -> None:
    """Have logins that nobody needs any more come to their end, and end those that do not.

    sshd counts a login that is cut as an offence, and refuses who has too many (sshd_config(5),
    PerSourcePenalties).
    """
    until_s = time.monotonic() + LET_GO_S
    for worker in workers:
        while worker.is_alive():
            if late.is_cut or time.monotonic() > until_s:
                worker.abort()
            worker.join(0.05)
        late.no_longer_expect()


def _first(options: Options, path: Path, known_lanes: int) -> Start:
    """The lanes to begin with, the channels of each connection, and why."""
    channels = options.channels or 1
    if options.connections is not None:
        return Start(options.connections * channels, channels, "as was asked for")
    found = start(path)
    if known_lanes:
        found = found._replace(lanes=known_lanes, why="as was found good before")
    if options.channels is not None:
        connections = max(-(-found.lanes // channels), min(found.lanes, 2))
        found = found._replace(lanes=connections * channels, channels=channels)
    return found
