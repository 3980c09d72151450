"""A private SSH server on loopback, for the tests and the demonstration of scripts/run.

`SshdServer` runs the installed sshd as the current user; `EmbeddedServer` runs one made with
asyncssh in a child process (embedded_server.py). Both listen on 127.0.0.1 only, let in one key
only, which they make, and keep everything in a temporary folder, which close() removes. A server
is up once its constructor has returned:

    with SshdServer() as server:
        subprocess.run(["ssh", "-F", server.ssh_config, server.host, "echo hello"])

Not here: servers that ask or refuse (__init__.py). Read next: embedded_server.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pwd
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from pscp.ground.errors import ConnectError
from pscp.ground.processes import end_tree

ALIAS = "pscp-test"
ADDRESS = "127.0.0.1"
SBIN = ("/usr/sbin", "/usr/local/sbin")  # where sshd lives, and often not in a user's PATH
PRIVSEP_FOLDER = "/run/sshd"  # Debian's sshd wants it when root; made at boot, so not in containers
READY_S = 60.0  # a server is up in 0.1 s; a loaded machine may take a while
POLL_S = 0.005
PORT_TRIES = 10  # another process may take a free port between our finding and using it


class PrivateServer(ABC):
    """A running server with the key, known_hosts and ssh_config to reach it.

    `shell` runs the commands (default: the account's login shell); `environment` is added to
    what a session gets, and a HOME in it is also the folder where commands start.
    Raises ConnectError where the server cannot be started.
    """

    kind: ClassVar[str]
    host: ClassVar[str] = ALIAS  # what to write before the ":" of a location

    def __init__(
        self, *, environment: Mapping[str, str] | None = None, shell: str | None = None
    ) -> None:
        self.environment = dict(environment or {})
        self.shell = shell
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.folder = Path(tempfile.mkdtemp(prefix="pscp-server-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._last_log = ""
        try:
            for name, key in _made_keys().items():
                (self.folder / name).write_bytes(key)
                (self.folder / name).chmod(0o600)
            shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
            self._start()
            self._write_client_files()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _start(self) -> None:
        """Start the server; set `port` once it answers there."""

    @property
    def ssh_config(self) -> str:
        return str(self.folder / "ssh_config")

    @property
    def log(self) -> str:
        """The lines that the server has logged, also after close()."""
        with contextlib.suppress(FileNotFoundError):
            self._last_log = (self.folder / "log").read_text(errors="replace")
        return self._last_log

    @property
    def pid(self) -> int:
        """The listening process; its sessions are its descendants. 0 when closed."""
        return self._process.pid if self._process else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and the sessions it still has, and remove its folder."""
        if self._process is not None:
            end_tree(self._process)
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None
        _ = self.log
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(
        self, argv: Sequence[str], cwd: Path | None, *, pipes: bool
    ) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C at a terminal is for us, and we close the server.
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else log,
                stderr=log,
                start_new_session=True,
            )

    def _start_child(self, argv: Sequence[str], cwd: Path | None = None, **more: object) -> None:
        """Start a program that reads settings.json in the server's folder and prints its port."""
        settings = {"address": ADDRESS, "shell": self.shell, "environment": self.environment}
        (self.folder / "settings.json").write_text(json.dumps({**settings, **more}))
        self._process = self._spawn([*argv, str(self.folder)], cwd, pipes=True)
        assert self._process.stdout is not None
        # It binds port 0 itself and says which port it got; a dead child says nothing.
        with self._process.stdout as out:
            ready, _, _ = select.select([out], [], [], READY_S)
            line = out.readline() if ready else b""
        if not line.strip().isdigit():
            raise self._failure()
        self.port = int(line)

    def _failure(self) -> ConnectError:
        lines = self.log.strip().splitlines() or ["it said nothing"]
        return ConnectError(f"the private SSH server ({self.kind}) did not start: {lines[-1]}")

    def _write_client_files(self) -> None:
        key = (self.folder / "host_key.pub").read_text().split()
        known_hosts = self.folder / "known_hosts"
        known_hosts.write_text(f"[{ADDRESS}]:{self.port} {key[0]} {key[1]}\n")
        Path(self.ssh_config).write_text(
            f"Host {ALIAS}\n"
            f"HostName {ADDRESS}\n"
            f"Port {self.port}\n"
            f"User {self.user}\n"
            f"IdentityFile {quoted(self.folder / 'user_key')}\n"
            "IdentitiesOnly yes\n"
            "IdentityAgent none\n"
            "PreferredAuthentications publickey\n"
            f"UserKnownHostsFile {quoted(known_hosts)}\n"
            "GlobalKnownHostsFile /dev/null\n"
            "StrictHostKeyChecking yes\n"
            "LogLevel ERROR\n"
        )


