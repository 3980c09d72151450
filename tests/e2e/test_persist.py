"""Connections that outlive a run (--persist): who uses them, and what becomes of dead ones.

Not here: OpenSSH's protocol for it (../unit/test_mux_protocol.py), prompts otherwise
(test_login.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Unpack

import pytest
from conftest import (
    PATIENCE_S,
    QUICK_LOGINS,
    MakeFar,
    MakeServer,
    Together,
    require_sshd,
    shared,
    until,
)
from servers import LoginServer
from servers.private import PrivateServer, SshdServer

import pscp
from e2e.terminal import terminal
from e2e.test_complete import PSCP as COMPLETING
from e2e.ways import COMMAND_S, PIPE, PSCP, Notes, run
from pscp.cli import copy as command
from pscp.connect import greeting, persistent
from pscp.ground.errors import ConnectError
from pscp.ground.processes import descendants
from pscp.ground.values import MIB
from pscp.options.option_fields import OptionFields
from pscp.transports import mux_protocol
from pscp.transports.mux_protocol import process_of

LOGIN = "Accepted publickey"
BEFORE: dict[int, int] = {}  # logins before the test, by the server's port


@pytest.fixture(autouse=True)
def run_folder(monkeypatch: pytest.MonkeyPatch, own_state: Path) -> Iterator[Path]:
    """A folder for sockets with a short name; no connection outlives its test.

    None is given up in this process since a busy machine is late with its answer.
    """
    monkeypatch.setattr(greeting, "_SILENT_S", PATIENCE_S)
    monkeypatch.setattr(mux_protocol, "LOCAL_S", PATIENCE_S)
    folder = Path(tempfile.mkdtemp(prefix="pk"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    persistent.disconnect(None)
    shutil.rmtree(folder, ignore_errors=True)  # an ssh that ends removes its socket meanwhile


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(4096))
    return path


@pytest.fixture(scope="module")
def alone(make_far: MakeFar) -> Iterator[PrivateServer]:
    """A server to which nobody else connects."""
    require_sshd()
    with shared(lambda: SshdServer(QUICK_LOGINS, environment=make_far())) as server:
        yield server


@pytest.fixture
def server(alone: PrivateServer) -> Iterator[PrivateServer]:
    known = (alone.folder / "known_hosts").read_text()
    BEFORE[alone.port] = alone.log.count(LOGIN)
    yield alone
    (alone.folder / "known_hosts").write_text(known)


def copied(server: PrivateServer, source: Path, **fields: Unpack[OptionFields]) -> list[str]:
    there, notes = source.with_name("there"), Notes()
    there.unlink(missing_ok=True)
    wanted: OptionFields = {
        "config_file": server.ssh_config, "batch": True, "persist": "60", **fields,
    }  # fmt: skip
    assert pscp.copy(str(source), f"{server.host}:{there}", reporter=notes, **wanted).ok
    assert there.read_bytes() == source.read_bytes()
    return notes.texts


def session_to(server: PrivateServer) -> pscp.Session:
    return pscp.Session(server.host, config_file=server.ssh_config, batch=True, persist="60")


def argv(server: PrivateServer, source: Path, *words: str) -> list[str]:
    to = f"{server.host}:{source.with_name('there')}"
    return [*PSCP, "-F", server.ssh_config, "--persist", "60", *words, str(source), to]


def listed(source: Path, *words: str) -> str:
    """What the last word, a host, is completed to with a path: names beside the source."""
    begin = f"{words[-1]}:{source.parent}/"
    ran = run([*COMPLETING, "--complete-path", *words[:-1], f"{begin}sou"])
    assert (ran.code, ran.err) == (0, "")
    return ran.out.removeprefix(begin)


def logins(server: PrivateServer) -> int:
    return server.log.count(LOGIN) - BEFORE.get(server.port, 0)


@pytest.mark.parametrize(
    "fields",
    [{"plane": "plain", "connections": 2}, {"plane": "tls", "connections": 2},
     {"login_once": True, "connections": 3, "chunk_bytes": 256 * 1024}],
    ids=str,
)  # fmt: skip
def test_one_login_stays_for_what_needs_no_more(
    fields: OptionFields, source: Path, server: PrivateServer
) -> None:
    source.write_bytes(os.urandom(12 * MIB))
    for _ in range(2):
        copied(server, source, **fields)
    assert logins(server) == 1


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_the_next_copy_logs_in_no_more(
    remote: Any, source: Path, server: PrivateServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        copied(server, source, remote=remote)
    assert logins(server) == 1
    [kept] = persistent.kept_connections()
    assert (kept.host, kept.user, kept.port, kept.persist) == (server.host, None, None, "60")
    assert command.main(["--list-connections"]) == 0
    listed = capfd.readouterr().out
    assert re.fullmatch(
        rf"{server.host}: ssh is process {kept.pid}, open for .+, ends 60 s after its last use\n",
        listed,
    )
    assert command.main(["--disconnect", "another-host"]) == 0
    assert "0 connections to another-host ended" in capfd.readouterr().err
    assert len(persistent.kept_connections()) == 1
    assert command.main(["--disconnect", server.host]) == 0
    assert f"1 connection to {server.host} ended" in capfd.readouterr().err
    assert persistent.kept_connections() == []
    until(lambda: not os.path.exists(f"/proc/{kept.pid}"))


def test_a_path_is_completed_over_it(source: Path, server: PrivateServer) -> None:
    copied(server, source)
    assert listed(source, "-F", server.ssh_config, server.host) == "source\n"
    assert logins(server) == 1
    assert len(persistent.kept_connections()) == 1
    persistent.disconnect(None)
    assert listed(source, "-F", server.ssh_config, server.host) == "source\n"
    assert persistent.kept_connections() == []


def test_several_connections_are_kept(
    source: Path, server: PrivateServer, together: Together
) -> None:
    source.write_bytes(os.urandom(16 * MIB))
    many: Any = {"chunk_bytes": 256 * 1024, **together(3)}
    copied(server, source, **many)
    assert logins(server) == len(persistent.kept_connections()) == 3
    copied(server, source, **many)
    assert logins(server) == 3


def test_without_persist_all_is_as_ever(source: Path, server: PrivateServer) -> None:
    copied(server, source)
    for persist in (None, "no"):
        copied(server, source, persist=persist)
    assert logins(server) == 3
    assert len(persistent.kept_connections()) == 1


def test_a_connection_stays_only_so_long(source: Path, server: PrivateServer) -> None:
    copied(server, source, persist="1s")
    until(lambda: not persistent.kept_connections())
    copied(server, source)
    assert logins(server) == 2


OTHERS: tuple[OptionFields, ...] = (
    {}, {"cipher": "aes256-ctr"}, {"compress": True}, {"ssh_options": ("ServerAliveInterval=7",)},
    {"rcvbuf_bytes": 65536}, {"address_family": 4},
)  # fmt: skip


def test_a_jump_host_is_kept_with_it(source: Path, server: PrivateServer) -> None:
    """The ssh to the jump host is a child of one that ends with the run."""
    config = source.with_name("config")
    text = Path(server.ssh_config).read_text()
    inner = text.replace(f"Host {server.host}\n", f"Host inner\nProxyJump {server.host}\n")
    config.write_text(text + inner)
    for _ in range(2):
        to = f"inner:{source.with_name('there')}"
        more: OptionFields = {"config_file": str(config), "batch": True, "persist": "60"}
        assert pscp.copy(str(source), to, **more).ok
    assert [kept.host for kept in persistent.kept_connections()] == ["inner"]
    assert logins(server) == 2


def test_other_options_have_other_connections(source: Path, server: PrivateServer) -> None:
    for number, fields in enumerate(OTHERS * 2, 1):
        copied(server, source, **fields)
        assert logins(server) == min(number, len(OTHERS)), fields


def test_a_configuration_that_changed_is_followed(source: Path, make_sshd: MakeServer) -> None:
    """The connections that were kept lead to where the configuration led before."""
    first, second = make_sshd(), make_sshd()
    config = source.with_name("config")
    config.write_text(Path(first.ssh_config).read_text())
    copied(first, source, config_file=str(config))
    config.write_text(Path(second.ssh_config).read_text())
    copied(first, source, config_file=str(config))
    assert (logins(first), logins(second)) == (1, 1)


def test_all_commands_use_the_same(source: Path, server: PrivateServer) -> None:
    copied(server, source)
    words = ("-F", server.ssh_config, "-B", "-c", "1", "--persist", "60")
    ran = subprocess.run(
        [*PIPE, *words, "--from", server.host, "--", "echo", "hello"],
        capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip
    assert ran.stdout == "hello\n", ran.stderr
    with session_to(server) as session:
        assert session.run(["echo", "hi"]).out == b"hi\n"
    assert logins(server) == 1


def test_nothing_of_the_caller_is_held(source: Path, server: PrivateServer) -> None:
    """A caller who reads all output sees its end; folders can be removed, journals are free."""
    words = argv(server, source, "-vv")
    ran = subprocess.run(
        words, capture_output=True, text=True, timeout=COMMAND_S, cwd=source.parent
    )
    assert ran.returncode == 0, ran.stderr
    [kept] = persistent.kept_connections()
    assert os.readlink(f"/proc/{kept.pid}/cwd") == "/"
    fds = Path(f"/proc/{kept.pid}/fd")

    def held() -> set[str]:
        found = set()
        for fd in fds.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(fd))
        return {each for each in found if not each.startswith("socket:")}

    # ssh tells of a command's exit before it lets go of the pipes that it was lent for it.
    until(lambda: held() == {"/dev/null"})
    assert os.getsid(kept.pid) == kept.pid


def test_relative_paths_are_those_of_the_caller(source: Path, server: PrivateServer) -> None:
    words = [*PSCP, "-F", "ssh_config", "-B", "--persist", "60", "-i", "user_key"]
    to = f"{server.host}:{source.with_name('there')}"
    for _ in range(2):
        ran = subprocess.run(
            [*words, str(source), to], cwd=server.folder, capture_output=True, timeout=COMMAND_S
        )
        assert ran.returncode == 0, ran.stderr
    assert logins(server) == 1


def test_an_ssh_that_ended_is_replaced(source: Path, server: PrivateServer) -> None:
    copied(server, source)
    [kept] = persistent.kept_connections()
    os.kill(kept.pid, signal.SIGKILL)
    until(lambda: process_of(kept.path) is None)
    copied(server, source)
    assert logins(server) == 2
    assert not os.path.exists(kept.path)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop these processes for a while; one of them may just be ending."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_session_that_was_ended_at_the_server_is_replaced(
    source: Path, server: PrivateServer
) -> None:
    copied(server, source)
    for pid in sessions_at(server):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not persistent.kept_connections())
    copied(server, source)
    assert logins(server) == 2


@pytest.mark.parametrize("is_near", [True, False], ids=["ssh", "server"])
def test_what_is_silent_is_replaced(
    is_near: bool, source: Path, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is stopped, so that the socket there takes bytes and nothing comes back."""
    monkeypatch.setattr(greeting, "_SILENT_S", 0.2)
    monkeypatch.setattr(mux_protocol, "LOCAL_S", 2.0)
    copied(server, source)
    [kept] = persistent.kept_connections()
    with stopped(*([kept.pid] if is_near else sessions_at(server))):
        copied(server, source)
        assert logins(server) == 2
        assert is_near or kept.path not in [e.path for e in persistent.kept_connections()]


