"""A pscp-serve of a test: its own settings, folder and port, and the service manager's side.

Not here: what its users do (the tests).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import argon2
import asyncssh
import forked

T = TypeVar("T")

COMMAND = (sys.executable, "-c", "from pscp.cli.start import pscp_serve; pscp_serve()")
# The least that argon2 can do: what a hash costs is not what is tested.
QUICK_HASHES = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def held_port() -> socket.socket:
    """Return a socket with a port that nobody else gets while it is open. A server of ours does:
    for each worker it asks to share its port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Serving:
    """A server that runs from its begin to its end in a with statement."""

    def __init__(
        self, folder: Path, settings: str, users: str = "", *, listener: socket.socket | None = None
    ) -> None:
        """`settings` and `users` are added to what every server of a test has."""
        self.folder, held = folder, held_port()
        self.port = int(held.getsockname()[1])
        self.let_port_go = weakref.finalize(self, held.close)
        self.config, self.log = folder / "serve.toml", folder / "log.jsonl"
        self.state, self.home = folder / "state", folder / "alice"
        self.home.mkdir(exist_ok=True)
        self._listener = listener
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        (folder / "alice.pub").write_bytes(self.key.export_public_key())
        alice = '[user.alice]\nfolder = "alice"\nrules = ["read", "write"]\nkeys = "alice.pub"\n'
        self.write(settings, users, alice)

    def write(self, settings: str, users: str = "", alice: str = "") -> None:
        """Write the settings, without the user alice if there is no text of hers."""
        self.config.write_text(
            f'listen = "127.0.0.1:{self.port}"\nstate = "state"\nlog = "log.jsonl"\n'
            f"{settings}\n{alice}{users}\n"
        )

    def __enter__(self) -> Serving:
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with told:
            told.bind(f"\0pscp-serve-{os.getpid()}-{self.port}")
            told.settimeout(1)
            environment = {**os.environ, "NOTIFY_SOCKET": "@" + told.getsockname()[1:].decode()}
            argv: list[str] = [*COMMAND, "--config", str(self.config)]
            if self._listener is not None:  # as systemd does: descriptor 3, and whose it is
                fd = self._listener.fileno()
                script = f'exec 3<&{fd}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
                argv = ["bash", "-c", script, "bash", *argv]
                self.process = subprocess.Popen(
                    argv, env=environment, stderr=subprocess.PIPE, text=True, pass_fds=[fd]
                )
            else:
                self.process = forked.start(
                    argv, env=environment, stderr=subprocess.PIPE, text=True
                )
            while not self._is_ready(told):
                assert self.process.poll() is None, self.process.communicate()[1]
        return self

    def _is_ready(self, told: socket.socket) -> bool:
        try:
            return told.recv(4096) == b"READY=1"
        except TimeoutError:
            return False

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        errors = self.process.communicate(timeout=120)[1]
        self.let_port_go()
        assert (self.process.returncode, errors) == (0, ""), errors

    def hang_up(self) -> None:
        """Send SIGHUP, and wait until the settings are read."""
        before = len(self.events("settings"))
        self.process.send_signal(signal.SIGHUP)
        until(lambda: len(self.events("settings")) > before)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of these kinds so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] in kinds]

    def status(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.run(
            [*COMMAND, "--config", str(self.config), *words], capture_output=True, text=True,
            timeout=200,
        )  # fmt: skip

    # --- a client's side

    async def connect(self, user: str = "alice", **more: Any) -> asyncssh.SSHClientConnection:
        """Log in; with alice's key if nothing else is said."""
        given: dict[str, Any] = {
            "client_keys": None if "password" in more else [self.key], "config": None,
            "known_hosts": None, "username": user, "agent_path": None, "gss_host": None,
            "preferred_auth": "password" if "password" in more else "publickey",
        }  # fmt: skip
        if "sock" not in more:
            given |= {"host": "127.0.0.1", "port": self.port}
        return await asyncssh.connect(**{**given, **more})

    def login(self, user: str = "alice", **more: Any) -> bool:
        """Return whether a login succeeds, and a file can be put and read then."""

        async def one() -> bool:
            try:
                connection = await self.connect(user, **more)
            except (asyncssh.PermissionDenied, asyncssh.ConnectionLost, OSError) as error:
                print(f"login: {error!r}")
                return False
            try:
                return await put(connection)
            except (asyncssh.ChannelOpenError, asyncssh.DisconnectError) as error:
                print(f"SFTP: {error!r}")
                return False
            finally:
                connection.close()
                await connection.wait_closed()

        return run(one())


async def put(connection: asyncssh.SSHClientConnection) -> bool:
    """Put a file; return whether it is there then."""
    async with connection.start_sftp_client() as client:
        async with client.open("tried", "wb") as file:
            await file.write(b"x")
        found: bool = await client.exists("tried")
    return found


def run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)


def until(is_so: Callable[[], object]) -> None:
    from conftest import until as wait

    wait(is_so)


def sftp(serving: Serving, words: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    """Run OpenSSH's sftp with a batch."""
    argv = [
        "sftp", "-q", "-b", "-", "-P", str(serving.port), "-oStrictHostKeyChecking=no",
        "-oUserKnownHostsFile=/dev/null", "-oIdentitiesOnly=yes", "-oIdentityAgent=none", *words,
    ]  # fmt: skip
    return subprocess.run(
        argv, input=script, capture_output=True, text=True, timeout=200, check=False
    )
