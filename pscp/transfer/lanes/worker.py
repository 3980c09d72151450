"""Keeps one lane going: connects when there is work, connects again when the channel was lost.

Not here: the work itself (lane.py), how many workers there are (../lane_pool.py), the session's
next copy (connect/connections.py), logins that no copy waits for (connect/spare_logins.py).
Read next: lane.py.
"""

from __future__ import annotations

import enum
import random
import threading
from functools import partial
from typing import Protocol

from pscp.connect.bootstrap import RemoteAgent
from pscp.connect.connections import ConnectionRequest
from pscp.ground.contexts import with_context
from pscp.ground.errors import ConnectionLost, PscpError
from pscp.ground.log import Log
from pscp.transfer.lanes.lane import Lane
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transports import Channel

_PAUSE_S = (1.0, 30.0)  # before a lost connection is opened again: the first pause, the longest

_log = Log("transfer")
_OVER = "the copy was over before it had connected"


class Phase(enum.Enum):
    """The steps of a worker."""

    IDLE = enum.auto()  # it has not begun, or waits to connect again
    CONNECTING = enum.auto()
    UP = enum.auto()  # its channel carries work
    GONE = enum.auto()  # it has given up connecting


class WorkerContext(Protocol):
    """The pool, as its workers use it."""

    context: LaneContext

    def keep(self, far: RemoteAgent, *, is_late: bool = False) -> None: ...

    def connect(self, wanted: ConnectionRequest, /) -> RemoteAgent: ...

    def may_connect(self, worker: Worker) -> bool: ...

    def connected(self, worker: Worker, is_refused: bool) -> None: ...

    def lane_up(self, worker: Worker) -> None: ...

    def lane_down(self, worker: Worker, error: PscpError | None) -> None: ...

    def may_try_again(self, worker: Worker, error: PscpError, attempt: int) -> bool: ...


class Worker(threading.Thread):
    """Runs one lane after the other until the queue is closed, or connecting makes no sense.

    The pool changes the public attributes, with its lock held, and then wakes who waits for that;
    `channel` is changed by the worker's own thread.
    """

    def __init__(
        self,
        number: int,
        pool: WorkerContext,
        far: RemoteAgent | None = None,
        master: Worker | None = None,
        congestion: str = "",
    ) -> None:
        """Make a worker; its first lane goes over `far`, if that connection is open already.

        With a master, its channels are further ones of the master's connection.
        """
        super().__init__(target=with_context(self._work), name=f"lane {number}", daemon=True)
        self.master = master
        self.congestion = congestion  # the congestion control of its connection; "" for any
        self.phase = Phase.IDLE
        self.up_at_s = 0.0  # when its channel last began to carry work
        self.fruitless = 0  # lanes, one after the other, that were lost with nothing finished
        self.is_parked = False  # it takes no more work, and keeps what connection it has
        self.channel: Channel | None = None  # while there is one, so that abort() can end it
        self._lane: Lane | None = None  # while one runs, for the same reason
        self._pool, self._queue = pool, pool.context.queue
        self._far = far  # an open connection; once the worker was started, only its thread's

    @property
    def is_up(self) -> bool:
        return self.phase is Phase.UP

    @property
    def gave_up(self) -> bool:
        return self.phase is Phase.GONE or (self.master is not None and self.master.gave_up)

    @property
    def has_connection(self) -> bool:
        return self.is_up or self._far is not None

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that have landed over its lane so far; None while it has none."""
        lane = self._lane
        return lane.share.window.moved_bytes if lane is not None else None

    def abort(self) -> None:
        """End the worker's channel, so that it waits no longer. From any thread."""
        channel, lane = self.channel, self._lane
        if lane is not None:
            lane.abort()
        elif channel is not None:
            channel.end()

    def _work(self) -> None:
        try:
            attempt = 0
            while self._queue.wait_until(self._may_begin, is_lane=True) and not self.gave_up:
                lane: Lane | None = None
                try:
                    far = self._far = self._far or self._connect()
                    lane = Lane(self.name, self._pool.context, far, lambda: self.is_parked)
                    self._serve(lane, far)
                except PscpError as error:
                    has_worked = lane is not None and lane.share.has_worked
                    attempt = 1 if has_worked else attempt + 1
                    self.fruitless = 0 if has_worked else self.fruitless + (lane is not None)
                    master = self.master
                    _log.debug("attempt %d ended: %s", attempt, error.message)
                    if not self._pool.may_try_again(self, error, attempt):
                        _log.debug("does not connect again")
                        return
                    if self.master is master:  # else it needs no login, and so no pause
                        self._pause(attempt)
        except BaseException as error:  # a bug: the main thread shows it
            self._queue.stop(error)
        finally:
            self.give_up_unused()

    def give_up_unused(self) -> None:
        """Give back the connection that it has, if no lane has used it."""
        unused, self._far = self._far, None
        if unused is not None:
            self._pool.keep(unused)

    def _may_begin(self) -> bool:
        """Return whether it has a connection, or may open one since there is work for it.

        So it is where another lane is held up, which is given up only once one is idle.
        """
        if self._far is not None or self.gave_up:
            return True
        queue = self._queue
        if self.is_parked or not (queue.has_work() or queue.is_slow() or queue.is_held_up()):
            return False
        return self._pool.may_connect(self)

    def _connect(self) -> RemoteAgent:
        """Open a connection, or a further channel of the master's; the pool has counted it already.

        Raises ConnectError, also if the copy is over before it is open.
        """
        is_refused = False
        try:
            if self._queue.is_finished:
                raise ConnectionLost(_OVER)
            connection_of = self.master.channel if self.master is not None else None
            opened = partial(setattr, self, "channel")
            far = self._pool.connect(ConnectionRequest(connection_of, self.congestion, opened))
        except ConnectionLost:
            is_refused = not self._queue.is_finished
            raise
        finally:
            self._pool.connected(self, is_refused)
        if self._queue.is_finished:
            self._pool.keep(far, is_late=True)
            raise ConnectionLost(_OVER)
        return far

    def _pause(self, attempt: int) -> None:
        """Wait before the next attempt: longer each time, and differently for each lane."""
        share = random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        pause_s = min(_PAUSE_S[0] * 2 ** (attempt - 1), _PAUSE_S[1]) * share
        _log.debug("connects again in %.1f s", pause_s)
        self._queue.wait_until(lambda: False, pause_s, is_lane=True)

    def _serve(self, lane: Lane, far: RemoteAgent) -> None:
        """Run a lane over this connection until the queue is closed. Raises why it was lost."""
        self._far, self._lane, self.channel = None, lane, far.channel
        _log.debug("works over process %d", far.channel.pid)
        try:
            self._pool.lane_up(self)
            lane.run()
        finally:
            self._lane = self.channel = None
            if lane.ended_well:
                self._pool.keep(far)
            else:
                far.close()
            self._pool.lane_down(self, lane.error)
            _log.debug("has no more work over process %d", far.channel.pid)
        if lane.error is not None:
            raise lane.error
