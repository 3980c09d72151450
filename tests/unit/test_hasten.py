"""The packets of a login do not wait for each other.

Not here: how a process lends its socket (test_socket_options.py).
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import until

from pscp import transports
from pscp.ground.locations import parse_location
from pscp.options.options import Options
from pscp.transports import openssh, socket_options
from pscp.transports.control_sockets import Control

# Connects, and says when TCP_NODELAY is set.
CONNECTS = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY): time.sleep(0.001)
print("set", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def connecting() -> Iterator[Any]:
    """The channel of a process that has connected somewhere."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        argv = [sys.executable, "-c", CONNECTS, str(listening.getsockname()[1])]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield SimpleNamespace(pid=process.pid, is_logging_in=True, process=process)
            process.kill()


def hastening() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "login"]


def test_it_is_hastened_until_it_is_over(connecting: Any) -> None:
    socket_options.hasten(connecting)
    assert connecting.process.stdout.readline() == b"set\n"
    assert hastening()
    connecting.is_logging_in = False
    until(lambda: not hastening(), "its thread ends")


def test_one_that_waits_for_a_person_is_left_alone_after_a_while(
    connecting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_options, "_LOGIN_MOST_S", 0.1)
    socket_options.hasten(connecting)
    until(lambda: not hastening(), "its thread ends")


def test_where_no_socket_is_lent_it_is_asked_for_once(
    connecting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(pid: int) -> None:
        asked.append(pid)
        raise PermissionError(errno.EPERM, "no descriptor is lent")

    monkeypatch.setattr(socket_options, "_borrow", refuse)
    socket_options.hasten(connecting)
    until(lambda: not hastening(), "its thread ends")
    assert asked == [connecting.pid] and socket_options._hastened == []


def test_a_login_that_has_ended_by_itself_is_left(
    connecting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_options, "_LOGIN_MOST_S", 1000.0)  # it is not what ends it
    socket_options.hasten(connecting)
    assert connecting.process.stdout.readline() == b"set\n"
    connecting.process.kill()
    until(lambda: not hastening(), "its thread ends")
    assert socket_options.borrow(connecting.pid) is None


def test_a_login_needs_no_thread(connecting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        socket_options, "start_thread", Mock(side_effect=RuntimeError("can't start new thread"))
    )
    socket_options.hasten(connecting)


def test_what_is_lent_stays_as_its_owner_has_it() -> None:
    """A program's socket.setdefaulttimeout() makes what Python wraps non-blocking, at both ends."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
    ):
        socket.setdefaulttimeout(3.0)
        try:
            lent = socket_options._connected_tcp(os.dup(connected.fileno()))
        finally:
            socket.setdefaulttimeout(None)
        assert lent is not None and os.get_blocking(connected.fileno())
        lent.close()


@pytest.mark.parametrize(
    ("setup", "control", "is_hastened"),
    [
        (openssh.SshSetup(), None, True),
        (openssh.SshSetup(), Control("/socket", True), True),
        (openssh.SshSetup(), Control("/socket", False), False),  # it uses another's login
        (openssh.SshSetup(route=socket_options.Route(proxy="ProxyJump x")), None, False),
    ],
)
def test_which_are_logins_of_their_own(
    setup: openssh.SshSetup,
    control: Control | None,
    is_hastened: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(socket_options, "hasten", found.append)
    channel = transports.open_channel(
        parse_location("host:"), Options(program="true"), setup, "cat",
        may_prompt=False, number=0, control=control,
    )  # fmt: skip
    channel.close()
    assert found == [channel] * is_hastened
    assert not channel.is_logging_in
