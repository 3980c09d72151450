"""One stream over several lanes: from a descriptor here to a command there, or the other way.

A Pipe is one stream, a Push or a Pull. Here it is cut into chunks, or put in order again, by the
same classes as at the far end (endpoint/stream.py); there one agent runs the command and is handed
the other lanes (endpoint/stream_server.py). The lanes, and what is done when one is lost, are a
copy's.

The command sees the end of its input only after every chunk was verified and the producer ended
well. In any other case it is ended first.

Not here: what a program calls (stream.py), the command line (cli/pipe.py).
Read next: endpoint/stream.py, then endpoint/stream_server.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pscp import errors
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import failures, requests, stream, tree
from pscp.endpoint.paths import to_bytes
from pscp.progress import Counters
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.plan import Ask, Chunk, Failure, Placed
from pscp.transfer.work_queue import SIGNAL_S, WorkQueue

_ABORT_S = 6.0  # the far end gives its command 5 s before SIGKILL
_IDLE_S = 2.0  # for who reads our output to take what is left
_SETTLE_S = 4.0  # for what is in flight when all is over; a lane that has some left is not kept
_MISMATCHES_MAX = 3  # of one chunk

Out = Callable[[int, bytes], None]  # (0: its standard output, 1: its standard error; what it said)


@dataclass(frozen=True)
class Target:
    """The other end of a stream: a command's words, a text for the user's shell, or a file."""

    command: str | Sequence[str] = ""
    path: str | None = None

    def request(self, is_push: bool, window: int, modules: str) -> requests.Gather:
        """What starts it; `window` in chunks."""
        command = self.command if isinstance(self.command, str) else list(self.command)
        return requests.Gather(is_push, window, command, self.path, modules)


class Near:
    """This end of a stream, as its lanes need it."""

    def __init__(self, end: stream.Cutter | stream.Reorder) -> None:
        self._end = end

    def lane(self, request: requests.BeginStream) -> tuple[Any, Any]:
        """A lane's source and sink; one of them is None."""
        if isinstance(self._end, stream.Cutter):
            return stream.PipeSource(self._end, request.hash, request.block_bytes), None
        return None, stream.PipeSink(self._end, request.hash)


