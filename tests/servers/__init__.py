"""SSH servers other than sshd and pscp's own, each a child process, for the tests.

Not here: the fixtures (../conftest.py). Read next: paramiko_server.py, logins.py, go/main.go.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pscp.servers import PrivateServer

HERE = Path(__file__).parent
GO_PACKAGES = Path("/usr/share/gocode")  # where Debian's golang-*-dev put them
GO_CACHE = Path("~/.cache/go-build").expanduser()  # before HOME is changed


class ParamikoServer(PrivateServer):
    """Made with paramiko: commands, and SFTP."""

    kind = "paramiko"

    def _start(self) -> None:
        self._start_child([sys.executable, str(HERE / "paramiko_server.py")])


class GoServer(PrivateServer):
    """Made with Go's own ssh and sftp packages: commands, and SFTP."""

    kind = "go"

    def _start(self) -> None:
        self._start_child([str(built_go_server())])


class LoginServer(PrivateServer):
    """Made with asyncssh: lets in by password or one-time codes, and counts how often it did.

    `password`: by it, with the method of this name or, with `asks`, as an answer to that question.
    `codes`: each lets in once, as an answer to `question`. `max_sessions`: of a connection.
    `refuses`: "exec", commands; "connection", and it ends the connection then.
    """

    kind = "logins"

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        password: str = "",
        asks: str = "",
        codes: tuple[str, ...] = (),
        question: str = "Verification code: ",
        max_sessions: int = 10,
        refuses: str = "",
        shell: str | None = None,
    ) -> None:
        self.settings: dict[str, Any] = {
            "password": password, "asks": asks, "codes": codes, "question": question,
            "max_sessions": max_sessions, "refuses": refuses,
        }  # fmt: skip
        super().__init__(environment=environment, shell=shell)

    def _start(self) -> None:
        self._start_child([sys.executable, str(HERE / "logins.py")], **self.settings)

    def _write_client_files(self) -> None:
        super()._write_client_files()
        path = Path(self.ssh_config)
        methods = "PreferredAuthentications "
        text = path.read_text().replace(
            f"{methods}publickey", f"{methods}password,keyboard-interactive"
        )
        path.write_text(text)

    @property
    def begun(self) -> int:
        return self.log.count("Login begins")

    @property
    def accepted(self) -> int:
        return self.log.count("Accepted ")

    @property
    def refused(self) -> int:
        """Answers that were wrong."""
        return self.log.count("Failed ")


def why_no_go() -> str:
    """What a server in Go lacks here; empty: nothing."""
    if shutil.which("go") is None:
        return "go is not installed"
    lacking = [
        name for name in ("golang.org/x/crypto/ssh", "github.com/pkg/sftp")
        if not (GO_PACKAGES / "src" / name).is_dir()
    ]  # fmt: skip
    return f"the Go package {lacking[0]} is not installed" if lacking else ""


@functools.cache
def built_go_server() -> Path:
    """Built once for the whole run, without the network."""
    program = Path(tempfile.mkdtemp(prefix="pscp-go-")) / "server"
    atexit.register(shutil.rmtree, program.parent, ignore_errors=True)
    environment = {
        **os.environ, "GOPATH": str(GO_PACKAGES), "GO111MODULE": "off", "GOFLAGS": "",
        "GOCACHE": str(GO_CACHE), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0",
    }  # fmt: skip
    argv = ["go", "build", "-o", str(program), str(HERE / "go" / "main.go")]
    subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, check=True)
    return program
