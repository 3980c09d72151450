"""Channels of a connection that the user's program has made, with paramiko or asyncssh.

Session(transport=client) opens its channels on that connection, which stays open. The library moves
the bytes between the channel and pipes, in this process.

Not here: the loop between a channel of asyncssh and its pipes (asyncssh_pump.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

from pscp.endpoint.frames import system
from pscp.ground.contexts import start_thread
from pscp.ground.errors import ConnectionLost, PscpError, UsageError
from pscp.ground.locations import Location
from pscp.options.connection_options import OF_A_CONNECTION
from pscp.options.options import Options
from pscp.transports.channel import FAILED_STATUS, Pipes
from pscp.transports.openssh import error_of
from pscp.transports.ssh_settings import Request

if TYPE_CHECKING:  # both are extras, and take long to load
    import asyncssh
    import paramiko

_READ_BYTES = 256 * 1024
_ENDING_S = 2.0

# Options that only the program that makes a connection can obey.
_OF_CONNECTIONS = (*OF_A_CONNECTION, "plane", "plane_ports", "persist")


def check(client: object, options: Options) -> None:
    """Raise UsageError if this is no connected client, or for options that it cannot obey."""
    default = Options()
    for name in _OF_CONNECTIONS:
        if getattr(options, name) != getattr(default, name):
            raise UsageError(f"{name}: not for a connection that was handed in", "leave it out")
    _check_client(client)


def _is_paramiko(client: object) -> TypeGuard[paramiko.SSHClient]:
    return type(client).__module__.startswith("paramiko.") and hasattr(client, "get_transport")


def _is_asyncssh(client: object) -> TypeGuard[asyncssh.SSHClientConnection]:
    return type(client).__module__.startswith("asyncssh.") and hasattr(client, "create_session")


def _check_client(client: object) -> None:
    if _is_paramiko(client):
        transport = client.get_transport()
        if transport is None or not transport.is_authenticated():
            raise UsageError("transport: the paramiko.SSHClient is not connected")
    elif not _is_asyncssh(client):
        raise UsageError(
            f"transport: {type(client).__name__} is no paramiko.SSHClient and no "
            "asyncssh.SSHClientConnection"
        )
    else:
        running, loop = None, _loop_of(client)
        with contextlib.suppress(RuntimeError):  # this thread runs none
            running = asyncio.get_running_loop()
        if running is loop:
            what = "this thread runs the event loop of the connection, and pscp would block it"
            hint = "use pscp.aio.Session, or run the loop in another thread"
            raise UsageError(f"transport: {what}", hint)
        if not loop.is_running():
            raise UsageError("transport: the event loop of the connection does not run")


def closed(client: object) -> ConnectionLost | None:
    """Return the error if this connection is closed: pscp cannot make another. None if it lives."""
    if _is_asyncssh(client):
        is_open = not client.is_closed()
    else:
        assert _is_paramiko(client)
        transport = client.get_transport()
        is_open = transport is not None and transport.is_active()
    if is_open:
        return None
    hint = "open a new one, and a new Session with it"
    error = ConnectionLost("the connection that was handed in is closed", hint)
    error.retry = False
    return error


def _loop_of(client: asyncssh.SSHClientConnection) -> asyncio.AbstractEventLoop:
    from pscp.transports.libraries.asyncssh_internals import loop_of  # asyncssh takes long to load

    return loop_of(client)


def place_of(client: object) -> Location:
    """Return the other end's address. Raises UsageError if this is no connected client."""
    _check_client(client)
    name: object = None
    if _is_asyncssh(client):
        name = client.get_extra_info("peername")
    elif _is_paramiko(client):
        name = client.get_transport().getpeername()
    host, port = (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("lent", None)
    return Location("", "", host=host, port=port)


class LentChannel(Pipes):
    """A channel of the connection, a thread that serves it, and pipes between the two."""

    pid = 0  # there is no other process

    def __init__(self, client: object, request: Request) -> None:
        super().__init__()
        self._client = client
        self._stop: Callable[[], object] = lambda: None
        self._status, self._failure = FAILED_STATUS, ""
        self._is_ended = False
        self._thread = start_thread("channel", self._serve, client, request)

    def _serve(self, client: object, request: Request) -> None:
        try:
            if _is_asyncssh(client):
                self._status = self._by_asyncssh(client, request)
            else:
                assert _is_paramiko(client)
                transport, fds = client.get_transport(), self.far_fds
                self._status = serve_paramiko(transport, request, fds, self._opened)
        except Exception as error:  # from the library
            self._failure = f"Connection closed: {error}"
        finally:
            for fd in self.far_fds:
                os.close(fd)

    def _opened(self, channel: paramiko.Channel) -> None:
        self._stop = channel.close
        if self._is_ended:
            channel.close()

    def _by_asyncssh(self, client: asyncssh.SSHClientConnection, request: Request) -> int:
        from pscp.transports.libraries.asyncssh_pump import run_channel

        loop, fds = _loop_of(client), self.far_fds

        async def carry() -> int:
            task = asyncio.current_task()
            assert task is not None
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            return FAILED_STATUS if self._is_ended else await run_channel(client, request, fds)

        # This future is not cancelled: it would end while the loop still uses the pipes.
        return asyncio.run_coroutine_threadsafe(carry(), loop).result()

    def end(self) -> None:
        self._is_ended = True
        # The loop was closed, or paramiko's connection is lost just now.
        with contextlib.suppress(RuntimeError, EOFError, OSError):
            self._stop()

    def close(self) -> None:
        self.end()
        self._close_fds(3)
        self._thread.join(_ENDING_S)

    def explain(self, messages: str, /) -> PscpError:
        self._thread.join(_ENDING_S)
        # Of a channel that was ended here the agent's own status may still have come: 0.
        status = self._status or (FAILED_STATUS if self._is_ended else 0)
        return closed(self._client) or error_of(status, messages or self._failure)


# --- paramiko


def serve_paramiko(
    transport: paramiko.Transport,
    request: Request,
    fds: tuple[int, int, int],
    opened: Callable[[paramiko.Channel], None],
) -> int:
    """Run a command or subsystem with these descriptors; return its status. Raises HelperError.

    `opened` is called with the channel.
    """
    import paramiko

    from pscp.transports.libraries.helper import HelperError

    try:
        channel = transport.open_session()
    except paramiko.SSHException as error:
        raise HelperError(f"Session open refused by peer: {error}") from None
    opened(channel)
    try:
        if request.is_subsystem:
            channel.invoke_subsystem(request.text)
        else:
            channel.exec_command(request.text)
    except paramiko.SSHException:
        what = "subsystem" if request.is_subsystem else "exec"
        raise HelperError(f"{what} request failed on channel 0") from None
    # A copy of the descriptor, since this thread may outlive the channel:
    start_thread("channel in", _feed, channel, os.dup(fds[0]))
    errors = start_thread(None, _drain, channel.recv_stderr, fds[2])
    try:
        _drain(channel.recv, fds[1])
        errors.join()
        status = int(channel.recv_exit_status())
    finally:
        channel.close()
        errors.join()  # from here on the caller may close the descriptors
    if status < 0 and not transport.is_active():
        raise HelperError("Connection closed by remote host")
    return status if status >= 0 else FAILED_STATUS


def _feed(channel: paramiko.Channel, fd: int) -> None:
    """Send the command's input, up to its end, and close the descriptor."""
    try:
        with contextlib.suppress(Exception):  # from the library: who reads the channel tells why
            while data := os.read(fd, _READ_BYTES):
                channel.sendall(data)
            channel.shutdown_write()
    finally:
        os.close(fd)


def _drain(receive: Callable[[int], bytes], fd: int) -> None:
    """Write what the channel brings, up to its end, or drop it once nobody reads it."""
    is_read = True
    while data := receive(_READ_BYTES):
        try:
            if is_read:
                system.write_all(fd, [data])
        except OSError:
            is_read = False
