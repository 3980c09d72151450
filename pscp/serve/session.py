"""The sessions of a connection: SFTP and scp, and nothing else.

A write of SFTP whose turn it is goes from the channel to its file without being put together
first; all other requests are answered one after the other (files.py). What may come is what the
window grants (windows.py).

Not here: logins (server/logins.py), scp (scp.py). Read next: files.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED, OPEN_RESOURCE_SHORTAGE

from pscp.serve.after_upload import AfterUpload, Told
from pscp.serve.content import THREADS, SessionLoad
from pscp.serve.events import Events
from pscp.serve.files import Files
from pscp.serve.landing import Upload
from pscp.serve.scp import serve_scp
from pscp.serve.settings import Current, User
from pscp.serve.windows import PACKET_BYTES, ChannelWindow, Windows
from pscp.transports.libraries.asyncssh_server_internals import (
    REQUEST_BYTES,
    Channel,
    Requests,
    SSHReader,
    SSHWriter,
    StreamSession,
    channel,
    is_behind,
)

_SESSIONS = 10  # of one connection, as sshd's MaxSessions
_VERSION = 6  # of SFTP, at most
_WRITE = 6  # SSH_FXP_WRITE (draft-ietf-secsh-filexfer-02, 6.4)
# Length, type, request, the handle's length (of 4 bytes, as asyncssh makes them), handle, offset,
# length of the data.
_WRITE_HEAD = struct.Struct(">IBII4sQI")
_MOST_PIECES = (
    256  # of a request: more, of a byte each, would take memory, and be counted each time
)
_STATUS = struct.Struct(">IBIIII")  # a status with two empty texts
_ANSWER = 101  # SSH_FXP_STATUS

_CIPHERS = (
    "aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr",
)  # fmt: skip
_CHACHA = "chacha20-poly1305@openssh.com"


def ciphers(cpu: str) -> list[str]:
    """Return the ciphers to offer a client on a processor that /proc/cpuinfo describes so.

    The client's order decides, and many name ChaCha20 first: where the processor has AES, that
    costs a third more than AES-GCM (measured: 3.8 and 2.8 seconds of CPU a GB).
    """
    has_aes = re.search(r"^(flags|Features)\b.*\baes\b", cpu, re.MULTILINE)
    return [*_CIPHERS] if has_aes else [_CHACHA, *_CIPHERS]


def _cpu() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/cpuinfo").read_text(errors="replace")
    return ""


def server_options() -> dict[str, Any]:
    """Return the keywords for asyncssh.create_server() that concern sessions."""
    return {
        "encryption_algs": ciphers(_cpu()), "compression_algs": None, "encoding": None,
        "line_editor": False, "allow_pty": False, "x11_forwarding": False,
        "agent_forwarding": False, "max_pktsize": PACKET_BYTES, "sftp_factory": None,
    }  # fmt: skip


class Sessions:
    """Opens the sessions of one process. The event loop alone uses it."""

    def __init__(self, current: Current, events: Events, workers: int = 1) -> None:
        self.current, self.events = current, events
        self.windows = Windows(current.settings.memory // max(workers, 1))
        self.pool = ThreadPoolExecutor(THREADS, "disk")
        self.after_upload = AfterUpload(current, events)
        self.open: set[Session] = set()
        self._long = weakref.WeakValueDictionary[str, asyncio.Lock]()  # of each user

    def close(self) -> None:
        """Wait for what the threads do."""
        self.pool.shutdown()
        self.after_upload.close()

    def requested(
        self, connection: asyncssh.SSHServerConnection, user: User, address: str
    ) -> tuple[Channel, Session]:
        """Return a channel and a session for a connection, as SSHServer.session_requested() does.

        Raises asyncssh.ChannelOpenError.
        """
        own = [each for each in self.open if each.connection is connection]
        if len(own) >= _SESSIONS:
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, "too many sessions")
        told = Told(user, address, self.events, self.after_upload)
        try:
            long = self._long.setdefault(user.name, asyncio.Lock())
            load = SessionLoad(lambda: None, self.pool, long)
            files = Files(self.current.settings, told, load)
        except OSError as error:
            told.refused("session", error)
            reason = "the user's folder cannot be opened"
            raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, reason) from None
        chan = channel(connection, self.windows.first_bytes(), PACKET_BYTES)
        return chan, Session(self, connection, files)


class Session(StreamSession):
    """A session of SFTP or scp."""

    def __init__(
        self, sessions: Sessions, connection: asyncssh.SSHServerConnection, files: Files
    ) -> None:
        super().__init__(None)
        self.connection, self.files = connection, files
        self.begun_s = self.last_s = time.monotonic()
        self._sessions = sessions
        self._window: ChannelWindow | None = None
        self._requests: Requests | None = None
        self._packets: Packets | None = None
        self._answers: list[bytes] = []  # not sent yet
        self._came_bytes = 0  # by count(), of which the counters do not know yet
        sessions.open.add(self)
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._look_idle)

    # --- called by asyncssh

    def shell_requested(self) -> bool:
        return self._refuse("shell", "there is no shell")

    def pty_requested(self, *_: object) -> bool:
        return False

    def exec_requested(self, command: str) -> bool:
        return command.startswith("scp ") or self._refuse(command, "only scp may be run")

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp" or self._refuse(subsystem, "the only subsystem is sftp")

    def _refuse(self, what: str, why: str) -> bool:
        self.files.told.refused(what[:200], PermissionError(0, why))
        return False

    def session_started(self) -> None:
        chan, user = self._chan, self.files.rules.user
        account, windows = self.files.place.account, self._sessions.windows
        self._window = ChannelWindow(windows, chan, self.waiting_bytes, account, user.rate)
        self.files.begin(chan, self.settle)
        command = chan.get_command()
        if command is None:
            self._packets = Packets(self._write, self._put)
            self._requests = Requests(
                self.files, self, _VERSION, settle=self.settle, lost=self.files.lose
            )
            work = self._requests.run
        else:
            reader, writer = SSHReader(self, chan), SSHWriter(self, chan)
            work = partial(serve_scp, self.files, command, reader, writer)
        self.connection.create_task(self._begin(work))
        self.settle()

    async def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        await self.files.ready()
        await work()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.count(len(data))
        if self._packets is None:
            super().data_received(data, datatype)
        else:
            try:
                self._packets.feed(data)
            except ValueError as error:
                self._refuse("request", str(error))
                self._chan.abort()
                return
        self.settle()

    def eof_received(self) -> bool:
        if self._requests is not None:
            self._requests.put(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.files.lose()
        self._sessions.open.discard(self)
        self._idle.cancel()
        self.count(0)
        if self._requests is not None:
            self._requests.put(None)
        super().connection_lost(exc)

    # --- what waits, and how much may come

    def waiting_bytes(self) -> int:
        """Return the bytes that came and are not written or answered yet."""
        requests, packets = self._requests, self._packets
        queued_bytes = requests.queued_bytes if requests is not None else self._recv_buf_len
        part_bytes = packets.part_bytes if packets is not None else 0
        return queued_bytes + part_bytes + self.files.load.bytes

    def settle(self) -> None:
        """Have the client send more, as far as there is room."""
        if self._window is not None and self._chan is not None:
            self._window.settle()

    def count(self, size_bytes: int) -> None:
        self.last_s = time.monotonic()
        self._came_bytes += size_bytes
        if self._window is not None:
            self._window.came(size_bytes)
        if not size_bytes or self._came_bytes > 1 << 20:
            self._sessions.events.count("bytes", self.files.rules.user.name, self._came_bytes)
            self._came_bytes = 0

    @property
    def window_bytes(self) -> int:
        """The size of the receive window now."""
        return self._window.bytes if self._window is not None else 0

    @property
    def _idle_s(self) -> float:
        return self._sessions.current.settings.idle

    def _look_idle(self) -> None:
        # Of a file by scp nothing comes back until its end.
        load = self.files.load
        left_s = max(self.last_s, load.moved_s) + self._idle_s - time.monotonic()
        if left_s <= 0 and not load.busy and not self.waiting_bytes():
            self._refuse("session", "it was idle")
            self.connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(max(left_s, 1.0), self._look_idle)

    # --- requests of SFTP

    def _put(self, packet: bytes) -> None:
        assert self._requests is not None
        self._requests.put(packet)

    def _write(self, head: bytes, pieces: list[memoryview]) -> None:
        """Write at once if it is this request's turn, else queue it."""
        requests = self._requests
        assert requests is not None
        _, _, number, _, handle, offset, size_bytes = _WRITE_HEAD.unpack(head)
        upload = requests.files.get(handle)
        if requests.is_idle and isinstance(upload, Upload) and not is_behind(self.connection):
            try:
                upload.writer.write(offset, [*pieces], size_bytes)
            except OSError:
                pass  # asyncssh makes the answer of it
            else:
                if not self._answers:
                    asyncio.get_running_loop().call_soon(self._send_answers)
                self._answers.append(_STATUS.pack(17, _ANSWER, number, 0, 0, 0))
                return
        requests.put(b"".join((head[4:], *pieces)))

    def _send_answers(self) -> None:
        """Send the answers for all that came at once in one packet."""
        answers, self._answers = self._answers, []
        if not self._chan.is_closing():
            self._chan.write(b"".join(answers))


