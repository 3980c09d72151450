"""The lanes of one copy: how they are spread over connections, how they are opened, and what
happens when one cannot be opened or is lost.

A worker with a master opens one more channel of the master's connection instead of a connection of
its own.

Not here: what a worker does (lanes/worker.py), what there is to do (coordinator.py), when one may
log in (logins.py), how many are good (autoscaler.py, lanes/autotune.py), what all share
(lanes/lane_context.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import ConnectionRequest
from pscp.connect.known.host_memory import FAR_S, PathRecord, kind_of
from pscp.connect.spare_logins import IdleConnections
from pscp.endpoint.asking import requests
from pscp.ground.errors import AuthenticationError, ConnectionFull, CopyError, PscpError
from pscp.ground.leaving import LET_GO_S, LoginProcess, let_go
from pscp.options.options import Options
from pscp.progress.progress import count
from pscp.transfer.autoscaler import Autoscaler
from pscp.transfer.lanes.autotune import Path, Start, is_far_and_unattended, start
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.lanes.worker import Phase, Worker
from pscp.transfer.logins import LOGINS_LIKELY, Logins
from pscp.transfer.terms.copy_terms import PoolTerms
from pscp.transports import Channel

_END_S = 3.0  # for a lane to end; the connection of one that takes longer is not kept
_CHANNELS_ALONE = 4  # of the only connection there is; TCP's buffer has room for two windows


class LaneLayout:
    """The number of lanes, and of channels on each connection. The pool's lock guards it."""

    def __init__(self, terms: PoolTerms) -> None:
        self.count, self._channels, self.why = _first(terms.options, terms.path, terms.known.lanes)
        if terms.options.connections is None and self.count < terms.connections.count:
            self.count, self.why = terms.connections.count, "one for each host"
        self._has_one_login = terms.connections.has_one_login
        self.is_full = False  # the server lets no more channels on a connection
        self._has_reported_full = False
        if self._has_one_login:
            self._channels = 1
            if terms.options.connections is None:
                self.count = terms.options.channels or min(self.count, _CHANNELS_ALONE)
                self.why = "channels of one connection"

    def resize(self, count: int, needs_window: bool) -> None:
        """Set the number of lanes. With `needs_window` new connections get two channels."""
        self.count = count
        self._channels = max(self._channels, 2 if needs_window else 1)

    def next_master(self, workers: Sequence[Worker]) -> Worker | None:
        """Return the worker whose connection carries the next lane; None for a new connection.

        Connections are opened before further channels, since they take longer.
        """
        masters = [each for each in workers if each.master is None]
        if len(masters) * self._channels < self.count:
            return None
        used = [each.master for each in workers]
        return next((m for m in masters if used.count(m) + 1 < self._channels), None)

    def share_connection(self, worker: Worker, workers: Sequence[Worker]) -> bool:
        """Let a worker whose login was refused use the only connection; return whether it may.

        This helps where only one login passes (a password, a token).
        """
        alive = [each for each in workers if each.is_up and each.master is None]
        shared = sum(each.master is not None for each in workers)
        if worker.master is not None or len(alive) != 1 or shared + 1 >= _CHANNELS_ALONE:
            return False
        worker.master = alive[0]
        return True

    def channels_found(self, workers: Sequence[Worker]) -> int:
        """Return, once, how many channels the server lets on a connection; 0 before and after that.

        It is known when no further channel is still to come: as many as any connection has.
        """
        if not self.is_full or self._has_reported_full:
            return 0
        sharing = [each for each in workers if each.master is not None or self._has_one_login]
        if not all(each.is_up or each.gave_up for each in sharing):
            return 0
        of_each: dict[Worker | None, int] = {}
        for each in sharing:
            before = of_each.get(each.master, 0 if self._has_one_login else 1)
            of_each[each.master] = before + each.is_up
        most = max(of_each.values(), default=0)
        if most:
            self._has_reported_full = True
            if not self._has_one_login:
                self._channels = most  # of new connections
        return most

    def park(self, workers: Sequence[Worker]) -> None:
        """Park the workers beyond the number of lanes, first those without a connection."""
        best_first = sorted(workers, key=lambda worker: worker.phase is not Phase.UP)
        for place, worker in enumerate(best_first):
            worker.is_parked = place >= self.count


def _first(options: Options, path: Path, known_lanes: int) -> Start:
    """Return the lanes to begin with, the channels of each connection, and why."""
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


