"""Whole copies over connections that asyncssh and paramiko make, and over a program's own.

Some are asked of ssh as well. Not here: what any lane may rely on (../conformance), what arrives
(the other tests here, which run over these libraries too), more of ssh (test_copy_ssh.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asyncssh
import paramiko
import pytest
from conftest import MakeServer, Together, until
from lent_clients import begun, ended, lent_client
from matrix import LIBRARIES, TRANSPORTS
from servers.private import PrivateServer, make_key

import pscp
from e2e.conftest import WriteConfig
from e2e.ways import Ran, Way
from pscp.ground.processes import descendants
from pscp.ground.values import MIB
from pscp.transfer.lanes import worker
from pscp.transports import Request
from pscp.transports.libraries.asyncssh_internals import loop_of
from pscp.transports.libraries.external import LentChannel, serve_paramiko
from pscp.transports.libraries.helper import HelperError
from pscp.transports.ssh_settings import CIPHERS, KEYWORDS

LOGIN, SESSION = "Accepted publickey", "Starting session"  # in sshd's log


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def to(push: Way, library: str) -> Way:
    (push.source / "x").write_text("x")
    return dataclasses.replace(push, transport=library)


@pytest.fixture(params=TRANSPORTS)
def over(request: pytest.FixtureRequest, push: Way) -> Way:
    """A push over each, ssh among them."""
    (push.source / "x").write_text("x")
    return dataclasses.replace(push, transport=request.param)


def tried(way: Way, *words: str) -> Ran:
    return way.command(*words, names=["x"])


def is_refused(ran: Ran, code: int, *said: str) -> bool:
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert "Traceback" not in ran.err
    return all(re.search(each, ran.err) for each in said)


# --- copies


def test_a_connection_that_is_killed_is_replaced(
    to: Way, library: str, monkeypatch: pytest.MonkeyPatch, together: Together
) -> None:
    monkeypatch.setattr(worker, "_PAUSE_S", (0.02, 0.05))
    (to.source / "large").write_bytes(os.urandom(12 * MIB))
    of_others, killed = programs(library), list[int]()  # a session that all tests share has some

    def kill() -> bool:
        killed.extend(pid for pid in programs(library) if pid not in of_others)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        return True

    result = to.copy("large", chunk_bytes=MIB, **together(1, kill, 2 * MIB))
    assert result.ok and result.connections_lost == len(killed) == 1
    assert (to.destination / "large").read_bytes() == (to.source / "large").read_bytes()


def programs(library: str) -> list[int]:
    return [
        process.pid
        for process in descendants(os.getpid())
        if f"{library}_helper".encode() in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ]


def test_who_started_it_is_killed_and_nothing_is_left(to: Way, library: str) -> None:
    """The check for leaks, after every test, finds what is."""
    (to.source / "large").write_bytes(os.urandom(12 * MIB))
    words = ("--transport", library, "-l", "8192", "--channels", "2", "--progress", "none")
    sources, destination = to.locations(["large"], "")
    process = subprocess.Popen([*to.argv(*words), "--", *sources, destination])
    try:
        until(lambda: list(to.destination.glob(".large*")))
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_jump_host_is_gone_through(over: Way, config: WriteConfig, is_typed: bool) -> None:
    server = over.server
    path = config(
        "HostName 127.0.0.1", f"Port {server.port}", f"User {server.user}",
        f"IdentityFile {server.folder}/user_key", f"UserKnownHostsFile {server.folder}/known_hosts",
        "IdentityAgent none", "StrictHostKeyChecking yes",
        *([] if is_typed else [f"ProxyJump {server.host}"]), host="there",
    )  # fmt: skip
    logins = server.log.count(LOGIN)
    words = ["-F", path, *(["-J", server.host] if is_typed else [])]
    ran = over.typed(*words, "--", f"{over.source}/x", f"there:{over.destination}")
    assert ran.code == 0, ran.err
    assert (over.destination / "x").read_text() == "x"
    assert server.log.count(LOGIN) == logins + 2


def test_a_proxy_command_connects_in_its_place(over: Way, config: WriteConfig) -> None:
    python = "import os,socket,sys,threading as t;open(sys.argv[3],'w');s=socket.create_connection((sys.argv[1],int(sys.argv[2])));t.Thread(target=lambda:[os.write(1,d) for d in iter(lambda:s.recv(65536),b'')],daemon=True).start();[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')]"  # noqa: E501
    program, used = over.source / "relay", over.source / "used"
    program.write_text(python)
    ran = tried(over, "-F", config(ProxyCommand=f"python3 {program} %h %p {used}"))
    assert ran.code == 0, ran.err
    assert (over.destination / "x").read_text() == "x" and used.exists()


def test_sockets_are_given_what_was_asked(to: Way) -> None:
    asked = ("--congestion", "reno", "--sndbuf", "1M", "--rcvbuf", "1M", "--bind", "127.0.0.1")
    ran = tried(to, *asked, "-4", "-C", "--cpus", "0")
    assert ran.code == 0, ran.err


def test_the_cipher_is_the_users(over: Way, make_sshd: MakeServer) -> None:
    """A server that has no other would refuse."""
    cipher = "aes256-ctr"
    way = dataclasses.replace(over, server=make_sshd([f"Ciphers {cipher}"]))
    assert tried(way, "--cipher", cipher).code == 0
    theirs = CIPHERS.get(over.transport, ("aes128-ctr",))
    other = next(name for name in theirs if name != cipher)
    verbose = ("-o", "LogLevel=INFO") if over.transport == "openssh" else ()
    ran = tried(way, "--cipher", other, *verbose)
    # asyncssh looks at the server's list in a task: the end of the connection may come before.
    is_late = over.transport == "asyncssh" and is_refused(ran, 3, "Connection lost")
    assert is_late or is_refused(ran, 3, "no matching"), ran


# --- what is refused


def test_a_changed_host_key_is_refused_whatever_is_configured(
    to: Way, config: WriteConfig, tmp_path: Path
) -> None:
    make_key(tmp_path / "other")
    known = Path(to.server.folder / "known_hosts").read_text().split()[0]
    (tmp_path / "known").write_text(f"{known} {(tmp_path / 'other.pub').read_text()}")
    logins = to.server.log.count(LOGIN)
    for checking in ("yes", "no", "accept-new"):
        path = config(UserKnownHostsFile=tmp_path / "known", StrictHostKeyChecking=checking)
        assert is_refused(tried(to, "-F", path), 3, "host key of .* has changed", "ssh-keygen -R")
    assert to.server.log.count(LOGIN) == logins
    assert list(to.destination.iterdir()) == []


@pytest.mark.parametrize("checking", ["yes", "ask"])
def test_an_unknown_host_is_refused(
    over: Way, config: WriteConfig, tmp_path: Path, checking: str
) -> None:
    """-B, which the tests always give, answers no question."""
    path = config(UserKnownHostsFile=tmp_path / "none", StrictHostKeyChecking=checking)
    is_of_ssh = over.transport == "openssh" and checking == "yes"  # it names the kind of the key
    said = "host key is known" if is_of_ssh else "Host key verification failed"
    assert is_refused(tried(over, "-F", path), 3, said, "StrictHostKeyChecking=ask true")
    assert not (tmp_path / "none").exists()


def test_a_new_host_is_recorded_where_that_is_configured(
    to: Way, config: WriteConfig, tmp_path: Path
) -> None:
    known = tmp_path / "new" / "known"
    path = config(UserKnownHostsFile=known, StrictHostKeyChecking="accept-new")
    assert tried(to, "-F", path).code == 0
    assert known.read_text() == Path(to.server.folder / "known_hosts").read_text()
    assert tried(to, "-F", config(UserKnownHostsFile=known, StrictHostKeyChecking="yes")).code == 0


def test_a_hashed_name_is_known(to: Way, config: WriteConfig, tmp_path: Path) -> None:
    _, kind, key = Path(to.server.folder / "known_hosts").read_text().split()
    name = paramiko.HostKeys.hash_host(f"[127.0.0.1]:{to.server.port}")
    (tmp_path / "hashed").write_text(f"{name} {kind} {key}\n")
    path = config(UserKnownHostsFile=tmp_path / "hashed")
    assert tried(to, "-F", path).code == 0


def named_otherwise(to: Way, *lines: str) -> str:
    name, *key = Path(to.server.folder / "known_hosts").read_text().split()
    return (
        "".join(f"{each}\n" for each in lines).replace("NAME", name).replace("KEY", " ".join(key))
    )


@pytest.mark.parametrize(
    "lines",
    [["NAME KEY", "@revoked * KEY"], ["@revoked NAME KEY"], ["@revoked [127.0.0.*]:* KEY"],
     ["127.0.0.1 KEY", "@revoked NAME KEY"]],
)  # fmt: skip
def test_a_revoked_host_key_is_refused_and_never_added(
    to: Way, config: WriteConfig, tmp_path: Path, lines: list[str]
) -> None:
    """N7: paramiko let it in, and asyncssh where no other line had the name with its port."""
    (tmp_path / "known").write_text(text := named_otherwise(to, *lines))
    logins = to.server.log.count(LOGIN)
    for checking in ("yes", "no", "accept-new"):
        path = config(UserKnownHostsFile=tmp_path / "known", StrictHostKeyChecking=checking)
        assert is_refused(tried(to, "-F", path), 3, "revoked", "compare the key with")
    assert to.server.log.count(LOGIN) == logins
    assert (tmp_path / "known").read_text() == text


def test_a_pattern_and_one_of_two_keys_of_a_kind_are_known(
    to: Way, config: WriteConfig, tmp_path: Path
) -> None:
    """N7: paramiko said that the host's key had changed."""
    make_key(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text().strip()
    pattern = f"[127.0.0.*]:{to.server.port}"
    for lines in ([f"{pattern} KEY"], [f"NAME {other}", "NAME KEY", f"@revoked NAME {other}"]):
        (tmp_path / "known").write_text(named_otherwise(to, *lines))
        path = config(UserKnownHostsFile=tmp_path / "known")
        assert tried(to, "-F", path).code == 0


def test_a_host_of_which_only_an_authority_is_known_is_refused(
    to: Way, config: WriteConfig, tmp_path: Path
) -> None:
    make_key(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text().strip()
    (tmp_path / "known").write_text(text := named_otherwise(to, f"@cert-authority NAME {other}"))
    # asyncssh tells of a lost connection, which is tried again for seven seconds: once is enough.
    for checking in ("yes", "accept-new")[to.transport == "asyncssh" :]:
        path = config(UserKnownHostsFile=tmp_path / "known", StrictHostKeyChecking=checking)
        said = "@cert-authority" if to.transport == "paramiko" else ""
        assert is_refused(tried(to, "-F", path), 3, said)
    assert (tmp_path / "known").read_text() == text


def test_a_key_that_is_not_let_in(over: Way, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    text = Path(over.server.ssh_config).read_text()
    path = tmp_path / "ssh_config"
    path.write_text(re.sub("IdentityFile .*", f'IdentityFile "{tmp_path}/key"', text))
    said = "Permission denied", f"no key was accepted there.*try: ssh -F {path} pscp-test true"
    assert is_refused(tried(over, "-F", str(path)), 3, *said)
    assert tried(over, "-F", str(path), "-i", str(over.server.folder / "user_key")).code == 0


def test_where_no_key_is_there_no_password_is_asked_for(over: Way, config: WriteConfig) -> None:
    """With -B. Hosts that refuse or do not resolve are in ../faults/test_connecting.py."""
    path = config("IdentityFile /no/such/key", PubkeyAuthentication="no")
    assert is_refused(tried(over, "-F", path), 3, "Permission denied")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "ControlMaster=yes"], "-o ControlMaster: not with --transport {}"),
        (["-o", "=nonsense"], "-o =nonsense: not KEYWORD=VALUE"),
        (["-S", "/bin/ssh"], "-S: not with --transport {}"),
        (["--cipher", "3des-cbc"], "3des-cbc: {} has no such cipher"),
        (["-F", "/no/such/config"], "no such file"),
        (["-J", "elsewhere", "--bind", "127.0.0.1"], "--bind"),
        (["-o", "ProxyCommand=false", "--congestion", "reno"], "--congestion: not with Proxy"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_library_cannot_do_is_wrong_use(to: Way, words: list[str], said: str) -> None:
    contacts = to.server.log.count("Connection from")
    assert is_refused(tried(to, *words), 2, re.escape(said.format(to.transport)))
    assert to.server.log.count("Connection from") == contacts


def test_what_may_not_be_ignored_is_wrong_use(to: Way, config: WriteConfig) -> None:
    ran = tried(to, "-F", config(RevokedHostKeys="/etc/ssh/revoked"))
    assert is_refused(ran, 2, "RevokedHostKeys", "--transport openssh")


def test_the_page_has_the_tables_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "transports.md").read_text()
    sections = {"paramiko": ("Both libraries",), "asyncssh": ("asyncssh besides", "Both libraries")}
    for library in LIBRARIES:
        keywords, ciphers = list[str](), list[str]()
        for heading in sections[library]:
            section = page.split(f"### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
            listed = re.findall(r"^- \w+: (.*?)\.$", section, re.MULTILINE | re.DOTALL)
            keywords += re.findall(r"\w+", listed[0])
            ciphers += re.findall(r"[\w@.-]+\w", listed[1])
        assert sorted(keywords, key=str.lower) == sorted(KEYWORDS[library], key=str.lower)
        assert tuple(ciphers) == CIPHERS[library]


def test_the_tables_are_the_libraries_own() -> None:
    mine = {keyword.lower() for keyword in KEYWORDS["asyncssh"]}
    own = {"batchmode", "numberofpasswordprompts", "stricthostkeychecking"}
    assert mine - own <= set(asyncssh.config.SSHClientConfig._handlers)
    assert set(CIPHERS["asyncssh"]) <= {
        name.decode() for name in asyncssh.encryption.get_encryption_algs()
    }
    assert set(CIPHERS["paramiko"]) <= set(paramiko.Transport._preferred_ciphers)


# --- a connection of the program's own


@pytest.fixture
def client(library: str, sshd: PrivateServer) -> Iterator[Any]:
    with lent_client(library, sshd) as client:
        yield client


def is_open(client: Any) -> bool:
    if isinstance(client, paramiko.SSHClient):
        return bool(client.get_transport().is_active())
    return not client.is_closed()


def close(client: Any, *, is_death: bool = False) -> None:
    """Close the connection; with `is_death` as if the network had cut it."""
    if isinstance(client, paramiko.SSHClient):
        (client.get_transport() if is_death else client).close()
        return
    loop_of(client).call_soon_threadsafe(client.abort if is_death else client.close)
    until(client.is_closed)


def test_a_session_goes_over_a_connection_that_is_there(
    client: Any, sshd: PrivateServer, tmp_path: Path, together: Together
) -> None:
    (tmp_path / "file").write_bytes(os.urandom(20 * MIB))
    logins = sshd.log.count(LOGIN)
    with pscp.Session(transport=client, chunk_bytes=MIB, **together(3)) as session:
        assert session.copy(str(tmp_path / "file"), f"there:{tmp_path}/far").connections == 3
        assert session.copy(f"there:{tmp_path}/far", str(tmp_path / "back")).ok
        assert session.run(["echo", "hello"]).out == b"hello\n"
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()
    assert sshd.log.count(LOGIN) == logins
    assert is_open(client)


CLOSED = "the connection that was handed in is closed\nopen a new one, and a new Session with it"


def test_a_connection_that_was_closed_is_not_tried_again(client: Any, tmp_path: Path) -> None:
    with pscp.Session(transport=client) as session:
        assert session.run(["true"]).status == 0
        close(client)
        for call in (session.run, lambda words: session.copy("there:x", str(tmp_path))):
            with pytest.raises(pscp.ConnectionLost) as caught:
                call(["true"])
            assert (caught.value.text, caught.value.retry) == (CLOSED, False)


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_connection_that_dies_amid_a_copy_is_not_tried_again(
    client: Any, remote: Any, tmp_path: Path, together: Together
) -> None:
    (tmp_path / "file").write_bytes(bytes(20 * MIB))

    def die() -> bool:
        close(client, is_death=True)
        return True

    with (
        pscp.Session(
            transport=client, remote=remote, chunk_bytes=MIB, **together(3, die, 4 * MIB)
        ) as session,
        pytest.raises(pscp.ConnectionLost) as caught,
    ):
        session.copy(str(tmp_path / "file"), f"there:{tmp_path}/far")
    assert (caught.value.text, caught.value.retry) == (CLOSED, False)
    late = LentChannel(client, Request("true"))  # as where it dies while a channel is opened
    assert late.explain("").text == CLOSED
    late.close()


def test_a_connection_that_dies_while_input_is_sent() -> None:
    """paramiko raises EOFError then, in a thread whose traceback a program would show."""
    channel = Mock(**{"recv.return_value": b"", "recv_stderr.return_value": b""})
    channel.sendall.side_effect, channel.recv_exit_status.return_value = EOFError, -1
    transport = Mock(**{"open_session.return_value": channel, "is_active.return_value": False})
    read, write = os.pipe()
    os.write(write, b"input")
    with pytest.raises(HelperError, match="closed by remote host"):
        serve_paramiko(transport, Request("true"), (read, write, write), Mock())
    until(lambda: "channel in" not in {each.name for each in threading.enumerate()})
    for fd in (read, write):
        os.close(fd)


def test_no_channel_is_left_where_the_program_for_sftp_cannot_be_started(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pscp.Session(transport=client, remote="sftp") as session:
        for _ in range(2):
            with pytest.raises(pscp.UsageError, match="cannot run"):
                session.copy(f"there:{tmp_path}", str(tmp_path))


def test_a_channel_that_was_closed_touches_no_descriptor_any_more(
    client: Any, tmp_path: Path
) -> None:
    """Its numbers are soon another file's."""
    for number in range(20):
        channel = LentChannel(client, Request("exec cat /dev/zero"))
        assert os.read(channel.read_fd, 1) == b"\0"
        channel.close()
        files = [os.open(tmp_path / f"{number}-{n}", os.O_CREAT | os.O_WRONLY) for n in range(8)]
        other = LentChannel(client, Request("echo done"))  # by then the library has had its turn
        assert os.read(other.read_fd, 5) == b"done\n"
        other.close()
        for fd in files:
            os.close(fd)
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}


def test_what_only_who_connects_can_heed_is_wrong_use(client: Any) -> None:
    with pytest.raises(pscp.UsageError, match="jump: not for a connection"):
        pscp.Session(transport=client, jump="there")


def test_what_is_no_connection_is_wrong_use() -> None:
    with pytest.raises(pscp.UsageError, match=r"object is no paramiko\.SSHClient"):
        pscp.Session(transport=object())
    with pytest.raises(pscp.UsageError, match="not connected"):
        pscp.Session(transport=paramiko.SSHClient())
    with pytest.raises(pscp.UsageError, match="needs a host"):
        pscp.Session()


def test_a_loop_of_this_very_thread_is_wrong_use(sshd: PrivateServer) -> None:
    async def use() -> None:
        connection = await begun(sshd)
        try:
            with pytest.raises(pscp.UsageError, match="this thread runs the event loop"):
                pscp.Session(transport=connection)
        finally:
            await ended(connection)

    asyncio.run(use())
