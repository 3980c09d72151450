"""The sockets below ssh have the settings that were asked for, and ssh runs where it was pinned.

Both ends are on this machine, so the far end can look at the near end's socket, and at its ssh,
while the connection stands: it is what a login shell of ours does first.

Not here: which words ssh is given (../unit/test_socket_options.py).
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeServer, Together, unavailable, until
from servers.private import PrivateServer

from e2e.conftest import ShellThat
from e2e.ways import Way
from pscp.ground.locations import parse_location
from pscp.ground.values import MIB
from pscp.options.options import Options
from pscp.transports.openssh import Child, resolve

LOOK = """
seen=$(set -- $SSH_CONNECTION; ss -tinmpOH "src $1:$2 and dst $3:$4")
pid=$(echo "$seen" | sed -n 's/.*("ssh",pid=\\([0-9]*\\),.*/\\1/p')
echo "$seen" cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$pid/status") >>{}
"""
BOTH = ("127.0.0.2", "127.0.0.3")  # all of 127/8 is this machine, on Linux


@dataclasses.dataclass(frozen=True)
class Watched:
    """A way to a server that notes the socket of each connection."""

    way: Way
    notes: Path

    def sockets(self, *words: str) -> list[str]:
        ran = self.way.command("-c", "1", *words, names=["x"])
        assert ran.code == 0, ran.err
        return self.notes.read_text().splitlines()


@pytest.fixture
def filled(push: Way) -> Way:
    (push.source / "x").write_text("x")
    return push


@pytest.fixture
def watched(filled: Way, make_sshd: MakeServer, shell_that: ShellThat, tmp_path: Path) -> Watched:
    if shutil.which("ss") is None:
        unavailable("ss is not installed")
    notes = tmp_path / "notes"
    server = make_sshd(shell=shell_that(LOOK.format(notes)))
    return Watched(dataclasses.replace(filled, server=server), notes)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[int]:
    """The port of a listener that takes no more connections: to connect there takes minutes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for each in waiting:
                each.close()


def other_congestion_control() -> str:
    """One that anybody may use here, and that connections do not have by themselves."""
    proc = Path("/proc/sys/net/ipv4")
    try:
        default = (proc / "tcp_congestion_control").read_text().strip()
        allowed = (proc / "tcp_allowed_congestion_control").read_text().split()
    except OSError:
        unavailable("this system shows no congestion controls")
    return next((name for name in allowed if name != default), None) or unavailable(
        "there is one congestion control here"
    )


def log_of(server: PrivateServer) -> list[str]:
    return re.findall(r"^Connection from (\S+) ", server.log, re.MULTILINE)


# --- what the sockets have


def test_buffers(watched: Watched) -> None:
    """Linux doubles what it is asked for. It is asked before connecting: the window's scale."""
    (seen,) = watched.sockets("--rcvbuf", "40000", "--sndbuf", "50000")
    assert re.search(r"skmem:\(\S*\brb80000,\S*\btb100000,", seen), seen
    assert re.search(r" wscale:\d+,[01] ", seen), seen  # ours is small, as the buffer is


def test_all_of_it_at_once(watched: Watched) -> None:
    name = other_congestion_control()
    (seen,) = watched.sockets("--congestion", name, "--rcvbuf", "40000", "--bind", BOTH[0])
    assert f" {name} " in seen and "rb80000" in seen and f" {BOTH[0]}:" in seen


def test_a_pull(watched: Watched) -> None:
    """The socket is the same; but what is sent over it comes from the other one, and -v says so."""
    name = other_congestion_control()
    assert watched.sockets()
    pulled = f"{watched.way.server.host}:{watched.way.destination}/x"
    words = ["-vv", "-c", "1", "--congestion", name]  # else a login that nobody needs may pass
    ran = watched.way.typed(*words, pulled, f"{watched.way.source}/y")
    first, second = watched.notes.read_text().splitlines()
    assert ran.code == 0 and f" {name} " in second and f" {name} " not in first
    assert "on a pull the far end's counts" in ran.err


