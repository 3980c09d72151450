"""Files go there and come back, with the agent and by SFTP: every kind of SSH server but sshd.

Not here: the servers themselves (../servers/); sshd over every transport (all with EVERY_WAY).
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from servers.private import PrivateServer

import pscp
from pscp.ground.values import MIB

SERVERS = [
    ("embedded", "agent"),
    *((name, each) for name in ("paramiko_server", "go_server") for each in ("agent", "sftp")),
]


@pytest.mark.parametrize(("name", "remote"), SERVERS)
def test_there_and_back(
    name: str, remote: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue(name)
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "large").write_bytes(random.Random(name).randbytes(9 * MIB + 1))
    for number in range(50):
        (source / "sub" / f"{number}").write_bytes(bytes(number))
    options = pscp.Options(
        config_file=server.ssh_config, batch=True, connections=2, chunk_bytes=MIB, archive=True,
        remote=remote,
    )  # fmt: skip
    pushed = pscp.copy(str(source), f"{server.host}:{tmp_path}/there", options=options)
    pulled = pscp.copy(f"{server.host}:{tmp_path}/there", str(back), options=options)
    assert pushed.ok and pulled.ok and pushed.verified and pulled.verified
    assert pushed.files == pulled.files == 51
    assert_same_tree(source, back)


def test_times_are_kept_by_a_server_that_writes_and_does_the_next_at_once(
    go_server: PrivateServer, tmp_path: Path
) -> None:
    """The draft has what concerns one file done in order; Go's server sets times beside a WRITE."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(1000):
        (source / f"{number}").write_bytes(bytes(20 * number))
        os.utime(source / f"{number}", (5, 7))
    result = pscp.copy(
        str(source), f"{go_server.host}:{tmp_path}/there", config_file=go_server.ssh_config,
        batch=True, recursive=True, preserve=True, remote="sftp",
    )  # fmt: skip
    assert result.ok
    changed = [each.name for each in (tmp_path / "there").iterdir() if each.stat().st_mtime != 7]
    assert changed == []
