"""path_list.py: what a list becomes, in the order of a walk, however much of it fits in memory.

Read next: pscp/transfer/terms/path_list.py.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import tree
from pscp.endpoint.there.listed_paths import ABOVE, ALL, ALONE, Row
from pscp.transfer.terms import path_list
from pscp.transfer.terms.path_list import PathList

parts = st.sampled_from([b"a", b"b", b"a-", b"a.b", b" ", b"\xff", b"a\n", b"...", b"-"])
listed = st.lists(st.tuples(st.lists(parts, max_size=4), st.booleans()), max_size=12)


def rows_of(paths: Iterable[tuple[bytes, bool]]) -> list[Row]:
    found = PathList()
    for path, is_all in paths:
        found.add(path, is_all)
    try:
        return list(found.rows())
    finally:
        found.close()


def expected(paths: list[tuple[bytes, bool]]) -> set[tuple[str, int]]:
    """The same by definition: what is below a whole folder goes, and folders above come."""
    texts = {(path.decode("utf-8", "surrogateescape"), is_all) for path, is_all in paths}
    whole = {path for path, is_all in texts if is_all}

    def is_covered(path: str) -> bool:
        above = list(itertools.accumulate(path.split("/"), "{}/{}".format))[:-1] if path else []
        return any(each in whole for each in above) or ("" in whole and path != "")

    found = {path: ALL if path in whole else ALONE for path, _ in texts if not is_covered(path)}
    for path in list(found):
        for above in list(itertools.accumulate(path.split("/"), "{}/{}".format))[:-1]:
            found.setdefault(above, ABOVE)
    return set(found.items())


@given(listed)
def test_each_path_once_with_the_folders_above_it(paths: list[tuple[list[bytes], bool]]) -> None:
    joined = [(b"/".join(each), is_all) for each, is_all in paths]
    found = rows_of(joined)
    assert set(found) == expected(joined)
    places = [tree.place(0, path) for path, _ in found]
    assert places == sorted(places) and len(set(found)) == len(found)


@given(listed)
def test_what_is_sorted_on_the_disk_is_the_same(paths: list[tuple[list[bytes], bool]]) -> None:
    joined = [(b"/".join(each), is_all) for each, is_all in paths]
    in_memory = rows_of(joined)
    patch = pytest.MonkeyPatch()
    with patch.context() as each:
        each.setattr(path_list, "_RUN_BYTES", 3)
        each.setattr(path_list, "_READ_BYTES", 2)
        assert rows_of(joined) == in_memory


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        (b"/x", [("x", ALONE)]),
        (b"./x//y/.", [("x", ABOVE), ("x/y", ALONE)]),
        (b".", [("", ALONE)]),
        (b".x.0123456789abcdef.0123456789abcdef.pscp-part", []),
        (b"../x", []),
        (b"x/..", []),
        (b"x\0y", []),
    ],
)
def test_a_line(line: bytes, rows: list[Any]) -> None:
    assert rows_of([(line, False)]) == rows


def test_a_long_list_stays_small_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_list, "_RUN_BYTES", 64 * 1024)
    monkeypatch.setattr(path_list, "_READ_BYTES", 4096)
    tracemalloc.start()
    try:
        found = PathList()
        for number in range(20_000):
            found.add(b"folder-%d/a name of some length-%d" % (number % 1000, number), False)
        assert sum(1 for _ in found.rows()) == 21_000
        found.close()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 700 * 1024  # the paths alone would take 1.5 MiB
