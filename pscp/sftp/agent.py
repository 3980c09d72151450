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

from pscp.endpoint import entries, failures, requests, session, source, system, wire
from pscp.endpoint.agent import TICK_S
from pscp.sftp import packets
from pscp.sftp.client import Client
from pscp.sftp.digests import Hashing
from pscp.sftp.end import End
from pscp.sftp.event_loop import In, Loop, Out, Wake, read_marker
from pscp.sftp.remote_hash import Program
from pscp.sftp.sink import Sink
from pscp.sftp.tasks import Promise, Task, Tasks, settled

_LINGER_S = 1.5  # for what is under way at the end
_MARKER_BYTES = 16
_SILENT_S = 60.0  # a server that says nothing for so long, though asked, is as good as dead
PROTOCOL_STATUS = 99  # as an agent's


class StandIn:
    """One lane's far end."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._loop, self._tasks = Loop(), Tasks()
        self._client = Client(settings["read_fd"], settings["write_fd"], self._loop)
        self._verify: str = settings["verify"]
        self._program_argv: list[str] = settings["program"]
        self._program: Program | None = None
        self._session = session.Session(session.AGENT)
        self._decoder = wire.Decoder()
        self._incoming = In(0, self._decoder, self._take_all, self._decoder.is_trickling)
        self._out = Out(1)
        self._end = End(self._client, self._tasks, self._send)
        self._replies: list[Task[Any]] = []  # those that may still be under way
        self._acks: deque[tuple[int, int, int, Promise[Any]]] = deque()
        self._error: BaseException | None = None
        self._is_ending = self._is_up = False
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
            (self._incoming, lambda: self._is_up and not (self._is_ending or client.out.bytes)),
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

    @property
    def has_begun(self) -> bool:
        """Has an SFTP server told its version?"""
        return self._client.version.is_settled

    def _end_what_is_under_way(self) -> None:
        """For a moment, so that no part is left of it; no frame is taken any more."""
        self._is_ending = True
        end_s = time.monotonic() + _LINGER_S
        self._loop.later(_LINGER_S, lambda: None)
        self._end.drop_role()
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
        hashing = self._end.hashing = Hashing(client, self._program, self._verify != "none")
        self._out.put(read_marker(_MARKER_BYTES))
        self._send(wire.HELLO, 0, 0, wire.to_json({
            "hashes": hashing.for_chunks(), "python": "none", "system": "SFTP", "aes": None,
            "cpus": os.cpu_count() or 1, "verify": hashing.name, "rtt_s": rtt_s,
            "chunk_bytes": hashing.chunk_bytes(rtt_s),
        }))  # fmt: skip
        self._session.advance(session.HELLO)
        self._is_up = True
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

    # --- frames

    def _send(self, type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        if type_ == wire.DATA:
            self._lends = True
        self._out.put(wire.header(type_, payload, id_, offset, flags), payload)

    def _take_all(self) -> None:
        while (frame := self._decoder.next()) is not None:
            self._session.check(frame)
            self._take(frame)

    def _take(self, frame: wire.Frame) -> None:
        if frame.type == wire.ASK:
            self._ask(frame.id, requests.from_json(frame.json()))
        elif frame.type == wire.FILE:
            self._know(frame)
        elif frame.type == wire.GET:
            length = wire.COUNT.unpack(frame.payload)[0]
            self._end.the_source().send_chunk(frame.id, frame.offset, length)
        elif frame.type == wire.DATA:
            self._end.the_sink().write(frame.id, frame.offset, frame.payload)
        elif frame.type == wire.DIGEST:
            self._complete(frame)
        else:
            self._take_pack(frame)

    def _know(self, frame: wire.Frame) -> None:
        role = self._end.role
        assert role is not None
        if not frame.payload:
            role.forget(frame.id)
        elif isinstance(role, Sink):
            role.know(frame.id, entries.entry(frame.json()))
        else:
            role.know(frame.id, source.known(requests.known(frame.json())))

    def _complete(self, frame: wire.Frame) -> None:
        if frame.flags & wire.FAILED:
            self._end.the_sink().abandon()
            return
        length = wire.COUNT.unpack_from(frame.payload)[0]
        digest = bytes(frame.payload[wire.COUNT.size :])
        task = self._end.the_sink().complete(frame.id, frame.offset, length, digest)
        self._acks.append((frame.id, frame.offset, length, task))
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
            payload = wire.LANDED.pack(length, wire.SOME_PART)  # SFTP tells no inode
            flags = 0 if matches else wire.MISMATCH
            if failure is not None:
                payload, flags = payload + wire.to_json(failure), wire.FAILED
            self._send(wire.ACK, id_, offset, payload, flags)

    def _take_pack(self, frame: wire.Frame) -> None:
        rows, bodies = wire.unpack_payload(frame.payload)
        listed = [entries.entry(value) for value, _ in rows]
        digests = [row for _, row in rows]
        entries.check_sizes(listed, digests, len(bodies))
        packed = self._tasks.start(self._end.the_sink().pack(listed, digests, bodies))

        async def reply() -> None:
            outcome = failures.places(await packed)
            self._send(wire.REPLY, frame.id, 0, wire.to_json(outcome))

        self._spawn(reply())

    # --- requests

    def _ask(self, id_: int, request: requests.Request) -> None:
        is_change = isinstance(request, (requests.End, *requests.BEGINNINGS))
        if is_change:
            self._end.begin(request)
            self._session.advance(self._end.event)
        earlier = [each for each in self._replies if not each.is_settled]
        after = earlier if is_change else []
        self._replies = [*earlier, self._spawn(self._reply(id_, request, after))]

    async def _reply(self, id_: int, request: requests.Request, after: list[Task[Any]]) -> None:
        """The answer; that one copy is over comes behind all answers of that copy."""
        try:
            await settled(*after)
            if isinstance(request, requests.Pack):
                payload = wire.pack_payload(*await self._end.the_source().pack(request.files))
                self._send(wire.PACK, id_, 0, payload)
                return
            answer, flags = await self._end.answer(request), 0
        except failures.EXPECTED as error:
            path = requests.path_of(request)
            answer, flags = failures.from_exception(error, path), wire.FAILED
        self._send(wire.REPLY, id_, 0, wire.to_json(answer), flags)


def main(settings: str) -> None:
    """What channel.py starts."""
    for fd in (0, 1):
        system.widen_pipe(fd)
    standin = StandIn(json.loads(settings))
    try:
        standin.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except (wire.WireError, packets.BadPacket, packets.SftpError) as error:
        if isinstance(error, packets.NotSftp) and not standin.has_begun:
            _end(error.said.decode(errors="replace"), packets.NO_SFTP_STATUS)
        _end(f"pscp: {error}", PROTOCOL_STATUS)


def _end(said: str, status: int) -> NoReturn:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()
    os._exit(status)
