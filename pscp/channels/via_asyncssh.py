"""A program with the manners of ssh that makes one connection with asyncssh.

    python3 -c '...; main()' SETTINGS

On a pull it does what no stock ssh does: the receive window of a channel grows with the path.

Not here: what both libraries' programs share (manners.py). Read next: window.py.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

import asyncssh
from asyncssh.config import SSHClientConfig
from asyncssh.constants import MSG_CHANNEL_WINDOW_ADJUST
from asyncssh.packet import UInt32

from pscp.channels import manners
from pscp.channels.manners import FAILED_STATUS, Failed, Rider, Target, Wrong
from pscp.channels.settings import Request, Settings
from pscp.channels.window import FIRST_BYTES, GRANTS, Window, round_trip_s

_WRITE_BUFFER_BYTES = 1024 * 1024  # waits to be encrypted; below, the pipe is read again
_IOV_MAX = 512  # of IOV_MAX, 1024
_list = SSHClientConfig._set_string_list  # a keyword whose words are taken as they are
_OWN_KEYWORDS = (
    "AddressFamily", "BatchMode", "BindInterface", "GlobalKnownHostsFile", "KnownHostsCommand",
    "NumberOfPasswordPrompts", "ProxyUseFdpass", "RevokedHostKeys", "StrictHostKeyChecking",
    "UserKnownHostsFile",
)  # fmt: skip


def main() -> None:
    manners.run(lambda settings: asyncio.run(_serve(settings)))


async def _serve(settings: Settings) -> int:
    """The connection, its own channel, and those of riders. The exit status."""
    connection, jumps = await connect(settings.host, settings.lines, settings)
    loop = asyncio.get_running_loop()
    riders: set[asyncio.Task[None]] = set()
    with manners.listening(settings.control) as listener:
        if listener is not None:
            loop.add_reader(listener, lambda: _accept(connection, listener, riders))
        status = await run_channel(connection, settings.request, (0, 1, 2))
        manners.hang_up()
        while riders:
            await asyncio.wait(riders)
    for each in (connection, *jumps):
        each.close()
    return status


# --- the connection


class _Config(SSHClientConfig):
    """With the keywords that asyncssh leaves to its caller."""

    _handlers = {
        **SSHClientConfig._handlers, **{name.lower(): (name, _list) for name in _OWN_KEYWORDS},
    }  # fmt: skip


def _files(name: str, lines: tuple[str, ...], files: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The configuration's files, the first of which holds the lines; closed, that one is gone."""
    own = tempfile.TemporaryFile("w+")
    own.write("\n".join([f"Host {name}", *lines, ""]))
    own.flush()
    own.seek(0)
    return own, [f"/dev/fd/{own.fileno()}", *files]


def _target(name: str, paths: list[str], settings: Settings) -> tuple[Target, _Config]:
    user = getpass.getuser()
    try:
        config = _Config.load(None, paths, False, False, False, user, (), name, ())
        assert isinstance(config, _Config)

        def get(keyword: str) -> list[str]:
            name, _ = _Config._handlers[keyword.lower()]
            value = config.get(name)
            return [str(each) for each in value] if isinstance(value, list) else (
                [] if value is None else [str(value)])  # fmt: skip

        return Target.read(name, settings, user, get), config
    except (OSError, ValueError) as error:
        raise Wrong(f"Bad configuration option: {error}") from None


async def connect(
    name: str, lines: tuple[str, ...], settings: Settings, depth: int = 0
) -> tuple[asyncssh.SSHClientConnection, list[asyncssh.SSHClientConnection]]:
    """A connection that has logged in, and those that it goes through. Raises Failed."""
    own, paths = _files(name, lines, settings.files)
    with own:
        target, config = _target(name, paths, settings)
        manners.check_sockets(target, settings)
        jumps: list[asyncssh.SSHClientConnection] = []
        through = manners.jump_settings(target, settings)
        if through is not None:
            if depth == manners.MAX_JUMPS:
                raise Wrong(f"ProxyJump {target.jump}: too many hosts to jump through")
            last, before = await connect(*through, settings, depth + 1)
            jumps = [last, *before]
        client = _Client(target, config)
        asked = _arguments(target, config, settings, paths, client)
        return await _login(target, settings, client, jumps, asked), jumps


