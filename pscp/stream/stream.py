"""Streams for a Python program: pipe_to(), pipe_from() and run().

Each is a stream over the connections of a Session. The caller's end of it is a file object, or a
program that is run here, whose exit status is known.

Not here: the stream itself (pipe.py), the connections (connect/connections.py).
Read next: pipe.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from pscp.connect.agent_program import stream_modules
from pscp.connect.connections import Connections
from pscp.connect.first_login import worth_many
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures, system
from pscp.endpoint.streams.stream import SLOT_BYTES, Cutter, Reorder
from pscp.ground import errors, stops
from pscp.ground.contexts import with_context
from pscp.options.options import Options
from pscp.progress.callbacks import log_notes
from pscp.progress.progress import LiveCounters, format_bytes
from pscp.stream.pipe import UNREAD, Out, Pipe, Pull, Push, Target
from pscp.transfer.begin_requests import choose_hash
from pscp.transfer.negotiation import replace_dead
from pscp.transfer.pieces.answers import as_copy_error
from pscp.transfer.pools import make_pool
from pscp.transports.openssh import reap

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent
    from pscp.transfer.lane_pool import LanePool

_Command = str | Sequence[str]
# The exit statuses of a program that cannot be run, as a shell has them.
NOT_FOUND, NOT_RUN = 127, 126
_NO_COMMAND = "a list is a program there and its words; a text is for the user's shell"
_TERM_S = 5.0  # from SIGTERM to SIGKILL, of a consumer here
# The most of a far program's output that run() keeps in memory: zfs get of a million snapshots.
RUN_MAX_BYTES = 256 * 1024 * 1024
_READ_BYTES = 256 * 1024
_ERR_MAX_BYTES = 64 * 1024  # the end of a program's standard error that is kept for a message


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    status: int  # its exit status; 128 and the signal's number where a signal ended it
    out: bytes  # its standard output
    err: bytes  # the end of its standard error


class Stream:
    """One stream over the session's connections."""

    def __init__(
        self,
        connections: Connections,
        options: Options,
        *,
        is_push: bool,
        target: Target,
        counters: LiveCounters | None = None,
        out: Out | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """`out` gets what the far program writes; without it the end of that is kept in `err`."""
        self.counters = counters or LiveCounters()
        self.err = b""  # the end of the far program's output; changed by the pipe's listener
        self._connections, self._is_push = connections, is_push
        self._options = options.with_agent("a stream")
        self._target, self._out = target, out or self._keep
        self._note = note or (lambda text: log_notes.warning("%s", text))
        self._pipe: Pipe | None = None  # set once, by run()
        self._is_cut_short = False  # set by any thread, before that looks for the pipe
        self.input_was_whole: Callable[[], bool] = lambda: not self._is_cut_short

    def run(self, fd: int) -> int:
        """Move all that `fd` gives (push) or takes (pull); return the far program's exit status.

        Raises ConnectError, CopyError and ProtocolError as copy() does. Then the far program was
        ended before its input was closed.
        """
        system.widen_pipe(fd)
        options, is_push = self._options, self._is_push
        worth = None if options.connections == 1 else worth_many
        self._connections.start_logins(options, is_push=is_push, worth=worth)
        self._connections.check_logins(options, is_push=is_push, worth=worth)
        agents = self._connections.take(options, self._note)
        try:
            replace_dead(agents, self._connections, options, self._note)
            self._connections.spread(options, agents, 1, self._note)
            return self._run(fd, agents)
        finally:
            self._connections.give(agents)

    def _run(self, fd: int, agents: list[RemoteAgent]) -> int:
        try:
            pipe, pool, begin = self._prepared(fd, agents[0])
        except BaseException as error:
            _end_there(agents[0])
            if not isinstance(error, errors.PscpError):  # which answers it has read is not known
                agents[0].channel.end()
            raise
        first = [agents.pop(0) for _ in range(min(len(agents), pool.layout.count))]
        try:
            with stops.ended_by(pipe.cut_short):
                status = pipe.run(pool, begin, first)
        finally:
            agents += pool.kept
        self._connections.remember(self._options, self._is_push, pool.lesson())
        return status

    def _prepared(self, fd: int, far: RemoteAgent) -> tuple[Pipe, LanePool, requests.BeginStream]:
        """Start the far program; return the pipe to it, its lanes, and how those begin."""
        options, is_push, connections = self._options, self._is_push, self._connections
        algorithm, window = choose_hash(far), max(options.window_bytes // SLOT_BYTES, 2)
        request = self._target.request(is_push, window, stream_modules())
        answer, failed = far.ask(request, is_slow=True)
        if failed:
            failure = failures.parse_failure(answer)
            message = as_copy_error(failure).message
            if self._target.path is None and failure["errno"]:  # of a list, which no shell reads
                status = NOT_FOUND if failure["errno"] == errno.ENOENT else NOT_RUN
                raise errors.CommandFailed(message, status, _NO_COMMAND)
            raise errors.DestinationError(message)
        if not isinstance(answer, str):
            raise errors.ProtocolError("an answer of another shape: no socket")
        end = Cutter(os.dup(fd)) if is_push else Reorder(os.dup(fd), window)
        pool = make_pool(
            connections, options, self.counters, far, is_push=is_push, note=self._note, stream=end
        )
        pipe: Pipe
        if isinstance(end, Cutter):
            pipe = Push(
                end, pool.queue, window, self.counters, self._out,
                input_was_whole=self.input_was_whole,
            )  # fmt: skip
        else:
            pipe = Pull(end, pool.queue, window, self.counters, self._out)
        self._pipe = pipe
        if self._is_cut_short:
            pipe.cut_short()
        begin = requests.BeginStream(
            answer, algorithm, options.block_bytes, stream_modules(), options.debug
        )
        return pipe, pool, begin

    def cut_short(self) -> None:
        """Have run() end the far program and raise, since the stream is not complete."""
        self._is_cut_short = True
        self.interrupt()

    def interrupt(self, error: errors.PscpError | None = None) -> bool:
        """Have run() end the far program and raise this error; False if it has not begun."""
        if self._pipe is not None:
            self._pipe.cut_short(error)
        return self._pipe is not None

    def _keep(self, place: int, data: bytes) -> None:
        self.err = (self.err + data)[-_ERR_MAX_BYTES:]


def _end_there(far: RemoteAgent) -> None:
    """End what was started, though no lane began. The first answer may be to an earlier request."""
    with contextlib.suppress(errors.PscpError), stops.Stop().here():  # also in a call that ends
        far.ask(requests.End())
        far.ask(requests.Ping())


@contextlib.contextmanager
def piped(
    connections: Connections, options: Options, is_push: bool, command: _Command, stop: stops.Stop
) -> Iterator[IO[bytes]]:
    """A file object whose other end is the far program; see Session.pipe_to().

    `stop` ends the stream, not what its caller does meanwhile.
    """
    reads, writes = os.pipe()
    ours, its = (writes, reads) if is_push else (reads, writes)
    stream = Stream(connections, options, is_push=is_push, target=Target(command))
    ended: list[int | BaseException] = []

    def run() -> None:
        try:
            with stop.here():
                ended.append(stream.run(its))
        except BaseException as error:
            ended.append(error)
        finally:
            os.close(its)

    thread = threading.Thread(target=with_context(run), name="stream", daemon=True)
    thread.start()
    file = open(ours, "wb" if is_push else "rb")  # noqa: SIM115 - closed below
    try:
        yield file
        connections.check_process()
        if not is_push and file.closed and _is_unread(ended):
            stream.cut_short()
            thread.join()
            return
        while not (is_push or file.closed) and file.read(1 << 20):
            pass
    except BaseException as error:
        if connections.is_foreign:  # all else is the parent's, and what `file` holds, too
            file.raw.close()  # type: ignore[attr-defined]
            raise
        had_ended = bool(ended)
        stream.cut_short()
        _close(file)
        thread.join()
        if had_ended and isinstance(error, BrokenPipeError):  # the end of the stream is the reason
            _raise_unless_well(ended[0], command, stream.err)
        raise
    _close(file)
    thread.join()
    _raise_unless_well(ended[0], command, stream.err)


def _is_unread(ended: Sequence[int | BaseException]) -> bool:
    """Return whether the output goes on: who has read its end finds that the stream has ended."""
    return not ended or str(ended[0]) == UNREAD


def _raise_unless_well(end: int | BaseException, command: _Command, err: bytes) -> None:
    if isinstance(end, BaseException):
        raise end
    if end:
        line = err.decode(errors="replace").strip().rpartition("\n")[2]
        message = f"{_name(command)}: exit status {end}{': ' if line else ''}{line}"
        raise errors.CommandFailed(message, end, err=err)


def _name(command: _Command) -> str:
    """Return what a message calls the command."""
    return command if isinstance(command, str) else " ".join(command[:2])


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        file.close()


def run(connections: Connections, options: Options, command: _Command, timeout_s: float) -> Ran:
    """Run a program at the far end, or a text by the user's shell there, and wait for it.

    Raises CopyError, and ends the program, if its output is longer than RUN_MAX_BYTES, and TimedOut
    if it is not over so many seconds after the call.
    """
    late = errors.TimedOut(f"{_name(command)}: not over after {timeout_s:g} s; it was ended")
    reads, writes = os.pipe()
    out, out_bytes = bytearray(), 0
    stream = Stream(connections, options, is_push=False, target=Target(command))

    def read() -> None:
        nonlocal out_bytes
        with open(reads, "rb", buffering=0) as file:
            while data := file.read(_READ_BYTES):
                out_bytes += len(data)
                if out_bytes <= RUN_MAX_BYTES:
                    out.extend(data)
                else:
                    stream.interrupt(_too_much(command))

    reader = threading.Thread(target=with_context(read), daemon=True)
    reader.start()
    try:
        with stops.ended_after(timeout_s, late):
            status = stream.run(writes)
    except errors.CommandFailed as error:  # it was never started
        return Ran(error.status, b"", error.message.encode(errors="surrogateescape"))
    finally:
        os.close(writes)
        reader.join()
        late.out, late.err = bytes(out), stream.err
    if out_bytes > RUN_MAX_BYTES:  # it has ended by itself meanwhile
        raise _too_much(command)
    return Ran(status, late.out, late.err)


def _too_much(command: _Command) -> errors.CopyError:
    return errors.CopyError(
        f"{_name(command)}: its output is longer than {format_bytes(RUN_MAX_BYTES)}",
        "Session.pipe_from() reads an output of any length",
    )


class Program:
    """A program here, at one end of a stream. Only wait() lets its input end cleanly."""

    def __init__(
        self, words: Sequence[str] | str, is_producer: bool, *, keeps_err: bool = True
    ) -> None:
        """Start the program: a list is executed as it is, a text by sh. Raises OSError."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            words,
            shell=isinstance(words, str),
            stdin=null if is_producer else pipe,
            stdout=pipe if is_producer else null,
            stderr=pipe if keeps_err else None,
            bufsize=0,
        )
        file = self._process.stdout if is_producer else self._process.stdin
        assert file is not None
        self._file: IO[bytes] = file
        self._err = b""
        self._reader = threading.Thread(target=with_context(self._read), daemon=True)
        self._reader.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *why: object) -> None:
        self.end()
        self._file.close()
        self._reader.join(1.0)

    @property
    def fd(self) -> int:
        """The descriptor that the stream reads or writes."""
        return self._file.fileno()

    def ended_well(self) -> bool:
        """Wait for the program, whose output has ended; return whether its exit status is 0."""
        return self._process.wait() == 0

    def check_end(self) -> bool:
        """Wait as ended_well() does. Raises CopyError, which says how it ended, where not well."""
        if status := self._process.wait():
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise errors.CopyError(f"the producer failed ({how}); the command was ended")
        return True

    def has_ended(self, patience_s: float) -> bool:
        """Return whether the program has ended by itself, or does so within this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        return self._process.poll() is not None

    def _read(self) -> None:
        with self._process.stderr or open(os.devnull, "rb") as file:
            while data := file.read(4096):
                self._err = (self._err + data)[-_ERR_MAX_BYTES:]

    def wait(self) -> Ran:
        """Close this end of the program's pipe, and wait for the program to end."""
        self._file.close()
        status = self._process.wait()
        self._reader.join(1.0)
        return Ran(status if status >= 0 else 128 - status, b"", self._err)

    def end(self) -> None:
        """End the program, if it has not ended. Its input stays open until then."""
        if self._process.poll() is None:
            self._process.terminate()
            reap(self._process, _TERM_S)
