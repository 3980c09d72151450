"""One stream over several lanes: from a descriptor here to a command there, or the other way.

A Pipe is one stream, a Push or a Pull. Here it is cut into chunks, or put in order again, by the
same classes as at the far end (endpoint/streams/stream.py); there one agent runs the command and
takes over the other lanes (endpoint/streams/stream_server.py). The lanes are those of a copy, also
when one is lost.

The command sees the end of its input only after every chunk was verified and the producer ended
well. In any other case it is ended first.

Not here: the states of a stream (states.py), what a program calls (stream.py), the command line
(cli/pipe.py).
Read next: states.py, endpoint/streams/stream.py, endpoint/streams/stream_server.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.endpoint.streams.machine import Machine
from pscp.endpoint.streams.stream import SLOT_BYTES, Cutter, Reorder
from pscp.endpoint.streams.stream_states import Input, Output
from pscp.ground import errors
from pscp.ground.contexts import with_context
from pscp.progress.progress import LiveCounters
from pscp.stream.states import PULL, PUSH, Near, NearEvent
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.lanes.work_queue import SIGNAL_S, WorkQueue
from pscp.transfer.pieces.answers import as_copy_error
from pscp.transfer.pieces.plan import Ask, Chunk, Failure, PlannedEntry

_ABORT_S = 6.0  # the far end gives its command 5 s before SIGKILL
_IDLE_S = 2.0  # for the reader of our output to take what is left
_SETTLE_S = 4.0  # for what is in flight when all is over; after it a lane's connection is not kept
_MISMATCHES_MAX = 3  # of one chunk
_NO_FILE = tree.Entry(tree.FILE, 0, "", 0, 0, 0, 0, {})
UNREAD = "nobody reads the output any more"

# Gets what the command writes: 0 for its standard output or 1 for its standard error; the bytes.
Out = Callable[[int, bytes], None]


@dataclass(frozen=True)
class Target:
    """The other end of a stream: a command's words, a text for the user's shell, or a file."""

    command: str | Sequence[str] = ""
    path: str | None = None

    def request(self, is_push: bool, window: int, modules: str) -> requests.Gather:
        """Return the request that starts it; `window` is in chunks."""
        command = self.command if isinstance(self.command, str) else list(self.command)
        return requests.Gather(is_push, window, command, self.path, modules)


class Report(NamedTuple):
    """The far end's answer to AwaitOutput: what the command has written, if it has ended."""

    texts: list[tuple[int, bytes]]  # from (0) its standard output or (1) its standard error
    status: int | None  # None: the command has not ended
    is_deaf: bool  # the command reads no more
    failure: Failure | None  # why the stream could not be written there


def checked_report(answer: object) -> Report:
    """Return the answer to AwaitOutput. Raises ValueError and the like for another shape."""
    if not isinstance(answer, dict):
        raise ValueError("no answer to AwaitOutput")
    status, failure = answer["status"], answer["failure"]
    if status is not None and not (type(status) is int and 0 <= status <= 255):
        raise ValueError("an exit status out of bounds")
    texts = [(to_bytes(text), count) for text, count in answer["said"]]
    if len(texts) > 2 or any(len(text) != count for text, count in texts):
        raise ValueError("what the command said")
    return Report(
        [(place, text) for place, (text, _) in enumerate(texts, start=2 - len(texts))],
        status,
        bool(answer["deaf"]),
        None if failure is None else failures.parse_failure(failure),
    )


