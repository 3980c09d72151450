"""plan_walk.py: the entries of a list come from whichever lane lives, each once and in order.

Read next: pscp/transfer/walk/plan_walk.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pscp.endpoint.asking import requests
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving.end import End
from pscp.endpoint.there.listed_paths import ABOVE, ALL, ALONE, PathsWalk, WalkPaths
from pscp.transfer.pieces.plan import Ask
from pscp.transfer.terms import path_list
from pscp.transfer.terms.path_list import PathList
from pscp.transfer.walk import plan_walk
from pscp.transfer.walk.plan_walk import FarPathsWalk


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
    monkeypatch.setattr(plan_walk, "_WALK_FIRST", 2)
    monkeypatch.setattr(plan_walk, "_WALK_MOST", 2)
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
