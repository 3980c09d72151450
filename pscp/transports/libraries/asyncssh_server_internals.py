"""All undocumented parts of asyncssh that a server of pscp's uses.

They are as described here in asyncssh 2.19 (the oldest that pyproject.toml allows) to 2.24.
../../../tests/unit/test_internals.py fails with the name of a part that another version lacks.

Not here: what a client uses (asyncssh_internals.py), what the server does (../../serve).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import asyncssh
from asyncssh.channel import SSHServerChannel
from asyncssh.constants import FXP_EXTENDED_REPLY, MSG_CHANNEL_WINDOW_ADJUST, MSG_IGNORE
from asyncssh.packet import Byte, SSHPacket, SSHPacketLogger, String, UInt32
from asyncssh.scp import _scp_error as scp_error
from asyncssh.scp import _SCPArgParser as ScpArguments
from asyncssh.scp import _SCPSink as ScpSink
from asyncssh.scp import _SCPSource as ScpSource
from asyncssh.sftp import SFTPServerFS as ServerFiles
from asyncssh.sftp import (
    SFTPServerHandler,
)
from asyncssh.stream import SSHReader, SSHServerStreamSession, SSHWriter

__all__ = [
    "REQUEST_BYTES", "DATA_BYTES", "ScpArguments", "ScpSink", "ScpSource",
    "ServerFiles", "Channel", "Requests", "StreamSession", "SSHReader",
    "SSHWriter", "room", "scp_error",
]  # fmt: skip

# A request, and the data in one, at most; no client sends more, since OpenSSH's server takes none.
REQUEST_BYTES = 256 * 1024
DATA_BYTES = REQUEST_BYTES - 1024
_NOT_OFFERED = (b"copy-data", b"ranges@asyncssh.com")  # a request that has no end; of no use here
_UNSENT_BYTES = 4 << 20  # of answers that the client does not take
_JOINED_BYTES = 16 * 1024  # of one answer: larger ones are not copied once more
_CHECK_FILE, _ALGORITHMS = b"check-file-handle", (b"sha256", b"sha512", b"sha1")
# asyncssh copies all that it has not looked at twice for each packet: of the 256 KiB that asyncio
# reads at once that was nine times the data.
_FED_BYTES = 32 * 1024
_POLL_S = 0.05  # asyncssh does not tell when a connection can be written to again


class Channel(SSHServerChannel[bytes]):
    """A server's channel whose receive window its owner grants."""

    def _process_env_request(self, packet: SSHPacket) -> bool:
        return False  # as many as a client likes would be kept

    def own_window(self) -> None:
        """From now on, grant nothing unasked."""
        self._init_recv_window = 0

    @property
    def granted_bytes(self) -> int:
        """The bytes that the client may still send."""
        return self._recv_window

    def grant(self, size_bytes: int) -> None:
        """Allow the client so many bytes more (RFC 4254, 5.2)."""
        if self._send_state not in ("close_pending", "closed"):
            self.send_packet(MSG_CHANNEL_WINDOW_ADJUST, UInt32(size_bytes))
            self._recv_window += size_bytes


def channel(connection: asyncssh.SSHServerConnection, window: int, packet: int) -> Channel:
    """Return a channel of bytes with this window and packets of at most this size."""
    loop = connection._loop
    return Channel(connection, loop, False, False, False, 0, 0, None, "strict", window, packet)


async def room(connection: asyncssh.SSHServerConnection) -> None:
    """Wait until the client has taken most of what was sent to it."""
    while is_behind(connection):
        await asyncio.sleep(_POLL_S)


def is_behind(connection: asyncssh.SSHServerConnection) -> bool:
    """Is there much that the client has not taken yet?"""
    transport: Any = connection._transport
    return transport is not None and transport.get_write_buffer_size() > _UNSENT_BYTES


class StreamSession(SSHServerStreamSession[bytes]):
    """A session whose bytes are read by SSHReader."""

    _chan: Channel
    _recv_buf_len: int


class Digests(Protocol):
    """A server that hashes its files for those who may read them."""

    async def digest(self, file_obj: object, name: str, offset: int, size_bytes: int) -> bytes:
        """Return the digest of an extent of an open file by an algorithm of hashlib; of what is
        there, where it is shorter. With `size_bytes` 0 it goes to the end. Raises OSError.
        """


class _Checked(NamedTuple):
    """The answer to check-file."""

    algorithm: bytes
    digest: bytes

    def encode(self, sftp_version: int) -> bytes:
        return String(self.algorithm) + self.digest


