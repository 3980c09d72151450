"""tree.py and metadata.py: filters, the order of a walk, going on after any entry, what is read.

Not here: what arrives (../e2e/test_copy_metadata.py), what filters match (test_filters.py).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.metadata import Policy
from pscp.endpoint.reading.paths import to_bytes
from pscp.options import filters

PLAIN = tree.Rules(recursive=True, follow=True, preserve=False, archive=False, filters=())
LINKING = PLAIN._replace(archive=True)  # without access times, which a walk itself changes


def filtered(*given: tuple[str, str]) -> tree.Rules:
    return PLAIN._replace(filters=filters.regexes(given))


def walked(path: Path, rules: tree.Rules = PLAIN, name: str = "top", **extra: Any) -> list[str]:
    walk = tree.Walk([(name, os.fsencode(path))], rules)
    return [entry.path for entry in walk.entries(**extra)]


# --- filters: what a pattern matches is in test_filters.py


def test_what_is_in_an_excluded_folder_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no/deeper").mkdir(parents=True)
    (tmp_path / "no/file").touch()
    listings = [[b"no"]]
    monkeypatch.setattr(os, "listdir", lambda folder: listings.pop())  # of "no" there is none
    assert walked(tmp_path, filtered(("exclude", "no/"), ("include", "file"))) == ["top"]


def test_what_cannot_be_looked_at_is_left_out_as_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("nowhere")
    for pattern in ("gone", "gone/"):
        assert walked(tmp_path, filtered(("exclude", pattern))) == ["top"]


def test_a_source_without_a_name_cannot_be_excluded(tmp_path: Path) -> None:
    for name in ("keep", "drop"):
        (tmp_path / name).touch()
    rules = filtered(("include", "keep"), ("exclude", "*"))
    assert walked(tmp_path, rules, name="") == ["", "keep"]


# --- the walk

NAMES = ("a", "b", "a.b", "a!", "\u00fc", "\udcff")


@contextmanager
def grown(paths: list[tuple[str, ...]], links: list[int]) -> Iterator[list[tuple[str, bytes]]]:
    """Two sources in a temporary folder: a file for each path, some of them hard links."""
    with tempfile.TemporaryDirectory() as folder:
        for top in ("one", "two"):
            os.mkdir(os.path.join(folder, top))
        made: list[bytes] = []
        for place, path in enumerate(paths):
            top = ("one", "two")[place % 2]
            full = to_bytes(os.path.join(folder, top, *path))
            try:
                os.makedirs(os.path.dirname(full), exist_ok=True)
                if made and place < len(links):
                    os.link(made[links[place] % len(made)], full)
                else:
                    with open(full, "xb") as file:
                        file.write(b"x" * place)
                made.append(full)
            except (FileExistsError, NotADirectoryError):
                continue
        yield [(top, to_bytes(os.path.join(folder, top))) for top in ("one", "two")]


paths = st.lists(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple), unique=True, max_size=12
)


@given(paths, st.lists(st.integers(0, 9), max_size=6), st.sampled_from([PLAIN, LINKING]))
def test_a_walk_goes_on_after_any_of_its_entries(
    grow: list[tuple[str, ...]], links: list[int], rules: tree.Rules
) -> None:
    with grown(grow, links) as tops:
        whole = list(tree.Walk(tops, rules).entries())
        for place, entry in enumerate(whole, 1):
            rest = list(tree.Walk(tops, rules).entries(after=(entry.top, entry.path)))
            assert rest == whole[place:]


@given(paths)
def test_a_walk_has_every_path_once_and_in_order(grow: list[tuple[str, ...]]) -> None:
    with grown(grow, []) as tops:
        whole = list(tree.Walk(tops, PLAIN).entries())
        found = [(entry.top, to_bytes(entry.path).split(b"/")) for entry in whole]
        assert found == sorted(found)
        wanted = set()
        for top, (name, full) in enumerate(tops):
            for folder, folders, files in os.walk(full):
                below = os.path.relpath(folder, full)
                for each in [b"", *folders, *files]:
                    path = os.path.normpath(os.path.join(to_bytes(name), below, each))
                    wanted.add((top, path))
        assert {(top, b"/".join(parts)) for top, parts in found} == wanted
        assert len(found) == len(wanted)


def test_a_walk_goes_on_after_an_entry_that_is_gone_meanwhile(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    assert walked(tmp_path, after=(0, "top/aa")) == ["top/b", "top/c"]
    assert walked(tmp_path, after=(1, "x")) == []


def test_a_tree_deeper_than_the_stack_is_walked(tmp_path: Path) -> None:
    depth = 1100  # beyond Python's limit of calls
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        assert len(walked(tmp_path)) == depth + 1
    finally:
        while_there = tmp_path
        for _ in range(depth):  # rmtree of Python 3.11 recurses
            (while_there / "d").rename(tmp_path.with_name("next"))
            while_there.rmdir()
            tmp_path.with_name("next").rename(while_there)


def test_a_folder_that_cannot_be_read_is_named_even_if_the_walk_went_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "locked/x", "z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    read = os.listdir

    def listdir(path: bytes) -> list[bytes]:
        if path.endswith(b"locked"):  # a mode would not keep root out
            raise PermissionError(errno.EACCES, "no")
        return read(path)

    monkeypatch.setattr(os, "listdir", listdir)
    tops = [("top", os.fsencode(tmp_path))]
    whole = list(tree.Walk(tops, PLAIN).entries())
    kinds = [(entry.path.rstrip("/"), entry.kind) for entry in whole]
    assert kinds == [
        ("top", "folder"), ("top/a", "file"), ("top/locked", "folder"), ("top/locked", "error"),
        ("top/z", "file"),
    ]  # fmt: skip
    assert whole[3].extra["path"] == "top/locked"
    for place, entry in enumerate(whole, 1):
        rest = tree.Walk(tops, PLAIN).entries(after=(0, entry.path))
        assert list(rest) == whole[place:]


# --- metadata


NS = 1_600_000_000_123_456_789


@pytest.mark.parametrize(
    ("preserve", "is_new", "mode"),
    [(False, False, 0o700), (False, True, 0o755), (True, False, 0o1777)],
)
def test_a_folder_s_mode_is_set_when_it_is_new_or_with_p(
    tmp_path: Path, preserve: bool, is_new: bool, mode: int
) -> None:
    tmp_path.chmod(0o700)
    folder = tree.Entry(tree.FOLDER, 0, "a", 0, 0o1777, NS, 1, {})
    fd = os.open(tmp_path, os.O_RDONLY)
    metadata.apply_to_folder(fd, folder, Policy(preserve, False, 0o022), is_new)
    os.close(fd)
    assert tmp_path.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("extra", [{}, {"o": 1}, {"o": [1]}, {"o": ["x", "y", 1, 2]}, {"a": "x"}])
def test_metadata_of_another_shape_is_passed_over(tmp_path: Path, extra: dict[str, Any]) -> None:
    entry = tree.Entry(tree.FILE, 0, "a", 0, 0o600, NS, 1, extra)
    with open(tmp_path / "a", "wb") as file:
        metadata.apply_to_file(file.fileno(), entry, Policy(True, True, 0o022), None)
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_mtime_ns) == (os.getuid(), NS)
