"""Logins at pscp-serve: each way to prove one, and what slows down who cannot.

Not here: settings that are wrong (test_serve_settings.py), what a user may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import argon2
import asyncssh
import pytest
from conftest import shared

from pscp.ground.processes import descendants
from pscp.serve.server import logins
from serve import server
from serve.server import QUICK_HASHES, Serving, run, sftp, until

HASH = QUICK_HASHES.hash("secret")
MORE_USERS = f"""
[user.bob]
folder = "bob"
rules = "write"
password = "{HASH}"
[user.carol]
folder = "carol"
rules = ["read", "write"]
ca = "ca.pub"
[user.dora]
folder = "dora"
rules = ["read", "write"]
keys = "keys"
[user.eve]
folder = "eve"
rules = ["read", "write"]
keys = "alice.pub"
addresses = "192.0.2.0/24"
[user.fred]
folder = "not-there"
rules = ["read", "write"]
keys = "alice.pub"
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    for name in ("bob", "carol", "dora", "eve", "keys"):
        (tmp_path / name).mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "ca"], check=True
    )
    with Serving(tmp_path, "workers = 2", MORE_USERS) as made:
        yield made


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def refusals(serving: Serving) -> list[str]:
    return [each["why"] for each in serving.events("refused")]


def test_a_key_is_the_login_of_its_user_alone(serving: Serving) -> None:
    assert serving.login("alice")
    assert (serving.home / "tried").read_bytes() == b"x"
    assert not serving.login("dora") and not serving.login("nobody")
    other = asyncssh.generate_private_key("ssh-ed25519")
    assert not serving.login("alice", client_keys=[other])
    [event] = serving.events("login")
    assert (event["user"], event["address"], event["how"]) == ("alice", "127.0.0.1", "key")


def test_a_folder_of_keys_is_read_at_each_login(serving: Serving, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "keys" / ".hidden").write_bytes(serving.key.export_public_key())
    (tmp_path / "keys" / "one").write_bytes(b"# a comment\n\n" + other.export_public_key())
    assert not serving.login("dora")
    assert serving.login("dora", client_keys=[other])
    (tmp_path / "keys" / "two").write_bytes(serving.key.export_public_key())
    assert serving.login("dora") and serving.login("dora", client_keys=[other])
    (tmp_path / "keys" / "one").unlink()
    assert not serving.login("dora", client_keys=[other])


def test_a_key_may_be_held_to_addresses(serving: Serving, tmp_path: Path) -> None:
    key = serving.key.export_public_key().decode()
    (tmp_path / "keys" / "one").write_text(f'from="192.0.2.0/24" {key}')
    assert not serving.login("dora")
    (tmp_path / "keys" / "one").write_text(f'from="127.0.0.0/8" {key}')
    assert serving.login("dora")
    assert not serving.login("eve")
    assert refusals(serving) == ["not from this address"]


def test_a_password(serving: Serving) -> None:
    assert serving.login("bob", password="secret")
    assert [each["how"] for each in serving.events("login")] == ["password"]
    assert (serving.folder / "bob" / "tried").read_bytes() == b"x"
    assert not serving.login("bob", password="Secret")
    assert not serving.login("alice", password="secret")
    assert len(serving.events("login")) == 1
    assert {*refusals(serving)} == {"wrong password"}


