"""Connecting ends in bounded time: hosts that say nothing, wrappers of ssh, logins nobody needs.

Not here: connections that are lost while a copy runs (test_lanes_lost.py), what a login asks
(../e2e/test_login.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from conftest import QUICK_LOGINS, MakeFar, MakeServer, Together, is_there, require_sshd
from e2e.ways import COMMAND_S, PSCP
from night import Sshd
from programs import ASKED, script
from servers.private import ADDRESS, PrivateServer

import pscp
from faults.conftest import BY_EXEC, MIB, Way, fill, until
from pscp.cli import copy
from pscp.connect import bootstrap
from pscp.ground import state, stops
from pscp.ground.errors import AgentFailed, ConnectError, NoAgent, NoSftp, Unreachable
from pscp.ground.processes import descendants
from pscp.options.option_fields import OptionFields
from pscp.transfer import logins
from pscp.transports import control_sockets

OVER_EACH = pytest.mark.parametrize("transport", ["openssh", "asyncssh", "paramiko"])


@pytest.fixture
def file(own_home: Path) -> Path:
    path = own_home / "source" / "file"
    fill(path, MIB)
    return path


@pytest.fixture
def config(own_home: Path) -> Callable[[int], Path]:
    """config(PORT): an ssh_config in which the host "there" is that port of this machine."""

    def write(port: int) -> Path:
        path = own_home / "ssh_config"
        path.write_text(
            f"Host there\nHostName {ADDRESS}\nPort {port}\nStrictHostKeyChecking no\n"
            f"UserKnownHostsFile {own_home}/known_hosts\nIdentityFile {own_home}/none\n"
        )
        return path

    return write


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        listener.listen(64)
        yield listener.getsockname()[1]


def command(*words: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """A command's exit code, and what it said on standard error."""
    done = forked.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        timeout=COMMAND_S, check=False, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    return done.returncode, done.stderr


def no_journal_is_held(own_home: Path) -> bool:
    """Is every journal free to be locked by another run?"""
    import fcntl

    for path in (own_home / "state").rglob("*.journal"):
        with open(path, "rb") as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
    return True


# --- C1: hosts that say nothing


@OVER_EACH
def test_c1_a_host_that_takes_connections_and_says_nothing(
    transport: Any, file: Path, config: Callable[[int], Path], silent_port: int, own_home: Path
) -> None:
    """C1, A8: it is given up after the timeout; the error says where, how long, and what to try."""
    words = ["-F", str(config(silent_port)), "--transport", transport]
    code, said = command(*PSCP, "-B", *words, "--timeout", "1", str(file), "there:")
    assert code == 3
    assert re.search(r"^pscp: .*(there|127\.0\.0\.1)", said, re.MULTILINE), said
    assert "(1 s)" in said and f"try: ssh -F {words[1]} there true;" in said, said
    assert no_journal_is_held(own_home)


SILENT = "while read -r words; do :; done"
TRICKLING = "while :; do echo still here >&2; echo and here; sleep 0.2; done"