class Pipe:
    """One stream; also the job that its chunks are of."""

    number, is_closed, may_be_short, was_shared = 1, False, True, False
    item = Placed(*2 * [tree.Entry(tree.FILE, 0, "", 0, 0, 0, 0, {})])
    is_push: bool

    def __init__(
        self, end: stream.Cutter | stream.Reorder, window: int, counters: Counters, out: Out
    ) -> None:
        """`window` in chunks; `out` gets what the command says besides."""
        self.near, self.window = Near(end), window
        self._end, self._counters, self._out = end, counters, out
        self.queue = WorkQueue()  # the pool's, once there is one
        self._error: BaseException | None = None  # why the stream is cut short
        self._why: BaseException | None = None  # why it did not come to its end
        self._ended = threading.Lock()  # free once it has come to its end, or will not
        self._ended.acquire()
        self._is_deaf = False  # the command reads no more
        self._after = [0, 0]  # bytes that the command said
        self._heard: dict[str, Any] | None = None
        self._failure: Failure | None = None
        self._status: int | None = None

    # --- the story

    def run(self, pool: LanePool, begin: requests.BeginStream, agents: list[RemoteAgent]) -> int:
        """Move the stream; returns the command's exit status. Raises what stops it."""
        threads = [
            threading.Thread(target=self._run, args=(step,), name=step.__name__, daemon=True)
            for step in (*self._steps(), self._listen, self._await_end)
        ]
        try:
            for thread in threads:
                thread.start()
            pool.begin(begin, begin, agents)
            while not self._ended.acquire(timeout=SIGNAL_S):
                pass
            if self._why is not None:
                raise self._why
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
            raise errors.CopyError(_said(self._failure))
        assert self._status is not None
        return self._status

    def cut_short(self, error: BaseException | None = None) -> None:
        """What came so far is not all: have the command ended. From any thread."""
        default = errors.CopyError("the producer failed; the command was ended")
        self._error = self._error or error or default
        self.queue.wake()

    def _steps(self) -> list[Callable[[], None]]:
        """What each runs in a thread of its own."""
        raise NotImplementedError

    def _await_end(self) -> None:
        """For the main thread: a signal's exception there could leave a Condition's lock held."""
        try:
            self._wait(self._is_over)
            self._wait(self.queue.is_idle, _SETTLE_S)
        except BaseException as error:
            self._why = error
        finally:
            self._ended.release()

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # the main thread raises it
            self.cut_short(error)

    def _is_over(self) -> bool:
        """Has the command ended, and what it said arrived? The queue asks."""
        if self._error is not None:
            raise self._error
        return self._status is not None

    @property
    def _is_stopping(self) -> bool:
        return self._error is not None or self.queue.error is not None

    def _wait(self, is_so: Callable[[], bool], patience_s: float | None = None) -> None:
        self.queue.wait_until(is_so, patience_s)
        self.queue.check()

    def _abort(self, error: BaseException) -> None:
        """Have the far end end its command, while there is a lane that can say so."""
        said = threading.Event()
        self.cut_short(error)
        if self.queue.error is not None:
            return
        self._ask_far(requests.Abort(), lambda answer: said.set())
        said.wait(_ABORT_S)

    # --- what lanes tell: outcomes of the queue

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        """A stream's receipt is how many chunks were written, from the first on."""
        raise NotImplementedError

    def mismatched(self, chunk: Chunk) -> None:
        """What arrived is not what was sent: once more."""
        self._counters.add(chunks_resent=1, bytes_sent=chunk.length)
        chunk.mismatches += 1
        if chunk.mismatches > _MISMATCHES_MAX:
            self.cut_short(errors.CopyError("the stream arrived damaged again and again"))
        else:
            self.queue.add(chunk)

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        self._ask_failed(failure)

    # --- what the far end tells

    def _ask_far(self, request: requests.Request, then: Callable[[Any], None]) -> None:
        ask = Ask(not self.is_push, request, then, self._ask_failed, is_prompt=True)
        self.queue.add(ask)

    def _ask_failed(self, failure: Failure) -> None:
        self.cut_short(errors.CopyError(_said(failure)))

    def _listen(self) -> None:
        """Pass on what the command says; that may take as long as somebody reads it."""
        status = None
        while status is None:
            self._heard = None  # it is set by the answer to what is asked now
            heard = requests.Heard(list(self._after), self._is_deaf)
            self._ask_far(heard, self._take_heard)
            if not self.queue.wait_until(lambda: self._heard is not None):
                return
            assert self._heard is not None
            said, status = self._heard["said"], self._heard["status"]
            for place, (text, count) in enumerate(said):
                self._after[place] += count
                if text:
                    self._out(place if len(said) == 2 else 1, text)
        self._status = status
        self.queue.wake()

    def _take_heard(self, answer: Any) -> None:
        """Raises ValueError and the like for another shape."""
        status = _exit_status(answer["status"])
        said = [(to_bytes(text), count) for text, count in answer["said"]]
        if len(said) > 2 or any(len(text) != count for text, count in said):
            raise ValueError("what the command said")
        self._is_deaf = bool(answer["deaf"])
        if answer["failure"] is not None:
            self._failure = failures.checked(answer["failure"])
        self._heard = {"said": said, "status": status}
        self.queue.wake()


