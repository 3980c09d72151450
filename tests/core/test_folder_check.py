"""Whole folders that are compared by their listings, and what options ask of that.

Not here: listings themselves (../unit/test_quick_check.py), what a mirror deletes over every way
(../e2e/test_mirror.py), snapshots, and other modes and owners (test_snapshot_folders.py).
"""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from core.asked import Asked, S, make
from core.link import Notes
from core.trees import Trees
from pscp.endpoint.reading import rows
from pscp.endpoint.there import listings

# --- a first copy


@pytest.mark.parametrize("fields", [{}, {"archive": True}, {"delete": True}])
def test_nothing_is_asked_of_what_lands_in_an_empty_folder(
    trees: Trees, is_push: bool, asked: Asked, fields: dict[str, Any]
) -> None:
    make(trees)
    trees.to.chmod(0o751)
    result = trees.done(is_push, **fields)
    assert result.files == 6
    assert asked.paths == {""}
    if "archive" not in fields:
        assert trees.to.stat().st_mode & 0o7777 == 0o751  # it is not the copy's


# --- a mirror


def test_a_mirror_asks_of_no_folder_that_is_the_same(
    trees: Trees, is_push: bool, asked: Asked
) -> None:
    make(trees)
    trees.copied(is_push, archive=True, delete=True)
    asked.clear()
    result = trees.copied(is_push, archive=True, delete=True)
    assert result.files_unchanged == 6
    assert asked.folders == set()
    assert asked.paths <= {"a", "a/one", "a/other", "b", "b/two"}  # of which no listing says all