async def _login(
    target: Target, settings: Settings, client: _Client,
    jumps: list[asyncssh.SSHClientConnection], asked: dict[str, Any],
) -> asyncssh.SSHClientConnection:  # fmt: skip
    if jumps:
        asked["tunnel"] = jumps[0]
    elif not target.proxy_command:
        asked["sock"] = manners.connected(target, settings)
    try:
        return await asyncssh.connect(target.name, **asked)
    except asyncssh.HostKeyNotVerifiable as error:
        failed = client.failed or Failed(f"{error.reason}. Host key verification failed.")
        raise failed from None
    except asyncssh.PermissionDenied:
        tried = ",".join(client.tried or ["publickey"])
        raise Failed(f"{target.user}@{target.host}: Permission denied ({tried}).") from None
    except asyncssh.KeyExchangeFailed as error:
        said = error.reason.replace("No matching", "no matching")
        raise Failed(f"Unable to negotiate with {target.host}: {said}") from None
    except asyncssh.ChannelOpenError as error:
        where = f"host {target.host} port {target.port}"
        raise Failed(f"connect to {where}: through {target.jump}: {error.reason}") from None
    except asyncssh.DisconnectError as error:
        raise Failed(f"Connection closed by {target.host}: {error.reason}") from None
    except TimeoutError:
        raise Failed(f"connect to host {target.host}: Connection timed out") from None
    except OSError as error:
        raise Failed(f"Connection closed: {error.strerror or error}") from None
    except (ValueError, asyncssh.KeyImportError) as error:
        raise Wrong(f"Bad configuration option: {error}") from None


def _arguments(
    target: Target, config: _Config, settings: Settings, paths: list[str], client: _Client
) -> dict[str, Any]:
    known = asyncssh.import_known_hosts(target.known_hosts())
    client.known = known
    asked: dict[str, Any] = {
        "config": paths, "client_factory": lambda: client, "tunnel": None, "login_timeout": 0,
        "known_hosts": lambda host, _, port: known.match(host, "", port),
        "command": None, "request_pty": False, "agent_forwarding": False,
        "x11_forwarding": False, "ignore_encrypted": True,
    }  # fmt: skip
    identities = config.get("IdentityFile", ())
    if isinstance(identities, list):
        expanded = [os.path.expanduser(path) for path in identities]
        asked["client_keys"] = [path for path in expanded if os.path.isfile(path)]
    if settings.ciphers and config.get("Ciphers") is None:
        asked["encryption_algs"] = "^" + ",".join(settings.ciphers)
    if config.get("ServerAliveInterval") is None:
        asked |= {"keepalive_interval": 15, "keepalive_count_max": 4}
    return asked


class _Client(asyncssh.SSHClient):
    """What a connection asks its user."""

    def __init__(self, target: Target, config: _Config) -> None:
        self._target = target
        self.known: Any = None
        self.failed: Failed | None = None
        self.tried: list[str] = []
        self._passwords_left = self._rounds_left = target.tries
        identities = config.get("IdentityFile")
        self._identities = list(identities) if isinstance(identities, list) else []

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        keys, authorities, *_ = self.known.match(host, "", port)
        try:
            kind = key.get_algorithm()
            manners.judge(self._target, kind, key.public_data, bool(keys or authorities))
        except Failed as error:
            self.failed = error
            return False
        return True

    def auth_banner_received(self, msg: str, lang: str) -> None:
        for line in msg.splitlines():
            manners.say(line)

    def public_key_auth_requested(self) -> Any:
        """The keys that are encrypted come last, and one at a time."""
        self.tried = [*dict.fromkeys([*self.tried, "publickey"])]
        while self._identities:
            path = os.path.expanduser(self._identities.pop(0))
            if os.path.isfile(path) and (key := self._decrypted(path)) is not None:
                return [key]
        return None

    def _decrypted(self, path: str) -> asyncssh.SSHKey | None:
        try:
            asyncssh.read_private_key(path)
            return None  # that one was tried already
        except asyncssh.KeyImportError as error:
            if not str(error).startswith("Passphrase"):
                return None
        for _ in range(self._target.tries):
            given = manners.prompt(self._target, f"Enter passphrase for key '{path}': ")
            if not given:
                return None
            try:
                return asyncssh.read_private_key(path, given)
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
                continue
        return None

    def password_auth_requested(self) -> str | None:
        self.tried = [*dict.fromkeys([*self.tried, "password"])]
        self._passwords_left -= 1
        if self._passwords_left < 0:
            return None
        where = f"{self._target.user}@{self._target.host}"
        return manners.prompt(self._target, f"{where}'s password: ")

    def kbdint_auth_requested(self) -> str | None:
        self.tried = [*dict.fromkeys([*self.tried, "keyboard-interactive"])]
        self._rounds_left -= 1
        return "" if self._target.may_prompt and self._rounds_left >= 0 else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Any
    ) -> Any:
        answers = []
        for question, is_echoed in prompts:
            answer = manners.prompt(self._target, question, is_secret=not is_echoed)
            if answer is None:
                return None
            answers.append(answer)
        return answers


# --- channels


def _accept(
    connection: asyncssh.SSHClientConnection, listener: socket.socket,
    riders: set[asyncio.Task[None]],
) -> None:  # fmt: skip
    sock, _ = listener.accept()
    try:
        rider = Rider(sock)
    except (OSError, ValueError):
        sock.close()
        return
    task = asyncio.get_running_loop().create_task(_carry(connection, rider))
    riders.add(task)
    task.add_done_callback(riders.discard)