class Push(Pipe):
    """From a descriptor here to the command."""

    is_push = True

    def __init__(
        self, fd: int, window: int, counters: Counters, out: Out, ended_well: Callable[[], bool]
    ) -> None:
        """`fd` is read, and closed. When no more comes, `ended_well` is asked: was that all?"""
        self._fd, self._cutter = fd, stream.Cutter(fd)
        super().__init__(self._cutter, window, counters, out)
        self._ended_well = ended_well
        self._landed = 0  # chunks
        self._written = 0  # at the far end, from the first on
        self._total: int | None = None  # chunks
        self._cut_bytes = 0
        self._asks_drained = self._asks_close = False

    def _steps(self) -> list[Callable[[], None]]:
        return [self._feed]

    def _feed(self) -> None:
        try:
            while self._may_cut() and (length := self._cut()):
                self._cut_bytes += length
                offset = (self._cutter.count - 1) * stream.SLOT_BYTES
                self.queue.put(Chunk(self, offset, length))
        finally:
            os.close(self._fd)

    def _cut(self) -> int:
        """The length of the next chunk; 0: there is none."""
        try:
            length = self._cutter.cut()
        except OSError as error:
            if self._cutter.is_stopped:
                return 0
            raise errors.CopyError(f"the input cannot be read: {error.strerror}") from None
        if not length and not self._ended_well():
            self.cut_short()
        elif not length:
            self._counters.set(bytes_total=self._cut_bytes, plan_complete=True)
            self.queue.run_alone(self._has_ended)
        return length

    def _has_ended(self) -> None:
        self._total = self._cutter.count
        self._close_when_landed()

    def _may_cut(self) -> bool:
        """Wait until the far end's window has room; False when nobody listens any more."""

        def may_cut() -> bool:
            if self._is_unheard() or self._cutter.count - self._written < self.window:
                return True
            self._ask_drained()
            return False

        self.queue.wait_until(may_cut)
        return not self._is_unheard()

    def _is_unheard(self) -> bool:
        return self._is_stopping or self._is_deaf or self._status is not None

    def _ask_drained(self) -> None:
        """Acknowledgements tell what is written, but with the window full there are none."""
        if self._asks_drained:
            return
        self._asks_drained = True

        def then(answer: Any) -> None:
            self._asks_drained = False
            self._note_written(int(answer))

        self._ask_far(requests.Drained(self._written), then)

    def _note_written(self, count: int) -> None:
        self._written = max(self._written, count)
        self.queue.wake()

    def _close_when_landed(self) -> None:
        if self._total == self._landed and not (self._asks_close or self._is_stopping):
            self._asks_close = True
            self._ask_far(requests.CloseInput(self._landed), lambda answer: None)

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self._landed += 1
        self._cutter.drop(chunk.offset // stream.SLOT_BYTES)
        self._close_when_landed()
        self._note_written(receipt)
        length = chunk.length
        self._counters.add(bytes_done=length, bytes_sent=length, chunks_verified=1)


class Pull(Pipe):
    """From the command to a descriptor here."""

    is_push = False

    def __init__(self, fd: int, window: int, counters: Counters, out: Out) -> None:
        """`fd` is written, and closed."""
        self._fd, self._reorder = fd, stream.Reorder(fd, window, self._wrote)
        super().__init__(self._reorder, window, counters, out)

    def _steps(self) -> list[Callable[[], None]]:
        return [self._ask_for_chunks, self._write]

    def _write(self) -> None:
        try:
            self._reorder.run()
        finally:
            os.close(self._fd)

    def _is_over(self) -> bool:
        has_ended = super()._is_over()
        if self._reorder.error is not None:
            reason = self._reorder.error.strerror
            raise errors.CopyError(f"the output cannot be written: {reason}")
        if self._reorder.is_deaf:
            raise errors.CopyError("nobody reads the output any more")
        return has_ended and (self._failure is not None or self._reorder.is_complete)

    def _ask_for_chunks(self) -> None:
        number = 0
        while self._may_ask(number):
            self.queue.put(Chunk(self, number * stream.SLOT_BYTES, stream.SLOT_BYTES))
            number += 1

    def _may_ask(self, number: int) -> bool:
        """Wait until the window has room; False once the end is known."""
        reorder = self._reorder

        def may_ask() -> bool:
            if reorder.end is not None or number - reorder.written < self.window:
                return True
            return self._is_stopping or reorder.is_deaf

        self.queue.wait_until(may_ask)
        has_room = number - reorder.written < self.window
        return has_room and reorder.end is None and not self._is_stopping

    def _wrote(self) -> None:
        self.queue.wake()

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        length = self._reorder.arrived_bytes - self._counters.bytes_done
        self._counters.add(bytes_done=length, bytes_sent=length, chunks_verified=1)
        self.queue.wake()

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        """Where its lane was lost just as it had come, the far end may not have it any more."""
        if self._reorder.has(chunk.offset // stream.SLOT_BYTES):
            self.landed(chunk, "", 0)
        else:
            super().failed(chunk, failure)


def _exit_status(value: Any) -> int | None:
    """None: the command has not ended. Raises ValueError for what no program can end with."""
    if value is not None and not (type(value) is int and 0 <= value <= 255):
        raise ValueError("an exit status out of bounds")
    return value


def _said(failure: Failure) -> str:
    return f"{failure['path']}: {failure['message']}".lstrip(": ")
