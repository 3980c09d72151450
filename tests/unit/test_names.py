"""Names that a destination may take for one: which are asked about, and what is then refused.

Not here: destinations that do (../faults/test_two_runs.py, ../e2e/test_copy_sftp.py).
"""

from __future__ import annotations

import pytest

from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading import tree
from pscp.transfer.walk.names import Names


def refused(*paths: str, folding: str = "any") -> tuple[list[str], list[str]]:
    """Return the paths that are refused in a walk, and the folders that were asked about."""
    asked, found = list[str](), list[str]()

    def folds(folder: str) -> bool:
        asked.append(folder)
        return folding in ("any", folder)

    names = Names(folds)
    for path in paths:
        kind = tree.FOLDER if path.endswith("/") else tree.FILE
        try:
            names.check(tree.Entry(kind, 0, path.rstrip("/"), 0, 0, 0, 0, {}))
        except Refusal:
            found.append(path)
    return found, asked


@pytest.mark.parametrize(
    ("one", "other"),
    [("A", "a"), ("caf\u00e9", "cafe\u0301"), ("CAF\u00c9", "cafe\u0301"), ("\ufb01", "fi"),
     ("stra\u00dfe", "STRASSE")],
)  # fmt: skip
def test_the_second_of_two_alike_is_refused_where_they_are_one(one: str, other: str) -> None:
    assert refused("d/", f"d/{one}", "d/x", f"d/{other}") == ([f"d/{other}"], ["d"])
    assert refused("d/", f"d/{one}", f"d/{other}", folding="no") == ([], ["d"])


def test_u9_only_the_folder_in_question_counts() -> None:
    paths = ("A", "a", "d/", "d/A", "d/a", "d/e/", "d/e/A", "d/f/", "d/f/a")
    assert refused(*paths, folding="d") == (["d/a"], ["", "d"])


def test_all_that_is_in_a_folder_that_is_refused_is_refused() -> None:
    paths = ("D/", "D/x", "E/", "d/", "d/x", "d/y/", "d/y/z", "e")
    assert refused(*paths) == (["d/", "d/x", "d/y/", "d/y/z", "e"], ["", ""])


def test_a_folder_of_two_sources_is_no_other_one() -> None:
    assert refused("d/", "d/a", "d/", "d/b") == ([], [])
