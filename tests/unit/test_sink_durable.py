"""Which folders the sink syncs: those of every name that a copy made, before it says so.

A power cut cannot be tried here; what decides is that fsync(2) was called for the folder, after
the name was made in it. Not here: files' bytes and renames (../faults/test_killed.py).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from pscp.endpoint.asking import entries, requests
from pscp.endpoint.reading import tree
from pscp.endpoint.serving import end
from pscp.endpoint.there import hardlinks


class Synced:
    """What each folder held when it was synced last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[int, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        self._fsync(fd)
        with contextlib.suppress(NotADirectoryError):
            self.names[os.fstat(fd).st_ino] = set(os.listdir(fd))

    def assert_all_of(self, root: Path) -> None:
        """Every name below the root has been synced as part of its folder."""
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            assert set(os.listdir(folder)) <= self.names.get(folder.stat().st_ino, set()), folder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(monkeypatch)


def sinking(root: Path) -> end.End:
    made = end.End(0o022)
    made.begin(requests.BeginSink(
        root=str(root), token="0" * 8, nonce="", earlier=[], hash="sha256", strong=False,
        preserve=True, archive=True, test=False, server={}, lane=1,
    ))  # fmt: skip
    return made


def entry(kind: str, path: str, **extra: Any) -> tree.Entry:
    return entries.entry([kind, 0, path, 0, 0o755, 0, 0, extra])


def packed(here: end.End, entries: list[tree.Entry]) -> None:
    outcomes: list[Any] = []
    here.file_sink().pack(entries, [[0, ""]] * len(entries), memoryview(b""), outcomes.append)
    assert outcomes == [[None] * len(entries)]


def asked(here: end.End, request: requests.Request, answer: object = None) -> None:
    answers: list[Any] = []
    here.answer(request, lambda *answer: answers.append(answer))
    assert answers == [(answer or [], False)]


def test_a_new_top_folder(tmp_path: Path, synced: Synced) -> None:
    """D7: its own name is in the root, where no file lies."""
    here = sinking(tmp_path)
    folders = [entry(tree.FOLDER, path, new=1) for path in ("top", "top/a", "top/a/b")]
    packed(here, folders)
    asked(here, requests.Folders(folders[::-1]))
    here.close()
    assert (tmp_path / "top" / "a" / "b").is_dir()
    synced.assert_all_of(tmp_path)


def test_a_new_folder_in_one_that_was_there(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "old").mkdir()
    here = sinking(tmp_path)
    new = [entry(tree.FOLDER, "old/new", new=1)]
    packed(here, new)
    asked(here, requests.Folders(new))
    here.close()
    assert synced.names[(tmp_path / "old").stat().st_ino] == {"new"}


def test_links_that_lie_alone_in_their_folder(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "file").write_bytes(b"")
    here = sinking(tmp_path)
    packed(here, [entry(tree.LINK, "link", to="anywhere")])
    assert "link" in synced.names[tmp_path.stat().st_ino]
    asked(here, hardlinks.HardLinks([entry(tree.HARDLINK, "another", to="file")]), ([], [], []))
    here.close()
    synced.assert_all_of(tmp_path)