def test_a_mirror_deletes_in_folders_that_are_the_same_but_for_that(
    trees: Trees, is_push: bool, asked: Asked
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    (trees.to / "b" / "more").write_text("more")
    (trees.to / "c" / "deep" / "new" / "deep").mkdir(parents=True)
    (trees.to / "c" / "deep" / "new" / "deep" / "x").write_text("x")
    for path in (trees.to / "b", trees.to / "c" / "deep"):
        os.utime(path, ns=(S, S))  # as if it were the same
    asked.clear()
    result = trees.copied(is_push, archive=True, delete=True)
    assert (result.files, result.files_deleted) == (0, 4)
    assert asked.folders == {"b", "c/deep", "c/deep/new", "c/deep/new/deep"}
    for path in (trees.to / "b", trees.to / "c" / "deep"):
        assert path.stat().st_mtime_ns == S


def test_a_mirror_of_a_folder_with_as_many_names(trees: Trees, is_push: bool) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    (trees.to / "c" / "deep" / "four").rename(trees.to / "c" / "deep" / "five")
    result = trees.copied(is_push, archive=True, delete=True)
    assert (result.files, result.files_deleted) == (1, 1)


@pytest.mark.parametrize("fact", ["mode", "size", "time", "kind", "gone", "attribute"])
def test_one_file_of_many_differs(trees: Trees, is_push: bool, fact: str) -> None:
    for number in range(20):
        trees.file(f"d/{number}", 10)
    trees.copied(is_push, archive=True)
    path = trees.to / "d" / "7"
    if fact == "mode":
        path.chmod(0o640)
    elif fact == "time":
        os.utime(path, ns=(S, S))
    elif fact == "attribute":
        os.setxattr(path, "user.kept", b"1")
    else:
        path.unlink()
    if fact == "size":
        path.write_bytes(b"short")
        os.utime(path, ns=(0, (trees.source / "d" / "7").stat().st_mtime_ns))
    elif fact == "kind":
        path.symlink_to("8")
    result = trees.copied(is_push, archive=True)
    assert result.files + result.metadata_set == 1
    assert not os.listxattr(path)
    assert path.stat().st_mode == (trees.source / "d" / "7").stat().st_mode


def test_a_mirror_of_folders_that_cannot_be_compared(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    (trees.to / "c" / "more").write_text("more")

    def open_folder(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(listings, "_open_folder", open_folder)
    result = trees.copied(is_push, archive=True, delete=True)
    assert (result.files, result.files_deleted) == (0, 1)


def test_a_mirror_of_more_names_than_a_listing_takes(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "NAMES_MOST", 3)
    for name in "acegik":
        trees.file(name, 10)
    (trees.source / "e2").mkdir()
    trees.copied(is_push, preserve=True)
    for name in ("0", "b", "d", "f", "h", "j", "l"):
        (trees.to / name).write_text("more")
    result = trees.copied(is_push, preserve=True, delete=True)
    assert (result.files, result.files_deleted) == (0, 7)


@pytest.fixture
def stretches(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> Trees:
    """A folder whose names take several listings, and are a file's second name and a folder, too.
    Its copy is there.
    """
    monkeypatch.setattr(listings, "NAMES_MOST", 3)
    for name in ("a", "b", "c/x", "e", "f", "g", "h", "i", "k"):
        trees.file(f"d/{name}", 10)
    os.link(trees.source / "d" / "b", trees.source / "d" / "d")
    for path in (trees.source, *trees.source.rglob("*")):
        os.utime(path, ns=(S, S))
    return trees


@pytest.mark.parametrize("delete", [False, True])
def test_stretches_of_a_folder_that_are_the_same(
    stretches: Trees, is_push: bool, asked: Asked, delete: bool
) -> None:
    stretches.copied(is_push, archive=True)
    asked.clear()
    result = stretches.copied(is_push, archive=True, delete=delete)
    assert (result.files, result.files_unchanged, result.files_deleted) == (0, 10, 0)
    assert asked.folders == set()
    assert asked.paths <= {"d", "d/b", "d/d"}


def test_stretches_of_a_folder_that_differ(stretches: Trees, is_push: bool, asked: Asked) -> None:
    stretches.copied(is_push, archive=True)
    (stretches.to / "d" / "f").write_text("other")
    (stretches.to / "d" / "i").unlink()
    for name in ("0", "aa", "d0", "h0", "z"):
        (stretches.to / "d" / name).write_text("more")
    asked.clear()
    result = stretches.copied(is_push, archive=True, delete=True)
    assert (result.files, result.files_unchanged, result.files_deleted) == (2, 8, 5)
    assert asked.paths <= {"d", "d/b", "d/d", "d/f", "d/i"}


def test_stretches_that_no_listing_can_be_of(
    stretches: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names get entries of their own, and a mirror asks about them."""
    stretches.copied(is_push, archive=True)
    for name in ("0", "aa", "d0", "h0", "z"):
        (stretches.to / "d" / name).write_text("more")

    def some(found: Any, *others: Any) -> Any:
        return None if {b"a", b"f"} & set(found.names) else rows.as_listing(found, *others)

    monkeypatch.setattr(listings, "as_listing", some)
    result = stretches.copied(is_push, archive=True, delete=True)
    assert (result.files, result.files_unchanged, result.files_deleted) == (0, 10, 5)


def test_a_mirror_keeps_what_is_excluded_and_what_is_in_the_source_after_all(
    trees: Trees, is_push: bool
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    for name in ("c/x.tmp", "c/more", "c/new/x.tmp"):
        (trees.to / name).parent.mkdir(exist_ok=True)
        (trees.to / name).write_text("more")
    filters = (("exclude", "*.tmp"),)
    result = trees.done(is_push, archive=True, delete=True, filters=filters)
    assert (result.files, result.files_deleted) == (0, 1)
    assert set(trees.arrived()) == {*trees.files(), "c/x.tmp", "c/new/x.tmp"}


# --- sizes and ages, backups, and copies of which each file is to be told


def test_what_sizes_and_ages_leave_out_is_neither_copied_nor_unchanged(
    trees: Trees, is_push: bool, asked: Asked
) -> None:
    make(trees)
    large = trees.file("c/large", 5000)
    trees.copied(is_push, archive=True)
    large.write_bytes(b"x" * 5001)
    (trees.source / "c" / "three").write_bytes(b"y" * 11)
    asked.clear()
    result = trees.done(is_push, archive=True, delete=True, max_size_bytes=4000)
    assert (result.files, result.files_unchanged, result.files_left_out) == (1, 5, 1)
    assert (trees.to / "c" / "large").stat().st_size == 5000
    assert not asked.paths & {"c/large", "c/deep/four"}
    result = trees.done(is_push, archive=True, min_age_s=3600)
    assert (result.files, result.files_left_out) == (0, 2)  # c/three is as young
    result = trees.done(is_push, archive=True)
    assert result.files == 1


def test_no_backup_is_of_a_files_own_name(trees: Trees, is_push: bool, asked: Asked) -> None:
    make(trees)
    trees.file("c/three~", 10)
    trees.copied(is_push, archive=True)
    (trees.source / "c" / "deep" / "four").write_bytes(b"4" * 11)
    asked.clear()
    result = trees.copy(is_push, archive=True, backup=True)
    assert [(each.path, "backup's name" in each.message) for each in result.failures] == [
        ("c/three~", True)
    ]
    assert (trees.to / "c" / "deep" / "four~").stat().st_size == 10
    assert "c/three" not in asked.paths
    assert "c/deep/four" in asked.paths


@pytest.mark.parametrize("folder", ["kept", "c/kept"])
def test_a_folder_that_gets_that_of_the_backups_keeps_its_time(
    trees: Trees, is_push: bool, folder: str
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    (trees.source / "c" / "deep" / "four").write_bytes(b"4" * 11)
    trees.done(is_push, archive=True, backup_dir=folder)
    assert (trees.to / folder / "c" / "deep" / "four").stat().st_size == 10
    for path in (trees.to, trees.to / "c"):
        assert path.stat().st_mtime_ns == S


def test_each_file_is_told_of_though_only_its_folder_is_compared(
    trees: Trees, is_push: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    (trees.source / "c" / "three").write_bytes(b"3" * 11)
    trees.file("c/new", 10)
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Notes, "wants_files", True)
    monkeypatch.setattr(Notes, "file", lambda _, *what: told.append(what))
    asked.clear()
    trees.copied(is_push, archive=True, delete=True)
    assert sorted((path, outcome, is_new) for path, outcome, _, is_new in told) == [
        ("a/one", "unchanged", False),
        ("a/other", "unchanged", False),
        ("b/two", "unchanged", False),
        ("c/deep/four", "unchanged", False),
        ("c/link", "unchanged", False),
        ("c/new", "copied", True),
        ("c/three", "copied", False),
    ]
    assert "c/deep/four" not in asked.paths
