"""One stream over several lanes: from a descriptor here to a command there, or the other way.

A Pipe is one stream. Here it is cut into chunks, or put in order again, by the same classes as at
the far end (endpoint/pipes.py); there one agent runs the command and is handed the other lanes
(endpoint/gather.py). The lanes, and what is done when one is lost, are a copy's.

The command sees the end of its input only after every chunk was verified and the producer ended
well. In any other case it is ended first.

Not here: what a program calls (streams.py), the command line (pipecli.py).
Read next: endpoint/pipes.py, then endpoint/gather.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pscp import errors
from pscp.board import Board
from pscp.bootstrap import Far
from pscp.crew import Crew
from pscp.endpoint import failures, pipes, tree
from pscp.endpoint.names import to_bytes
from pscp.plan import Ask, Chunk, Failure, Placed
from pscp.progress import Counters

_ABORT_S = 6.0  # the far end gives its command 5 s before SIGKILL
_IDLE_S = 2.0  # for what is in flight when all is over; who has not come then is not kept
_MISMATCHES_MAX = 3  # of one chunk

Out = Callable[[int, bytes], None]  # (0: its standard output, 1: its standard error; what it said)


@dataclass(frozen=True)
class Target:
    """The other end of a stream: a command's words, a text for the user's shell, or a file."""

    command: str | Sequence[str] = ""
    path: str | None = None

    def question(self, is_push: bool, window: int) -> dict[str, Any]:
        command = self.command if isinstance(self.command, str) else list(self.command)
        return {
            "ask": "gather", "way": "sink" if is_push else "source", "window": window,
            "file": self.path is not None, "path": self.path or "", "command": command,
        }  # fmt: skip


class Near:
    """This end of a stream, as its lanes need it."""

    def __init__(self, end: pipes.Cutter | pipes.Reorder) -> None:
        self._end = end

    def lane(self, asked: dict[str, Any]) -> tuple[Any, Any]:
        """A lane's source and sink; one of them is None."""
        if isinstance(self._end, pipes.Cutter):
            return pipes.PipeSource(self._end, asked["hash"], asked["block_bytes"]), None
        return None, pipes.PipeSink(self._end, asked["hash"])


