"""tree.py: filters, the order of a walk, and going on after any entry of it.

Read next: pscp/endpoint/reading/tree.py.
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

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.options import filters

PLAIN = tree.Rules(recursive=True, follow=True, preserve=False, archive=False, filters=())
LINKING = PLAIN._replace(archive=True)  # without access times, which a walk itself changes
ARCHIVE = PLAIN._replace(follow=False, preserve=True, archive=True)


def filtered(*given: tuple[str, str]) -> tree.Rules:
    return PLAIN._replace(filters=filters.regexes(given))


def walked(path: Path, rules: tree.Rules = PLAIN, name: str = "top", **extra: Any) -> list[str]:
    walk = tree.Walk([(name, os.fsencode(path))], rules)
    return [entry.path for entry in walk.entries(**extra)]


def by_path(path: Path, rules: tree.Rules = PLAIN) -> dict[str, tree.Entry]:
    walk = tree.Walk([("top", os.fsencode(path))], rules)
    return {entry.path.removeprefix("top/"): entry for entry in walk.entries()}


# --- filters: what a pattern matches is in test_filters.py


def test_what_is_in_an_excluded_folder_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no/deeper").mkdir(parents=True)
    (tmp_path / "no/file").touch()
    listings = [["no"]]
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
    depth = 1500
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


def test_what_each_entry_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o4751)
    os.utime(tmp_path / "file", ns=(1, 1_600_000_000_123_456_789))
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "same").hardlink_to(tmp_path / "file")
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 20)
    found = by_path(tmp_path, ARCHIVE)
    assert {path: entry.kind for path, entry in found.items()} == {
        "top": tree.FOLDER, "file": tree.FILE, "link": tree.LINK, "same": tree.HARDLINK,
        "sparse": tree.FILE,
    }  # fmt: skip
    file = found["file"]
    status = os.stat(tmp_path / "file")
    assert (file.size, file.mode, file.mtime_ns) == (5, 0o4751, 1_600_000_000_123_456_789)
    assert file.inode == status.st_ino
    assert (found["same"].size, found["link"].size, found["top"].size) == (5, 0, 0)
    assert found["link"].extra["to"] == "file"
    assert (found["same"].extra["in"], found["same"].extra["to"]) == (0, "top/file")
    assert found["sparse"].extra["sparse"] and "sparse" not in file.extra
    followed = by_path(tmp_path, PLAIN)
    assert (followed["link"].kind, followed["link"].size) == (tree.FILE, 5)
    assert followed["same"].kind == tree.FILE


def test_what_cannot_be_copied_is_an_error_and_the_walk_goes_on(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/loop").symlink_to("..")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "z").touch()
    found = by_path(tmp_path)
    problems = {path: e.extra["message"] for path, e in found.items() if e.kind == tree.ERROR}
    assert problems == {
        "dangling": "is a dangling link (to nowhere)",
        "folder/loop": "a loop of links",
        "self": f"is a link that cannot be followed: {os.strerror(errno.ELOOP)}",
    }
    assert found["z"].kind == tree.FILE
    archived = by_path(tmp_path, ARCHIVE)
    assert [path for path, entry in archived.items() if entry.kind == tree.ERROR] == []
    assert archived["fifo"].kind == tree.FIFO


def test_a_folder_needs_recursive(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    found = by_path(tmp_path, PLAIN._replace(recursive=False))
    assert found.keys() == {"top"}
    assert found["top"].extra["message"] == "is a folder (use -r)"


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