@pytest.mark.parametrize(
    ("remote", "says"), [("agent", SILENT), ("sftp", SILENT), ("agent", TRICKLING)]
)
def test_c1_a_far_end_that_logs_in_and_gives_no_answer(
    remote: Any, says: str, file: Path, make_sshd: MakeServer, own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """C1: with -B; the agent's HELLO never comes, nor the SFTP server's answer to INIT."""
    monkeypatch.setattr(bootstrap, "SILENCE_S", 3.0)
    server = make_sshd([f"ForceCommand {says}"])
    with pytest.raises(Unreachable) as raised:
        pscp.copy(
            str(file), f"{server.host}:{own_home}/destination/", batch=True, remote=remote,
            config_file=server.ssh_config, timeout_s=1,
        )  # fmt: skip
    assert str(raised.value) == f"{server.host}: no answer after 3 s"
    assert server.host in raised.value.hint
    assert (raised.value.exit_code, raised.value.retry) == (3, True)
    assert no_journal_is_held(own_home)


def test_c1_the_timeout_of_ssh_config_holds(own_home: Path, file: Path) -> None:
    """C1: it goes before the default of 30 s, and --timeout before both."""
    seen = own_home / "seen"
    refuses = 'echo "there: Permission denied (publickey)." >&2; exit 255'
    program = script(own_home / "ssh", f'{ASKED}echo "$@" >> {seen}\n{refuses}')

    def timeout(configured: str, *words: str) -> str:
        seen.unlink(missing_ok=True)
        config = own_home / f"config-{len(list(own_home.iterdir()))}"
        config.write_text(f"Host there\n{configured}\n")
        given = ("-F", str(config), "-S", str(program), "--remote", "agent", *words)
        command(*PSCP, "-B", *given, str(file), "there:")
        asked = re.findall(r"ConnectTimeout=(\w+)", seen.read_text().splitlines()[0])
        return str(asked[0])  # ssh takes the first

    assert timeout("") == "30"
    assert timeout("", "--timeout", "2m") == "120"
    assert timeout("ConnectTimeout 7") == "7"
    assert timeout("ConnectTimeout 7", "--timeout", "9") == "9"


@OVER_EACH
def test_hosts_that_refuse_or_do_not_resolve_may_be_tried_again(
    transport: Any, file: Path, config: Callable[[int], Path]
) -> None:
    """A15: retry is True, so that programs wait for a host that boots."""
    with pytest.raises(Unreachable, match=r"[Rr]efused") as raised:
        pscp.copy(str(file), "there:", batch=True, transport=transport, config_file=str(config(1)))
    assert raised.value.retry and raised.value.exit_code == 3
    assert raised.value.hint.endswith(" true; retry_for_s=1800 keeps trying to connect for so long")
    with pytest.raises(Unreachable, match="resolve") as raised:
        pscp.copy(str(file), "no.such.host.invalid:", batch=True, transport=transport)
    assert raised.value.retry and raised.value.exit_code == 3


def test_a_source_host_that_cannot_be_reached_is_told_as_any_other(
    make_sshd: MakeServer, own_home: Path
) -> None:
    """No copy has begun that would go on from anywhere."""
    server = make_sshd()
    with pytest.raises(Unreachable, match="resolve") as raised:
        pscp.copy(
            "no.such.host.invalid:x", f"{server.host}:{own_home}/destination/", batch=True,
            config_file=server.ssh_config,
        )  # fmt: skip
    assert raised.value.hint.startswith("try: ssh ") and "retry_for_s" in raised.value.hint


# --- C2: an ssh that is a wrapper


@pytest.fixture
def wrapper(own_home: Path) -> Path:
    """A script that runs ssh as its child; it lies in a folder of its own, named ssh."""
    folder = own_home / "wrapped"
    folder.mkdir()
    ssh = subprocess.run(["sh", "-c", "command -v ssh"], capture_output=True, text=True, check=True)
    return script(folder / "ssh", f'{ssh.stdout.strip()} "$@"\nexit $?')


@pytest.mark.parametrize(("how", "remote"), [("-S", "agent"), ("PATH", "sftp")])
def test_c2_a_wrapper_of_ssh_lets_a_copy_end(
    way: Way, remote: Any, how: str, wrapper: Path
) -> None:
    """C2: on push and on pull, over several connections."""
    data = fill(way.source / "big", 3 * MIB)
    way = dataclasses.replace(way, remote=remote)
    words = ["-c", "2", *(["-S", str(wrapper)] if how == "-S" else [])]
    path = f"{wrapper.parent}:{os.environ['PATH']}" if how == "PATH" else os.environ["PATH"]
    way.finish(*words, env={**os.environ, "PATH": path})
    assert (way.destination / "big").read_bytes() == data
    until(lambda: not descendants(way.server.pid), "what runs at the far end ends")


def test_c2_a_signal_ends_what_a_wrapper_has_started(push: Way, wrapper: Path) -> None:
    """C2: neither the wrapper nor its ssh is left, whatever connection it was."""
    fill(push.source / "big", 8 * MIB)
    running = push.start("-c", "2", "-S", str(wrapper), "-l", "8000")
    try:
        until(lambda: push.parts(), "the copy has begun")
        below = descendants(running.process.pid)
        assert len(below) >= 2
        running.send(signal.SIGTERM)
        assert running.ended().code == 143
        until(
            lambda: not any(Path(f"/proc/{p.pid}").exists() for p in below), f"{below} have ended"
        )
    finally:
        running.kill()


def test_one_login_ends_with_a_copy_that_is_killed(push: Way) -> None:
    """Its ssh reads nothing, so it stayed logged in, for any program of the user's."""
    fill(push.source / "big", 8 * MIB)
    running = push.start("--login-once", "-l", "8000")
    try:
        until(push.parts, "the copy has begun")
        below = descendants(running.process.pid)
    finally:
        running.kill()
    assert below
    until(lambda: not any(map(is_there, below)), f"{below} have ended")


# --- C5: logins that nobody needs


def cut_logins(server: PrivateServer) -> int:
    """How many sshd saw end in the middle."""
    ends = r"^(Connection (closed|reset)|Disconnected|Received disconnect|Read error).*\[preauth\]"
    return len(re.findall(ends, server.log, re.MULTILINE))


def connections_seen(server: PrivateServer) -> int:
    return len(re.findall("^Connection from ", server.log, re.MULTILINE))


def copied_to(server: PrivateServer, own_home: Path, *words: str) -> None:
    to = f"{server.host}:{own_home}/destination/"
    words = ("-F", server.ssh_config, "-B", "-c", "8", *words)
    code, said = command(*PSCP, *words, f"{own_home}/source/file", to)
    assert code == 0, said


def test_c5_no_more_logins_than_chunks(make_sshd: MakeServer, own_home: Path, file: Path) -> None:
    """C5: a file of one chunk needs one connection, whatever -c says."""
    server = make_sshd()
    copied_to(server, own_home)
    assert connections_seen(server) == 1
    assert cut_logins(server) == 0


@pytest.mark.parametrize("remote", ["agent", "sftp", "session"])
def test_c5_logins_under_way_at_the_end_are_not_cut(
    remote: Any, make_sshd: MakeServer, own_home: Path, file: Path
) -> None:
    """C5: they end by themselves, once they are in, and nothing is left of them; also where the
    program goes on after its copy.
    """
    server = make_sshd()
    for size in (3 * MIB, 12 * MIB) if remote == "agent" else (12 * MIB,):
        fill(file, size)
        if remote == "session":
            to = f"{server.host}:{own_home}/destination/"
            pscp.copy(str(file), to, batch=True, connections=8, config_file=server.ssh_config)
        else:
            copied_to(server, own_home, "--remote", remote)
    until(lambda: not descendants(server.pid), "every login comes to its end")
    assert cut_logins(server) == 0, server.log


# --- outages


def test_a15_retry_for_waits_for_a_host_that_boots(
    file: Path, own_home: Path, make_far: MakeFar, until_end: contextlib.ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A15: it refused until the third attempt; without --retry-for the first one had been all."""
    require_sshd()
    server = until_end.enter_context(Sshd(QUICK_LOGINS, environment=make_far()))
    server.kill()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            server.revive()

    monkeypatch.setattr(stops, "pause", pause)
    to = f"{server.host}:{own_home}/destination/"
    fields: OptionFields = {"batch": True, "config_file": server.ssh_config, "connections": 1}
    with pytest.raises(Unreachable):
        pscp.copy(str(file), to, **fields)
    assert not pauses
    fields["retry_for_s"] = 600
    result = pscp.copy(str(file), to, **fields)
    assert result.ok and pauses[:3] == [1, 2, 4]


def test_a15_an_outage_is_ridden_out(
    push: Way, make_sshd: MakeServer, quick_retries: None, monkeypatch: pytest.MonkeyPatch,
    together: Together,
) -> None:  # fmt: skip
    """A15: with --retry-for no number of attempts is too many; its time is the only end."""
    monkeypatch.setattr(logins, "_ATTEMPTS_ALONE", 2)
    fill(push.source / "big", 16 * MIB)
    object.__setattr__(push, "server", make_sshd())
    closed = threading.Event()

    def close() -> bool:
        push.server.close()
        closed.set()
        return True

    with pytest.raises(ConnectError) as raised:
        push.copy(chunk_bytes=MIB, retry_for_s=3, **together(2, close, 4 * MIB))
    assert raised.value.exit_code == 3
    assert raised.value.hint == "make the same call again to go on from here"
    assert closed.is_set()


def test_a_time_that_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    for option, text in itertools.product(
        ("--timeout", "--retry-for"), ("0", "-1", "soon", "1.5h", "9" * 30, "")
    ):
        assert copy.main([f"{option}={text}", "x", "there:"]) == 2
        assert capfd.readouterr().err.startswith("pscp: ")


# --- what is said of the far end


@pytest.mark.parametrize("remote", ["auto", "sftp"])
def test_a7_the_greeting_of_a_forced_command(
    remote: Any, make_sshd: MakeServer, file: Path
) -> None:
    """A7: no broken protocol, but what it is, with its hint."""
    server = make_sshd(["ForceCommand echo Welcome, no shell here"])
    with pytest.raises(NoSftp if remote == "sftp" else NoAgent) as raised:
        pscp.copy(
            str(file), f"{server.host}:", batch=True, remote=remote, config_file=server.ssh_config
        )
    assert raised.value.exit_code == 3
    assert "Welcome, no shell here" in raised.value.message
    assert server.host in raised.value.hint


def test_lines_of_a_start_up_file_before_sftp(make_sshd: MakeServer, file: Path) -> None:
    """They are told, and not the packets behind them."""
    server = make_sshd([r"ForceCommand printf 'Welcome to the cluster\n\0\0\1>\2\0\0\0\3'"])
    with pytest.raises(NoSftp) as raised:
        pscp.copy(
            str(file), f"{server.host}:", batch=True, remote="sftp", config_file=server.ssh_config
        )
    assert raised.value.message.endswith("; it said: Welcome to the cluster")


@OVER_EACH
@pytest.mark.parametrize("said", ["", "echo pscp-agent;"], ids=["sh", "python3"])
def test_what_is_killed_as_it_begins_is_no_reason_for_sftp(
    transport: Any, said: str, make_sshd: MakeServer, file: Path, own_home: Path
) -> None:
    """With one login it was one, and remembered: the next copies had no fractions of a second."""
    flag, to = own_home / "flag", own_home / "to"
    killed = (
        f'if rm {flag} 2>/dev/null; then {said} kill -9 $$; fi; exec sh -c "$SSH_ORIGINAL_COMMAND"'
    )
    server = make_sshd([f"ForceCommand {killed}"])
    os.utime(file, ns=(0, 1_500_000_000))
    given = {"archive": True, "login_once": True, "transport": transport, "batch": True}
    options = pscp.Options(config_file=server.ssh_config, **given)
    names = f"{file.parent}/.", f"{server.host}:{to}"
    flag.touch()
    if said:
        with pytest.raises(AgentFailed) as raised:
            pscp.copy(*names, options=options)
        assert raised.value.retry
        flag.touch()
        options = dataclasses.replace(options, retry_for_s=60)
    else:  # ssh does not tell this from a server that runs no commands
        assert pscp.copy(*names, options=options).ok
        shutil.rmtree(to)
    assert pscp.copy(*names, options=options).ok
    assert (to / "file").stat().st_mtime_ns == 1_500_000_000


def test_a5_a_far_folder_that_cannot_be_entered(
    push: Way, own_home: Path, make_sshd: MakeServer
) -> None:
    """A5: the line names the folder, once, and says nothing of connections."""
    powerless = 'exec setpriv --bounding-set=-all --inh-caps=-all /bin/sh "$@"'
    shell = script(own_home / "shell", powerless)
    fill(push.source / "a.txt", 100)
    denied = push.destination / "denied"
    denied.mkdir()
    denied.chmod(0)
    way = dataclasses.replace(push, server=make_sshd(shell=str(shell)))
    try:
        argv = way.argv("-c", "4", "--progress", "none", name="a.txt")
        code, said = command(*argv[:-1], f"{way.server.host}:{denied}/x")
    finally:
        denied.chmod(0o700)
    assert code == 1
    assert str(denied) in said and "Permission denied" in said
    assert "connections" not in said
    assert len(said.splitlines()) <= 2, said


# --- D8


def test_d8_sockets_of_killed_runs_are_removed(push: Way) -> None:
    """D8: those that nobody listens on, and no others; also by a run with -B."""
    fill(push.source / "small", 10)
    folder = state.control_folder()
    assert folder is not None
    dead, alive, new = (f"{folder}/{letter * 16}" for letter in "abc")
    listeners = []
    for path in (dead, alive, new):
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(path)
        listeners[-1].listen()
    try:
        listeners[0].close()
        listeners[2].close()
        long_ago_s = time.time() - 2 * control_sockets._NEW_S
        for path in (dead, alive):
            os.utime(path, (long_ago_s, long_ago_s))
        assert push.copy(channels=2).ok
        assert not os.path.exists(dead)
        assert os.path.exists(alive)  # somebody listens
        assert os.path.exists(new)  # somebody may be about to
    finally:
        for listener, path in zip(listeners, (dead, alive, new), strict=True):
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


RELAY = """
import os, socket, sys, threading, time
try:
    os.mkdir(sys.argv[2])
except FileExistsError:
    open(sys.argv[2] + "/pid", "w").write(str(os.getpid()))
    time.sleep(600)
sock = socket.create_connection((sys.argv[3], int(sys.argv[1])))
def back():
    while data := sock.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    sock.sendall(data)
"""


def test_a_login_through_a_proxy_that_never_ends_is_ended_after_the_command(
    push: Way, tmp_path: Path
) -> None:
    """It is let go, since sshd counts one that is cut; what a shell has started stays."""
    fill(push.source / "file", 8 * MIB)
    relay, config, first = tmp_path / "relay.py", tmp_path / "config", tmp_path / "first"
    relay.write_text(RELAY)
    plain = Path(push.server.ssh_config).read_text()
    proxy = f"ProxyCommand {sys.executable} {relay} %p {first} {ADDRESS}"
    config.write_text(f"{plain}  {proxy}\n")
    argv = [sys.executable, "-c", "from pscp.cli.start import pscp; pscp()", "-F", str(config)]
    argv += ["-q", "-c", "2", str(push.source / "file"), f"{push.server.host}:{push.destination}/"]
    done = subprocess.run(
        [*BY_EXEC, *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_S, check=True,
    )  # fmt: skip
    hanging = first / "pid"
    until(lambda: hanging.exists() and not Path("/proc", hanging.read_text()).exists())
    os.kill(int(done.stdout), signal.SIGKILL)  # it is there still