class LanePool:
    """The workers of one copy, which call it from their threads."""

    def __init__(self, terms: PoolTerms) -> None:
        self._terms, self.context = terms, terms.context
        self._idle = terms.connections.idle  # takes connections that nobody waits for
        self.kept: list[RemoteAgent] = []  # connections for the next copy; any thread may append
        self._lock = threading.Lock()  # guards what follows, and the workers' public attributes
        self._logins = Logins(terms)
        self.layout = LaneLayout(terms)
        self.most_alive = 0  # lanes, at once
        self._workers: list[Worker] = []  # it only grows, so any thread may read it
        self._has_noted = False  # the user knows that there are fewer connections than were wanted
        # Started and stopped by the main thread.
        self._scaler = Autoscaler(terms, self.layout.count, self._resize, self._channels)

    @property
    def queue(self) -> WorkQueue:
        return self.context.queue

    def begin(
        self, of_source: requests.Begin, of_sink: requests.Begin, agents: list[RemoteAgent]
    ) -> None:
        """Start the lanes, the first ones over the open connections in `agents`.

        Connections that no lane needs stay in that list.
        """
        self.context.set_ends(of_source, of_sink)
        self._terms.counters.lanes_moved = self._moved
        self._resize(self.layout.count, False, agents)
        self._scaler.start()

    def _resize(
        self, count: int, needs_window: bool, agents: list[RemoteAgent] | None = None
    ) -> None:
        """Have so many lanes work: open those that are missing, and park those beyond.

        None is started before all are in the list: one that fails at once would seem the last.
        """
        added: list[Worker] = []
        with self._lock:
            self.layout.resize(count, needs_window)
            while len(self._workers) < count:
                far = agents.pop(0) if agents else None
                master = self.layout.next_master(self._workers)
                number = len(self._workers) + 1
                worker = Worker(number, self, far, master, self._scaler.congestion)
                self._workers.append(worker)
                added.append(worker)
            self.layout.park(self._workers)
        for worker in added:
            worker.start()
        self._terms.counters.set(lanes_wanted=count)
        self.queue.wake(lanes=True)

    def _moved(self) -> list[int | None]:
        """Return the bytes that have landed over each lane; None for one that is not up."""
        return [worker.moved_bytes for worker in list(self._workers)]

    def _channels(self) -> list[Channel]:
        channels = [worker.channel for worker in list(self._workers)]
        return [channel for channel in channels if channel is not None]

    def lesson(self) -> PathRecord:
        """Return what the next copy over this path should know.

        Of a push it is known before it begins how many logins are enough. A pull has to guess: as
        the last one, if that began with nothing there. So has a push that sent nothing, as all was
        there: it may be the nightly one.
        """
        logins, path, known = self.most_alive, self._terms.path, self._terms.known
        has_to_guess = not (self.context.is_push or self.context.is_stream)
        all_was_there = self._terms.counters.files_unchanged > 0 == self._terms.counters.bytes_sent
        if (has_to_guess or all_was_there) and self._logins.useful == 1:
            logins = 1
        elif not (self._has_noted or self._logins.has_failed):
            logins = max(logins, known.logins, LOGINS_LIKELY * is_far_and_unattended(path))
        if has_to_guess and path.rtt_s > FAR_S and self._terms.is_tuned:
            logins = min(logins, self._logins.worth())
        kind = kind_of(self._terms.options, is_stream=self.context.is_stream, copies=path.copies)
        known = known._replace(logins=logins, rtt_s=path.rtt_s, cpus=path.cpus, kind=kind)
        return self._scaler.lesson(known)

    def end(self) -> None:
        """End every lane, since all is done or the copy stops, and wait for that."""
        self._scaler.stop()
        self.queue.close()
        if self.queue.error is not None:
            for worker in self._workers:
                worker.abort()
        until_s = time.monotonic() + _END_S
        leaving = [worker for worker in self._workers if not self._has_ended(worker, until_s)]
        self.queue.finish_writing()
        if leaving:
            self._idle.expect(len(leaving))
            let_go(partial(_wait_for, leaving, self._idle), partial(_logins_of, leaving))

    def _has_ended(self, worker: Worker, until_s: float) -> bool:
        """Wait for a worker to end. Return False if it is still logging in, for nothing."""
        if worker.ident is None:  # a signal came before it was started
            worker.give_up_unused()
        while worker.is_alive():
            if self.queue.error is None and worker.phase is Phase.CONNECTING:
                return False
            if self.queue.error is not None or time.monotonic() > until_s:
                worker.abort()
            worker.join(0.05)  # its phase may change meanwhile
        return True

    # --- what workers call

    def keep(self, far: RemoteAgent, *, is_late: bool = False) -> None:
        """Take a connection that is ready for the next copy, or was open only when this was over.

        It is closed, where none are kept.
        """
        if not self._terms.connections.keeps:
            far.close()
        elif is_late:
            self._idle.give([far])
        else:
            self.kept.append(far)

    def connect(self, wanted: ConnectionRequest) -> RemoteAgent:
        """Open the connection of a lane. Raises ConnectError."""
        try:
            return self._terms.connections.connect(self._terms.options, wanted)
        except PscpError as error:
            raise self.context.named(error) from None

    def may_connect(self, worker: Worker) -> bool:
        """Return whether the worker may connect now; if so, count it as connecting.

        The queue runs this, with its lock held. A further channel needs no login, but its master's
        connection.
        """
        with self._lock:
            if worker.master is None:
                connected = sum(each.has_connection for each in self._workers)
                may_connect = self._logins.begin(connected)
            else:
                may_connect = worker.master.is_up
            if may_connect:
                worker.phase = Phase.CONNECTING
            return may_connect

    def connected(self, worker: Worker, is_refused: bool) -> None:
        """Note that the worker's attempt to connect is over.

        With `is_refused` the server has closed the connection during the login.
        """
        with self._lock:
            if worker.master is None:
                self._logins.end(is_refused)
            worker.phase = Phase.IDLE
        self.queue.wake(lanes=True)

    def lane_up(self, worker: Worker) -> None:
        counters = self._terms.counters
        counters.add(lanes_alive=1)
        if counters.attempts:
            counters.set(attempts=0)
            self._terms.explain("connected again")
        with self._lock:
            self.most_alive = max(self.most_alive, counters.lanes_alive)
            worker.phase, worker.up_at_s = Phase.UP, time.monotonic()
        self.queue.wake(lanes=True)  # its further channels can be opened now
        self._note_channels()

    def lane_down(self, worker: Worker, error: PscpError | None) -> None:
        self._terms.counters.add(lanes_alive=-1, connections_lost=int(error is not None))
        if error is not None:
            self._terms.explain(f"a connection was lost: {error.message}")
        with self._lock:
            worker.phase = Phase.IDLE
            self._logins.lane_ended(time.monotonic() - worker.up_at_s)
        self.queue.wake(lanes=True)  # another may log in in its place

    def may_try_again(self, worker: Worker, error: PscpError, attempt: int) -> bool:
        """Return whether a worker connects again after this error; if not, it has given up.

        It tries again as long as other lanes are alive, and for a limited time when none is, or
        when its own lanes are lost again and again before anything is finished.
        """
        if self.queue.error is not None or self.queue.is_finished:
            return False
        if isinstance(error, CopyError):  # an end cannot begin, so it could not the next time
            self.queue.stop(error)
            return False
        if isinstance(error, ConnectionFull):
            self._give_up(worker, error)
            lanes = sum(not each.gave_up for each in list(self._workers))
            self._terms.counters.set(lanes_wanted=lanes)
            self._note_channels()
            return False
        if error.retry and self._may_retry(worker, error, attempt):
            self._terms.counters.set(attempts=max(attempt, self._terms.counters.attempts))
            return True
        if isinstance(error, AuthenticationError):
            with self._lock:
                may_share = self.layout.share_connection(worker, self._workers)
            if may_share:
                self._note_once("no other login passes without asking: using channels of this one")
                return True
        if not self._give_up(worker, error) and not error.retry:
            self._note_once(f"fewer connections than were wanted: {error.message}")
        return False

    def _may_retry(self, worker: Worker, error: PscpError, attempt: int) -> bool:
        """Return whether an error passes, for all that is known. Stops the copy if it does not."""
        _, done_pieces = self.queue.done()
        with self._lock:
            if not self._logins.is_alone(worker.fruitless):
                return True
            may_try, is_over = self._logins.may_try_alone(attempt, done_pieces)
        if is_over:
            self.queue.stop(error)
        return may_try

    def _give_up(self, worker: Worker, error: PscpError) -> bool:
        """Let the worker connect no more; if it was the last one, stop the copy and return True."""
        with self._lock:
            worker.phase = Phase.GONE
            self.layout.is_full = self.layout.is_full or isinstance(error, ConnectionFull)
            self.layout.park(self._workers)  # else its work could wait for one that is parked
            is_last = all(each.gave_up for each in self._workers)
        self.queue.wake(lanes=True)  # its further channels give up too
        if is_last:
            self.queue.stop(error)
        return is_last

    # --- notes

    def _note_channels(self) -> None:
        """Tell the user once how many channels a connection carries, when that is known."""
        with self._lock:
            most = self.layout.channels_found(self._workers)
        if most and self._terms.options.itemize:
            most_channels = count(most, "channel")
            self._terms.note(f"the server lets {most_channels} on a connection (MaxSessions)")

    def _note_once(self, text: str) -> None:
        with self._lock:
            had_noted, self._has_noted = self._has_noted, True
        if not had_noted:
            self._terms.note(text)


def _logins_of(workers: list[Worker]) -> list[LoginProcess | None]:
    """Return the logins of those that have not ended."""
    channels = [worker.channel for worker in workers if worker.is_alive()]
    return [channel.login for channel in channels if channel is not None]


def _wait_for(workers: list[Worker], idle: IdleConnections) -> None:
    """Wait for logins that nobody needs any more, and abort those that take too long."""
    until_s = time.monotonic() + LET_GO_S
    for worker in workers:
        while worker.is_alive():
            if idle.is_cut or time.monotonic() > until_s:
                worker.abort()
            worker.join(0.05)
        idle.expect(-1)
