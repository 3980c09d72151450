"""A lane's program: it is an agent for the coordinator, and an SFTP client for the server.

Frames come on descriptor 0 and go out on descriptor 1, as with endpoint/serving/agent.py; each
request is answered in a task of its own. The program ends when its input or its channel ends, or at
SIGTERM; tasks under way then have _LINGER_S to end.

Not here: the answers (end.py), who starts it (channel.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import NoReturn

from pscp.endpoint.asking import entries, requests
from pscp.endpoint.frames import failures, hashes, session, system, wire
from pscp.endpoint.reading import tree
from pscp.endpoint.serving.agent import TICK_S
from pscp.endpoint.serving.frame_server import FrameServer
from pscp.sftp.digests import Hashing
from pscp.sftp.end import End
from pscp.sftp.protocol import packets, tasks
from pscp.sftp.protocol.client import Client
from pscp.sftp.protocol.event_loop import Lines, Loop, ReadBuffer, WriteBuffer
from pscp.sftp.protocol.remote_hash import Program
from pscp.sftp.protocol.tasks import Steps, T, Task, outcomes, start

_LINGER_S = 1.5  # for tasks that are under way at the end
_SILENT_S = 60.0  # a server that leaves a request unanswered for so long counts as dead


class SftpAgent:
    """The far end of one lane."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Serve one lane, by these descriptors to read from the SFTP server, and to write to it."""
        self._loop = Loop()
        self._client = Client(read_fd, write_fd, self._loop)
        self._frames = FrameServer(session.AGENT, self, self._send)
        decoder = self._frames.decoder
        self._incoming = ReadBuffer(0, decoder, self._frames.take_all, decoder.is_trickling)
        self._out = WriteBuffer(1)
        self.end = End(self._client, self._send)
        self._program: Program | None = None
        self._replies: list[Task[None]] = []  # of which some may still be under way
        self._last_ack: Task[None] | None = None
        self._error: BaseException | None = None
        self._is_ending = False
        self._lends = False  # do bytes of the server's answers wait to be written?

    def run(self, verify: str, program: list[str]) -> None:
        """Serve until the input or the channel ends, or SIGTERM comes.

        `verify` is the option; `program` the command that runs hash programs at the far end, or
        empty. Raises WireError, BadPacket, SftpError, BrokenPipeError, ConnectionResetError.
        """
        loop, client = self._loop, self._client
        loop.outs = [self._out, client.out]
        loop.ins = [self._new_signal_input(), client.incoming, self._incoming]
        client.incoming.may_read = lambda: not (self._lends and self._out.waiting_bytes)
        self._incoming.may_read = self._may_read
        loop.before_wait = self._before_wait
        self._start(self._begin(verify, program))
        try:
            try:
                loop.run_until(self._is_over)
            except wire.WireError as error:
                self._error = error
                self._frames.refuse(error)
            if not client.incoming.is_at_end:
                self._finish_tasks()
        finally:
            if self._program is not None:
                self._program.close()
        if self._error is not None:
            raise self._error

    def _may_read(self) -> bool:
        """May the coordinator's next frames be read? Not before the HELLO."""
        is_busy = self._is_ending or self._client.out.waiting_bytes
        return self._frames.session.state != "new" and not is_busy

    def _finish_tasks(self) -> None:
        """Take no more frames, and let tasks end for a moment, so that they leave no parts."""
        self._is_ending, client = True, self._client
        end_s = time.monotonic() + _LINGER_S
        self._loop.call_later(_LINGER_S, lambda: None)
        self.end.drop_role()

        def is_over() -> bool:
            is_busy = tasks.are_alive() or self._out.waiting_bytes or client.out.waiting_bytes
            return not is_busy or client.incoming.is_at_end or time.monotonic() > end_s

        self._loop.run_until(is_over)

    def _new_signal_input(self) -> ReadBuffer:
        """Return the input that ends the loop at SIGTERM: the pipe of set_wakeup_fd()."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def end() -> None:
            self._is_ending = True

        return ReadBuffer(read_fd, Lines(), end)

    def _is_over(self) -> bool:
        has_ended = self._incoming.is_at_end or self._client.incoming.is_at_end
        return has_ended or self._is_ending or self._error is not None

    def _before_wait(self) -> None:
        if self._program is not None:
            self._program.flush()
            self._program.check()
        if not self._out.waiting_bytes:
            self._lends = False

    def _start(self, steps: Steps[T]) -> Task[T]:
        """Start a task whose exception ends the lane."""
        task = start(steps)

        def keep_error() -> None:
            self._error = self._error or task.exception()

        task.add_done_callback(keep_error)
        return task

    async def _begin(self, verify: str, program: list[str]) -> None:
        """Learn what the server has to offer, then send the coordinator HELLO."""
        client = self._client
        await client.version
        if verify == "auto" and program:
            self._program = Program(program, self._loop)
        began_s = time.monotonic()
        answer, limits = client.realpath(b"."), start(client.get_limits())
        await answer
        rtt_s = time.monotonic() - began_s
        await limits
        if self._program is not None:
            await self._program.ready
        hashing = self.end.hashing = Hashing(client, self._program, verify != "none")
        self._out.put(_read_marker())
        about: dict[str, object] = {"python": "none", "system": "SFTP", "aes": None, "rtt_s": rtt_s}
        about.update(hashes=hashing.for_chunks(), verify=hashing.name, cpus=os.cpu_count() or 1)
        about.update(hashes_strong=hashing.is_there(hashes.STRONG))
        about.update(chunk_bytes=hashing.chunk_bytes(rtt_s))
        self._frames.hello(about)
        self._tick(time.monotonic(), None)

    def _tick(self, answered_s: float, probe: Task[None] | None) -> None:
        """Send a TICK, and again every TICK_S, while the server answers or syncs a file.

        It was last known to answer at `answered_s`, and may not have answered `probe`.
        """
        now_s = time.monotonic()
        if probe is None or probe.done():
            answered_s, probe = now_s, self._start(self.end.ping())
        if now_s - answered_s < _SILENT_S or self._client.syncing:
            self._send(wire.TICK, 0, 0, b"")
        self._loop.call_later(TICK_S, lambda: self._tick(answered_s, probe))

    def _send(
        self, type_: int, id_: int, offset: int, payload: system.Payload, flags: int = 0
    ) -> None:
        assert isinstance(payload, bytes | memoryview)  # nothing here lends a file of this end
        if type_ == wire.DATA:
            self._lends = True
        self._out.put(wire.header(type_, payload, id_, offset, flags), payload)

    # --- what the FrameServer calls for a frame

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        self.end.the_source().send_chunk(id_, offset, length)

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None:
        outcome = self.end.the_sink().complete(id_, offset, length, digest)
        before, receipt = self._last_ack, wire.SOME_PART  # SFTP tells no inode

        async def acknowledge() -> None:  # after the chunk before, whichever was verified first
            matches, failure = await outcome
            if before is not None:
                await before
            self._frames.acknowledge(
                id_, offset, length, receipt=receipt, matches=matches, failure=failure
            )

        self._last_ack = self._start(acknowledge())

    def land_pack(
        self, id_: int, listed: list[tree.Entry], rows: list[object], bodies: memoryview
    ) -> None:
        entries.check_sizes(listed, rows, len(bodies))
        landing = start(self.end.the_sink().pack(listed, rows, bodies))

        async def reply() -> None:
            self._frames.reply(id_, failures.places(await landing))

        self._start(reply())

    def answer(self, id_: int, request: requests.Request) -> None:
        is_change = isinstance(request, (requests.End, *requests.BEGINNINGS))
        if is_change:
            self.end.begin(request)
            self._frames.follow_role()
        earlier = [task for task in self._replies if not task.done()]
        after = earlier if is_change else []  # that a copy is over comes behind all its answers

        async def reply() -> None:
            try:
                await outcomes(*after)
                if isinstance(request, requests.Pack):
                    rows, bodies = await self.end.the_source().pack(request.files)
                    self._frames.reply_with_pack(id_, rows, bodies)
                else:
                    self._frames.reply(id_, await self.end.answer(request))
            except failures.EXPECTED as error:
                failure = failures.from_exception(error, requests.path_of(request))
                self._frames.reply(id_, failure, failed=True)

        self._replies = [*earlier, self._start(reply())]


def _read_marker() -> bytes:
    """Read the coordinator's first bytes, which it wants back before anything else."""
    os.set_blocking(0, True)
    marker = b""
    while len(marker) < wire.MARKER_BYTES:
        more = os.read(0, wire.MARKER_BYTES - len(marker))
        if not more:
            raise BrokenPipeError
        marker += more
    os.set_blocking(0, False)
    return marker


def main(settings: str) -> None:
    """Run the program that channel.py starts, with its settings as JSON."""
    for fd in (0, 1):
        system.widen_pipe(fd)
    given = json.loads(settings)
    agent = SftpAgent(*given["fds"])
    try:
        agent.run(given["verify"], given["program"])
    except (BrokenPipeError, ConnectionResetError):
        pass
    except packets.NotSftp as error:
        # Lines of a shell's start-up file may have come before the server's packets.
        words = error.output.partition(b"\0")[0] or error.output
        _exit(words.decode(errors="replace"), packets.NO_SFTP_STATUS)
    except (wire.WireError, packets.BadPacket, packets.SftpError) as error:
        _exit(f"pscp: {error}", wire.PROTOCOL_STATUS)
    except Exception:
        import traceback  # here: it takes 10 ms

        _exit(traceback.format_exc(limit=-9).rstrip(), 1)  # a pipe that is read later has room


def _exit(message: str, status: int) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
    os._exit(status)
