"""endpoint/there/mirror.py: pieces of a folder's names, and what is left out of an answer.

Read next: ../e2e/test_mirror.py.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import source, tree
from pscp.endpoint.reading.paths import Root, to_bytes, to_text
from pscp.endpoint.there import mirror
from pscp.transfer.pieces.plan import Placement

names = st.binary(min_size=1, max_size=8).filter(
    lambda name: b"/" not in name and b"\0" not in name
)


@given(st.lists(names, unique=True), st.lists(names, unique=True, max_size=4))
def test_every_name_is_in_one_piece(there: list[bytes], bounds: list[bytes]) -> None:
    edges = ["", *(to_text(bound) for bound in sorted(bounds)), ""]
    pieces = [mirror.in_piece(there, *edge) for edge in itertools.pairwise(edges)]
    assert [name for piece in pieces for name in piece] == sorted(there)


@given(names)
def test_a_name_is_no_other_spelling_of_itself(name: bytes) -> None:
    assert name not in mirror.variants(name)


@pytest.mark.parametrize(
    ("name", "other"),
    [("Read Me", "READ ME"), ("x", "X"), ("\u00e4", "a\u0308"), ("a\u0308", "\u00e4")],
)
def test_other_spellings(name: str, other: str) -> None:
    assert to_bytes(other) in mirror.variants(to_bytes(name))


path = st.lists(st.sampled_from(["a", "b", "top", "new"]), max_size=3).map("/".join)


@given(st.sampled_from(["top", ""]), st.sampled_from(["top", "new", "new/top", ""]), path)
def test_a_path_at_the_destination_leads_back(name: str, target: str, rest: str) -> None:
    known = "/".join(filter(None, [name, rest]))
    if not name and target == "top":
        target = "new"
    placement = Placement([source.Top(name, "/there", True)], [target if name else ""])
    entry = tree.Entry(tree.FOLDER, 0, known, 0, 0, 0, 0, {})
    assert placement.known(0, placement.place(entry).entry.path) == known


@pytest.fixture
def root(tmp_path: Path) -> Any:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    opened = Root(str(tmp_path))
    yield opened
    opened.close()


@pytest.mark.parametrize("what", ["file", "link"])
@pytest.mark.parametrize("other", ["nothing", "removed", "made", "used"])
def test_lanes_make_way_for_one_folder(root: Any, tmp_path: Path, other: str, what: str) -> None:
    """Another lane removes what is in the folder's place first, and may make the folder, which the
    second one removed.
    """
    place = tmp_path / "there"
    os.symlink("nowhere", place) if what == "link" else place.touch()
    folders: list[int] = []  # that of the other lane, which it has open

    def make_way(path: str) -> None:
        if other != "nothing":
            place.unlink()
        if other in ("made", "used"):
            place.mkdir()
            folders.append(os.open(place, os.O_RDONLY))
        if other == "used":
            (place / "file").touch()
        of: Any = SimpleNamespace(root=root, settler=SimpleNamespace(keeper=None))
        mirror.make_way(of, path)

    root.replaced, root.make_way = ("",), make_way
    fd = root.folder("there", make=True)
    for each in folders:
        assert os.path.sameopenfile(each, fd) and os.fstat(each).st_nlink
        os.close(each)
    assert os.listdir(place) == ["file"] * (other == "used")


def extras(root: Root, pieces: list[mirror.Piece]) -> list[Any]:
    return mirror.extras(root, mirror.Extras(pieces))


def rows_of(answer: Any) -> list[list[str]]:
    return [[row[0], row[1]] for row in answer[0]]


def test_pages(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has a row at least; a piece beyond it is to be asked for again."""
    monkeypatch.setattr(mirror, "ANSWER_BYTES", 1)
    asked = [("", "", "", ["b"]), ("a", "", "", list[str]())]
    first, second = extras(root, asked)
    assert (rows_of(first), first[1], second) == ([["a", "folder"]], True, [[], True])
    [more] = extras(root, [("", "c", "", ["b"])])
    assert (rows_of(more), more[1]) == ([["d", "folder"]], False)


def test_a_link_is_not_looked_through(root: Root, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert extras(root, [("link", "", "", [])]) == [[[], False]]


def test_a_folder_in_another_filesystem_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -x the walk has not been in it."""
    (tmp_path / "mount").mkdir()
    rules = tree.Rules(True, False, True, True, [])
    of = source.Source([source.Top("top", str(tmp_path), True)], rules, "sha256", 4096, False)
    inode = (tmp_path / "mount").stat().st_ino
    listed = (0, "top/mount", inode, ["x"])
    assert mirror.names_at_source(of, False, listed) == []
    plain = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = plain(fd)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    monkeypatch.setattr(os, "fstat", fstat)
    assert mirror.names_at_source(of, False, listed) == ["x"]
    assert mirror.names_at_source(of, True, listed) == []
