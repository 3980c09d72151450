"""Lists of paths: what one becomes, who tells of it, and where a source lands with -R."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.asking import requests
from pscp.endpoint.reading import source, tree
from pscp.endpoint.reading.source import Top
from pscp.endpoint.serving.end import End
from pscp.endpoint.there.listed_paths import ABOVE, ALL, ALONE, PathsWalk, Row, WalkPaths
from pscp.ground.errors import ProtocolError
from pscp.transfer.pieces.plan import Ask
from pscp.transfer.terms import path_list
from pscp.transfer.terms.path_list import PathList
from pscp.transfer.terms.relative import name_of
from pscp.transfer.walk import far_walk
from pscp.transfer.walk.far_walk import FarPathsWalk

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


# --- from whichever lane lives


def begun(folder: Path) -> End:
    rules = tree.Rules(recursive=True, follow=False, preserve=False, archive=True, filters=())
    end = End(0o022)
    tops = [source.Top("", f"{folder}/.", True)]
    end.begin(requests.BeginSource(tops, rules, "sha256", 1 << 16, False, False))
    return end


class Lanes:
    """A queue whose requests are answered by one lane until it is lost, and then by another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        self.ends = [begun(folder) for _ in range(2)]  # the first answers
        self._asked: Ask | None = None
        self.answers = 0

    def add(self, ask: Ask) -> None:
        assert self._asked is None
        self._asked = ask

    def wake(self) -> None:
        pass

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        while not is_so():
            assert self._asked is not None
            if self._random.random() < 0.3:
                self._lose()
            elif self._random.random() < 0.3:  # the other has a walk of its own, half done
                self.ends.reverse()
            ask, self._asked = self._asked, None
            ask.then(self._answer(ask))
            self.answers += 1
        return True

    def _lose(self) -> None:
        """Lose the lane with its answer, and begin it anew."""
        assert self._asked is not None
        self._answer(self._asked)
        self.ends.pop(0).close()
        self.ends.append(begun(self._folder))

    def _answer(self, ask: Ask) -> object:
        request = ask.request_for(cast(Any, self.ends[0]))
        answered: list[object] = []
        self.ends[0].answer(request, lambda answer, failed: answered.append((answer, failed)))
        [(answer, failed)] = cast(Any, answered)
        assert not failed, answer
        return json.loads(json.dumps(answer))


@pytest.mark.parametrize("seed", range(12))
def test_lanes_that_are_lost_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(path_list, "_BATCH_ITEMS", 3)
    monkeypatch.setattr(far_walk, "_WALK_FIRST", 2)
    monkeypatch.setattr(far_walk, "_WALK_MOST", 2)
    for name in ("a/1", "a/2", "a/b/3", "c/4", "c/d/5", "e", "f", "g"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    listed = PathList()
    for line in (b"a", b"c/d/5", b"gone", b"e", b"f", b"g", b"c/4"):
        listed.add(line, line == b"a")
    lanes = Lanes(tmp_path, seed)
    found = list(FarPathsWalk(cast(Any, lanes), listed.batches()).entries())
    near = lanes.ends[0]
    assert found == list(PathsWalk(near.file_source()).listed(listed.rows()))
    assert [entry.path for entry in found] == [
        "a", "a/1", "a/2", "a/b", "a/b/3", "c", "c/4", "c/d", "c/d/5", "e", "f", "g", "gone",
    ]  # fmt: skip
    assert lanes.answers > 4
    for end in lanes.ends:
        end.close()


def test_an_empty_list_asks_nobody(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, 0)
    assert list(FarPathsWalk(cast(Any, lanes), PathList().batches()).entries()) == []


@pytest.mark.parametrize(
    ("path", "kind", "is_asked"),
    [
        ("a", tree.FOLDER, True),
        ("a", tree.FILE, False),  # only a folder above others
        ("a/x", tree.FILE, True),
        ("a/x/y", tree.FILE, False),
        ("a/whole/deep/y", tree.FILE, True),
        ("a/whole/", tree.ERROR, True),
        ("a/other", tree.FILE, False),
        ("b", tree.FILE, False),
        ("", tree.FOLDER, False),
    ],
)
def test_a_far_end_that_sends_what_is_not_in_the_list_is_refused(
    path: str, kind: str, is_asked: bool
) -> None:
    rows = [("a", ABOVE), ("a/whole", ALL), ("a/x", ALONE)]
    listing = FarPathsWalk(cast(Any, Lanes(Path(), 0)), iter([rows]))
    assert listing._goes_on()
    assert isinstance(listing._request(None), WalkPaths)
    extra = {"kind": "system", "path": path, "message": "", "errno": 1} if kind == "error" else {}
    entry = [kind, 0, path, 0, 0o755, 0, 1, extra]
    if is_asked:
        listing._then([[entry], True])
        return
    with pytest.raises(ValueError, match="not in the list"):
        listing._then([[entry], True])


# --- with -R


def landed(typed: str, path: str, *, is_strict: bool = True) -> str:
    stripped = path.rstrip("/")
    name = "" if stripped.endswith("/.") else stripped.rpartition("/")[2]
    return name_of(typed, Top(name, path, True), is_pattern=True, is_strict=is_strict)


@pytest.mark.parametrize(
    ("typed", "path", "name"),
    [
        ("/a/b", "/a/b", "a/b"),
        ("a/b/", "a/b/", "a/b"),
        ("a//./b/.", "a//./b/.", "b"),
        ("/a/./b/./c", "/a/./b/./c", "b/c"),
        ("~/a/b", "/home/user/a/b", "a/b"),
        ("~/a/./b", "/home/user/a/./b", "b"),
        ("/a*/[xy]", "/ab/x", "ab/x"),
        (r"/a\ b/\*", "/a b/*", "a b/*"),
        ("/a/[x]", "/a/[x]", "a/[x]"),  # a name that exists
        ("/.", "/.", ""),
    ],
)
def test_a_place_is_what_was_typed(typed: str, path: str, name: str) -> None:
    assert landed(typed, path) == name


@pytest.mark.parametrize(
    ("typed", "path"), [("/a/b", "/c/b"), ("/a*/b", "/c/b"), ("/a/b", "b"), ("/a/*", "/a/../b/x")]
)
def test_a_far_end_names_no_other_folder(typed: str, path: str) -> None:
    with pytest.raises(ProtocolError):
        landed(typed, path)


def test_with_loose_names_only_what_leads_elsewhere_is_refused() -> None:
    assert landed("/a/b", "/c/b", is_strict=False) == "c/b"
    with pytest.raises(ProtocolError):
        landed("/a/b", "/../b", is_strict=False)
