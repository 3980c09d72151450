"""One lane: its two threads, and its life from the first request to the end of its channel.

One thread takes work from the queue and sends it; the other receives, so a lane never waits a round
trip for a chunk. When its channel ends, what it had in flight goes back to the queue at once.

On push the near end is the source and the far end the sink; on pull it is the other way round.

Not here: what the threads send and receive (lane_traffic.py), in which states a lane can be
(../pieces/states.py), a near end that is on a third host (relay.py), connecting again (worker.py).
Read next: lane_traffic.py.
"""

from __future__ import annotations

import threading

from pscp.connect.bootstrap import RemoteAgent, shaped
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, session, wire
from pscp.endpoint.streams.machine import Machine
from pscp.ground.contexts import with_context
from pscp.ground.errors import ConnectionLost, CopyRunning, PscpError
from pscp.transfer.lanes.in_flight import IsParked, LaneShare, never
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.lane_traffic import LaneTraffic
from pscp.transfer.lanes.relay import RelayEnd
from pscp.transfer.pieces import states
from pscp.transfer.pieces.answers import as_copy_error

# The numbers of the two requests that do not come from the queue, which numbers work from 1 on.
_BEGIN, _END = 0, (1 << 64) - 1
_STOOD_STILL = "it stood still while other connections worked"


class Lane:
    """A lane, from its first request to the end of the copy or the loss of its channel."""

    def __init__(
        self, name: str, context: LaneContext, far: RemoteAgent, is_parked: IsParked = never
    ) -> None:
        """While `is_parked()` it takes no more work."""
        # These two change only in steps that the queue runs, on behalf of either thread.
        self.error: PscpError | None = None  # why it was lost
        self._life = Machine(states.LANE, states.Lane.OPENING)
        self._context, self._queue, self._far = context, context.queue, far
        self.share = LaneShare(context.new_window(), context.next_number(), is_parked)
        self.share.wants = context.wants
        self.share.give_up = lambda: self._lose(ConnectionLost(_STOOD_STILL))
        control = far.channel.control
        self.share.connection = control.path if control is not None else ""
        self._near = near = context.new_end(self._lose, far.channel)
        self._traffic = LaneTraffic(context, far, near, self.share)
        self._reader = threading.Thread(
            target=with_context(self._receive), name=f"{name} in", daemon=True
        )

    def run(self) -> None:
        """Send until there is nothing more to do; then wait for the agent's goodbye."""
        try:
            self._begin_near()
            self._far.decoder.place = self._near.sink.place if self._near.sink is not None else None
            is_push = self._context.is_push
            self._far.session.advance(session.BEGIN_SINK if is_push else session.BEGIN_SOURCE)
            begin = requests.to_json(self._numbered(self._context.begin_far))
            self._far.send(wire.ASK, _BEGIN, 0, begin)
            if not self._queue.run_alone(self._join):
                return
            self._reader.start()
            while (taken := self._queue.take(self.share)) is not None:
                self._traffic.send(*taken)
            if self._queue.run_alone(self._leave):
                self._say_goodbye()
        except PscpError as error:
            self._lose(error)
        finally:
            self._close()

    def abort(self) -> None:
        """End its channel, and what its near end waits for on a third host. From any thread."""
        self._far.channel.end()
        if isinstance(self._near, RelayEnd):
            self._near.cut()

    @property
    def ended_well(self) -> bool:
        """Return whether the agent is ready for the next copy."""
        return self._state is states.Lane.CLOSED_WELL

    @property
    def _state(self) -> states.Lane:
        return self._life.state

    # --- the sending thread

    def _begin_near(self) -> None:
        begin = self._context.begin_near
        try:
            self._near.begin(self._numbered(begin))
        except failures.EXPECTED as error:
            problem = _why_not_begun(failures.from_exception(error, ""), begin)
            self._queue.stop(problem)
            raise problem from None

    def _numbered(self, begin: requests.Begin) -> requests.Begin:
        if isinstance(begin, requests.BeginSink):
            return begin._replace(lane=self.share.lane)
        return begin

    def _say_goodbye(self) -> None:
        """Ask the agent to get ready for the next copy, or end the channel: all is acknowledged."""
        if self._context.keeps and not self.share.work:
            self._far.send(wire.ASK, _END, 0, requests.to_json(requests.End()))
        else:
            self._far.channel.end()

    def _close(self) -> None:
        if self._state not in (states.Lane.LEAVING, states.Lane.CLOSED_WELL):
            self._far.channel.end()
        if self._reader.ident is not None:
            self._reader.join()
        self._far.decoder.place = None
        self._queue.run_alone(self._end)
        self._near.close()

    # --- the receiving thread

    def _receive(self) -> None:
        traffic = self._traffic
        try:
            while (frame := self._far.receive()) is not None:
                if frame.type in (wire.DATA, wire.PACK):  # before take() holds the near end
                    traffic.wait_for_rate(len(frame.payload), traffic.is_closed)
                with shaped():
                    if frame.type != wire.REPLY or frame.id not in (_BEGIN, _END):
                        traffic.take(frame)
                    elif self._is_last(frame):
                        return
            if self._state in (states.Lane.OPENING, states.Lane.WORKING):
                self._lose(self._context.named(self._far.explain()))
        except PscpError as error:
            self._lose(self._context.named(error))
        except BaseException as error:
            self._queue.stop(error)
            self._far.channel.end()

    def _is_last(self, frame: wire.Frame) -> bool:
        """Take the answer to a Begin or an End. Return whether the agent has said goodbye."""
        answer = frame.json()
        if frame.flags & wire.FAILED:
            problem = _why_not_begun(failures.parse_failure(answer), self._context.begin_far)
            if isinstance(problem, CopyRunning):
                self._queue.stop(problem)
            raise problem
        if frame.id != _END or self._state is not states.Lane.LEAVING:
            return False  # nobody has sent an End yet
        self._far.session.advance(session.END)
        self._queue.run_alone(lambda: self._life.on(states.LaneEvent.GOODBYE))
        return True

    def _lose(self, error: PscpError) -> None:
        """Give up the connection, and what was in flight back to the queue."""
        if self._queue.run_alone(lambda: self._break(error)):
            self.abort()

    # --- steps that the queue runs

    def _join(self) -> bool:
        """Take part, unless the connection of a near end on another host has broken by now."""
        if self._state is states.Lane.LOST:
            return False
        self._life.on(states.LaneEvent.BEGIN)
        self._queue.join(self.share)
        return True

    def _leave(self) -> bool:
        if self._queue.is_finished and self._state is states.Lane.WORKING:
            self._life.on(states.LaneEvent.FINISH)
            return True
        return False

    def _break(self, error: PscpError) -> bool:
        """Note that the channel broke. Return whether that loses the lane.

        It does not if all was done, or if the other thread has noted it already.
        """
        before = self._state
        self._life.on(states.LaneEvent.BREAK)
        if self._state is before or self._state is not states.Lane.LOST:
            return False
        if self._queue.error is None and not self._queue.is_finished:
            self.error = error
        self._queue.give_back(self.share)
        return True

    def _end(self) -> None:
        self._life.on(states.LaneEvent.CLOSE)
        self._queue.give_back(self.share)


def _why_not_begun(data: failures.Data, begin: requests.Begin) -> PscpError:
    """Return the error for an end that cannot begin; without a path it is about the sink's root."""
    if data["kind"] == failures.SUPERSEDED:
        return CopyRunning(data["message"])
    root = begin.root if isinstance(begin, requests.BeginSink) else ""
    return as_copy_error(data, root)