class Pipe:
    """One stream; also the job that its chunks are of (transfer.plan.Job).

    Chunks, answers and events come from several threads; what they change is changed by the steps
    that the work queue runs.
    """

    number, is_closed, may_be_short, was_shared = 1, False, True, False
    item = PlannedEntry(_NO_FILE, _NO_FILE)
    is_push: bool
    table: Mapping[Near, Mapping[NearEvent, Near]]

    def __init__(
        self, end: Cutter | Reorder, queue: WorkQueue, window: int, counters: LiveCounters, out: Out
    ) -> None:
        """Make a stream between `end`, whose `fd` it closes, and the far end.

        `window` is in chunks; `out` gets what the command writes besides the stream.
        """
        self.queue, self.window = queue, window
        self._end, self._counters, self._out = end, counters, out
        # The first error of any thread, for which the stream is cut short.
        self._error: BaseException | None = None
        self._finished = threading.Lock()  # held until the stream is over; see run()
        self._finished.acquire()
        # Changed by steps that the queue runs:
        self._life = Machine(self.table, Near.MOVING)
        self._status: int | None = None  # the command's exit status
        self._failure: Failure | None = None  # why the far end could not move the stream

    @property
    def state(self) -> Near:
        return self._life.state

    # --- the story

    def run(self, pool: LanePool, begin: requests.BeginStream, agents: list[RemoteAgent]) -> int:
        """Move the stream, and return the command's exit status. Raises what stops it.

        The main thread waits for a lock: in a Condition a signal's exception could leave the
        Condition's own lock held.
        """
        threads = [
            threading.Thread(
                target=with_context(self._run), args=(step,), name=step.__name__, daemon=True
            )
            for step in (*self._steps(), self._listen, self._await_end)
        ]
        try:
            for thread in threads:
                thread.start()
            pool.begin(begin, begin, agents)
            while not self._finished.acquire(timeout=SIGNAL_S):
                pass
            self.queue.check()
            if self._error is not None and self.state is not Near.OVER:
                raise self._error
        except BaseException as error:
            self._abort(error)
            self.queue.stop(error)
            raise
        finally:
            self._end.stop()
            pool.end()
            for thread in threads:
                thread.join(_IDLE_S)  # not for ever: who reads our output may have stopped
        if self._failure is not None:
            raise as_copy_error(self._failure)
        assert self._status is not None
        return self._status

    def cut_short(self, error: BaseException | None = None) -> None:
        """End the command, since the stream is not complete. From any thread or signal handler.

        run() raises the first of such errors.
        """
        default = errors.CopyError("the producer failed; the command was ended")
        self._error = self._error or error or default
        self.queue.wake()

    def _steps(self) -> list[Callable[[], None]]:
        """Return the functions that move the stream here, each in a thread of its own."""
        raise NotImplementedError

    def _await_end(self) -> None:
        try:
            if self.queue.wait_until(self._is_over) and self.state is Near.OVER:
                self.queue.wait_until(self.queue.is_idle, _SETTLE_S)
        finally:
            self._finished.release()

    def _is_over(self) -> bool:
        if self._error is not None:
            self._life.on(NearEvent.CUT)
            self.queue.wake()
        return self.state in (Near.OVER, Near.CUT_SHORT)

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # the main thread raises it
            self.cut_short(error)

    def _report(self, event: NearEvent) -> None:
        """Change the state by this event, from a thread that the queue does not run."""
        self.queue.run_alone(lambda: self._life.on(event))
        self.queue.wake()

    def _abort(self, error: BaseException) -> None:
        """Have the far end end its command, if there is a lane over which to ask for that."""
        answered = threading.Event()
        self.cut_short(error)
        if self.queue.error is None:
            self._ask_far(requests.Abort(), lambda answer: answered.set())
            answered.wait(_ABORT_S)

    # --- what lanes report: outcomes, which the queue runs

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        """Count a chunk that has landed; `receipt` is how many were written, from the first on."""
        raise NotImplementedError

    def mismatched(self, chunk: Chunk) -> None:
        """Send a chunk once more that arrived damaged."""
        self._counters.add(chunks_resent=1, bytes_sent=chunk.length)
        chunk.mismatches += 1
        if chunk.mismatches > _MISMATCHES_MAX:
            self.cut_short(errors.CopyError("the stream arrived damaged again and again"))
        else:
            self.queue.add(chunk)

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        """Cut the stream short, since a chunk cannot be sent or written."""
        self._ask_failed(failure)

    # --- what the far end answers

    def _ask_far(self, request: requests.Request, then: Callable[[object], None]) -> None:
        ask = Ask(not self.is_push, request, then, self._ask_failed, is_prompt=True)
        self.queue.add(ask)

    def _ask_failed(self, failure: Failure) -> None:
        self.cut_short(as_copy_error(failure))

    def _listen(self) -> None:
        """Pass on what the command writes, until it has ended and all of that was passed on."""
        passed_bytes, is_deaf = [0, 0], False
        while (
            report := self._ask_report(requests.AwaitOutput(list(passed_bytes), is_deaf))
        ) is not None:
            is_deaf = report.is_deaf
            for place, (number, text) in enumerate(report.texts):
                passed_bytes[place] += len(text)
                if text:
                    self._out(number, text)
            if report.status is not None:
                self._status, self._failure = report.status, report.failure
                self._report(NearEvent.EXIT if report.failure is None else NearEvent.FAIL)
                return

    def _ask_report(self, request: requests.AwaitOutput) -> Report | None:
        """Return the next report on the command; None if the queue was stopped."""
        reports: list[Report] = []

        def then(answer: object) -> None:
            reports.append(checked_report(answer))
            if reports[0].is_deaf and self.is_push:
                self._life.on(NearEvent.LEAVE)
            self.queue.wake()

        self._ask_far(request, then)
        return reports[0] if self.queue.wait_until(lambda: bool(reports)) else None


