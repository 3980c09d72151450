"""Names that the destination takes for one: the second is refused, and the first one's file stays.

Not here: which names may be one (../unit/test_walk.py), copies that are drawn (../model/whole.py),
such a server of SFTP (../e2e/test_copy_sftp.py).
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from typing import Any

import folding
import pytest

from core.trees import Trees
from pscp.endpoint.there import listings
from pscp.endpoint.writing import sink

S = 10**9
ONE = "the destination takes this name and another of this copy for one"


@pytest.fixture(autouse=True)
def folds(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination takes names for one that differ by case alone."""
    root = os.fsencode(trees.to.parent)
    folding.Folding(root, threading.RLock()).install(monkeypatch.setattr)


def refused(result: object) -> dict[str, str]:
    return {each.path: each.message for each in result.failures}  # type: ignore[attr-defined]


@pytest.mark.parametrize("names_most", [3, 100], ids=["stretches", "one listing"])
@pytest.mark.parametrize(("one", "other"), [("A", "a"), ("STRASSE", "stra\xdfe")])
def test_a_name_beside_one_that_is_unchanged(
    trees: Trees,
    is_push: bool,
    monkeypatch: pytest.MonkeyPatch,
    names_most: int,
    one: str,
    other: str,
) -> None:
    """It took the place of the other one, and nothing was said."""
    monkeypatch.setattr(listings, "NAMES_MOST", names_most)
    for name in (one, "X", "Y", "Z"):  # which come between the two
        trees.file(name, 10)
    trees.copied(is_push, preserve=True)
    trees.file(other, 11)
    for _ in range(2):
        result = trees.copy(is_push, preserve=True)
        assert refused(result) == {other: ONE}
        assert (trees.to / one).read_bytes() == (trees.source / one).read_bytes()


def test_a_file_beside_a_folder_that_the_walk_has_left(trees: Trees, is_push: bool) -> None:
    """A mirror deleted the folder for it, with what this copy had brought."""
    for name in ("k/D/x", "z/y"):
        trees.file(name, 10)
    trees.copied(is_push, archive=True, delete=True)
    trees.file("k/D/x", 20)
    trees.file("k/d", 10)
    result = trees.copy(is_push, archive=True, delete=True)
    assert refused(result) == {"k/d": ONE}
    assert (trees.to / "k/D/x").read_bytes() == (trees.source / "k/D/x").read_bytes()


def test_a_folder_that_cannot_tell_whether_names_are_one(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were copied, and the second was all that was left; with a move, of both."""

    def folds(*_: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sink, "_folds", folds)
    for name in ("d/A", "d/a", "d/b"):
        trees.file(name, 10)
    result = trees.copy(is_push, remove_source_files=True)
    assert list(refused(result)) == ["d/a"] and "may take" in refused(result)["d/a"]
    assert [*trees.files()] == ["d/a"] and {*trees.arrived()} == {"d/A", "d/b"}


def test_a_file_whose_first_name_is_refused_has_the_next(trees: Trees, is_push: bool) -> None:
    """Both names failed."""
    for name, other in (("A", "c"), ("a", "b")):
        os.link(trees.file(name, 10), trees.source / other)
    result = trees.copy(is_push, archive=True)
    assert refused(result) == {"a": ONE}
    for name in "Abc":
        assert (trees.to / name).read_bytes() == (trees.source / name).read_bytes()


@pytest.mark.parametrize("one", ["p/D/x", "p/D"])
def test_folders_above_sources_that_are_one(trees: Trees, is_push: bool, one: str) -> None:
    """The second source replaced the first, and a move removed both: -R."""
    names = (one, "p/d/x", "q/y")
    for name in names:
        trees.file(name, len(name))
    far = ("", "bench:") if is_push else ("bench:", "")
    sources, to = [f"{far[0]}{trees.source}/./{name}" for name in names], f"{far[1]}{trees.to}"
    with trees.bench.session() as session:
        result = session.copy(sources, to, relative=True, remove_source_files=True, raises=False)
    trees.bench.close()
    assert set(refused(result).values()) == {ONE}
    kept = [
        path.read_bytes() for tree in (trees.arrived(), trees.files()) for path in tree.values()
    ]
    assert len(kept) == len(set(kept)) == 3


def test_a_folder_that_is_anothers_gets_nothing_of_yesterday(trees: Trees, is_push: bool) -> None:
    """What was in the one was linked into the other: -R with --link-dest."""
    for name in ("a/b/z", "p/D/y", "p/d/x"):
        trees.file(name, 10)
    old = trees.to.parent / "yesterday" / "p" / "D"
    shutil.copytree(trees.source / "p" / "D", old, copy_function=shutil.copy2)
    far = ("", "bench:") if is_push else ("bench:", "")
    sources = [f"{far[0]}{trees.source}/./{name}" for name in ("a/b", "p/D", "p/d/x")]
    fields: dict[str, Any] = {"archive": True, "relative": True, "link_dest": ("../yesterday",)}
    with trees.bench.session() as session:
        result = session.copy(sources, f"{far[1]}{trees.to}", raises=False, **fields)
    trees.bench.close()
    assert set(refused(result).values()) == {ONE}
    assert {*trees.arrived()} == {"a/b/z", "p/d/x"}
    assert result.files_linked == 0
