"""Files go there and come back over every kind of SSH server, with the agent.

Not here: the servers themselves (../servers/).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from compare import assert_same_tree

import pscp
from pscp.options import MIB

SERVERS = ("sshd", "embedded", "paramiko_server", "go_server")


@pytest.mark.parametrize("name", SERVERS)
def test_there_and_back(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server = request.getfixturevalue(name)
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "large").write_bytes(random.Random(name).randbytes(9 * MIB + 1))
    for number in range(50):
        (source / "sub" / f"{number}").write_bytes(bytes(number))
    options = pscp.Options(
        config_file=server.ssh_config, batch=True, connections=2, chunk_bytes=MIB, archive=True
    )
    pushed = pscp.copy(str(source), f"{server.host}:{tmp_path}/there", options=options)
    pulled = pscp.copy(f"{server.host}:{tmp_path}/there", str(back), options=options)
    assert pushed.ok and pulled.ok
    assert pushed.files == pulled.files == 51
    assert_same_tree(source, back)