class Pipe:
    """One stream; also the job that its chunks are of."""

    number, is_closed, may_be_short = 1, False, True
    item = Placed(*2 * [tree.Entry(tree.FILE, 0, "", 0, 0, 0, 0, {})])

    def __init__(
        self, is_push: bool, fd: int, window_bytes: int, counters: Counters, out: Out,
        ended_well: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`fd` is read (push) or written; `out` gets what the command says besides.

        `ended_well` is asked when nothing more comes from `fd`: was that all?
        """
        self._is_push, self._counters, self._out = is_push, counters, out
        self._ended_well = ended_well
        self.window = max(window_bytes // pipes.SLOT_BYTES, 2)
        self._cutter, self._reorder = pipes.Cutter(fd), pipes.Reorder(fd, self.window, self._wrote)
        self.near = Near(self._cutter if is_push else self._reorder)
        self._board = Board()  # the crew's, once there is one
        self._landed = 0  # chunks
        self._written = 0  # at the far end, from the first on
        self._total: int | None = None  # chunks
        self._cut_bytes = 0
        self._asks_drained = self._asks_close = self._is_deaf = False
        self._after = [0, 0]  # bytes that the command said
        self._failure: Failure | None = None
        self._status: int | None = None
        self._is_cut_short = False

    # --- the story

    def run(self, crew: Crew, begin: dict[str, Any], fars: list[Far]) -> int:
        """Move the stream; returns the command's exit status. Raises what stops it."""
        self._board = crew.board
        steps = [self._feed] if self._is_push else [self._ask_for_chunks, self._reorder.run]
        threads = [
            threading.Thread(target=self._run, args=(step,), name=step.__name__, daemon=True)
            for step in steps
        ]
        try:
            crew.begin(begin, begin, fars)
            for thread in threads:
                thread.start()
            with self._board.changed:
                self._hear()
            self._wait(self._is_over)
            self._wait(self._board.is_idle, _IDLE_S)
        except BaseException as error:
            self._abort()
            self._board.stop(error)
            raise
        finally:
            self._cutter.stop()
            self._reorder.stop()
            crew.end()
            for thread in threads:
                thread.join(_IDLE_S)  # not for ever: who reads our output may have stopped
        if self._failure is not None:
            raise errors.CopyError(_said(self._failure))
        assert self._status is not None
        return self._status

    def cut_short(self) -> None:
        """The producer failed: what came so far is not all. From any thread."""
        with self._board.changed:
            self._is_cut_short = True
            self._board.idle.notify_all()

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # the main thread raises it
            self._board.stop(error)

    def _is_over(self) -> bool:
        """With the board's lock held: has the command ended, and what it said arrived?"""
        if self._is_cut_short:
            raise errors.CopyError("the producer failed; the command was ended")
        if not self._is_push and self._reorder.is_deaf:
            raise errors.CopyError("nobody reads the output any more")
        if self._status is None:
            return False
        return self._is_push or self._failure is not None or self._reorder.is_complete

    def _wait(self, is_so: Callable[[], bool], patience_s: float | None = None) -> None:
        with self._board.changed:
            while self._board.error is None and not is_so():
                if not self._board.idle.wait(patience_s) and patience_s is not None:
                    return
            if self._board.error is not None:
                raise self._board.error

    def _abort(self) -> None:
        """Have the far end end its command, while there is a lane that can say so."""
        said = threading.Event()
        with self._board.changed:
            if self._board.error is not None or self._status is not None:
                return
            self._ask_far({"ask": "abort"}, lambda answer: said.set())
        said.wait(_ABORT_S)

    # --- push: from here to the command

    def _feed(self) -> None:
        while self._may_cut():
            try:
                length = self._cutter.cut()
            except OSError as error:
                if self._cutter.is_stopped:
                    return
                raise errors.CopyError(f"the input cannot be read: {error.strerror}") from None
            if not length:
                if not self._ended_well():
                    return self.cut_short()
                with self._board.changed:
                    self._total = self._cutter.count
                    self._counters.set(bytes_total=self._cut_bytes, plan_complete=True)
                    self._close_when_landed()
                return
            self._cut_bytes += length
            offset = (self._cutter.count - 1) * pipes.SLOT_BYTES
            self._board.put(Chunk(self, offset, length))

    def _may_cut(self) -> bool:
        """Wait until the far end's window has room; False when nobody listens any more."""
        with self._board.changed:
            while self._cutter.count - self._written >= self.window:
                if self._board.error is not None or self._status is not None:
                    return False
                self._ask_drained()
                self._board.idle.wait()
            return self._status is None and not self._is_deaf and self._board.error is None

    def _ask_drained(self) -> None:
        """Acknowledgements tell what is written, but with the window full there are none."""
        if self._asks_drained:
            return
        self._asks_drained = True

        def then(answer: Any) -> None:
            self._asks_drained = False
            self._note_written(int(answer))

        self._ask_far({"ask": "drained", "past": self._written}, then)

    def _note_written(self, count: int) -> None:
        self._written = max(self._written, count)
        self._board.idle.notify_all()

    def _close_when_landed(self) -> None:
        if self._landed == self._total and not self._asks_close:
            self._asks_close = True
            self._ask_far({"ask": "close_input", "total": self._total}, lambda answer: None)

    # --- pull: from the command to here

    def _ask_for_chunks(self) -> None:
        number = 0
        while self._may_ask(number):
            self._board.put(Chunk(self, number * pipes.SLOT_BYTES, pipes.SLOT_BYTES))
            number += 1

    def _may_ask(self, number: int) -> bool:
        """Wait until the window has room; False once the end is known."""
        reorder = self._reorder
        with self._board.changed:
            while reorder.end is None and number - reorder.written >= self.window:
                if self._board.error is not None or reorder.is_deaf:
                    return False
                self._board.idle.wait()
            return reorder.end is None and self._board.error is None

    def _wrote(self) -> None:
        with self._board.changed:
            self._board.idle.notify_all()

    # --- what lanes tell; with the board's lock held

    def landed(self, chunk: Chunk, digest: str, inode: int) -> None:
        """For a stream, `inode` is how many chunks were written, from the first on."""
        self._landed += 1
        length = chunk.length
        if self._is_push:
            self._cutter.drop(chunk.offset // pipes.SLOT_BYTES)
            self._close_when_landed()
            self._note_written(inode)
        else:
            length = self._reorder.arrived_bytes - self._counters.bytes_done
            self._board.idle.notify_all()
        self._counters.add(bytes_done=length, bytes_sent=length, chunks_verified=1)

    def mismatched(self, chunk: Chunk) -> None:
        """What arrived is not what was sent: once more."""
        self._counters.add(chunks_resent=1, bytes_sent=chunk.length)
        chunk.mismatches += 1
        if chunk.mismatches > _MISMATCHES_MAX:
            self._board.stop(errors.CopyError("the stream arrived damaged again and again"))
        else:
            self._board.add(chunk)

    def failed(self, chunk: Chunk, failure: Failure) -> None:
        self._board.stop(errors.CopyError(_said(failure)))

    # --- what the far end tells

    def _ask_far(self, question: dict[str, Any], then: Callable[[Any], None]) -> None:
        """With the board's lock held."""
        self._board.add(Ask(not self._is_push, question, then, self._ask_failed))

    def _ask_failed(self, failure: Failure) -> None:
        self._board.stop(errors.CopyError(_said(failure)))

    def _hear(self) -> None:
        question = {"ask": "heard", "after": list(self._after), "deaf": self._is_deaf}
        self._ask_far(question, self._heard)

    def _heard(self, answer: Any) -> None:
        said, status = list(answer["said"]), answer["status"]
        if len(said) > 2 or not (status is None or isinstance(status, int)):
            raise ValueError("what the command said")
        for place, (text, count) in enumerate(said):
            self._after[place] += count
            if text:
                self._out(place if len(said) == 2 else 1, to_bytes(text))
        self._is_deaf = bool(answer["deaf"])
        if answer["failure"] is not None:
            self._failure = failures.checked(answer["failure"])
        self._status = status
        if status is None:
            self._hear()
        self._board.idle.notify_all()


def _said(failure: Failure) -> str:
    return f"{failure['path']}: {failure['message']}".lstrip(": ")
