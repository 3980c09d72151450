"""The sessions of a connection: SFTP and scp, and nothing else.

A write of SFTP whose turn it is goes from the channel to its file at once; all other requests are
answered one after the other (files.py). What may come is what the window grants (windows.py).

Not here: logins (server/logins.py), scp (scp.py). Read next: files.py.
"""

from __future__ import annotations

import asyncio
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    Connection,
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
# Type, request, the handle's length (of 4 bytes, as asyncssh makes them), handle, offset, length of
# the data.
_WRITE_HEAD = struct.Struct(">BII4sQI")
# Of a request: more, of a byte each, would take memory, and be counted each time.
_MOST_PIECES = 256
_STATUS = struct.Struct(">IBIIII")  # a status with two empty texts
_ANSWER = 101  # SSH_FXP_STATUS

_CIPHERS = (
    "aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr",
)  # fmt: skip
_CHACHA = "chacha20-poly1305@openssh.com"


def ciphers(has_aes: bool | None) -> list[str]:
    """Return the ciphers to offer a client, by whether this processor has AES instructions.

    The client's order decides, and many name ChaCha20 first: where the processor has AES, that
    costs a third more than AES-GCM (measured: 3.8 and 2.8 seconds of CPU a GB).
    """
    return [*_CIPHERS] if has_aes else [_CHACHA, *_CIPHERS]


class Sessions:
    """Opens the sessions of one process. The event loop alone uses it."""

    def __init__(self, current: Current, events: Events, workers: int = 1) -> None:
        self.current, self.events = current, events
        self.windows = Windows(current.settings.memory // max(workers, 1))
        self.pool = ThreadPoolExecutor(THREADS, "disk")
        self.after_upload = AfterUpload(current, events)
        self.open: set[Session] = set()
        self.works = set[asyncio.Task[None]]()  # of sessions, which end after their connections
        self._long = weakref.WeakValueDictionary[str, asyncio.Lock]()  # of each user

    def close(self) -> None:
        """Wait for what the threads do."""
        self.pool.shutdown()
        self.after_upload.close()

    def requested(self, connection: Connection) -> tuple[Channel, Session]:
        """Return a channel and a session for a connection, as SSHServer.session_requested() does.

        Raises asyncssh.ChannelOpenError.
        """
        user: User = connection.user
        own = [each for each in self.open if each.connection is connection]
        if len(own) >= _SESSIONS:
            raise asyncssh.ChannelOpenError(OPEN_RESOURCE_SHORTAGE, "too many sessions")
        told = Told(user, connection.address, self.events, self.after_upload)
        try:
            long = self._long.setdefault(user.name, asyncio.Lock())
            load = SessionLoad(self.pool, long)
            files = Files(self.current.settings, told, load)
        except OSError as error:
            told.refused("session", error)
            reason = "the user's folder cannot be opened"
            raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, reason) from None
        chan = channel(connection, self.windows.first_bytes(), PACKET_BYTES)
        return chan, Session(self, connection, files)


