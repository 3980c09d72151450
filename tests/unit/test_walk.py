"""A walk's questions: names that are one there, and where two ends have data.

Not here: what is done about it (../e2e/test_copy_again.py, ../e2e/test_copy_sftp.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Extent
from pscp.transfer.walk.comparing import data_of_both
from pscp.transfer.walk.names import ONE, Names

# --- names


def refused(*paths: str, folding: str = "any") -> tuple[list[str], list[str]]:
    """Return the paths that are refused in a walk, and the folders that were asked about."""
    asked, found = list[str](), list[str]()

    def folds(folder: str) -> str:
        asked.append(folder)
        return "one there" if folding in ("any", folder) else ""

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


def test_what_is_refused_of_folders_that_are_walked_ahead_is_refused_later() -> None:
    def entry(kind: str, path: str) -> tree.Entry:
        return tree.Entry(kind, 0, path, 0, 0, 0, 0, {})

    names = Names(lambda _: ONE)
    ahead = Names(lambda _: ONE, names.refused)
    ahead.check(entry(tree.FOLDER, "D"))
    with pytest.raises(Refusal):
        ahead.check(entry(tree.FOLDER, "d"))
    for kind, path in ((tree.FOLDER, "d"), (tree.FILE, "d/x")):  # D never came
        with pytest.raises(Refusal):
            names.check(entry(kind, path))
    names.check(entry(tree.FILE, "dd"))


def test_all_that_is_in_a_folder_that_is_refused_is_refused() -> None:
    paths = ("D/", "D/x", "E/", "d/", "d/x", "d/y/", "d/y/z", "e")
    assert refused(*paths) == (["d/", "d/x", "d/y/", "d/y/z", "e"], ["", ""])


def test_a_folder_of_two_sources_is_no_other_one() -> None:
    assert refused("d/", "d/a", "d/", "d/b") == ([], [])


# --- data of both ends


SIZE = 40


def answer(data: set[int], offset: int, most: int) -> tuple[list[Extent], bool]:
    """What an end with these bytes of data tells from `offset` on."""
    found: list[Extent] = []
    for place in sorted(each for each in data if each >= offset):
        if found and sum(found[-1]) == place:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((place, 1))
    return found[:most], len(found) < most


@given(*(st.sets(st.integers(0, SIZE - 1)) for _ in range(2)), st.integers(1, 5))
def test_every_byte_of_either_once(here: set[int], there: set[int], most: int) -> None:
    offset, seen = 0, []
    while offset < SIZE:
        answers = [answer(data, offset, most) for data in (here, there)]
        union, end = data_of_both(answers, offset, SIZE)
        assert end > offset
        seen += [place for begin, length in union for place in range(begin, begin + length)]
        offset = end
    assert seen == sorted(here | there)


@pytest.mark.parametrize("told", [[[(0, 1)], True], [[(9, 0)], True], [[(39, 2)], True]])
def test_an_extent_out_of_its_place(told: Any) -> None:
    with pytest.raises(ValueError, match="out of its place"):
        data_of_both([told, [[], True]], 5, SIZE)


def test_an_end_that_has_more_to_tell_but_tells_nothing() -> None:
    with pytest.raises(LookupError):
        data_of_both([[[], False], [[], True]], 0, SIZE)
