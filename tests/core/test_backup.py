"""What is replaced is kept once: work of a lost lane that is done again loses no backup.

Not here: what backups are called, and who may read them (../e2e/test_copy_kept.py).
"""

from __future__ import annotations

import os
import types

import pytest

from core.link import FROM, KILL, LATE, TO, TWICE, Fault, asking
from core.trees import LARGE_BYTES, Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.writing import backup


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
    trees.done(True, fault, connections=2, backup=True)
    for name, body in old.items():
        backup = trees.to / f"{name}~"
        assert backup.read_bytes() == body
        backup.unlink()
    trees.assert_copied()


def test_another_user_s_file_in_a_sticky_folder_gets_no_further_name(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: nobody but that user, or the folder's, could remove it again."""
    trees.usual()
    name = next(iter(trees.files()))
    old = trees.to / name
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(b"another user's")
    old.parent.chmod(0o1777)
    another = {**vars(os), "geteuid": lambda: os.getuid() + 1}
    monkeypatch.setattr(backup, "os", types.SimpleNamespace(**another))
    result = trees.copy(True, connections=1, backup=True)
    assert [failure.path.endswith(name) for failure in result.failures] == [True]
    assert "not permitted" in result.failures[0].message
    assert old.read_bytes() == b"another user's" and old.stat().st_nlink == 1


@pytest.mark.parametrize("is_push", [True, False])
def test_the_same_command_once_more_keeps_what_was_there_first_at_all_names(
    trees: Trees, is_push: bool
) -> None:
    """Of a large file that has several, and is sent anew."""
    large = trees.file("large", LARGE_BYTES)
    os.link(large, trees.source / "other")
    for name in ("large", "other"):
        (trees.to / name).write_bytes(b"old " * (LARGE_BYTES // 4) + b"!")
    assert (trees.to / "large").stat().st_size == LARGE_BYTES
    for _ in range(2):
        trees.done(is_push, connections=2, archive=True, backup=True, resume=False)
        assert (trees.to / "large").samefile(trees.to / "other")
        for name in ("large", "other"):
            assert (trees.to / f"{name}~").read_bytes().startswith(b"old ")