class Packets:
    """Takes the stream of a client's requests apart."""

    def __init__(
        self, write: Callable[[bytes, list[memoryview]], None], put: Callable[[bytes], None]
    ) -> None:
        """Call `write` with the head and the data of a well-formed write, `put` with all else."""
        self._write, self._put = write, put
        self._head = bytearray()
        self._left_bytes = 0  # of what is being collected
        self._pieces: list[memoryview] = []
        self._is_write = False
        self._surplus_bytes = 0  # after the data of a write, as rclone 1.60 sends; sshd takes it

    @property
    def part_bytes(self) -> int:
        """The bytes of a request that has not come whole."""
        return len(self._head) + sum(map(len, self._pieces))

    def feed(self, data: bytes) -> None:
        """Take what came. Raises ValueError for a request that is too large, or empty."""
        view = memoryview(data)
        while view:
            if self._left_bytes:
                piece = view[: self._left_bytes]
                view = view[len(piece) :]
                self._pieces.append(piece)
                if len(self._pieces) > _MOST_PIECES:
                    self._pieces = [memoryview(b"".join(self._pieces))]
                self._left_bytes -= len(piece)
                if not self._left_bytes:
                    self._finish()
                continue
            need_bytes = _WRITE_HEAD.size if self._head[4:5] == bytes([_WRITE]) else 5
            taken = view[: need_bytes - len(self._head)]
            view = view[len(taken) :]
            self._head += taken
            if len(self._head) == need_bytes:
                self._begin()

    def _begin(self) -> None:
        """Look at the beginning of a request."""
        length = int.from_bytes(self._head[:4], "big")
        if not 1 <= length <= REQUEST_BYTES:
            raise ValueError(f"a request of {length} bytes")
        is_short = length < _WRITE_HEAD.size - 4
        if self._head[4] == _WRITE and not is_short and len(self._head) < _WRITE_HEAD.size:
            return  # the rest of its head comes
        self._left_bytes = length + 4 - len(self._head)
        self._is_write = False
        if len(self._head) == _WRITE_HEAD.size:
            *_, handle_bytes, _, _, size_bytes = _WRITE_HEAD.unpack(self._head)
            self._surplus_bytes = self._left_bytes - size_bytes
            self._is_write = handle_bytes == 4 and self._surplus_bytes >= 0
        if not self._left_bytes:
            self._finish()

    def _finish(self) -> None:
        head, pieces = bytes(self._head), self._pieces
        self._head, self._pieces = bytearray(), []
        if self._is_write:
            self._write(head, _without(pieces, self._surplus_bytes))
        else:
            self._put(b"".join((head[4:], *pieces)))


def _without(pieces: list[memoryview], surplus_bytes: int) -> list[memoryview]:
    """Return the pieces without so many bytes at their end."""
    while surplus_bytes:
        last = pieces.pop()
        if len(last) > surplus_bytes:
            pieces.append(last[: len(last) - surplus_bytes])
        surplus_bytes -= min(len(last), surplus_bytes)
    return pieces