class Push(Pipe):
    """From a descriptor here to the command."""

    is_push, table = True, PUSH

    def __init__(
        self,
        cutter: Cutter,
        queue: WorkQueue,
        window: int,
        counters: LiveCounters,
        out: Out,
        *,
        input_was_whole: Callable[[], bool],
    ) -> None:
        """Once the input has ended, `input_was_whole` returns whether that was all of it."""
        super().__init__(cutter, queue, window, counters, out)
        self._cutter, self._input_was_whole = cutter, input_was_whole
        # Changed by steps that the queue runs:
        self._landed = 0  # chunks
        self._written = 0  # chunks at the far end, from the first on
        self._asks_drained = False

    def _steps(self) -> list[Callable[[], None]]:
        return [self._feed]

    def _feed(self) -> None:
        cut_bytes = 0
        try:
            while self._may_cut() and (length := self._cut()):
                cut_bytes += length
                self.queue.put(Chunk(self, (self._cutter.count - 1) * SLOT_BYTES, length))
            if self._cutter.state is Input.ENDED:
                if not self._input_was_whole():
                    self.cut_short()
                    return
                self._counters.set(bytes_total=cut_bytes, plan_complete=True)
                self.queue.run_alone(self._note_end)
        finally:
            os.close(self._cutter.fd)

    def _cut(self) -> int:
        """Cut the next chunk and return its length; 0 if there is none."""
        try:
            return self._cutter.cut()
        except OSError as error:
            if self._cutter.state is Input.STOPPED:
                return 0
            raise errors.CopyError(f"the input cannot be read: {error.strerror}") from None

    def _note_end(self) -> None:
        self._life.on(NearEvent.END)
        self._close_when_landed()

    def _may_cut(self) -> bool:
        """Wait until the far end's window has room. Return False if it takes no more."""

        def may_cut() -> bool:
            if self.state is not Near.MOVING or self._cutter.count - self._written < self.window:
                return True
            self._ask_drained()
            return False

        return self.queue.wait_until(may_cut) and self.state is Near.MOVING

    def _ask_drained(self) -> None:
        """Ask how many chunks are written there, since with the window full no ACK tells it."""
        if self._asks_drained:
            return
        self._asks_drained = True

        def then(answer: object) -> None:
            if not isinstance(answer, int):
                raise ValueError("no number of chunks")
            self._asks_drained = False
            self._note_written(answer)

        self._ask_far(requests.AwaitChunks(self._written), then)

    def _note_written(self, count: int) -> None:
        self._written = max(self._written, count)
        self.queue.wake()

    def _close_when_landed(self) -> None:
        if self.state is Near.LANDING and self._landed == self._cutter.end:
            self._life.on(NearEvent.LAND)
            self._ask_far(requests.CloseInput(self._landed), lambda answer: None)

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self._landed += 1
        self._cutter.drop(chunk.offset // SLOT_BYTES)
        self._close_when_landed()
        self._note_written(receipt)
        length = chunk.length
        self._counters.add(bytes_done=length, bytes_sent=length, chunks_verified=1)


class Pull(Pipe):
    """From the command to a descriptor here."""

    is_push, table = False, PULL

    def __init__(
        self, reorder: Reorder, queue: WorkQueue, window: int, counters: LiveCounters, out: Out
    ) -> None:
        super().__init__(reorder, queue, window, counters, out)
        self._reorder = reorder

    def _steps(self) -> list[Callable[[], None]]:
        return [self._ask_for_chunks, self._write]

    def _write(self) -> None:
        try:
            self._reorder.run(self._note_written)
        finally:
            os.close(self._reorder.fd)
        if self._reorder.state is Output.COMPLETE:
            self._report(NearEvent.DELIVER)

    def _note_written(self) -> None:
        """Note that a chunk was written, or that none can be written any more."""
        if self._reorder.error is not None:
            reason = self._reorder.error.strerror
            self.cut_short(errors.CopyError(f"the output cannot be written: {reason}"))
        elif self._reorder.is_deaf:
            self.cut_short(errors.CopyError(UNREAD))
        self.queue.wake()

    def _ask_for_chunks(self) -> None:
        """Ask for chunks while the window has room, until the end is known."""
        reorder, number = self._reorder, 0

        def is_moving() -> bool:
            return reorder.end is None and self.state in (Near.MOVING, Near.EXITED)

        def is_ready() -> bool:
            return number - reorder.written < self.window or not is_moving()

        while self.queue.wait_until(is_ready) and is_moving():
            self.queue.put(Chunk(self, number * SLOT_BYTES, SLOT_BYTES))
            number += 1
        self._drop_what_is_beyond_the_end()

    def _drop_what_is_beyond_the_end(self) -> None:
        """Ask for no more chunks that are not there: a few round trips of a short stream."""
        if (end := self._reorder.end) is not None:
            at = end * SLOT_BYTES
            self.queue.drop(lambda work: isinstance(work, Chunk) and work.offset >= at)

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        length = self._reorder.arrived_bytes - self._counters.bytes_done
        self._counters.add(bytes_done=length, bytes_sent=length, chunks_verified=1)
        self._drop_what_is_beyond_the_end()
        self.queue.wake()

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        """Ignore the failure of a chunk that has arrived over a lane that was lost just then."""
        if self._reorder.has(chunk.offset // SLOT_BYTES):
            self.landed(chunk, "", 0)
        else:
            super().failed(chunk, failure)
