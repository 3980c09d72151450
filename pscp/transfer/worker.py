"""Keeps one lane going: connects when there is work, connects again when the channel was lost.

Not here: the work itself (lane.py), how many workers there are (lane_pool.py), what becomes of
connections afterwards (kept.py).
Read next: lane.py.
"""

from __future__ import annotations

import enum
import random
import threading
from typing import Protocol

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import Wanted
from pscp.errors import ConnectionLost, PscpError
from pscp.log import Log
from pscp.transfer.kept import KeptConnections
from pscp.transfer.lane import Lane
from pscp.transfer.lane_context import LaneContext
from pscp.transports import Channel

OPENING_MAX = 8  # at once; sshd's MaxStartups begins to refuse at 10
_PAUSE_S = (1.0, 30.0)  # before a lost connection is tried again: first, longest


_log = Log("transfer")
_OVER = "the copy was over before it had connected"


class Phase(enum.Enum):
    """What a worker is doing."""

    IDLE = enum.auto()  # it has not begun, or waits to connect again
    CONNECTING = enum.auto()
    UP = enum.auto()  # its channel carries work
    GONE = enum.auto()  # it has given up connecting


class WorkerContext(Protocol):
    """What a worker needs of the pool it belongs to."""

    context: LaneContext
    kept: KeptConnections

    def connect(self, wanted: Wanted, /) -> RemoteAgent: ...

    def may_connect(self, worker: Worker) -> bool: ...

    def connected(self, worker: Worker, is_refused: bool) -> None: ...

    def lane_up(self, worker: Worker) -> None: ...

    def lane_down(self, worker: Worker, error: PscpError | None) -> None: ...

    def may_try_again(self, worker: Worker, error: PscpError, attempt: int) -> bool: ...


class Worker(threading.Thread):
    """Runs until the queue is closed, or connecting makes no sense any more.

    What has no underscore the pool changes, with its lock held, but for `channel`, which its own
    thread does; whoever waits for it is woken afterwards.
    """

    def __init__(
        self, number: int, pool: WorkerContext, far: RemoteAgent | None = None,
        master: Worker | None = None, congestion: str = "",
    ) -> None:  # fmt: skip
        """With a master, its channel is one more of the master's connection."""
        super().__init__(name=f"lane {number}", daemon=True)
        self.master = master
        self.congestion = congestion  # the congestion control of its connection; "": any
        self.phase = Phase.IDLE
        self.up_at_s = 0.0  # since when its channel carries work, or when that last began
        self.is_parked = False  # it takes no more work, and keeps what connection it has
        self.channel: Channel | None = None  # while there is one, so that abort() can end it
        self._pool, self._queue = pool, pool.context.queue
        self._far = far  # a connection that is open already; its own thread's, once it was started

    @property
    def is_up(self) -> bool:
        return self.phase is Phase.UP

    @property
    def gave_up(self) -> bool:
        return self.phase is Phase.GONE or (self.master is not None and self.master.gave_up)

    @property
    def has_connection(self) -> bool:
        return self.is_up or self._far is not None

    def abort(self) -> None:
        """Have every wait of this worker end soon. From any thread."""
        channel = self.channel
        if channel is not None:
            channel.end()

    def run(self) -> None:
        try:
            attempt = 0
            while self._queue.wait_to_begin(self._may_begin) and not self.gave_up:
                lane: Lane | None = None
                try:
                    far = self._far or self._connected()
                    lane = Lane(self.name, self._pool.context, far, lambda: self.is_parked)
                    self._serve(lane, far)
                except PscpError as error:
                    has_worked = lane is not None and lane.has_worked
                    attempt = 1 if has_worked else attempt + 1
                    master = self.master
                    _log.debug("attempt %d ended: %s", attempt, error.message)
                    if not self._pool.may_try_again(self, error, attempt):
                        _log.debug("does not connect again")
                        return
                    if self.master is master:  # else it need not log in again
                        self._pause(attempt)
        except BaseException as error:  # a bug: the main thread shows it
            self._queue.stop(error)
        finally:
            self.give_up_unused()

    def give_up_unused(self) -> None:
        """Give back the connection that it was made with, where all was over before it began."""
        unused, self._far = self._far, None
        if unused is not None:
            self._pool.kept.keep(unused)

    def _may_begin(self) -> bool:
        """Return whether it has a connection, or may open one: only when there is work for it."""
        if self._far is not None or self.gave_up:
            return True
        return not self.is_parked and self._queue.has_work() and self._pool.may_connect(self)

    def _connected(self) -> RemoteAgent:
        """Connect, as the pool has counted already.

        Raises ConnectError, also where the copy is over before it has connected.
        """
        is_refused = False
        try:
            if self._queue.is_finished:
                raise ConnectionLost(_OVER)
            connection_of = self.master.channel if self.master is not None else None
            far = self._pool.connect(Wanted(connection_of, self.congestion, self._opened))
        except ConnectionLost:
            is_refused = True
            raise
        finally:
            self._pool.connected(self, is_refused)
        if self._queue.is_finished:
            self._pool.kept.keep_late(far)
            raise ConnectionLost(_OVER)
        return far

    def _opened(self, channel: Channel) -> None:
        self.channel = channel

    def _pause(self, attempt: int) -> None:
        """Wait before the next attempt: longer each time, and differently for each lane."""
        pause_s = min(_PAUSE_S[0] * 2 ** (attempt - 1), _PAUSE_S[1]) * random.uniform(0.5, 1.0)
        _log.debug("connects again in %.1f s", pause_s)
        self._queue.wait_for_end(pause_s)

    def _serve(self, lane: Lane, far: RemoteAgent) -> None:
        """Send work over one connection until the queue is closed. Raises why it ended before."""
        self._far, self.channel = None, far.channel
        _log.debug("works over process %d", far.channel.pid)
        self._pool.lane_up(self)
        try:
            lane.run()
        finally:
            self.channel = None
            if lane.ended_well:
                self._pool.kept.keep(far)
            else:
                far.close()
            self._pool.lane_down(self, lane.error)
            _log.debug("has no more work over process %d", far.channel.pid)
        if lane.error is not None:
            raise lane.error
