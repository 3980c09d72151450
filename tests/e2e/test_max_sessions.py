"""A server lets so many channels on a connection (MaxSessions), and no more are tried.

Not here: how many channels are good (../unit/test_autotune.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest
from conftest import Together
from servers import LoginServer
from servers.private import PrivateServer

import pscp
from e2e.ways import Notes
from pscp.ground.values import MIB
from pscp.options.option_fields import OptionFields


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(random.Random(7).randbytes(24 * MIB))
    return path


def copied(
    server: PrivateServer, source: Path, **fields: Unpack[OptionFields]
) -> tuple[pscp.Result, str]:
    told, there = Notes(), source.with_name("there")
    fields = {
        "config_file": server.ssh_config, "batch": True, "itemize": True,
        "chunk_bytes": 256 * 1024, **fields,
    }  # fmt: skip
    result = pscp.copy(str(source), f"{server.host}:{there}", reporter=told, **fields)
    assert there.read_bytes() == source.read_bytes()
    return result, "\n".join(told.texts)


def refusals(server: PrivateServer) -> int:
    return server.log.count("no more sessions")


@pytest.mark.parametrize(
    ("most", "fields"),
    [
        (1, {"connections": 1, "channels": 16}),
        (2, {"login_once": True, "channels": 16}),
        (10, {"connections": 1, "channels": 16}),
    ],
    ids=str,
)
def test_as_many_lanes_as_are_let_in(
    most: int, fields: OptionFields, source: Path, make_sshd: Callable[..., PrivateServer],
    together: Together,
) -> None:  # fmt: skip
    server = make_sshd([f"MaxSessions {most}"])
    limit = together(most, lambda: refusals(server) >= 16 - most)["limit_kbit_s"]
    held: OptionFields = {**fields, "limit_kbit_s": limit}
    result, notes = copied(server, source, **held)
    assert result.connections == most
    assert result.connections_lost == 0
    assert server.log.count("Accepted publickey") == 1
    assert refusals(server) == 16 - most  # each was tried once
    channels = "1 channel" if most == 1 else f"{most} channels"
    assert f"the server lets {channels} on a connection (MaxSessions)" in notes


def test_each_of_several_connections(
    source: Path, make_sshd: Callable[..., PrivateServer], together: Together
) -> None:
    server = make_sshd(["MaxSessions 2"])
    limit = together(4)["limit_kbit_s"]
    result, notes = copied(server, source, connections=2, channels=4, limit_kbit_s=limit)
    assert result.connections == 4
    assert server.log.count("Accepted publickey") == 2
    assert re.search("lets 2 channels on a connection", notes)


def test_a_server_that_is_not_openssh(
    source: Path, tmp_path: Path, make_login_server: Callable[..., LoginServer], together: Together
) -> None:
    server = make_login_server(password="secret", max_sessions=3)
    file = tmp_path / "password"
    file.write_text("secret")
    file.chmod(0o600)
    limit = together(3)["limit_kbit_s"]
    result, notes = copied(
        server, source, channels=8, login_once=True, password_file=str(file), limit_kbit_s=limit
    )
    assert (result.connections, server.accepted) == (3, 1)
    assert "lets 3 channels on a connection" in notes
