"""A program that behaves as ssh does and makes one connection with asyncssh.

    python3 -c '...; main()' SETTINGS

On a pull the receive window of a channel grows with the path, which no stock ssh does.

Not here: what both libraries' programs share (helper.py), what asyncssh does not document
(asyncssh_internals.py). Read next: asyncssh_pump.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import getpass
import os
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import Any

import asyncssh

from pscp.transports.channel import FAILED_STATUS
from pscp.transports.libraries import helper
from pscp.transports.libraries.asyncssh_internals import Config
from pscp.transports.libraries.asyncssh_pump import run_channel
from pscp.transports.libraries.helper import HelperError, Target, Wrong
from pscp.transports.libraries.known_hosts import REVOKED
from pscp.transports.libraries.mux_server import MuxClient, listening
from pscp.transports.ssh_settings import Settings


def main() -> None:
    helper.run(lambda settings: asyncio.run(_serve(settings)))


async def _serve(settings: Settings) -> int:
    """Serve a connection: its own channel, and further ones. Return the exit status."""
    connection, jumps = await connect(settings.host, settings.lines, settings)
    loop = asyncio.get_running_loop()
    further: set[asyncio.Task[None]] = set()

    def accept(listener: socket.socket) -> None:
        client = MuxClient.accept(listener)
        if client is not None:
            task = loop.create_task(_carry(connection, client))
            further.add(task)
            task.add_done_callback(further.discard)

    with listening(settings.control) as listener:
        if listener is not None:
            loop.add_reader(listener, accept, listener)
        if settings.request.text:
            status = await run_channel(connection, settings.request, (0, 1, 2))
        else:
            await connection.wait_closed()
            status = FAILED_STATUS
        helper.hang_up()
        while further:
            await asyncio.wait(further)
    for each in (connection, *jumps):
        each.close()
    return status


# --- the connection


async def connect(
    name: str, lines: tuple[str, ...], settings: Settings, depth: int = 0
) -> tuple[asyncssh.SSHClientConnection, list[asyncssh.SSHClientConnection]]:
    """Log in; return the connection, and those that it goes through. Raises HelperError."""
    with tempfile.TemporaryFile("w+") as own:
        own.write("\n".join([f"Host {name}", *lines, ""]))
        own.flush()
        own.seek(0)
        paths, user = [f"/dev/fd/{own.fileno()}", *settings.files], getpass.getuser()
        try:
            config = Config.read(paths, user, name)
            target = Target.read(name, settings, user, config.words)
        except (OSError, ValueError) as error:
            raise Wrong(f"Bad configuration option: {error}") from None
        helper.check_sockets(target, settings)
        jumps: list[asyncssh.SSHClientConnection] = []
        through = helper.jump_settings(target, depth)
        if through is not None:
            last, before = await connect(*through, settings, depth + 1)
            jumps = [last, *before]
        client = _Client(target, config)
        asked = _arguments(target, config, settings, paths, client)
        if jumps:
            asked["tunnel"] = jumps[0]
        elif not target.proxy_command:
            asked["sock"] = helper.connected(target, settings)
        return await _login(target, client, asked), jumps


async def _login(
    target: Target, client: _Client, asked: dict[str, Any]
) -> asyncssh.SSHClientConnection:
    try:
        with helper.limited(target):
            return await asyncssh.connect(target.name, **asked)
    except (asyncssh.DisconnectError, asyncssh.ChannelOpenError) as error:
        raise _failed(target, client, error) from None
    except TimeoutError:
        raise HelperError(f"connect to host {target.host}: Connection timed out") from None
    except OSError as error:
        raise HelperError(f"Connection closed: {error.strerror or error}") from None
    except (ValueError, asyncssh.KeyImportError) as error:
        raise Wrong(f"Bad configuration option: {error}") from None


def _failed(
    target: Target, client: _Client, error: asyncssh.DisconnectError | asyncssh.ChannelOpenError
) -> HelperError:
    reason = error.reason
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return client.failed or HelperError(f"{reason}. Host key verification failed.")
    if isinstance(error, asyncssh.PermissionDenied):
        tried = ",".join(client.tried or ["publickey"])
        return HelperError(f"{target.login}: Permission denied ({tried}).")
    if isinstance(error, asyncssh.KeyExchangeFailed):
        reason = reason.replace("No matching", "no matching")
        return HelperError(f"Unable to negotiate with {target.host}: {reason}")
    if isinstance(error, asyncssh.ChannelOpenError):
        return HelperError(f"connect to {target.address}: through {target.jump}: {reason}")
    return HelperError(f"Connection closed by {target.host}: {reason}")


def _arguments(
    target: Target, config: Config, settings: Settings, paths: list[str], client: _Client
) -> dict[str, Any]:
    client.known = known = asyncssh.import_known_hosts(target.known_hosts())
    asked: dict[str, Any] = {
        "config": paths, "client_factory": lambda: client, "tunnel": None, "login_timeout": 0,
        "connect_timeout": None,  # it would count the time of people; helper.limited() does not
        "known_hosts": lambda host, _, port: _match(known, host, port, target),
        "command": None, "request_pty": False, "agent_forwarding": False,
        "x11_forwarding": False, "ignore_encrypted": True,
    }  # fmt: skip
    if isinstance(config.get("IdentityFile", ()), list):
        asked["client_keys"] = [*client.identities]
    if settings.ciphers and config.get("Ciphers") is None:
        asked["encryption_algs"] = "^" + ",".join(settings.ciphers)
    if config.get("ServerAliveInterval") is None:
        asked |= {"keepalive_interval": 15, "keepalive_count_max": 4}
    return asked


def _match(known: asyncssh.SSHKnownHosts, host: str, port: int, target: Target) -> tuple[Any, ...]:
    keys, authorities, revoked, *others = known.match(host, "", port)
    # It forgets those of `[host]:port` that are revoked where it has no other line of that name.
    for each in target.known():
        if each.marker == REVOKED:
            with contextlib.suppress(asyncssh.KeyImportError):
                text = f"{each.kind} {base64.b64encode(each.key).decode()}"
                revoked = [*revoked, asyncssh.import_public_key(text)]
    return keys, authorities, revoked, *others


class _Client(asyncssh.SSHClient):
    """Answers what asyncssh asks while it logs in."""

    def __init__(self, target: Target, config: Config) -> None:
        self._target = target
        self.known: asyncssh.SSHKnownHosts | None = None
        self.failed: HelperError | None = None
        self.tried: list[str] = []
        self._passwords_left = self._rounds_left = target.tries
        paths = map(os.path.expanduser, config.words("IdentityFile"))
        self.identities = [path for path in paths if os.path.isfile(path)]

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        assert self.known is not None
        keys, authorities, *_ = self.known.match(host, "", port)
        try:
            kind = key.get_algorithm()
            helper.judge(self._target, kind, key.public_data, bool(keys or authorities))
        except HelperError as error:
            self.failed = error
            return False
        return True

    def auth_banner_received(self, msg: str, lang: str) -> None:
        for line in msg.splitlines():
            helper.say(line)

    def public_key_auth_requested(self) -> list[asyncssh.SSHKey] | None:
        """Return the next encrypted key; asyncssh has tried all others before."""
        self.tried = [*dict.fromkeys([*self.tried, "publickey"])]
        while self.identities:
            path = self.identities.pop(0)
            try:
                asyncssh.read_private_key(path)  # without an error asyncssh has tried this key
            except asyncssh.KeyImportError as error:
                if str(error).startswith("Passphrase"):
                    key = helper.decrypted(self._target, path, partial(_read_key, path))
                    if key is not None:
                        return [key]
        return None

    def password_auth_requested(self) -> str | None:
        self.tried = [*dict.fromkeys([*self.tried, "password"])]
        self._passwords_left -= 1
        if self._passwords_left < 0:
            return None
        is_again = self._passwords_left + 1 < self._target.tries
        return helper.ask_password(self._target, is_again=is_again)

    def kbdint_auth_requested(self) -> str | None:
        self.tried = [*dict.fromkeys([*self.tried, "keyboard-interactive"])]
        self._rounds_left -= 1
        return "" if self._target.may_prompt and self._rounds_left >= 0 else None

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str] | None:
        return helper.answers(self._target, prompts)


def _read_key(path: str, passphrase: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.read_private_key(path, passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return None


# --- channels


async def _carry(connection: asyncssh.SSHClientConnection, client: MuxClient) -> None:
    """Carry a further channel; it ends when the client does."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(run_channel(connection, client.request, client.fds))
    loop.add_reader(client.sock, work.cancel)
    status, failure = FAILED_STATUS, None
    try:
        status = await work
    except HelperError as error:
        failure = error
    except asyncio.CancelledError:
        pass
    finally:
        loop.remove_reader(client.sock)
    client.finish(status, failure)