class Requests(SFTPServerHandler):
    """Answers the requests of SFTP that are put into its queue, one after the other."""

    _extensions = [
        *(each for each in SFTPServerHandler._extensions if each[0] not in _NOT_OFFERED),
        (b"own-modes@pscp", b"1"),  # a client that keeps modes need not set them again each time
        (b"check-file", b",".join(_ALGORITHMS)),
    ]
    _return_types = {**SFTPServerHandler._return_types, _CHECK_FILE: FXP_EXTENDED_REPLY}
    _packet_handlers = {
        kind: handler
        for kind, handler in SFTPServerHandler._packet_handlers.items()
        if kind not in _NOT_OFFERED
    }

    def __init__(
        self, server: asyncssh.SFTPServer, session: StreamSession, version: int,
        *, settle: Callable[[], None], lost: Callable[[], None],
    ) -> None:  # fmt: skip
        """Call `settle` when a request is answered, `lost` when no more come."""
        self._session, chan = session, session._chan
        super().__init__(server, SSHReader(session, chan), SSHWriter(session, chan), version)
        self.is_idle = False  # it waits for a request
        self.queued_bytes = 0
        self._queue: deque[bytes | None] = deque()
        self._arrived = asyncio.Event()
        self._settle, self._lost = settle, lost
        self._answers: list[bytes] = []  # that are sent once the event loop comes round

    @property
    def files(self) -> dict[bytes, object]:
        """The open files by their handles."""
        return self._file_handles

    def send(self, packets: bytes) -> None:
        """Send whole answers, unless the session is over."""
        if not self._session._chan.is_closing():
            self._session._chan.write(packets)

    def send_packet(self, pkttype: int, pktid: int | None, *args: bytes) -> None:
        """Send an answer, with those that follow it at once: an SSH packet of its own and a system
        call cost more than most answers.
        """
        payload = Byte(pkttype) + b"".join(args)
        answer = UInt32(len(payload)) + payload
        if len(answer) > _JOINED_BYTES:
            self._send_answers()
            self.send(answer)
            return
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._send_answers)
        self._answers.append(answer)

    def _send_answers(self) -> None:
        answers, self._answers = self._answers, []
        if answers:
            self.send(b"".join(answers))

    def put(self, packet: bytes | None) -> None:
        """Queue a request, without its length; None ends the session."""
        self._queue.append(packet)
        self.queued_bytes += _weight(packet)
        self.is_idle = False
        self._arrived.set()

    async def recv_packet(self) -> SSHPacket:
        assert self._writer is not None
        await self._writer.drain()
        await room(self._server.connection)
        while not self._queue:
            self._arrived.clear()
            self.is_idle = True
            await self._arrived.wait()
        self.is_idle = False
        packet = self._queue.popleft()
        self.queued_bytes -= _weight(packet)
        self._settle()
        if packet is None:
            raise EOFError
        return SSHPacket(packet)

    async def _limits(self, packet: SSHPacket) -> asyncssh.SFTPLimits:
        packet.check_end()
        most: int = getattr(self._server, "open_files", 0)
        return asyncssh.SFTPLimits(REQUEST_BYTES, DATA_BYTES, DATA_BYTES, most)

    _packet_handlers[b"limits@openssh.com"] = _limits  # type: ignore[assignment]

    async def _check_file(self, packet: SSHPacket) -> _Checked:
        """Answer with the digest of an extent of an open file, by the first algorithm that is here
        (draft-ietf-secsh-filexfer-extensions-00, 3); of its blocks, if that is asked, not.
        """
        handle, names = packet.get_string(), packet.get_string().split(b",")
        offset, size_bytes, block_bytes = (
            packet.get_uint64(), packet.get_uint64(), packet.get_uint32()
        )  # fmt: skip
        packet.check_end()
        name = next((each for each in names if each in _ALGORITHMS), None)
        found = self._file_handles.get(handle)
        if name is None or block_bytes or found is None:
            raise asyncssh.SFTPOpUnsupported("no digest of that")
        server = cast(Digests, self._server)
        return _Checked(name, await server.digest(found, name.decode(), offset, size_bytes))

    _packet_handlers[_CHECK_FILE] = _check_file  # type: ignore[assignment]

    async def _cleanup(self, exc: Exception | None) -> None:
        self._lost()
        self._send_answers()
        if exc is None:
            self._session._chan.exit(0)  # scp takes a session without a status for a failure
        await super()._cleanup(exc)


def _weight(packet: bytes | None) -> int:
    return 512 + len(packet or b"")  # with what Python keeps of it


class Connection(asyncssh.SSHServerConnection):
    """A server's connection that counts what goes over it, from an address that its maker names."""

    user: Any  # who is logged in: what its maker has for one; None: nobody yet

    def __init__(self, options: asyncssh.SSHServerConnectionOptions, address: str) -> None:
        super().__init__(asyncio.get_running_loop(), options)
        self.address, self.user = address, None
        self.received_bytes = self.sent_bytes = 0
        self.began_s = self.used_s = time.monotonic()
        self.bytes_per_s, self._measured = 0.0, (0, self.began_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer_addr = self.address  # what from= of a key, and a certificate, are held to

    def measure(self, now_s: float) -> None:
        """Set how fast it was since this was called last."""
        had_bytes, then_s = self._measured
        self._measured = (self.received_bytes + self.sent_bytes, now_s)
        self.bytes_per_s = (self._measured[0] - had_bytes) / (now_s - then_s)

    def data_received(self, data: bytes, datatype: Any = None) -> None:
        self.received_bytes += len(data)
        for at in range(0, len(data), _FED_BYTES):
            super().data_received(data[at : at + _FED_BYTES], datatype)

    def _send(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        super()._send(data)

    def send_packet(
        self, pkttype: int, *args: bytes, handler: SSHPacketLogger | None = None
    ) -> None:
        # asyncssh puts one before each packet, which protects CBC (RFC 4251, 9.3.1) alone, and
        # costs as much as an answer.
        if pkttype != MSG_IGNORE:
            super().send_packet(pkttype, *args, handler=handler)
