"""The private servers do what they are used for: bytes pass unchanged, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeServer, until
from servers import private as servers
from servers.private import EmbeddedServer, PrivateServer, SshdServer

from pscp.ground import processes
from pscp.ground.errors import ConnectError
from pscp.ground.processes import descendants, living, living_by_ps

TESTS = Path(servers.__file__).parents[1]


@pytest.fixture(params=["sshd", "embedded"])
def make(request: pytest.FixtureRequest) -> MakeServer:
    made: MakeServer = request.getfixturevalue(f"make_{request.param}")
    return made


@pytest.fixture(params=["sshd", "embedded"])
def server(request: pytest.FixtureRequest) -> PrivateServer:
    shared: PrivateServer = request.getfixturevalue(request.param)
    return shared


def argv(server: PrivateServer, command: str) -> list[str]:
    return ["ssh", "-F", server.ssh_config, "-o", "BatchMode=yes", server.host, command]


def ssh(
    server: PrivateServer, command: str, data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv(server, command), input=data, capture_output=True, check=False)


def client_of(server: PrivateServer, command: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv(server, command), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
    )


def test_runs_a_command(server: PrivateServer, far_home: Path) -> None:
    done = ssh(server, "pwd; echo complaint >&2; exit 7")
    assert (done.stdout, done.stderr) == (f"{far_home}\n".encode(), b"complaint\n")
    assert done.returncode == 7


def test_stdout_goes_on_after_stderr_ended(server: PrivateServer) -> None:
    assert ssh(server, "exec 2>&-; sleep 0.1; echo still here").stdout == b"still here\n"


def test_a_command_that_reads_little_ends(server: PrivateServer) -> None:
    assert ssh(server, "head -c 5", b"first" + bytes(1 << 22)).stdout == b"first"


def test_a_signal_is_an_error(server: PrivateServer) -> None:
    assert ssh(server, "kill -9 $$").returncode == 255


@pytest.mark.parametrize("command", ["cat /dev/zero", "cat"])
def test_a_lost_client_ends_its_command(server: PrivateServer, command: str) -> None:
    with client_of(server, f"echo; exec {command}") as client:
        assert client.stdout and client.stdout.read(1)
        client.kill()
    until(lambda: not descendants(server.pid))


def test_a_process_that_stopped_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            found = {each for each in living() if each.pid == child.pid}
            assert found and processes.is_at_work(child.pid)
            child.send_signal(signal.SIGSTOP)
            processes.wait_until_stopped(found)
            assert not processes.is_at_work(child.pid) and child.poll() is None
        finally:
            child.kill()
    assert not processes.is_at_work(child.pid)


def test_close_ends_the_sessions(make: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TERM_S", 0.1)
    server = make()
    stubborn = "trap '' HUP TERM; echo; while :; do sleep 100; done"
    with client_of(server, stubborn) as client:
        assert client.stdout and client.stdout.read(1)
        sessions = descendants(server.pid)
        server.close()
        assert sessions and not sessions & living().keys()
        assert client.wait() == 255
    assert not server.folder.exists() and server.pid == 0
    server.close()


def test_knows_its_host_key_beforehand(make: MakeServer) -> None:
    server = make()
    (server.folder / "known_hosts").write_text("")
    done = ssh(server, "true")
    assert done.returncode == 255 and b"Host key verification failed" in done.stderr


def test_lets_nobody_else_in(make: MakeServer, tmp_path: Path) -> None:
    server = make()
    servers.make_key(tmp_path / "key")
    (server.folder / "user_key").write_bytes((tmp_path / "key").read_bytes())
    (server.folder / "user_key.pub").write_bytes((tmp_path / "key.pub").read_bytes())
    done = ssh(server, "true")
    assert done.returncode == 255 and b"Permission denied" in done.stderr


def test_embedded_shell_and_environment(make_embedded: MakeServer) -> None:
    server = make_embedded(shell="/bin/echo", environment={"WORDS": "two words"})
    assert ssh(server, "a command").stdout == b"-c a command\n"


def test_extra_config_wins(make_sshd: MakeServer, tmp_path: Path) -> None:
    (tmp_path / "banner").write_text("welcome\n")
    server = make_sshd(
        [f"Banner {tmp_path / 'banner'}", "ForceCommand echo forced", "LogLevel INFO"]
    )
    with open(server.ssh_config, "a") as config:
        config.write("LogLevel INFO\n")
    done = subprocess.run(
        ["ssh", "-o", "LogLevel=INFO", *argv(server, "true")[1:]], capture_output=True, check=True
    )
    assert done.stdout == b"forced\n" and done.stderr == b"welcome\n"
    assert "Starting session" not in server.log and "Accepted publickey" in server.log
    server.close()
    assert "Accepted publickey" in server.log


def test_sshd_takes_another_port(monkeypatch: pytest.MonkeyPatch, make_sshd: MakeServer) -> None:
    taken = make_sshd()
    free = servers.free_port
    ports = iter([taken.port, taken.port])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports, None) or free())
    other = make_sshd()
    assert other.port != taken.port
    assert ssh(other, "echo hello").stdout == b"hello\n"


def test_sshd_with_a_bad_line_says_so(make_sshd: MakeServer) -> None:
    with pytest.raises(ConnectError, match=r"\(sshd\) did not start: .*NoSuchKeyword|terminating"):
        make_sshd(["NoSuchKeyword yes"])


def test_embedded_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ADDRESS", "not an address")
    with pytest.raises(ConnectError, match=r"\(embedded\) did not start: "):
        EmbeddedServer()


def test_a_missing_sshd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find_sshd", lambda: None)
    with pytest.raises(ConnectError, match="sshd is not installed"):
        SshdServer()


def test_embedded_ends_with_whoever_started_it() -> None:
    program = (
        f"import sys, time; sys.path.append({str(TESTS)!r});"
        "from servers.private import EmbeddedServer;"
        "server = EmbeddedServer(); print(server.pid, server.folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        pid, folder = starter.stdout.readline().split()
        starter.send_signal(signal.SIGKILL)
    until(lambda: int(pid) not in {process.pid for process in living()})
    subprocess.run(["rm", "-rf", folder], check=True)


def test_processes_by_ps_are_the_same() -> None:
    try:
        by_ps = living_by_ps()
    except FileNotFoundError:
        pytest.skip("ps is not installed")
    me = next(process for process in by_ps if process.pid == os.getpid())
    assert by_ps[me] == os.getppid()


def test_the_demonstration_needs_nothing_that_only_tests_have() -> None:
    """scripts/run installs pscp alone."""
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='demo');"
        "sys.exit(', '.join({'pytest', 'hypothesis', 'conftest'} & sys.modules.keys()) or 0)"
    )
    demo = TESTS.parent / "scripts" / "run.d" / "__main__.py"
    argv = [sys.executable, "-c", program, str(demo)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
