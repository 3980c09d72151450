"""One connection's login: which user it is for, and how it is proven.

A user proves a login with a key, with a certificate of an authority, or with a password. Once that
is done the connection has the User.

Not here: who is let in to try (gate.py), what a user may do (../settings.py has the words).
Read next: gate.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import argon2
import asyncssh

from pscp.ground.errors import UsageError
from pscp.serve.programs import run
from pscp.serve.server import gate
from pscp.serve.server.config import NAME, user_of
from pscp.serve.session import Sessions
from pscp.serve.settings import Current, User
from pscp.transports.libraries.asyncssh_server_internals import Connection

_GUESSES = 6  # passwords, and names, of a connection, as sshd's MaxAuthTries
_COMMAND_S = 10.0
_ASKING = ThreadPoolExecutor(8, "command")  # commands at once
# One at a time: each takes 64 MiB of memory, and a processor.
_HASHING = ThreadPoolExecutor(1, "argon2")
# Held by the one connection of an address that waits for these, so that no address fills the queue.
_TURNS = weakref.WeakValueDictionary[str, asyncio.Lock]()


def hash_of_nobody() -> str:
    """Return a hash that is of no password that anyone knows, and takes as long to verify.

    To make one of a password would take the time and memory of that at each start.
    """
    usual = argon2.PasswordHasher()
    random = (os.urandom(usual.salt_len), os.urandom(usual.hash_len))
    salt, digest = (base64.b64encode(each).decode().rstrip("=") for each in random)
    version, costs = argon2.low_level.ARGON2_VERSION, (usual.memory_cost, usual.time_cost)
    how = "m={},t={},p={}".format(*costs, usual.parallelism)
    return f"$argon2id$v={version}${how}${salt}${digest}"


_NOBODY = hash_of_nobody()  # a user that there is not takes as long to refuse as any other


class Logins(asyncssh.SSHServer):
    """Answers for one connection until its user is known, and counts it until its end."""

    def __init__(self, current: Current, its_gate: gate.Gate, sessions: Sessions) -> None:
        self._current = current
        self._gate = its_gate
        self._sessions = sessions
        self._told = sessions.events
        self._users: dict[str, User | None] = {}  # that this connection has asked for
        self._proven = ""  # the name for which a password was right
        self._guesses = 0
        self._has_tried = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        assert isinstance(conn, Connection)
        self._conn, self._address = conn, conn.address

    def connection_lost(self, exc: Exception | None) -> None:
        seconds, user = time.monotonic() - self._conn.began_s, self._conn.user
        self._gate.leave(self._address)
        if user is not None:
            self._gate.leave_user(user.name)
            self._told.tell("logout", user.name, self._address, why=str(exc or ""))
            return
        is_late = seconds >= self._current.settings.login_time
        cost_s = gate.LATE_S if is_late else gate.FAILED_S if self._has_tried else gate.NOTHING_S
        self._gate.penalize(self._address, cost_s)
        if is_late:
            self._refuse("", "no login in time")

    def _refuse(self, user: str, why: str) -> None:
        # Counted by users that there are: names that somebody makes up are without number.
        self._told.count("refused", user if user in self._current.settings.users else "")
        if self._gate.is_told(self._address):
            self._told.tell("refused", user, self._address, what="login", why=why)

    # --- who it is

    async def begin_auth(self, username: str) -> bool:
        settings = self._current.settings
        self._has_tried = True
        if len(self._users) >= _GUESSES:
            self._end_guessing()
            return True
        user = settings.users.get(username)
        if user is None and settings.command and NAME.fullmatch(username):
            command = [*settings.command, username]
            async with turn(self._address):
                loop = asyncio.get_running_loop()
                user = await loop.run_in_executor(
                    _ASKING, asked, self._current.settings.state, command, self._address
                )
        if user is not None and not self._is_from(user):
            self._refuse(username, "not from this address")
            user = None
        self._users[username] = user
        keys = self._keys_of(user)
        self._conn.set_authorized_keys(keys)  # None: no key is right
        return True

    def _is_from(self, user: User) -> bool:
        return not user.addresses or gate.is_within(self._address, user.addresses)

    def _keys_of(self, user: User | None) -> asyncssh.SSHAuthorizedKeys | None:
        """Return what proves this user's logins; what cannot be read proves none."""
        if user is None:
            return None
        lines = list[str]()
        try:
            for file in _files(user.keys):
                lines += _text(file).splitlines()
            if user.ca:
                lines += _authorities(_text(user.ca), user.name)
            return asyncssh.import_authorized_keys("\n".join(lines)) if lines else None
        except (OSError, ValueError) as error:
            self._refuse(user.name, f"keys: {error}")
            return None

    # --- how it is proven

    def password_auth_supported(self) -> bool:
        settings = self._current.settings
        return bool(settings.command) or any(user.password for user in settings.users.values())

    async def validate_password(self, username: str, password: str) -> bool:
        user = self._users.get(username)
        if pause_s := self._gate.pause_s(username):
            await asyncio.sleep(pause_s)
        known = user.password if user is not None and user.password else _NOBODY
        if await is_right(known, password, self._address):
            self._proven = username
            return True
        self._guesses += 1
        self._gate.penalize_user(username)
        self._refuse(username, "wrong password")
        if self._guesses >= _GUESSES:
            self._end_guessing()
        return False

    def _end_guessing(self) -> None:
        self._conn.disconnect(
            asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "Too many authentication failures"
        )

    def auth_completed(self) -> None:
        name = str(self._conn.get_extra_info("username"))
        user = self._users.get(name)
        if user is None or not os.path.isdir(user.folder):
            self._refuse(name, f"{user.folder} is no folder" if user else "nobody of this name")
            self._conn.abort()
            return
        if not self._gate.enter_user(name):
            self._gate.leave_user(name)
            self._refuse(name, "too many connections of this user")
            self._conn.disconnect(asyncssh.DISC_TOO_MANY_CONNECTIONS, "Too many connections")
            return
        self._conn.user = user
        how = "password" if self._proven == name else "key"
        self._told.tell("login", name, self._address, "logins", how=how)

    def session_requested(self) -> Any:
        return self._sessions.requested(self._conn)


