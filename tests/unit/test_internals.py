"""What pscp uses of asyncssh and paramiko beyond their documentation is in the installed versions.

Read next: pscp/transports/libraries/asyncssh_internals.py.
"""

from __future__ import annotations

import inspect
import re
import socket
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asyncssh
import asyncssh.config
import paramiko
import pytest

from pscp.transports.libraries import asyncssh_internals, paramiko_internals
from pscp.transports.libraries.asyncssh_server_internals import ScpSink

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pscp"

OF_CLASSES = [
    (asyncssh.config.SSHClientConfig, "_handlers"),
    (asyncssh.config.SSHClientConfig, "_set_string_list"),
    (asyncssh.config.SSHClientConfig, "load"),
    (asyncssh.SSHClientChannel, "send_packet"),
    (asyncssh.SSHServerConnection, "_send"),
    (asyncssh.SSHServerChannel, "send_packet"),
    (asyncssh.SSHServerChannel, "_process_env_request"),
    (asyncssh.sftp.SFTPServerHandler, "_cleanup"),
    (asyncssh.sftp.SFTPServerHandler, "_extensions"),
    (asyncssh.sftp.SFTPServerHandler, "_packet_handlers"),
    (asyncssh.sftp.SFTPServerHandler, "_process_limits"),
    (asyncssh.sftp.SFTPServerHandler, "recv_packet"),
    (asyncssh.sftp.SFTPServerHandler, "run"),
    (ScpSink, "_recv_file"),
    (ScpSink, "await_response"),
    (ScpSink, "recv_data"),
    (ScpSink, "send_error"),
    (ScpSink, "send_ok"),
    (paramiko.Transport, "_send_message"),
    (paramiko.common, "cMSG_SERVICE_REQUEST"),
    (paramiko.auth_handler.AuthHandler, "_parse_service_accept"),
]


@pytest.mark.parametrize(("owner", "name"), OF_CLASSES)
def test_a_class_has_what_is_used_of_it(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


def a_channel() -> Any:
    """A channel of asyncssh, of no connection, with a window of 1000 bytes."""
    values = {"encoding": None, "errors": "strict", "window": 1000, "max_pktsize": 100}
    make: Any = asyncssh.SSHClientChannel
    names = list(inspect.signature(make).parameters)  # they differ by version
    return make(*[values.get(name, Mock()) for name in names])


@pytest.mark.parametrize("name", ["_recv_window", "_init_recv_window", "_send_state"])
def test_a_channel_has_what_is_used_of_it(name: str) -> None:
    assert hasattr(a_channel(), name)


# --- that they do what they are used for


def test_a_window_is_granted() -> None:
    channel, sent = a_channel(), list[bytes]()
    channel.send_packet = lambda kind, *fields: sent.append(bytes([kind]) + b"".join(fields))
    assert asyncssh_internals.lacks_bytes(channel, 5000) == 4000
    asyncssh_internals.grant(channel, 5000)
    assert sent == [bytes([93]) + (4000).to_bytes(4, "big")]  # RFC 4254, 9
    assert asyncssh_internals.lacks_bytes(channel, 5000) == 0
    assert channel.get_recv_window() == 5000


def test_a_connection_keeps_its_loop() -> None:
    """Without a connection: its own __init__ sets what loop_of() reads."""
    assert "_loop" in asyncssh.connection.SSHConnection.__init__.__code__.co_names


def test_keywords_that_asyncssh_ignores_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host there\n Port 77\n batchMode yes\n UserKnownHostsFile a b\n")
    config = asyncssh_internals.Config.read([str(file)], "me", "there")
    found = [config.words(name) for name in ("port", "BatchMode", "userknownhostsfile", "user")]
    assert found == [["77"], ["yes"], ["a", "b"], []]


def test_the_login_is_asked_for_once() -> None:
    near, far = socket.socketpair()
    with near, far:
        transport = paramiko_internals.Transport(near)
        sent, accepted = list[bytes](), list[str]()
        transport.packetizer = Mock(send_message=lambda data: sent.append(data.asbytes()))
        transport.auth_handler = Mock(
            _parse_service_accept=lambda message: accepted.append(message.get_text())
        )
        for _ in range(2):
            asked = paramiko.Message()
            asked.add_byte(paramiko.common.cMSG_SERVICE_REQUEST)
            asked.add_string("ssh-userauth")
            transport._send_message(asked)
        transport.close()
    assert (len(sent), accepted) == (1, ["ssh-userauth"])


# --- that nothing else is used, and with which versions


def test_no_other_module_uses_what_is_private() -> None:
    """Of names that begin with "_", behind anything but self and our own."""
    private = {name for _, name in OF_CLASSES if name.startswith("_")}
    private |= {"_recv_window", "_init_recv_window", "_loop"}
    used = re.compile(rf"(?<!self)\.({'|'.join(sorted(private))})\b")
    for path in PACKAGE.rglob("*.py"):
        if not path.name.endswith("_internals.py"):
            assert used.findall(path.read_text("utf-8")) == [], path.name


def test_the_oldest_versions_that_are_tested_are_those_that_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["asyncssh"], *extras["paramiko"]]
    allowed = {re.sub(r">=([\w.]+),.*", r"==\1", each) for each in needed}
    tox = ConfigParser()
    tox.read(ROOT / "tox.ini")
    assert set(tox["testenv:oldest"]["deps"].split()) == allowed
