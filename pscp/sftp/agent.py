"""A lane's program: what an agent is to the coordinator, and SFTP's client to the server.

Frames come on descriptor 0 and go out on descriptor 1, as with endpoint/agent.py; requests are
answered each in a task of its own. It ends when its input ends, when the
channel ends, or at SIGTERM; what was under way then is brought to its end first, for a moment.

Not here: the answers (end.py), who starts it (channel.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, NoReturn

from pscp.endpoint import entries, failures, requests, session, system, wire
from pscp.endpoint.agent import TICK_S
from pscp.endpoint.frame_server import FrameServer
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.end import End
from pscp.sftp.event_loop import In, Loop, Out, Wake, read_marker
from pscp.sftp.remote_hash import Program
from pscp.sftp.tasks import Promise, Task, Tasks, settled

_LINGER_S = 1.5  # for what is under way at the end
_MARKER_BYTES = 16
_SILENT_S = 60.0  # a server that says nothing for so long, though asked, is as good as dead
PROTOCOL_STATUS = 99  # as an agent's


class SftpAgent:
    """One lane's far end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._loop, self._tasks = Loop(), Tasks()
        self._client = Client(settings["read_fd"], settings["write_fd"], self._loop)
        self._verify: str = settings["verify"]
        self._program_argv: list[str] = settings["program"]
        self._program: Program | None = None
        self._frames = FrameServer(session.AGENT, self, self._send)
        decoder = self._frames.decoder
        self._incoming = In(0, decoder, self._frames.take_all, decoder.is_trickling)
        self._out = Out(1)
        self.end = End(self._client, self._tasks, self._send)
        self._replies: list[Task[Any]] = []  # those that may still be under way
        self._acks: deque[tuple[int, int, int, Promise[Any]]] = deque()
        self._error: BaseException | None = None
        self._is_ending = False
        self._asked_s = time.monotonic()
        self._lends = False  # bytes of an answer wait to be written

    def run(self) -> None:
        """Until there is nothing more to do. Raises WireError, BadPacket, BrokenPipeError."""
        loop, client = self._loop, self._client
        woken = self._listen_for_signals()
        loop.outs = [self._out, client.out]
        loop.ins = [
            (woken, lambda: True),
            (client.incoming, lambda: not (self._lends and self._out.bytes)),
            (self._incoming, self._may_read),
        ]
        loop.before_wait = self._before_wait
        self._spawn(self._start())
        try:
            try:
                loop.run_until(self._is_over)
            except wire.WireError as error:
                self._error = error
            if not client.incoming.is_over:
                self._end_what_is_under_way()
        finally:
            if self._program is not None:
                self._program.close()
        if self._error is not None:
            raise self._error

    def _may_read(self) -> bool:
        """May the coordinator's next frames be read? Not before the HELLO."""
        is_busy = self._is_ending or self._client.out.bytes
        return self._frames.session.state != "new" and not is_busy

    @property
    def has_begun(self) -> bool:
        """Has an SFTP server told its version?"""
        return self._client.version.is_settled

    def _end_what_is_under_way(self) -> None:
        """For a moment, so that no part is left of it; no frame is taken any more."""
        self._is_ending = True
        end_s = time.monotonic() + _LINGER_S
        self._loop.later(_LINGER_S, lambda: None)
        self.end.drop_role()
        self._loop.run_until(lambda: self._is_idle() or time.monotonic() > end_s)

    def _listen_for_signals(self) -> In:
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def end() -> None:
            self._is_ending = True

        return In(read_fd, Wake(), end)

    def _is_over(self) -> bool:
        ended = self._incoming.is_over or self._client.incoming.is_over
        return ended or self._is_ending or self._error is not None

    def _is_idle(self) -> bool:
        is_done = not (self._tasks.alive or self._out.bytes or self._client.out.bytes)
        return is_done or self._client.incoming.is_over

    def _before_wait(self) -> None:
        if self._program is not None:
            self._program.flush()
            self._program.look()
        if not self._out.bytes:
            self._lends = False

    def _spawn(self, steps: Coroutine[Any, Any, Any]) -> Task[Any]:
        """A task whose exception is a bug, or the end of the lane."""
        task = self._tasks.start(steps)

        def over() -> None:
            try:
                task.value()
            except Exception as error:
                self._error = self._error or error

        task.then(over)
        return task

    # --- the beginning

    async def _start(self) -> None:
        client = self._client
        await client.version
        if self._verify == "auto" and self._program_argv:
            self._program = Program(self._program_argv, self._loop)
        begun_s = time.monotonic()
        answer, limits = client.realpath(b"."), self._tasks.start(client.get_limits())
        await answer
        rtt_s = time.monotonic() - begun_s
        await limits
        if self._program is not None:
            await self._program.ready
        hashing = self.end.hashing = Hashing(client, self._program, self._verify != "none")
        self._out.put(read_marker(_MARKER_BYTES))
        self._frames.hello({
            "hashes": hashing.for_chunks(), "python": "none", "system": "SFTP", "aes": None,
            "cpus": os.cpu_count() or 1, "verify": hashing.name, "rtt_s": rtt_s,
            "chunk_bytes": hashing.chunk_bytes(rtt_s),
        })  # fmt: skip
        self._tick()

    def _tick(self) -> None:
        """Still here, and so is the server: it answers, or is at work on something long."""
        now_s = time.monotonic()
        self._loop.later(TICK_S, self._tick)
        if now_s - self._asked_s < _SILENT_S or self._client.syncing:
            self._send(wire.TICK, 0, 0, b"")
        if not self._is_asking:
            self._is_asking = True
            self._spawn(self._poke())

    _is_asking = False

    async def _poke(self) -> None:
        await self._client.realpath(b".")
        self._asked_s = time.monotonic()
        self._is_asking = False

    def _send(self, type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        if type_ == wire.DATA:
            self._lends = True
        self._out.put(wire.header(type_, payload, id_, offset, flags), payload)

    # --- what is done about a frame, as the FrameServer asks for it

    def send_chunk(self, id_: int, offset: int, length: int) -> None:
        self.end.the_source().send_chunk(id_, offset, length)

    def complete(self, id_: int, offset: int, length: int, digest: bytes) -> None:
        task = self.end.the_sink().complete(id_, offset, length, digest)
        self._acks.append((id_, offset, length, task))
        task.then(self._acknowledge)

    def _acknowledge(self) -> None:
        """In the order of the chunks, whichever was verified first."""
        while self._acks and self._acks[0][3].is_settled:
            id_, offset, length, task = self._acks.popleft()
            try:
                matches, failure = task.value()
            except Exception as error:
                self._error = self._error or error
                return
            receipt = wire.SOME_PART  # SFTP tells no inode
            self._frames.acknowledge(
                id_, offset, length, receipt=receipt, matches=matches, failure=failure
            )

    def land_pack(self, id_: int, listed: Any, rows: Any, bodies: memoryview) -> None:
        entries.check_sizes(listed, rows, len(bodies))
        packed = self._tasks.start(self.end.the_sink().pack(listed, rows, bodies))

        async def reply() -> None:
            self._frames.reply(id_, failures.places(await packed))

        self._spawn(reply())

    def answer(self, id_: int, request: requests.Request) -> None:
        is_change = isinstance(request, (requests.End, *requests.BEGINNINGS))
        if is_change:
            self.end.begin(request)
            self._frames.follow_role()
        earlier = [each for each in self._replies if not each.is_settled]
        after = earlier if is_change else []
        self._replies = [*earlier, self._spawn(self._reply(id_, request, after))]

    async def _reply(self, id_: int, request: requests.Request, after: list[Task[Any]]) -> None:
        """The answer; that one copy is over comes behind all answers of that copy."""
        try:
            await settled(*after)
            if isinstance(request, requests.Pack):
                packed = await self.end.the_source().pack(request.files)
                self._frames.reply_with_pack(id_, *packed)
                return
            answer, failed = await self.end.answer(request), False
        except failures.EXPECTED as error:
            path = requests.path_of(request)
            answer, failed = failures.from_exception(error, path), True
        self._frames.reply(id_, answer, failed)


def main(settings: str) -> None:
    """What channel.py starts."""
    for fd in (0, 1):
        system.widen_pipe(fd)
    agent = SftpAgent(json.loads(settings))
    try:
        agent.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except (wire.WireError, packets.BadPacket, packets.SftpError) as error:
        if isinstance(error, packets.NotSftp) and not agent.has_begun:
            _end(error.said.decode(errors="replace"), packets.NO_SFTP_STATUS)
        _end(f"pscp: {error}", PROTOCOL_STATUS)


def _end(said: str, status: int) -> NoReturn:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()
    os._exit(status)