def test_a_certificate(serving: Serving, tmp_path: Path) -> None:
    def certified(name: str, *words: str) -> str:
        key = tmp_path / f"key-{name}"
        make_key(key)
        argv = ["ssh-keygen", "-q", "-s", f"{tmp_path}/ca", "-I", name, *words, f"{key}.pub"]
        subprocess.run(argv, check=True)
        return str(key)

    sources = itertools.count(2)  # a place each, as what fails is held against it

    def puts(key: str, user: str) -> bool:
        words = ["-i", key, f"-oBindAddress=127.0.0.{next(sources)}", f"{user}@127.0.0.1"]
        return sftp(serving, words, f"put {tmp_path}/ca.pub landed\n").returncode == 0

    carol = certified("carol", "-n", "carol")
    assert puts(carol, "carol") and not puts(carol, "alice")
    assert (tmp_path / "carol" / "landed").exists()
    assert not puts(certified("other", "-n", "bob"), "carol")
    assert not puts(certified("anybody"), "carol")  # which is for no principal in particular
    assert not puts(certified("old", "-n", "carol", "-V", "20200101:20200201"), "carol")
    assert not puts(certified("far", "-n", "carol", "-O", "source-address=192.0.2.1/32"), "carol")
    assert puts(certified("near", "-n", "carol", "-O", "source-address=127.0.0.0/8"), "carol")
    ca = (tmp_path / "ca.pub").read_text()
    for options, may in (('principals="c*"', True), ('from="192.0.2.1"', False)):
        (tmp_path / "ca.pub").write_text(f"{options} {ca}")
        assert puts(carol, "carol") is may
    (tmp_path / "ca.pub").write_text(f'from="127.0.0.0/8" {ca}')
    assert puts(carol, "carol") and not puts(str(tmp_path / "ca"), "carol")  # no key of a user


def test_a_folder_that_is_missing_is_a_refused_login(serving: Serving) -> None:
    assert not serving.login("fred")
    assert serving.login("alice")
    assert refusals(serving) == [f"{serving.folder}/not-there is no folder"]


def test_no_shell_no_command_no_forwarding(serving: Serving) -> None:
    async def tries() -> list[str]:
        told = list[str]()
        async with await serving.connect() as connection:
            for what in (
                connection.run("id"), connection.run(), connection.open_connection("127.0.0.1", 22),
                connection.open_unix_connection("/run/x"),
                connection.forward_remote_port("", 0, "127.0.0.1", 1),
            ):  # fmt: skip
                with pytest.raises(
                    (asyncssh.ChannelOpenError, asyncssh.ChannelListenError)
                ) as caught:
                    await what
                told.append(str(caught.value))
        return told

    assert len(run(tries())) == 5


# --- a command that is asked

ASKED = """\
import array, fcntl, json, os, sys, termios
[name] = sys.argv[1:]
with open({asked!r}, "a") as file:
    print(name, os.environ["PSCP_ADDRESS"], file=file)
if name == "slow":
    sys.exit(1)
print(flush=True)
left = array.array("i", [1])
while left[0]:  # until the server has read so much
    fcntl.ioctl(1, termios.FIONREAD, left)
print(json.dumps({{"folder": {folder!r}, "rules": "write", "password": {hash!r}}}
                 if name != "wrong" else {{"folder": 3}}))
"""


def test_a_command_is_asked_for_who_is_not_listed(tmp_path: Path) -> None:
    asked, folder = tmp_path / "asked", tmp_path / "customer"
    folder.mkdir()
    script = ASKED.format(asked=str(asked), folder=str(folder), hash=HASH)
    (tmp_path / "ask.py").write_text(script)
    command = json.dumps([sys.executable, str(tmp_path / "ask.py")])
    with Serving(tmp_path, f"command = {command}\nworkers = 1\nper-address = 100") as serving:
        assert serving.login("alice") and not asked.exists()
        serving.login("zoe", password="secret")
        assert [each["user"] for each in serving.events("login")] == ["alice", "zoe"]
        assert (folder / "tried").exists()
        for name in ("slow", "wrong"):
            assert not serving.login(name, password="secret")
        assert not serving.login("-x", password="secret")
        assert asked.read_text() == "zoe 127.0.0.1\nslow 127.0.0.1\nwrong 127.0.0.1\n"


# --- who guesses, and who is too many


def banner(serving: Serving, header: bytes = b"") -> bytes:
    """What the server says first; nothing where it lets nobody in."""
    with socket.create_connection(("127.0.0.1", serving.port), timeout=30) as client:
        try:
            client.sendall(header)
            return client.recv(255)
        except ConnectionResetError:
            return b""


