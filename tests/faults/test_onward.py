"""--direct: the source's host sends to the sink's by an ssh of its own; only control passes here.

Both hosts are one server, whose `ssh` is a script of the test: it finds the server again, and may
break what goes that way (relay.py).

Not here: a copy that goes through this machine (test_host_to_host.py).
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from conftest import QUICK_LOGINS, MakeFar, command_line, require_sshd, shared
from e2e.ways import Notes
from programs import script
from servers.private import PrivateServer, SshdServer

import pscp
from faults.conftest import MIB, PROGRAM, Breaking, Calling, Way, fill, until
from faults.hostile_channel import HostileChannel
from faults.interposed import relay_argv
from faults.test_host_to_host import assert_folders_are_compared, fill_all
from pscp.connect import bootstrap, onward, openers, persistent
from pscp.endpoint.frames import wire
from pscp.ground.errors import ConnectError, ProtocolError, UsageError
from pscp.ground.processes import descendants
from pscp.transfer.lanes import lane_context

pytestmark = pytest.mark.needs_ssh(reason="the ssh at the source's host is OpenSSH's")


@pytest.fixture(scope="module")
def hosts(make_far: MakeFar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A server that is both hosts; `folder / "bin"` comes first in its PATH."""
    require_sshd()
    here = tmp_path_factory.mktemp("bin")
    its = make_far()
    environment = {**its, "PATH": f"{here}:{its['PATH']}"}
    with shared(lambda: SshdServer(QUICK_LOGINS, environment=environment)) as server:
        (server.folder / "bin").symlink_to(here)
        yield server


class SshThere:
    """The program that the source's host has for an ssh."""

    def __init__(self, hosts: PrivateServer) -> None:
        self._hosts = hosts
        self.runs()

    def runs(self, *words: str, before: tuple[str, ...] = (), has_key: bool = True) -> None:
        """Have it be ssh with these options first, run by the words in `before`."""
        config = Path(self._hosts.ssh_config)
        if not has_key:
            lines = config.read_text().splitlines()
            config = config.with_name("without_key")
            config.write_text("\n".join(line for line in lines if "Identit" not in line))
        argv = shlex.join([*before, "/usr/bin/ssh", *words, "-F", str(config)])
        script(self._hosts.folder / "bin" / "ssh", f'exec {argv} "$@"')

    def breaks(self, breaking: Breaking) -> None:
        self.runs(before=tuple(relay_argv(str(breaking.folder), "agent")))


class Onward:
    """Copies of the way's source to its destination, both of which are at `hosts`."""

    def __init__(self, way: Way, hosts: PrivateServer) -> None:
        self.way, self.hosts, self.ssh = way, hosts, SshThere(hosts)
        self.breaking, self.source, self.destination = way.breaking, way.source, way.destination

    def copy(self, **fields: Any) -> pscp.Result:
        far = f"{self.hosts.host}:"
        chosen: dict[str, Any] = {
            "config_file": self.hosts.ssh_config, "batch": True, "recursive": True,
            "connections": 1, "direct": True, **fields,
        }  # fmt: skip
        to = f"{far}{self.destination}"
        return pscp.copy(f"{far}{self.source}/.", to, raises=False, **chosen)

    def done(self, **fields: Any) -> pscp.Result:
        """Copy, and all is there."""
        result = self.copy(**fields)
        assert result.ok, result.failures
        assert_same_tree(self.source, self.destination)
        assert not self.way.parts()
        return result


@pytest.fixture
def to(push: Way, hosts: PrivateServer) -> Onward:
    return Onward(push, hosts)