def sessions_at(server: PrivateServer) -> list[int]:
    return [process.pid for process in descendants(server.pid)]


def test_a_connection_that_takes_no_more_sessions(source: Path, make_sshd: MakeServer) -> None:
    server = make_sshd(["MaxSessions 1"])
    with session_to(server) as session:
        assert session.run(["echo", "hi"]).status == 0
        copied(server, source)
        assert logins(server) == 2
    assert len(persistent.kept_connections()) == 2


def test_two_runs_share_connections(source: Path, server: PrivateServer) -> None:
    copied(server, source)
    with session_to(server) as session:
        assert session.run(["echo", "hi"]).status == 0
        ran = subprocess.run(argv(server, source), capture_output=True, timeout=COMMAND_S)
        assert ran.returncode == 0, ran.stderr
    assert logins(server) == 1


def test_two_runs_that_begin_at_once(source: Path, server: PrivateServer) -> None:
    other = source.with_name("other")
    other.write_bytes(b"other")
    started = [
        subprocess.Popen([*argv(server, each, "-q")[:-1], f"{server.host}:{each}.there"])
        for each in (source, other)
    ]
    assert [each.wait(COMMAND_S) for each in started] == [0, 0]
    assert len(persistent.kept_connections()) == logins(server) <= 2


def test_a_host_key_that_changed_is_asked_for_at_a_login_only(
    source: Path, server: PrivateServer
) -> None:
    copied(server, source)
    known = server.folder / "known_hosts"
    known.write_text(re.sub(r"AAAA\S+", "AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43, known.read_text()))
    copied(server, source)
    persistent.disconnect(None)
    with pytest.raises(ConnectError):
        copied(server, source)


def test_a_code_is_asked_for_once(
    source: Path, make_login_server: Callable[..., LoginServer]
) -> None:
    server = make_login_server(codes=("123456", "654321"))
    source.write_bytes(os.urandom(12 * MIB))
    words = argv(server, source, "-c", "4", "--chunk-size", "256k", "-l", "100000")
    with terminal(*words) as screen:
        screen.answer("Verification code: ", "123456")
        assert screen.end() == 0, screen.shown
    source.with_name("there").unlink()
    for more in ((), ("-B",)):
        with terminal(*words, *more) as screen:
            assert screen.end() == 0, screen.shown
        assert "Verification code" not in screen.shown
        assert source.with_name("there").read_bytes() == source.read_bytes()
    assert (server.accepted, server.refused) == (1, 0)
    assert server.begun == 1


def test_the_users_own_master_carries_the_first_lane(
    source: Path, server: PrivateServer, run_folder: Path
) -> None:
    config = source.with_name("config")
    path = run_folder / "master"
    config.write_text(f"ControlPath {path}\n{Path(server.ssh_config).read_text()}")
    ssh = ["ssh", "-F", str(config)]
    master = subprocess.Popen([*ssh, "-M", "-N", server.host])
    try:
        until(path.exists)
        copied(server, source, config_file=str(config))
        assert logins(server) == 1
        assert listed(source, "-F", str(config), server.host) == "source\n"
        assert logins(server) == 1
        copied(server, source, config_file=str(config), cipher="aes256-ctr")
        assert logins(server) == 2
        copied(server, source, config_file=str(config), persist=None)
        assert logins(server) == 3
        assert master.poll() is None
    finally:
        master.terminate()
        master.wait()


@pytest.mark.parametrize("transport", ["asyncssh", "paramiko"])
def test_a_librarys_connections_end_with_the_run(
    transport: Any, source: Path, sshd: PrivateServer
) -> None:
    notes = copied(sshd, source, transport=transport)
    assert sum("--persist is for --transport openssh" in note for note in notes) == 1
    assert persistent.kept_connections() == []


def test_a_folder_that_others_may_enter_is_not_used(
    source: Path, server: PrivateServer, run_folder: Path
) -> None:
    private = run_folder / f"pscp-{os.getuid()}"
    private.mkdir(mode=0o755)
    private.chmod(0o755)
    with pytest.raises(pscp.UsageError, match="no folder for a private socket"):
        copied(server, source)
