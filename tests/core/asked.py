"""What a sink is asked file by file, and a tree of which not all is told by its folders.

Not here: the tests of whole folders (test_folder_check.py, test_snapshot_folders.py).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from core.trees import Trees
from pscp.endpoint.there import lookup, mirror

S = 10**9


class Asked:
    """The folders of which a mirror asks what else is in them, and the paths that are looked up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders: set[str] = set()
        self.paths: set[str] = set()
        rows, look = mirror._rows, lookup.look

        def asked_rows(root: Any, piece: mirror.Piece, most_bytes: int) -> Any:
            self.folders.add(piece[0])
            return rows(root, piece, most_bytes)

        def asked_look(the_sink: Any, path: str, wanted: Any = None) -> object:
            self.paths.add(path)
            return look(the_sink, path, wanted)

        monkeypatch.setattr(mirror, "_rows", asked_rows)
        monkeypatch.setattr(lookup, "look", asked_look)

    def clear(self) -> None:
        self.folders.clear()
        self.paths.clear()


def make(trees: Trees) -> None:
    """Make folders with a file each, one with a second name of a file, one with an attribute."""
    for name in ("a/one", "b/two", "c/three", "c/deep/four"):
        trees.file(name, 10)
    os.link(trees.source / "a" / "one", trees.source / "a" / "other")
    os.setxattr(trees.source / "b" / "two", "user.kept", b"1")
    (trees.source / "c" / "link").symlink_to("three")
    for path in (trees.source, *trees.source.rglob("*")):
        os.utime(path, ns=(S, S), follow_symlinks=False)