@pytest.fixture
def long_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three guesses cost half a minute more than is free: a busy machine does not outlast that."""
    of_gate = "from pscp.serve.server import gate; gate._TOLD_S = 100.0; gate._FREE_S = 120.0; "
    python, option, program = server.COMMAND
    longer = f"{of_gate}gate.FAILED_S = 50.0; {program}"
    monkeypatch.setattr(server, "COMMAND", (python, option, longer))


def test_who_guesses_is_shut_out_for_a_while(long_penalties: None, serving: Serving) -> None:
    """Each worker knows it, whichever of them was guessed at."""
    tries = 0
    while banner(serving):
        tries += 1
        assert tries < 20 and not serving.login("bob", password="wrong")
    with contextlib.ExitStack() as held:
        where = ("127.0.0.1", serving.port)
        began_s = time.monotonic()
        clients = [held.enter_context(socket.create_connection(where)) for _ in range(8)]
        assert [client.recv(255) for client in clients] == [b""] * 8
        assert time.monotonic() - began_s >= 1  # or it would come again at once
    assert not serving.login("alice")
    assert len(serving.events("refused")) <= 4  # one line in 10 s, of each worker and address


def test_who_is_no_user_takes_as_long_to_refuse_as_any_other() -> None:
    """The hash that stands for such a user has the costs of one that --hash-password makes."""
    made = argon2.PasswordHasher().hash("secret")
    nobodys = logins.hash_of_nobody()
    assert argon2.extract_parameters(nobodys) == argon2.extract_parameters(made)
    with pytest.raises(argon2.exceptions.VerifyMismatchError):  # found at the end of the work
        argon2.PasswordHasher().verify(nobodys, "secret")
    assert nobodys != logins.hash_of_nobody()


def test_a_connection_has_six_guesses(serving: Serving) -> None:
    class Guesser(asyncssh.SSHClient):
        guesses = 0

        def password_auth_requested(self) -> str:
            Guesser.guesses += 1
            return "wrong"

    async def guess() -> None:
        keywords: dict[str, Any] = {"client_factory": Guesser, "preferred_auth": "password"}
        await serving.connect("bob", client_keys=None, **keywords)

    with pytest.raises((asyncssh.PermissionDenied, asyncssh.DisconnectError)):
        run(guess())
    assert Guesser.guesses == 6


def test_one_address_cannot_fill_the_queue_of_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def hashed(known: str, password: str) -> bool:
        asked.append(password)
        return False

    async def tries() -> None:
        guesses = [logins.is_right("", "guess", f"2001:db8::{number}") for number in range(20)]
        await asyncio.gather(*guesses, logins.is_right("", "honest", "192.0.2.1"))

    monkeypatch.setattr(logins, "_is_right", hashed)
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(logins, "_HASHING", pool)
        run(tries())
    assert asked.index("honest") <= 1 and len(asked) == 21


def test_names_without_end(tmp_path: Path) -> None:
    """One connection asks for six names, and a command is asked for none of them twice."""
    asked = tmp_path / "asked"
    command = json.dumps(["sh", "-c", f"echo $1 >>{asked}; exit 1", "sh"])

    async def ask(serving: Serving) -> None:
        connection = await asyncssh.connect(
            "127.0.0.1", serving.port, username="name0", client_keys=None, config=None,
            known_hosts=None, agent_path=None, client_factory=Namer, preferred_auth="password",
        )  # fmt: skip
        connection.close()

    class Namer(asyncssh.SSHClient):
        count = 0

        def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
            self._conn = conn

        def password_auth_requested(self) -> str:
            Namer.count += 1
            self._conn._username = f"name{Namer.count}"
            return "wrong"

    with Serving(tmp_path, f"command = {command}\nworkers = 1") as serving:
        with pytest.raises((asyncssh.DisconnectError, OSError)):
            run(ask(serving))
        assert asked.read_text().split() == [f"name{number}" for number in range(6)]
        assert {each["user"] for each in serving.events("refused")} == {"name1"}


def test_a_password_by_keyboard_interactive(serving: Serving) -> None:
    assert serving.login("bob", password="secret", preferred_auth="keyboard-interactive")


def test_limits_of_connections(tmp_path: Path) -> None:
    async def held(serving: Serving, most: int) -> int:
        found = list[asyncssh.SSHClientConnection]()
        try:
            while len(found) < most + 5:
                found.append(await serving.connect())
        except (OSError, asyncssh.DisconnectError):
            pass
        for each in found:
            each.close()
            await each.wait_closed()
        return len(found)

    for key in ("connections", "per-address"):
        with Serving(tmp_path, f"workers = 2\n{key} = 7") as serving:
            assert run(held(serving, 7)) == 7
            until(lambda: serving.status("--status", "--json").stdout.strip() == "[]")
            assert run(held(serving, 7)) == 7  # as many again: those that ended count no more


def test_a_limit_of_one_users_connections(tmp_path: Path) -> None:
    async def two(serving: Serving) -> list[bool]:
        first, second = await serving.connect(), await serving.connect()
        await second.wait_closed()
        found = [first.is_closed(), second.is_closed()]
        first.close()
        await first.wait_closed()
        return found

    with Serving(tmp_path, "workers = 2\nper-user = 1") as serving:
        assert run(two(serving)) == [False, True]
        assert refusals(serving) == ["too many connections of this user"]


def test_who_does_not_log_in_in_time_is_cut(tmp_path: Path) -> None:
    with (
        Serving(tmp_path, "login-time = 1\nworkers = 1") as serving,
        socket.create_connection(("127.0.0.1", serving.port), timeout=30) as client,
    ):
        while client.recv(4096):
            pass
        until(lambda: serving.events("refused"))
        assert refusals(serving) == ["no login in time"]


@pytest.mark.parametrize(
    "limits", ["per-address = 50", "per-address = 1000\nconnections = 500"], ids=["one", "many"]
)
def test_a_thousand_half_open_logins(tmp_path: Path, limits: str) -> None:
    """Nobody else waits for them: no more than so many of an address, or the oldest of all go."""
    settings = f"workers = 1\nlogin-time = 600\n{limits}"
    with Serving(tmp_path, settings) as serving, contextlib.ExitStack() as held:
        for _ in range(1000):
            held.enter_context(socket.create_connection(("127.0.0.1", serving.port)))
        assert serving.login("alice", local_addr=("127.0.0.2", 0))
        [worker] = descendants(serving.process.pid)
        assert len(os.listdir(f"/proc/{worker.pid}/fd")) < 600


# --- behind a balancer


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server that believes what stands before it."""
    settings = 'workers = 1\nproxy = "127.0.0.0/8"'
    with shared(lambda: Serving(tmp_path_factory.mktemp("balanced"), settings)) as serving:
        yield serving


