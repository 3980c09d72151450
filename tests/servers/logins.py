"""An SSH server made with asyncssh that lets in by a password, or by codes that are good once.

    python3 logins.py FOLDER

Each answer to it is a line of its log: "Accepted password", "Failed code" and so on. Otherwise
as embedded_server.py, which runs the commands.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

import asyncssh

sys.path.append(str(Path(__file__).parents[1]))

from servers.embedded_server import run_command, serve_until_input_ends

HELD_BYTES = 1024 * 1024  # what a session takes before it waits for others
WORK_BYTES = 65536  # more than an agent itself: what has come is a part of a file


class Login(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, settings: dict[str, Any], codes: set[str], together: Together) -> None:
        self._settings, self._codes = settings, codes  # those that are still good
        self._together = together
        self._sessions = 0
        self._password_passed = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        print("Login begins", file=sys.stderr, flush=True)
        return True

    def password_auth_supported(self) -> bool:
        return bool(self._settings["password"]) and not self._settings["asks"]

    def auth_completed(self) -> None:
        self._together.count("awaits")
        if self._settings["refuses"] == "login":
            self._connection.abort()

    def validate_password(self, username: str, password: str) -> bool:
        return told("password", password == self._settings["password"])

    def kbdint_auth_supported(self) -> bool:
        return bool(self._settings["asks"] or self._codes_are_asked())

    def _codes_are_asked(self) -> bool:
        return bool(self._settings["codes"])

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        if self._settings["asks"]:
            return "", "", "", [(self._settings["asks"], False)]
        return self._code_challenge()

    def _code_challenge(self) -> Any:
        return "", "", "", [(self._settings["question"], False)]

    def validate_kbdint_response(self, username: str, responses: Any) -> Any:
        [answer] = responses
        if self._settings["asks"] and not self._password_passed:
            self._password_passed = answer == self._settings["password"]
            if self._password_passed and self._codes_are_asked():
                return self._code_challenge()
            return told("answer", self._password_passed)
        is_good = answer in self._codes
        self._codes.discard(answer)
        return told("code", is_good)

    def session_requested(self) -> Any:
        self._sessions += 1
        if self._sessions > self._settings["max_sessions"]:
            return False
        # asyncssh calls the class with its channel, as it should be; its types expect another one.
        share = Share(self._together)
        sftp = functools.partial(HeldSftp, share)
        made = _Process(self._session, sftp, 3, False)
        made.refuses, made.share = self._settings["refuses"], share
        return made

    async def _session(self, process: Any) -> None:
        shell = self._settings["shell"] or "/bin/sh"
        await run_command(process, shell, self._settings["environment"])


class Together:
    """Whether as many are there as a test waits for."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._missing = {name: settings[name] for name in ("awaits", "awaits_sessions")}
        self._complete = asyncio.Event()

    def count(self, what: str) -> None:
        self._missing[what] -= 1
        if max(self._missing.values()) <= 0:
            self._complete.set()

    async def wait(self) -> None:
        await self._complete.wait()


class Share:
    """What one session takes of a push: after HELD_BYTES it waits for the others."""

    def __init__(self, together: Together) -> None:
        self._together, self._taken = together, 0

    async def wait(self) -> None:
        if self._taken > HELD_BYTES:
            await self._together.wait()

    def take(self, size: int) -> None:
        if self._taken <= WORK_BYTES < self._taken + size:
            self._together.count("awaits_sessions")
        self._taken += size


class Held:
    """What a client sends to a command."""

    def __init__(self, stdin: Any, share: Share) -> None:
        self._stdin, self._share = stdin, share

    async def read(self, size: int) -> bytes:
        await self._share.wait()
        data: bytes = await self._stdin.read(size)
        self._share.take(len(data))
        return data


class HeldSftp(asyncssh.SFTPServer):
    """The SFTP subsystem."""

    def __init__(self, share: Share, chan: Any) -> None:
        super().__init__(chan)
        self._share = share

    async def write(self, file_obj: object, offset: int, data: bytes) -> int:
        await self._share.wait()
        self._share.take(len(data))
        return super().write(file_obj, offset, data)  # type: ignore[return-value]


class _Process(asyncssh.SSHServerProcess[bytes]):
    """One that may refuse commands; the SFTP subsystem is there all the same."""

    refuses = ""  # "exec"; "connection": and ends it then
    share: Share

    @functools.cached_property
    def stdin(self) -> Any:
        return Held(super().stdin, self.share)

    def exec_requested(self, command: str) -> bool:
        if self.refuses == "connection":
            self.channel.get_connection().abort()
        return not self.refuses


def told(what: str, is_good: bool) -> bool:
    print(f"{'Accepted' if is_good else 'Failed'} {what}", file=sys.stderr, flush=True)
    return is_good


async def serve(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    settings["environment"] = {**os.environ, **settings["environment"]}
    codes, together = set(settings["codes"]), Together(settings)

    listener = await asyncssh.listen(
        settings["address"], 0, server_host_keys=[str(folder / "host_key")],
        server_factory=lambda: Login(settings, codes, together), encoding=None,
        line_editor=False, allow_pty=False, gss_host=None,
    )  # fmt: skip
    await serve_until_input_ends(listener)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
