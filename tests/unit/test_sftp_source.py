"""What is read from a real sftp-server, without ssh: more chunks at once than memory is for.

Read next: ../e2e/test_copy_sftp.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable

from pscp.endpoint import tree, wire
from pscp.options import MIB
from pscp.sftp.client import IN_FLIGHT_BYTES, Client
from pscp.sftp.finding import expand
from pscp.sftp.hashing import Hashing
from pscp.sftp.pipes import Loop
from pscp.sftp.source import Source
from pscp.sftp.tasks import Tasks

PATIENCE_S = 60.0
FOLDERS = ("/usr/lib/openssh", "/usr/libexec", "/usr/libexec/openssh", "/usr/lib/ssh")
CHUNK_BYTES = 4 * MIB
COUNT = 2 * IN_FLIGHT_BYTES // CHUNK_BYTES


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    found = shutil.which("sftp-server", path=os.pathsep.join(FOLDERS))
    if found is None:
        unavailable("sftp-server is not installed")
    home = tmp_path / "home [a]*"
    home.mkdir()
    pipe = subprocess.PIPE
    with subprocess.Popen([found], stdin=pipe, stdout=pipe, cwd=home) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()


def test_chunks_that_are_read_back_do_not_wait_for_each_other(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    contents = [os.urandom(MIB) * (COUNT // 2 * CHUNK_BYTES // MIB) for _ in range(2)]
    digests: dict[tuple[int, int], bytes] = {}

    def send(type_: int, id_: int, offset: int, payload: Any, flags: int = 0) -> None:
        if type_ == wire.DIGEST:
            assert not flags, bytes(payload)
            digests[id_, offset] = bytes(payload[wire.EXTENT.size :])

    source, loop = pulling(server, tmp_path, send)
    for id_, content in enumerate(contents):
        path = tmp_path / f"{id_}"
        path.write_bytes(content)
        os.utime(path, (1, 1))
        source.know(id_, tree.Entry(tree.FILE, 0, path.name, len(content), 0, 10**9, 0, {}))
    extents = [(id_, at * CHUNK_BYTES) for at in range(COUNT // 2) for id_ in range(2)]
    for id_, offset in extents:
        source.send_chunk(id_, offset, CHUNK_BYTES)
    late = loop.pause(PATIENCE_S)
    loop.run_until(lambda: len(digests) == COUNT or late.is_settled)
    assert list(digests) == extents
    for (id_, offset), digest in digests.items():
        assert digest == hashlib.sha256(contents[id_][offset : offset + CHUNK_BYTES]).digest()


def test_a_pattern_below_a_home_that_looks_like_one(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    for name in ("x1", "x2", "y"):
        (tmp_path / "home [a]*" / name).touch()
    client, loop = client_of(server)
    tasks = Tasks()
    for typed in ("x*", "~/x[12]", f"{tmp_path}/home*/x?"):
        found = tasks.start(expand(client, tasks, typed, True))
        loop.run_until(lambda found=found: found.is_settled)  # type: ignore[misc]
        assert [top.name for top in found.value()] == ["x1", "x2"]


def client_of(server: subprocess.Popen[bytes]) -> tuple[Client, Loop]:
    assert server.stdin is not None and server.stdout is not None
    loop = Loop()
    client = Client(server.stdout.fileno(), server.stdin.fileno(), loop)
    loop.ins, loop.outs = [(client.incoming, lambda: True)], [client.out]
    loop.run_until(lambda: client.version.is_settled)
    return client, loop


def pulling(server: subprocess.Popen[bytes], folder: Path, send: Any) -> tuple[Source, Loop]:
    """The source end of a pull of what is in the folder, where all is read back."""
    client, loop = client_of(server)
    asked = {
        "tops": [["", str(folder), True]], "rules": [True, False, True, False, []],
        "hash": "sha256", "strong": False,
    }  # fmt: skip
    return Source(client, Tasks(), Hashing(client, None, True), asked, send), loop
