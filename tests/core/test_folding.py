"""Names that the destination takes for one: the second is refused, and the first one's file stays.

Not here: which names may be one (../unit/test_walk.py), copies that are drawn (../model/whole.py),
such a server of SFTP (../e2e/test_copy_sftp.py).
"""

from __future__ import annotations

import os
import threading

import folding
import pytest

from core.trees import Trees
from pscp.endpoint.there import listings

S = 10**9
ONE = "the destination takes this name and another of this copy for one"


@pytest.fixture(autouse=True)
def folds(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """The destination takes names for one that differ by case alone."""
    root = os.fsencode(trees.to.parent)
    folding.Folding(root, folding.by_case, threading.RLock()).install(monkeypatch.setattr)


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