def _files(keys: str) -> list[str]:
    """Return the files of keys: this one, or all in this folder that are not hidden."""
    if not keys or not os.path.isdir(keys):
        return [keys] if keys else []
    return [os.path.join(keys, name) for name in sorted(os.listdir(keys)) if name[0] != "."]


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _authorities(text: str, name: str) -> Iterator[str]:
    """Yield the keys of authorities as authorized_keys has them, with the options that they have.

    A certificate has to name the user, if no principals are said: one that names nobody is
    anybody's for asyncssh.
    """
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            options = "" if "principals=" in line else f',principals="{name}"'
            between = " " if line.startswith(("ssh-", "ecdsa-", "sk-")) else ","
            yield f"cert-authority{options}{between}{line}"


def turn(address: str) -> asyncio.Lock:
    """Return what a connection from this address holds while it has the server work for it."""
    return _TURNS.setdefault(gate.source_of(address), asyncio.Lock())


async def is_right(known: str, password: str, address: str) -> bool:
    """Return whether a password is that of a hash, once it is the turn of who gives it."""
    async with turn(address):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_HASHING, _is_right, known, password)


def _is_right(known: str, password: str) -> bool:
    try:
        return argon2.PasswordHasher().verify(known, password)
    except (argon2.exceptions.Argon2Error, argon2.exceptions.InvalidHashError):
        return False


def asked(state: str, command: list[str], address: str) -> User | None:
    """Ask a command for its last argument: it prints a user's table as JSON, or fails for none."""
    environment = {**os.environ, "PSCP_ADDRESS": address}
    try:
        done = run(state, command, timeout_s=_COMMAND_S, env=environment)
        return user_of(command[-1], json.loads(done.stdout)) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, UsageError):
        return None