def test_a_mirror_of_folders_that_are_the_same(to: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_folders_are_compared(to.copy, to.way, monkeypatch)


def test_a_tree_of_which_no_data_comes_here(to: Onward, quick_retries: None) -> None:
    fill_all(to.way)
    (to.source / "link").symlink_to("big")
    os.link(to.source / "big", to.source / "hard")
    watching = to.breaking()
    for way in ("to", "from"):
        for type_ in (wire.DATA, wire.PACK):
            watching.rule("kill", way=way, connections=[0, 1], type=type_)
    fields = {"archive": True, "program": watching.program}
    told = Notes()
    direct_one = to.done(strong=True, itemize=True, reporter=told, **fields)
    assert any(text.endswith("straight there") for text in told.texts), told.texts
    assert direct_one.connections_lost == 0
    assert direct_one.bytes_sent == direct_one.bytes > 9 * MIB
    again = to.copy(checksum=True, **fields)
    assert (again.ok, again.bytes_sent) == (True, 0)
    (to.destination / "big").unlink()
    for connection in watching.folder.glob("connection-*"):
        connection.unlink()
    through_here = to.copy(direct=False, **fields)
    assert through_here.connections_lost > 0, "what would have been seen"


def test_several_lanes_and_a_limit(to: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(
        lane_context.RateLimiter, "wait", lambda self, size, is_over: waited.append(size)
    )
    fill_all(to.way)
    result = to.done(connections=3, limit_kbit_s=8000)
    assert result.bytes <= sum(waited) < 1.1 * result.bytes + MIB
    assert max(waited) < MIB // 2, "each goes at once: larger ones would be a row of bursts"


def test_connections_from_here_are_kept_and_those_onward_end(
    to: Onward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--persist is about this machine's own; nothing of the two hosts' is left behind there."""
    fill(to.source / "file", MIB)
    with tempfile.TemporaryDirectory(prefix="pk") as folder:  # for sockets: its name is short
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        try:
            logins = []
            for name in ("one", "two"):
                before = to.hosts.log.count("Accepted publickey")
                fill(to.source / name, MIB)
                to.done(persist="60")
                logins.append(to.hosts.log.count("Accepted publickey") - before)
                until(lambda: not ssh_of_agents(to.hosts), "no ssh is left at the source's host")
            assert logins == [2, 1], "here and onward, and then onward alone"
        finally:
            persistent.disconnect(None)


def ssh_of_agents(hosts: PrivateServer) -> list[int]:
    """The processes of ssh that agents on this server run."""
    config = str(hosts.folder / "ssh_config")
    return [each.pid for each in descendants(hosts.pid) if config in command_line(each.pid)]


@pytest.mark.parametrize("do", ["kill", "flip"])
def test_the_way_onward_breaks(to: Onward, quick_retries: None, do: str) -> None:
    fill_all(to.way)
    to.ssh.breaks(to.breaking().rule(do, way="to", after=4 * MIB))
    result = to.done(chunk_bytes=MIB)
    assert (result.connections_lost, result.chunks_resent) == ((1, 0) if do == "kill" else (0, 1))


def test_the_way_onward_stands_still(
    to: Onward, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SILENCE_S", 3.0)
    fill_all(to.way)
    to.ssh.breaks(to.breaking().rule("stop", way="to", after=2 * MIB))
    assert to.done(chunk_bytes=MIB).connections_lost >= 1


def test_the_connection_to_the_source_dies(to: Onward, quick_retries: None) -> None:
    fill_all(to.way)
    breaking = to.breaking().rule("kill", way="to", contains="PassChunk", type=wire.ASK, after=300)
    result = to.done(program=breaking.program, chunk_bytes=MIB)
    assert result.connections_lost == 1


def test_a_file_that_changes_fails_alone(to: Onward) -> None:
    fill_all(to.way)
    breaking = to.breaking().rule("block", way="to", contains="PassChunk", type=wire.ASK)
    copying = Calling(lambda: to.copy(program=breaking.program))
    until(lambda: breaking.blocked)
    with open(to.source / "big", "ab") as file:
        file.write(b"more")
    breaking.go()
    [failure] = copying.ended().failures
    assert (failure.path, failure.error) == ("big", "SourceChanged")
    assert (to.destination / "1" / "1").read_bytes() == (to.source / "1" / "1").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-oPreferredAuthentications=none",), "Permission denied"),
        (("-oUserKnownHostsFile=/dev/null",), "host key is known"),
        (("-oHostName=nowhere.invalid",), "Could not resolve hostname"),
    ],
)
def test_a_host_that_the_source_cannot_log_in_to(
    to: Onward, words: tuple[str, ...], said: str
) -> None:
    fill(to.source / "file", 10)
    to.ssh.runs(*words)
    with pytest.raises(ConnectError) as caught:
        to.copy()
    message = caught.value.message
    assert said in message and f"from {to.hosts.host} to {to.hosts.host}" in message
    assert "leave out direct" in caught.value.hint and "ForwardAgent" in caught.value.hint
    assert caught.value.exit_code == 3
    assert list(to.destination.iterdir()) == []


def test_a_source_without_ssh(to: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(to.source / "file", 10)
    monkeypatch.setattr(onward, "words", lambda *where: ["no-such-ssh"])
    with pytest.raises(ConnectError, match="cannot run ssh"):
        to.copy()


def test_the_agent_is_forwarded_only_when_asked(to: Onward, ssh_agent: None) -> None:
    fill(to.source / "file", 10)
    to.ssh.runs(has_key=False)
    here = "IdentityAgent=SSH_AUTH_SOCK"
    with pytest.raises(ConnectError, match="Permission denied"):
        to.copy(ssh_options=(here,))
    to.done(ssh_options=(here, "ForwardAgent=yes"))


@pytest.fixture
def ssh_agent(to: Onward, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent that has the key of the hosts."""
    socket = str(to.way.home / "agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        until(lambda: os.path.exists(socket))
        subprocess.run(["ssh-add", "-q", to.hosts.folder / "user_key"], check=True)
        yield
    finally:
        agent.terminate()
        agent.wait()


def is_full(hosts: PrivateServer, breaking: Breaking) -> bool:
    """Is the pipe to what breaks, in the place of the source's ssh, full?"""
    for process in descendants(hosts.pid):
        if str(breaking.folder) in command_line(process.pid):
            fd = os.open(f"/proc/{process.pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
            room = fcntl.fcntl(fd, 1032)  # F_GETPIPE_SZ
            waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"1234"))[0]
            os.close(fd)
            return bool(waiting > room * 3 // 4)
    return False


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_it_is_cut_short_and_goes_on(to: Onward, kind: signal.Signals) -> None:
    """What the check for leaks finds at either host fails the test."""
    fill(to.source / "big", 20 * MIB)
    breaking = to.breaking().rule("block", way="to", after=8 * MIB)
    to.ssh.breaks(breaking)
    far = f"{to.hosts.host}:"
    words = ["-F", to.hosts.ssh_config, "-B", "-r", "-c", "1", "--direct", "--chunk-size", "1M"]
    where = [f"{far}{to.source}/.", f"{far}{to.destination}"]
    argv = [sys.executable, "-c", PROGRAM, *words, *where]
    command = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: breaking.blocked)
    until(lambda: is_full(to.hosts, breaking))  # the source's agent waits to write
    until(lambda: to.way.journaled_bytes() >= 4 * MIB)
    command.send_signal(kind)
    assert command.wait() == (130 if kind == signal.SIGINT else -kind)
    to.ssh.runs()
    assert to.done().bytes_resumed >= 4 * MIB


@pytest.mark.parametrize(
    "scenario",
    [
        'Answers:["Learn", 5, true]',
        'Answers:["Dial", 5, true]',
        'Answers:["Dial", 5, false]',
        'Answers:["Dial", [3, "eA=="], false]',
        'Answers:["Dial", [1, "eA=="], false]',
    ],
)
def test_a_hostile_source_ends_the_copy(
    push: Way, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SILENCE_S", 1.0)
    channel = partial(HostileChannel, scenario)
    monkeypatch.setattr(openers, "open_channel", lambda *given, **fields: channel())
    fields: dict[str, Any] = {"recursive": True, "batch": True, "timeout_s": 1, "direct": True}
    with pytest.raises((ProtocolError, ConnectError)):
        pscp.copy("hostile:tree", "there:x", config_file=push.server.ssh_config, **fields)


@pytest.mark.parametrize(
    ("froms", "to", "fields", "said"),
    [
        ("x", "there:y", {}, "from host to host"),
        ("here:x", "y", {}, "from host to host"),
        ("here:x", "there:y", {"plane": "tls"}, "direct does not go with plane"),
        ("here:x", "there:y", {"remote": "sftp"}, "needs the agent"),
    ],
)
def test_what_cannot_be(froms: str, to: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pscp.copy(froms, to, direct=True, **fields)
