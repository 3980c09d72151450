"""The loop between a channel of an asyncssh connection and three descriptors.

It runs in the program of a connection, or on a connection of the user's program (external.py).

The receive window of the channel grows with the path (../receive_window.py).

Not here: what asyncssh does not document (asyncssh_internals.py). Read next: paramiko_helper.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR, OPEN_REQUEST_SESSION_FAILED

from pscp.transports.channel import FAILED_STATUS
from pscp.transports.libraries.asyncssh_internals import grant, lacks_bytes
from pscp.transports.libraries.helper import READ_BYTES, HelperError
from pscp.transports.receive_window import FIRST_BYTES, Window, is_due, round_trip_s
from pscp.transports.ssh_settings import Request

_WRITE_BUFFER_BYTES = 1024 * 1024  # while less waits to be encrypted, the input is read
_IOV_MAX = 512  # buffers for one writev(2); IOV_MAX is 1024


async def run_channel(
    connection: asyncssh.SSHClientConnection, request: Request, fds: tuple[int, int, int]
) -> int:
    """Run a command or subsystem with these descriptors; return its status. Raises HelperError."""
    pump, begun_s = Pump(asyncio.get_running_loop(), fds), time.monotonic()
    command, subsystem = (None, request.text) if request.is_subsystem else (request.text, None)
    try:
        channel, _ = await connection.create_session(
            lambda: pump, command, subsystem=subsystem, encoding=None, window=FIRST_BYTES,
            request_pty=False,
        )  # fmt: skip
        try:
            rtt_s = round_trip_s(connection.get_extra_info("socket"))
            pump.begin(rtt_s or (time.monotonic() - begun_s) / 2)  # the channel took two of them
            await pump.ended
        finally:
            channel.close()
    except asyncssh.ChannelOpenError as error:
        if error.code == OPEN_REQUEST_SESSION_FAILED:
            what = "subsystem" if request.is_subsystem else "exec"
            raise HelperError(f"{what} request failed on channel 0") from None
        raise HelperError(f"Session open refused by peer: {error.reason}") from None
    except asyncssh.DisconnectError as error:
        raise HelperError(f"Connection closed: {error.reason}") from None
    finally:
        pump.release()  # from here on the caller may close the descriptors
    status = channel.get_exit_status()
    if status is None or status < 0:
        if channel.get_exit_signal() is None:
            raise HelperError(f"Connection closed by remote host{pump.why}")
        return FAILED_STATUS
    return status


class Pump(asyncssh.SSHClientSession[bytes]):
    """Moves bytes between a channel and three descriptors, at the pace of the slower side."""

    _channel: asyncssh.SSHClientChannel[bytes]  # from connection_made() on

    def __init__(self, loop: asyncio.AbstractEventLoop, fds: tuple[int, int, int]) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.why = ""
        self._loop, self._in = loop, fds[0]
        self._outs = {
            None: _Outlet(loop, fds[1], self._written),
            EXTENDED_DATA_STDERR: _Outlet(loop, fds[2], self._written),
        }
        for fd in fds:
            os.set_blocking(fd, False)
        self._window: Window | None = None
        self._is_paused = self._is_closed = False  # the channel
        self._is_reading = self._is_at_end = False  # the input

    # --- called by run_channel()

    def begin(self, rtt_s: float) -> None:
        """Begin to read the input; the receive window grows by this round trip."""
        self._window = Window(rtt_s)
        if not self._is_closed:
            self._channel.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
            self._read(True)

    def release(self) -> None:
        """Leave the descriptors alone from now on, whatever asyncssh may still call."""
        self._is_at_end = True
        self._read(False)
        for out in self._outs.values():
            out.close()

    # --- called by asyncssh

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        out = self._outs[datatype]
        out.put(data)
        if self._window is not None:
            self._window.came(len(data), time.monotonic())
            self._grant(self._window.bytes)
        if out.is_full and not self._is_paused:
            self._is_paused = True
            self._channel.pause_reading()

    def _grant(self, window_bytes: int) -> None:
        """Grant what was read, in small parts; asyncssh by itself waits for half the window."""
        if is_due(lacks_bytes(self._channel, window_bytes), window_bytes) and not self._is_paused:
            grant(self._channel, window_bytes)

    def eof_received(self) -> bool:
        return True  # the other way stays open

    def pause_writing(self) -> None:
        self._read(False)

    def resume_writing(self) -> None:
        self._read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self.why = f": {getattr(exc, 'reason', exc)}" if exc is not None else ""
        self._read(False)
        self._written()

    # --- the descriptors

    def _read(self, is_wanted: bool) -> None:
        is_wanted = is_wanted and not (self._is_at_end or self._is_closed)
        if is_wanted and not self._is_reading:
            self._loop.add_reader(self._in, self._readable)
        elif self._is_reading and not is_wanted:
            self._loop.remove_reader(self._in)
        self._is_reading = is_wanted

    def _readable(self) -> None:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            if data:
                self._channel.write(data)
            else:
                self._is_at_end = True
                self._read(False)
                self._channel.write_eof()
        except OSError:  # the channel is closed; connection_lost() will be called
            self._is_at_end = True
            self._read(False)

    def _written(self) -> None:
        """Read the channel again, or end, once what came is written."""
        if any(out.is_full for out in self._outs.values()):
            if self._window is not None:
                self._window.stalled()
            return
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._channel.resume_reading()
        is_over = self._is_closed and all(out.is_empty for out in self._outs.values())
        if is_over and not self.ended.done():
            self.ended.set_result(None)


class _Outlet:
    """A descriptor, with the data that waits to be written to it by one writev(2)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, written: Callable[[], None]
    ) -> None:
        self.is_full = False  # the descriptor takes no more now
        self._loop, self._fd, self._written = loop, fd, written
        self._waiting: deque[bytes | memoryview] = deque()
        self._is_gone = False

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def put(self, data: bytes) -> None:
        if self._is_gone:
            return
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append(data)

    def _write(self) -> None:
        while self._waiting:
            try:
                written_bytes = os.writev(self._fd, list(islice(self._waiting, _IOV_MAX)))
            except BlockingIOError:
                break
            except OSError:
                self._is_gone = True
                self._waiting.clear()
                break
            while self._waiting and written_bytes >= len(self._waiting[0]):
                written_bytes -= len(self._waiting.popleft())
            if written_bytes:
                self._waiting[0] = memoryview(self._waiting[0])[written_bytes:]
        if bool(self._waiting) != self.is_full:
            self.is_full = not self.is_full
            if self.is_full:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)
        self._written()

    def close(self) -> None:
        self._is_gone = True
        self._waiting.clear()
        if self.is_full:
            self.is_full = False
            self._loop.remove_writer(self._fd)