@pytest.mark.parametrize("sndbuf_bytes", [None, 50_000], ids=["ssh -b", "fdpass"])
def test_addresses_in_turn(
    push: Way, sndbuf_bytes: int | None, make_sshd: MakeServer, together: Together
) -> None:
    way = dataclasses.replace(push, server=make_sshd())
    (way.source / "x").write_bytes(os.urandom(6 * MIB))
    result = way.copy("x", bind=BOTH, sndbuf_bytes=sndbuf_bytes, chunk_bytes=MIB, **together(4))
    assert result.ok and result.connections == 4
    assert sorted(log_of(way.server)) == sorted(BOTH * 2)
    assert log_of(way.server)[0] == BOTH[0]


def test_a_shell_and_a_python_of_the_users(
    watched: Watched, login_shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh has the user's shell run our program, whatever there is in its path."""
    python = tmp_path / "my %h's python"
    python.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setenv("SHELL", login_shell)
    monkeypatch.setattr("sys.executable", str(python))
    way, name = watched.way, other_congestion_control()
    assert way.copy("x", congestion=name).ok
    assert f" {name} " in watched.notes.read_text()


# --- what -v says of them


def test_less_than_was_asked_for(filled: Way) -> None:
    """Once, for however many connections; and without -v not at all."""
    words = ("--rcvbuf", "1000M", "--sndbuf", "8K", "-c", "2")
    limit_bytes = int(Path("/proc/sys/net/core/rmem_max").read_text())
    if limit_bytes >= 1000 * MIB:
        unavailable("this kernel grants any buffer")
    ran = filled.command("-vv", *words, names=["x"])
    assert ran.code == 0 and ran.err.count("--rcvbuf 1000 MiB: the kernel grants") == 1
    assert "rmem_max" in ran.err and "--sndbuf" not in ran.err
    ran = filled.command(*words, names=["x"])
    assert ran.code == 0 and "grants" not in ran.err


# --- what cannot be


def refused(way: Way, *words: str, names: tuple[str, ...] = ("x",)) -> str:
    """Wrong use: a message, a hint at most, and nobody was contacted."""
    logins = len(log_of(way.server))
    ran = way.command(*words, names=names)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert len(ran.err.splitlines()) <= 2
    assert len(log_of(way.server)) == logins
    return ran.err


def test_not_through_a_jump(filled: Way, tmp_path: Path) -> None:
    said = refused(filled, "--sndbuf", "1M", "-J", "me@gateway:2222")
    assert "--sndbuf: not with ProxyJump me@gateway:2222" in said and "without -J" in said
    path, proxy = tmp_path / "ssh_config", tmp_path / "proxy"
    there = Path(filled.server.ssh_config).read_text()
    for setting, kind, value in (
        (("--bind", BOTH[0]), "ProxyJump", "gateway"),
        (("--congestion", "reno"), "ProxyCommand", f"touch {proxy}"),
    ):
        path.write_text(f"{there}{kind} {value}\n")
        said = refused(filled, *setting, "-F", str(path))
        assert f"{setting[0]}: not with {kind} {value}" in said and f"-o {kind}=none" in said
        ran = filled.command(*setting, "-F", str(path), "-o", f"{kind}=none", names=["x"])
        assert ran.code == 0, ran.err
    assert not proxy.exists()


def test_not_from_an_interface_of_the_configurations(filled: Way) -> None:
    interface = ("-o", "BindInterface=lo")
    assert "BindInterface lo" in refused(filled, "--rcvbuf", "1M", *interface)
    ran = filled.command("--rcvbuf", "1M", *interface, "--bind", BOTH[0], names=["x"])
    assert ran.code == 0, ran.err


def test_a_congestion_control_that_is_not_there(filled: Way) -> None:
    said = refused(filled, "--congestion", "nosuch")
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().strip()
    assert f"nosuch: this kernel does not offer it; there is: {offered}" in said


def test_an_address_that_is_not_here(filled: Way) -> None:
    said = refused(filled, "--bind", f"{BOTH[0]},192.0.2.1")
    assert "192.0.2.1" in said and "an address of this machine" in said


# --- what fails on the way


@pytest.mark.parametrize(
    "words",
    [
        ["-P", "1"],  # where nobody listens
        ["-o", "HostName=no.such.host.invalid"],
        ["-o", "HostName=127.0.0.1", "-6"],
        ["-o", "HostName=::1", "-o", "AddressFamily=inet"],
    ],
    ids=lambda words: words[-1].strip("{}"),
)
def test_failures_are_those_of_ssh(filled: Way, words: list[str]) -> None:
    """Word for word, and with nothing of how the socket was to come to ssh."""
    plain = filled.command(*words, names=["x"])
    assert plain.code == 3 and len(plain.err.splitlines()) <= 2  # and what to do about it
    assert filled.command(*words, "--sndbuf", "1M", names=["x"]) == plain


def test_an_address_of_the_configurations(filled: Way) -> None:
    """BindAddress holds as it does without us, and fails so."""
    server, bound = filled.server, ("-o", f"BindAddress={BOTH[1]}", "--sndbuf", "1M")
    assert filled.command(*bound, names=["x"]).code == 0
    assert log_of(server)[-1] == BOTH[1]
    assert filled.command(*bound, "--bind", BOTH[0], names=["x"]).code == 0
    assert log_of(server)[-1] == BOTH[0]
    missing = ("-o", "BindAddress=192.0.2.1")
    for words in (missing, (*missing, "--sndbuf", "1M")):
        ran = filled.command(*words, names=["x"])
        assert ran.code == 3 and "Cannot assign requested address" in ran.err, ran.err


def ssh_to(server: PrivateServer, port: int, *ssh_options: str) -> list[str]:
    host = parse_location(f"ssh://{server.host}:{port}/")
    options = Options(
        config_file=server.ssh_config, sndbuf_bytes=MIB, batch=True, ssh_options=ssh_options
    )
    return [
        *resolve(host, options).argv(host, options, may_prompt=False, number=0, control=None),
        "true",
    ]


def test_connect_timeout(sshd: PrivateServer, full: int) -> None:
    argv = ssh_to(sshd, full, "ConnectTimeout=1")
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=200)
    assert ended.returncode == 255
    assert b"connect to host 127.0.0.1 port %d: Connection timed out" % full in ended.stderr


