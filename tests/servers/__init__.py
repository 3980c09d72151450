"""SSH servers other than sshd and pscp's own, each a child process, for the tests.

Not here: the fixtures (../conftest.py). Read next: paramiko_server.py, logins.py, go/main.go.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from servers.private import PrivateServer, SshdServer

HERE = Path(__file__).parent
GO_PACKAGES = Path("/usr/share/gocode")  # where Debian's golang-*-dev put them
GO_CACHE = Path("~/.cache/go-build").expanduser()  # before HOME is changed


class ParamikoServer(PrivateServer):
    """Made with paramiko: commands, and SFTP. With `is_bare` no commands, and no posix-rename."""

    kind = "paramiko"

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, is_bare: bool = False
    ) -> None:
        self._is_bare = is_bare
        super().__init__(environment=environment)

    def _start(self) -> None:
        argv = [sys.executable, str(HERE / "paramiko_server.py")]
        self._start_child(argv, is_bare=self._is_bare)


class GoServer(PrivateServer):
    """Made with Go's own ssh and sftp packages: commands, and SFTP."""

    kind = "go"

    def _start(self) -> None:
        self._start_child([str(built_go_server())])


class LoginServer(PrivateServer):
    """Made with asyncssh: lets in by password or one-time codes, and counts how often it did.

    `password`: by it, with the method of this name or, with `asks`, as an answer to that question.
    `codes`: each lets in once, as an answer to `question`. `max_sessions`: of a connection.
    `awaits`, `awaits_sessions`: none goes on amidst a push before there have been as many logins,
    and as many sessions have taken a part of it.
    `refuses`: "exec", commands; "connection", and it ends the connection then; "login", and it
    ends the connection once it has accepted one.
    """

    kind = "logins"

    USUAL: ClassVar[dict[str, Any]] = {
        "password": "", "asks": "", "codes": (), "question": "Verification code: ",
        "max_sessions": 10, "refuses": "", "awaits": 1, "awaits_sessions": 1,
    }  # fmt: skip

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, shell: str | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        assert settings.keys() <= self.USUAL.keys()
        self.settings = {**self.USUAL, **settings}
        super().__init__(environment=environment, shell=shell)

    def _start(self) -> None:
        self._start_child([sys.executable, str(HERE / "logins.py")], **self.settings)

    def _write_client_files(self) -> None:
        super()._write_client_files()
        _prefer_passwords(self)

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


class PasswordSshd(SshdServer):
    """sshd that lets root in by `password` alone: through PAM, or by the shadow file itself.

    Its /etc/shadow and /etc/pam.d are its own, in a mount namespace that ends with it.
    """

    kind = "sshd with passwords"

    def __init__(
        self,
        password: str,
        has_pam: bool,
        extra_config: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._password = password
        methods = ("no", "yes") if has_pam else ("yes", "no")
        lines = [
            *extra_config, f"UsePAM {'yes' if has_pam else 'no'}", "PermitRootLogin yes",
            "PubkeyAuthentication no", f"PasswordAuthentication {methods[0]}",
            f"KbdInteractiveAuthentication {methods[1]}",
        ]  # fmt: skip
        super().__init__(lines, environment=environment)

    def _spawn(
        self, argv: Sequence[str], cwd: Path | None, *, pipes: bool
    ) -> subprocess.Popen[bytes]:
        shadow, pam = self.folder / "shadow", self.folder / "pam.d"
        made = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=self._password, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        shadow.write_text(f"{self.user}:{made.stdout.strip()}:20000:0:99999:7:::\n")
        shadow.chmod(0o600)
        pam.mkdir(exist_ok=True)
        kinds = ("auth", "account", "session")
        (pam / "sshd").write_text("".join(f"{kind} required pam_unix.so\n" for kind in kinds))
        script = (
            'mount --bind "$1" /etc/shadow && mount --bind "$2" /etc/pam.d && shift 2 && exec "$@"'
        )
        alone = ["unshare", "--mount", "sh", "-c", script, "sh", str(shadow), str(pam)]
        return super()._spawn([*alone, *argv], cwd, pipes=pipes)

    def _write_client_files(self) -> None:
        super()._write_client_files()
        _prefer_passwords(self)

    @property
    def accepted(self) -> int:
        return len(re.findall("^Accepted (password|keyboard-interactive/pam) ", self.log, re.M))

    @property
    def refused(self) -> int:
        return len(re.findall("^Failed (password|keyboard-interactive/pam) ", self.log, re.M))


def why_no_mounts() -> str:
    """What a PasswordSshd lacks here; empty: nothing."""
    if os.getuid() != 0:
        return "only root can give sshd an /etc/shadow of its own"
    for program in ("unshare", "mount", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    argv = ["unshare", "--mount", "mount", "--bind", "/etc/pam.d", "/etc/pam.d"]
    tried = subprocess.run(argv, capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no mount namespaces here"


def _prefer_passwords(server: PrivateServer) -> None:
    path, methods = Path(server.ssh_config), "PreferredAuthentications "
    text = path.read_text()
    path.write_text(text.replace(f"{methods}publickey", f"{methods}password,keyboard-interactive"))


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
    GO_CACHE.mkdir(parents=True, exist_ok=True)
    # The first compiles Go's own packages, for 40 CPU-s; other workers wait, and have them then.
    with open(GO_CACHE / "pscp-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, check=True)
    return program