async def _carry(connection: asyncssh.SSHClientConnection, rider: Rider) -> None:
    """A rider's channel, which ends when the rider does."""
    loop = asyncio.get_running_loop()
    stdin, stdout, stderr = rider.fds
    work = loop.create_task(run_channel(connection, rider.request, (stdin, stdout, stderr)))
    loop.add_reader(rider.sock, work.cancel)
    try:
        status = await work
    except Failed as error:
        os.write(stderr, f"{error}\n".encode())
        status = FAILED_STATUS
    except asyncio.CancelledError:
        status = FAILED_STATUS
    finally:
        loop.remove_reader(rider.sock)
    rider.answer(status)
    rider.close()


async def run_channel(
    connection: asyncssh.SSHClientConnection, request: Request, fds: tuple[int, int, int]
) -> int:
    """Run a command or subsystem between these descriptors. Its exit status. Raises Failed."""
    loop = asyncio.get_running_loop()
    begun_s = time.monotonic()
    pump = Pump(loop, fds)
    text, is_subsystem = request
    try:
        channel, _ = await connection.create_session(
            lambda: pump, **{"subsystem" if is_subsystem else "command": text},
            encoding=None, window=FIRST_BYTES, request_pty=False,
        )  # fmt: skip
    except asyncssh.ChannelOpenError as error:
        pump.release()
        if error.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
            what = "subsystem" if is_subsystem else "exec"
            raise Failed(f"{what} request failed on channel 0") from None
        raise Failed(f"Session open refused by peer: {error.reason}") from None
    except asyncssh.DisconnectError as error:
        raise Failed(f"Connection closed: {error.reason}") from None
    rtt_s = round_trip_s(connection.get_extra_info("socket"))
    pump.begin(rtt_s or (time.monotonic() - begun_s) / 2)  # else by the channel, and the command
    try:
        await pump.ended
    finally:
        pump.release()
        channel.close()
    status = channel.get_exit_status()
    if status is None or status < 0:
        if channel.get_exit_signal() is None:
            raise Failed(f"Connection closed by remote host{pump.why}")
        return FAILED_STATUS
    return status


class Pump(asyncssh.SSHClientSession[bytes]):
    """Moves bytes between a channel and three descriptors, as fast as the slower end takes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fds: tuple[int, int, int]) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self.why = ""
        self._loop, self._in = loop, fds[0]
        self._outs = {
            None: _Outlet(loop, fds[1], self._written),
            asyncssh.EXTENDED_DATA_STDERR: _Outlet(loop, fds[2], self._written),
        }
        for fd in fds:
            os.set_blocking(fd, False)
        self._channel: Any = None
        self._window: Window | None = None
        self._is_paused = self._is_closed = False
        self._is_reading = False
        self._is_at_end = False  # of the input

    # --- called by the program

    def begin(self, rtt_s: float) -> None:
        self._window = Window(rtt_s)
        if not self._is_closed:
            self._channel.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
            self._read(True)

    def release(self) -> None:
        self._read(False)
        for out in self._outs.values():
            out.close()

    # --- called by asyncssh

    def connection_made(self, chan: Any) -> None:
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
        """What was read, and what the window grew by; asyncssh alone would wait for half of it."""
        channel = self._channel
        granted_bytes = window_bytes - channel._recv_window
        if granted_bytes * GRANTS >= window_bytes and not self._is_paused:
            channel.send_packet(MSG_CHANNEL_WINDOW_ADJUST, UInt32(granted_bytes))
            channel._recv_window = channel._init_recv_window = window_bytes

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
            data = os.read(self._in, manners.READ_BYTES)
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
        except OSError:  # closed, and connection_lost() is to come
            self._is_at_end = True
            self._read(False)

    def _written(self) -> None:
        """Something was written: is that all there was?"""
        if any(out.is_full for out in self._outs.values()):
            if self._window is not None:
                self._window.stalled()
            return
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._channel.resume_reading()
        if self._is_closed and not self.ended.done():
            if all(out.is_empty for out in self._outs.values()):
                self.ended.set_result(None)


class _Outlet:
    """A descriptor that is written once for all that came at once."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, written: Callable[[], None]
    ) -> None:
        self.is_full = False
        self._loop, self._fd, self._written = loop, fd, written
        self._waiting: list[bytes | memoryview] = []
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
            part = self._waiting[:_IOV_MAX]
            try:
                count = os.writev(self._fd, part)
            except BlockingIOError:
                break
            except OSError:
                self._is_gone = True
                self._waiting.clear()
                break
            self._drop(count)
        if bool(self._waiting) != self.is_full:
            self.is_full = not self.is_full
            if self.is_full:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)
        self._written()

    def _drop(self, count: int) -> None:
        done = 0
        for data in self._waiting:
            if count < len(data):
                break
            count -= len(data)
            done += 1
        del self._waiting[:done]
        if count:
            self._waiting[0] = memoryview(self._waiting[0])[count:]

    def close(self) -> None:
        self._is_gone = True
        self._waiting.clear()
        if self.is_full:
            self.is_full = False
            self._loop.remove_writer(self._fd)
