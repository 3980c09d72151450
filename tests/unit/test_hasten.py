"""The packets of a login do not wait for each other.

Not here: how a process lends its socket (test_socket_options.py).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

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


def test_where_no_socket_is_lent_nothing_happens(
    connecting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(socket_options, "borrow", asked.append)
    socket_options.hasten(connecting)
    until(lambda: len(asked) > 2)
    connecting.is_logging_in = False
    until(lambda: not hastening(), "its thread ends")


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
