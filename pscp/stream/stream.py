"""What a program calls for streams: pipe_to(), pipe_from() and run().

Each is a stream of a Session, over its connections. A program's end of it is a file object, or
another program that is run here, whose exit status is known.

Not here: the stream itself (pipe.py), the connections (connect/connections.py).
Read next: pipe.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from pscp import errors
from pscp.connect.bootstrap import stream_modules
from pscp.connect.connections import Connections
from pscp.endpoint import failures, requests, system
from pscp.endpoint.stream import SLOT_BYTES, Cutter, Reorder
from pscp.options import Options
from pscp.progress import Counters, format_bytes
from pscp.stream.pipe import Out, Pipe, Pull, Push, Target
from pscp.transfer.begin import choose_hash
from pscp.transfer.copy import make_pool
from pscp.transfer.negotiation import replace_dead
from pscp.transports.openssh import reap

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent
    from pscp.transfer.lane_pool import LanePool

_TERM_S = 5.0  # from SIGTERM to SIGKILL, of a consumer here
# What run() keeps in memory of a far program's output: zfs get of a million snapshots.
RUN_MAX_BYTES = 256 * 1024 * 1024
_READ_BYTES = 256 * 1024
_SAID_MAX_BYTES = 64 * 1024  # of what a program said on its standard error, kept for an error


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    status: int  # its exit status; 128 and the signal's number where a signal ended it
    out: bytes  # its standard output
    err: bytes  # the end of its standard error


class Stream:
    """One stream over the session's connections."""

    def __init__(
        self, connections: Connections, options: Options, *, is_push: bool, target: Target,
        counters: Counters | None = None, out: Out | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """`out` gets what the far program says; without it the end of that is kept in `err`."""
        self.counters = counters or Counters()
        self.err = b""  # the end of what it said on its standard error; written by its listener
        self._connections, self._is_push = connections, is_push
        self._options = options.with_agent("a stream")
        self._target, self._out = target, out or self._keep
        self._note = note or (lambda text: None)
        self._pipe: Pipe | None = None  # set once, by run()
        self._is_cut_short = False  # any thread sets it; then it looks for the pipe
        self.ended_well: Callable[[], bool] = lambda: not self._is_cut_short

    def run(self, fd: int) -> int:
        """Move all that `fd` gives (push) or takes; returns the far program's exit status.

        Raises ConnectError, CopyError and ProtocolError as copy() does; then the far program was
        ended, before its input was.
        """
        system.widen_pipe(fd)
        options, is_push = self._options, self._is_push
        is_small = options.connections == 1
        self._connections.start_logins(options, is_push=is_push, is_small=is_small)
        self._connections.check_logins(options, is_push=is_push, is_small=is_small)
        agents = self._connections.take(options, self._note)
        try:
            replace_dead(agents, self._connections, options, self._note)
            return self._run(fd, agents)
        finally:
            self._connections.give(agents)

    def _run(self, fd: int, agents: list[RemoteAgent]) -> int:
        try:
            pipe, pool, begin = self._prepared(fd, agents[0])
        except BaseException:
            _end_there(agents[0])
            raise
        first = [agents.pop(0) for _ in range(min(len(agents), pool.layout.count))]
        try:
            status = pipe.run(pool, begin, first)
        finally:
            agents += pool.kept.agents
        self._connections.remember(self._options, self._is_push, pool.lesson())
        return status

    def _prepared(self, fd: int, far: RemoteAgent) -> tuple[Pipe, LanePool, requests.BeginStream]:
        """Have the far program started; returns the pipe to it, its lanes, and how they begin."""
        options, is_push, connections = self._options, self._is_push, self._connections
        algorithm, window = choose_hash(far), max(options.window_bytes // SLOT_BYTES, 2)
        request = self._target.request(is_push, window, stream_modules())
        answer, failed = far.ask(request, is_slow=True)
        if failed:
            failure = failures.checked(answer)
            raise errors.DestinationError(f"{failure['path']}: {failure['message']}".lstrip(": "))
        if not isinstance(answer, str):
            raise errors.ProtocolError("an answer of another shape: no socket")
        end = Cutter(os.dup(fd)) if is_push else Reorder(os.dup(fd), window)
        pool = make_pool(
            connections, options, self.counters, far,
            is_push=is_push, note=self._note, stream=end,
        )  # fmt: skip
        self._pipe = pipe = self._new_pipe(end, pool, window)
        if self._is_cut_short:
            pipe.cut_short()
        begin = requests.BeginStream(
            answer, algorithm, options.block_bytes, stream_modules(), options.debug
        )
        return pipe, pool, begin

    def _new_pipe(self, end: Cutter | Reorder, pool: LanePool, window: int) -> Pipe:
        if isinstance(end, Reorder):
            return Pull(end, pool.queue, window, self.counters, self._out)
        return Push(
            end, pool.queue, window, self.counters, self._out,
            ended_well=lambda: self.ended_well(),
        )  # fmt: skip

    def cut_short(self) -> None:
        """Have run() end the far program and raise: what came so far is not all."""
        self._is_cut_short = True
        if self._pipe is not None:
            self._pipe.cut_short()

    def interrupt(self, error: errors.PscpError) -> bool:
        """Have run() end the far program and raise this; False if that was not started yet."""
        if self._pipe is None:
            return False
        self._pipe.cut_short(error)
        return True

    def _keep(self, place: int, data: bytes) -> None:
        self.err = (self.err + data)[-_SAID_MAX_BYTES:]


def _end_there(far: RemoteAgent) -> None:
    """End what was started, if no lane has begun. The first answer may be to another request."""
    with contextlib.suppress(errors.PscpError):
        far.ask(requests.End())
        far.ask(requests.Ping())


def _failed(program: str | Sequence[str], status: int, err: bytes) -> errors.CommandFailed:
    name = program if isinstance(program, str) else " ".join(map(str, program[:2]))
    said = err.decode(errors="replace").strip().rpartition("\n")[2]
    return errors.CommandFailed(f"{name}: exit status {status}{': ' if said else ''}{said}", status)


@contextlib.contextmanager
def piped(
    connections: Connections, options: Options, is_push: bool, command: str | Sequence[str]
) -> Iterator[IO[bytes]]:  # fmt: skip
    """A file object whose other end is the program over there; see Session.pipe_to()."""
    reads, writes = os.pipe()
    ours, its = (writes, reads) if is_push else (reads, writes)
    stream = Stream(connections, options, is_push=is_push, target=Target(command))
    ended: list[int | BaseException] = []

    def run() -> None:
        try:
            ended.append(stream.run(its))
        except BaseException as error:
            ended.append(error)
        finally:
            os.close(its)

    thread = threading.Thread(target=run, name="stream", daemon=True)
    thread.start()
    file = open(ours, "wb" if is_push else "rb")  # noqa: SIM115 - closed below
    try:
        yield file
        while not (is_push or file.closed) and file.read(1 << 20):
            pass
    except BaseException as error:
        had_ended = bool(ended)
        stream.cut_short()
        _close(file)
        thread.join()
        if had_ended and isinstance(error, BrokenPipeError):  # that is why
            _raise_unless_well(ended[0], command, stream.err)
        raise
    _close(file)
    thread.join()
    _raise_unless_well(ended[0], command, stream.err)


def _raise_unless_well(end: int | BaseException, command: str | Sequence[str], err: bytes) -> None:
    if isinstance(end, BaseException):
        raise end
    if end:
        raise _failed(command, end, err)


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        file.close()


def run(connections: Connections, options: Options, argv: Sequence[str]) -> Ran:
    """Run a program at the far end, without a shell, and wait for it.

    Raises CopyError where its output is longer than RUN_MAX_BYTES; then it was ended.
    """
    reads, writes = os.pipe()
    out, count = bytearray(), 0
    stream = Stream(connections, options, is_push=False, target=Target(tuple(argv)))

    def read() -> None:
        nonlocal count
        with open(reads, "rb", buffering=0) as file:
            while data := file.read(_READ_BYTES):
                count += len(data)
                if count <= RUN_MAX_BYTES:
                    out.extend(data)
                else:
                    stream.interrupt(_too_much(argv))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        status = stream.run(writes)
    finally:
        os.close(writes)
        reader.join()
    if count > RUN_MAX_BYTES:  # it ended by itself meanwhile
        raise _too_much(argv)
    return Ran(status, bytes(out), stream.err)


def _too_much(argv: Sequence[str]) -> errors.CopyError:
    return errors.CopyError(
        f"{' '.join(argv[:2])}: its output is longer than {format_bytes(RUN_MAX_BYTES)}",
        "Session.pipe_from() reads an output of any length",
    )


class Program:
    """A program here, at one end of a stream. Its input ends cleanly only with wait()."""

    def __init__(
        self, words: Sequence[str] | str, is_producer: bool, *, keeps_err: bool = True
    ) -> None:
        """Start it: a list is executed as it is, a text by sh. Raises OSError."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            words, shell=isinstance(words, str), stderr=pipe if keeps_err else None,
            stdin=subprocess.DEVNULL if is_producer else pipe,
            stdout=pipe if is_producer else subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip
        file = self._process.stdout if is_producer else self._process.stdin
        assert file is not None
        self._file: IO[bytes] = file
        self._err = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
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
        """Wait for its end, once its output has ended: was its exit status 0?"""
        return self._process.wait() == 0

    def has_ended(self, patience_s: float) -> bool:
        """Has it ended by itself, or does it within this time?"""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        return self._process.poll() is not None

    def _read(self) -> None:
        with self._process.stderr or open(os.devnull, "rb") as file:
            while data := file.read(4096):
                self._err = (self._err + data)[-_SAID_MAX_BYTES:]

    def wait(self) -> Ran:
        """Close this end of its pipe, and wait for it to end."""
        self._file.close()
        status = self._process.wait()
        self._reader.join(1.0)
        return Ran(status if status >= 0 else 128 - status, b"", self._err)

    def end(self) -> None:
        """End it, if it has not ended; its input stays open until it is gone."""
        if self._process.poll() is None:
            self._process.terminate()
            reap(self._process, _TERM_S)