async def login_through(serving: Serving, header: bytes) -> None:
    client = socket.create_connection(("127.0.0.1", serving.port))
    client.sendall(header)
    client.setblocking(False)
    async with await serving.connect(sock=client):
        pass


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 5 22\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 5 22\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"
            + bytes([192, 0, 2, 9, 127, 0, 0, 1, 0, 5, 0, 22]),
            "192.0.2.9",
        ),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24" + bytes(15) + b"\1" + bytes(20), "::1"),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.1"),  # the balancer's own
        (b"SSH-2.0-no header here\r\n", ""),
        (b"PROXY " + b"x" * 200, ""),
        (b"PROXY      \r\n", ""),
        (b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\0", ""),
    ],
)
def test_a_balancer_names_the_client(balanced: Serving, header: bytes, address: str) -> None:
    if address:
        run(login_through(balanced, header))
        until(lambda: [each["address"] for each in balanced.events("login")][-1:] == [address])
    else:
        assert banner(balanced, header) == b""
        until(lambda: balanced.events("refused"))  # one line in 10 s
        assert "PROXY header" in refusals(balanced)[0]


def test_a_key_is_held_to_the_address_that_the_balancer_names(balanced: Serving) -> None:
    keys = balanced.folder / "alice.pub"
    key = keys.read_text()
    keys.write_text(f'from="192.0.2.7" {key}')
    try:
        run(login_through(balanced, b"PROXY TCP4 192.0.2.7 127.0.0.1 5 22\r\n"))
        with pytest.raises(asyncssh.PermissionDenied):
            run(login_through(balanced, b"PROXY TCP4 192.0.2.8 127.0.0.1 5 22\r\n"))
    finally:
        keys.write_text(key)


def test_without_proxy_a_header_is_believed_by_nobody(serving: Serving) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=30) as client:
        client.sendall(b"PROXY TCP4 192.0.2.7 127.0.0.1 5 22\r\n")
        while client.recv(4096):
            pass
    assert serving.events("login") == []
