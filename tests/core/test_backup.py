"""What is replaced is kept once: work of a lost lane that is done again loses no backup.

Not here: what backups are called, and who may read them (../e2e/test_copy_kept.py).
"""

from __future__ import annotations

import pytest

from core.link import FROM, KILL, LATE, TO, TWICE, Fault, asking
from core.trees import Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire


@pytest.mark.parametrize("do", [KILL, LATE, TWICE])
@pytest.mark.parametrize(
    "frame",
    [
        (TO, wire.PACK, ""),
        (FROM, wire.REPLY, "[]"),
        (TO, wire.ASK, asking(requests.Finish)),
        (FROM, wire.REPLY, "null"),
    ],
)
def test_an_old_file_is_kept_whatever_is_done_twice(
    trees: Trees, do: str, frame: tuple[str, int, str]
) -> None:
    trees.usual()
    old = {name: f"the old {name}".encode() for name in trees.files()}
    for name, body in old.items():
        (trees.to / name).parent.mkdir(exist_ok=True)
        (trees.to / name).write_bytes(body)
    way, type_, contains = frame
    fault = Fault(0, way, 0, do, 0, type_, contains)
    result = trees.copy(True, fault, connections=2, backup=True)
    assert result.ok, result.failures
    for name, body in old.items():
        backup = trees.to / f"{name}~"
        assert backup.read_bytes() == body
        backup.unlink()
    trees.assert_copied()
