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

HELD_BYTES = 4 * 1024 * 1024  # what a session takes before it waits for other logins
together = asyncio.Event()  # as many as `awaits` have logged in
accepted = 0


class Login(asyncssh.SSHServer):
    """One connection."""

    def __init__(self, settings: dict[str, Any], codes: set[str]) -> None:
        self._settings, self._codes = settings, codes  # those that are still good
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
        global accepted
        accepted += 1
        if accepted >= self._settings["awaits"]:
            together.set()
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
        made = _Process(self._session, asyncssh.SFTPServer, 3, False)  # type: ignore[arg-type]
        made.refuses = self._settings["refuses"]
        return made

    async def _session(self, process: Any) -> None:
        shell = self._settings["shell"] or "/bin/sh"
        await run_command(process, shell, self._settings["environment"])


class Held:
    """What a client sends: after HELD_BYTES it is read only when the others have logged in."""

    def __init__(self, stdin: Any) -> None:
        self._stdin, self._taken = stdin, 0

    async def read(self, size: int) -> bytes:
        if self._taken > HELD_BYTES:
            await together.wait()
        data: bytes = await self._stdin.read(size)
        self._taken += len(data)
        return data


class _Process(asyncssh.SSHServerProcess[bytes]):
    """One that may refuse commands; the SFTP subsystem is there all the same."""

    refuses = ""  # "exec"; "connection": and ends it then

    @functools.cached_property
    def stdin(self) -> Any:
        return Held(super().stdin)

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
    codes = set(settings["codes"])

    listener = await asyncssh.listen(
        settings["address"], 0, server_host_keys=[str(folder / "host_key")],
        server_factory=lambda: Login(settings, codes), encoding=None,
        line_editor=False, allow_pty=False, gss_host=None,
    )  # fmt: skip
    await serve_until_input_ends(listener)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