def test_who_connects_ends_with_ssh(sshd: PrivateServer, full: int) -> None:
    before = connecting_to(full)
    ssh = Child(ssh_to(sshd, full), may_prompt=False, cpu=None, control=None)
    try:
        until(lambda: connecting_to(full) == before + 1)
    finally:
        ssh.close()
    until(lambda: connecting_to(full) == before)


def connecting_to(port: int) -> int:
    """Sockets that wait for an answer from there (TCP_SYN_SENT)."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "02" and row[2].endswith(f":{port:04X}") for row in rows)


# --- where ssh runs


def test_cpus(watched: Watched) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) == 1:
        unavailable("there is one processor here")
    first, last = usable[0], usable[-1]
    seen = watched.sockets("-c1", "--cpus", f"{last},{first}")
    assert watched.way.command("-c1", "--cpus", str(first), names=["x"]).code == 0
    assert watched.way.command("-c1", names=["x"]).code == 0
    cpus = [line.rpartition("cpus=")[2] for line in watched.notes.read_text().splitlines()]
    assert len(seen) == 1 and cpus[:2] == [str(last), str(first)]
    assert cpus[2] not in cpus[:2]  # without the option: wherever the kernel likes


def test_cpus_in_turn(watched: Watched, together: Together) -> None:
    usable = sorted(os.sched_getaffinity(0))[:2]
    (watched.way.source / "x").write_bytes(os.urandom(6 * MIB))
    result = watched.way.copy("x", cpus=tuple(usable), chunk_bytes=MIB, **together(4))
    assert result.connections == 4
    cpus = [line.rpartition("cpus=")[2] for line in watched.notes.read_text().splitlines()]
    assert sorted(cpus) == sorted(map(str, (usable * 4)[:4]))
    assert os.sched_getaffinity(0) >= set(usable)  # ours is as it was


def test_a_processor_that_is_not_there(filled: Way) -> None:
    before = os.sched_getaffinity(0)
    listed = ", ".join(map(str, sorted(before)))
    assert f"no processor 8191 here; there is: {listed}" in refused(filled, "--cpus", "0,8191")