class SshdServer(PrivateServer):
    """The installed sshd. `extra_config` lines win over ours (sshd takes the first value)."""

    kind = "sshd"
    find: Callable[[], str | None] = staticmethod(lambda: find_sshd())

    def __init__(
        self,
        extra_config: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        shell: str | None = None,
    ) -> None:
        self.extra_config = tuple(extra_config)
        super().__init__(environment=environment, shell=shell)

    def _start(self) -> None:
        sshd = self.find()
        if sshd is None:
            raise ConnectError("sshd is not installed", "on Debian: apt-get install openssh-server")
        if os.getuid() == 0 and os.path.isdir(os.path.dirname(PRIVSEP_FOLDER)):
            os.makedirs(PRIVSEP_FOLDER, mode=0o755, exist_ok=True)
        for _ in range(PORT_TRIES):
            self.port = free_port()
            (self.folder / "sshd_config").write_text("\n".join(self._config()) + "\n")
            argv = [sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self._process = self._spawn(argv, None, pipes=False)
            # sshd writes this once it listens. An answer at the port could be another server's.
            if wait_for_file(self.folder / "pid", self._process):
                return
            end_tree(self._process)
            if "Address already in use" not in self.log:
                break
        raise self._failure()

    def _config(self) -> Iterator[str]:
        yield from self.extra_config
        yield f"ListenAddress {ADDRESS}"
        yield f"Port {self.port}"
        yield f"HostKey {quoted(self.folder / 'host_key')}"
        yield f"AuthorizedKeysFile {quoted(self.folder / 'authorized_keys')}"
        yield f"PidFile {quoted(self.folder / 'pid')}"
        yield "UsePAM no"  # needs root
        yield "StrictModes no"  # the temporary folder lies in one that others can write to
        yield "PermitRootLogin prohibit-password"
        yield "PasswordAuthentication no"
        yield "KbdInteractiveAuthentication no"
        yield "LogLevel VERBOSE"  # connections refused by MaxStartups are logged at this level
        if not any(line.startswith("Subsystem sftp ") for line in self.extra_config):
            yield f"Subsystem sftp {self._sftp()}"
        if self.environment:
            pairs = (f'"{name}={value}"' for name, value in self.environment.items())
            yield "SetEnv " + " ".join(pairs)
        if self.shell or "HOME" in self.environment:
            yield f"ForceCommand {self._forced_command()}"

    def _sftp(self) -> str:
        """Return the SFTP subsystem: a program for a forced command, as internal-sftp is none."""
        is_forced = self.shell or "HOME" in self.environment
        return (find_sftp_server() if is_forced else None) or "internal-sftp"

    def _forced_command(self) -> str:
        """Return what sets folder and shell of a command: sshd takes both from passwd alone."""
        shell = self.shell or pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
        start = 'cd "$HOME" && ' if "HOME" in self.environment else ""
        return f'{start}exec {shlex.quote(shell)} -c "$SSH_ORIGINAL_COMMAND"'


class EmbeddedServer(PrivateServer):
    """An SSH server made with asyncssh, where no sshd is installed."""

    kind = "embedded"

    def _start(self) -> None:
        if importlib.util.find_spec("asyncssh") is None:
            hint = "on Debian: apt-get install openssh-server; or python3 -m pip install asyncssh"
            raise ConnectError("neither sshd nor the Python package asyncssh is installed", hint)
        argv = [sys.executable, "-m", "servers.embedded_server"]
        self._start_child(argv, Path(__file__).parents[1])  # where -m finds it


def find_sshd() -> str | None:
    """Return sshd's absolute path: sshd refuses to be run by another."""
    found = shutil.which("sshd") or shutil.which("sshd", path=os.pathsep.join(SBIN))
    return os.path.abspath(found) if found else None


def find_sftp_server() -> str | None:
    """Return the path of OpenSSH's SFTP server, if it is installed."""
    folders = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/libexec", "/usr/lib/ssh")
    paths = (f"{folder}/sftp-server" for folder in folders)
    return next((path for path in paths if os.access(path, os.X_OK)), None)


@functools.cache
def _made_keys() -> dict[str, bytes]:
    """Return the files of the keys that all servers of a process have."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("host_key", "user_key"):
            make_key(Path(folder, name))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def make_key(path: Path) -> None:
    """Make an Ed25519 key, which takes a few milliseconds (RSA: up to a second)."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    except FileNotFoundError:
        hint = "on Debian: apt-get install openssh-client"
        raise ConnectError("ssh-keygen, a part of OpenSSH, is not installed", hint) from None
    except subprocess.CalledProcessError as error:
        raise ConnectError(f"ssh-keygen failed: {error.stderr.decode().strip()}") from None


def quoted(path: Path) -> str:
    """Return a path for ssh_config(5) and sshd_config(5), safe with spaces and %."""
    return '"' + str(path).replace("%", "%%") + '"'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_file(path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Return True once `process` has written it; False if it ended before, or took too long."""
    deadline_s = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline_s:
        if path.exists():
            return True
        time.sleep(POLL_S)
    return False