class Session(StreamSession):
    """A session of SFTP or scp."""

    def __init__(self, sessions: Sessions, connection: Connection, files: Files) -> None:
        super().__init__(None)
        self.connection, self.files, self._sessions = connection, files, sessions
        self._window: ChannelWindow | None = None
        self._requests: Sftp | None = None  # None: it is scp's, or has not begun
        sessions.open.add(self)

    # --- called by asyncssh

    def shell_requested(self) -> bool:
        return self._refuse("shell", "there is no shell")

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
        self.files.begin(chan, self._window.settle)
        command = chan.get_command()
        if command is None:
            self._requests = Sftp(self.files, self)
            work = self._requests.run
        else:
            reader, writer = SSHReader(self, chan), SSHWriter(self, chan)
            work = partial(serve_scp, self.files, command, reader, writer)
        begun = self.connection.create_task(self._begin(work))
        self._sessions.works.add(begun)
        begun.add_done_callback(self._sessions.works.discard)
        self._window.settle()

    async def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        await self.files.ready()
        await work()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        assert self._window is not None
        self.files.load.moved_s = time.monotonic()
        self._window.came(len(data))
        self._sessions.events.count("bytes", self.files.rules.user.name, len(data))
        if self._requests is None:
            super().data_received(data, datatype)
        else:
            try:
                self._requests.packets.feed(data)
            except ValueError as error:
                self._refuse("request", str(error))
                self._chan.abort()
                return
        self._window.settle()

    def eof_received(self) -> bool:
        if self._requests is not None:
            self._requests.put(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.files.lose()
        self._sessions.open.discard(self)
        if self._requests is not None:
            self._requests.put(None)
        super().connection_lost(exc)

    # --- how it stands

    def waiting_bytes(self) -> int:
        """Return the bytes that came and are not written or answered yet."""
        requests = self._requests
        queued_bytes = self._recv_buf_len if requests is None else requests.waiting_bytes
        return queued_bytes + self.files.load.bytes

    @property
    def window_bytes(self) -> int:
        """The size of the receive window now."""
        return self._window.bytes if self._window is not None else 0

    def end_idle(self, now_s: float) -> None:
        """End the connection if nothing has moved for too long."""
        load, idle_s = self.files.load, self._sessions.current.settings.idle
        if now_s - load.moved_s > idle_s and not load.busy and not self.waiting_bytes():
            self.connection.close()
            self._refuse("session", "it was idle")


class Sftp(Requests):
    """Answers the requests of SFTP; a write whose turn it is goes to its file at once."""

    def __init__(self, files: Files, session: Session) -> None:
        super().__init__(files, session, _VERSION, settle=files.load.settle, lost=files.lose)
        self.packets = Packets(self._take)
        self._connection = session.connection
        self._answers: list[bytes] = []  # not sent yet

    @property
    def waiting_bytes(self) -> int:
        """The bytes that came and are not answered yet."""
        return self.queued_bytes + self.packets.part_bytes

    def _take(self, packet: bytes) -> None:
        """Have a write done at once if it is this request's turn; queue all else."""
        if packet[0] == _WRITE and len(packet) >= _WRITE_HEAD.size:
            _, number, handle_bytes, handle, offset, size_bytes = _WRITE_HEAD.unpack_from(packet)
            if handle_bytes == len(handle):
                packet = packet[: _WRITE_HEAD.size + size_bytes]  # rclone 1.60 sends more
                data = memoryview(packet)[_WRITE_HEAD.size :]
                if len(data) == size_bytes and self._is_written(handle, offset, data):
                    if not self._answers:
                        asyncio.get_running_loop().call_soon(self._send_answers)
                    self._answers.append(_STATUS.pack(17, _ANSWER, number, 0, 0, 0))
                    return
        self.put(packet)

    def _is_written(self, handle: bytes, offset: int, data: memoryview) -> bool:
        """Write at once where it is its turn. Return whether nothing else is to be done."""
        upload = self.files.get(handle)
        if not self.is_idle or is_behind(self._connection) or not isinstance(upload, Upload):
            return False
        try:
            upload.writer.write(offset, data)
        except OSError:  # asyncssh makes the answer of it
            return False
        return True

    def _send_answers(self) -> None:
        """Send the answers for all that came at once in one packet."""
        answers, self._answers = self._answers, []
        self.send(b"".join(answers))


class Packets:
    """Takes the stream of a client's requests apart."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """Call `put` with each request, without its length."""
        self._put = put
        self._pieces: list[bytes | memoryview] = []
        self._left_bytes, self._is_length = 4, True  # of what is being collected

    @property
    def part_bytes(self) -> int:
        """The bytes of a request that has not come whole."""
        return sum(map(len, self._pieces))

    def feed(self, data: bytes) -> None:
        """Take what came. Raises ValueError for a request that is too large, or empty."""
        view = memoryview(data)
        while view:
            piece = view[: self._left_bytes]
            view = view[len(piece) :]
            self._pieces.append(piece)
            self._left_bytes -= len(piece)
            if self._left_bytes:
                if len(self._pieces) > _MOST_PIECES:
                    self._pieces = [b"".join(self._pieces)]
                return
            whole, self._pieces = b"".join(self._pieces), []
            if self._is_length:
                self._left_bytes = int.from_bytes(whole, "big")
                if not 1 <= self._left_bytes <= REQUEST_BYTES:
                    raise ValueError(f"a request of {self._left_bytes} bytes")
            else:
                self._left_bytes = 4
                self._put(whole)
            self._is_length = not self._is_length
