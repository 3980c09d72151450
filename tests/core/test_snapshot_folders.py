"""Whole folders that are compared for a snapshot (--link-dest), with --chmod, --chown, and -R.

Not here: what else options ask of that (test_folder_check.py), what is linked over every way
(../e2e/test_link_dest.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from core.asked import Asked, S, make
from core.link import Bench, Notes
from core.trees import Trees
from pscp.transfer.walk import folder_check

# --- snapshots, of which what is missing is linked


OLD: dict[str, Any] = {"link_dest": ("../yesterday",)}


def yesterday(trees: Trees, is_push: bool) -> Path:
    """Return the copy of the source that lies beside the destination."""
    make(trees)
    trees.copied(is_push, archive=True)
    found = trees.to.parent / "yesterday"
    subprocess.run(["cp", "-a", trees.to, found], check=True)
    return found


def same_file(trees: Trees, old: Path, name: str) -> bool:
    return os.path.samestat((trees.to / name).lstat(), (old / name).lstat())


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"delete": True}, {"backup": True}, {"backup_dir": "../kept", "delete": True},
        {"update": True}, {"max_size_bytes": 4000}, {"max_age_s": 10**10},
    ],
    ids=str,
)  # fmt: skip
def test_a_snapshot_asks_of_no_file_that_is_yesterdays(
    trees: Trees, is_push: bool, asked: Asked, fields: dict[str, Any]
) -> None:
    old = yesterday(trees, is_push)
    trees.clear()
    trees.file("c/deep/new", 10)
    os.utime(trees.source / "c" / "deep", ns=(S, S))
    asked.clear()
    result = trees.done(is_push, archive=True, **OLD, **fields)
    assert (result.files, result.files_linked) == (1 + 1, 5)  # a/other is another name of a/one
    assert all(same_file(trees, old, name) for name in ("c/three", "c/link", "c/deep/four"))
    assert not asked.paths & {"c/three", "c/link", "c/deep/four"}
    asked.clear()
    result = trees.done(is_push, archive=True, **OLD, **fields)
    assert (result.files, result.files_linked, result.files_unchanged) == (0, 0, 7)
    assert not asked.paths & {"c/three", "c/link", "c/deep/four", "c/deep/new"}


def test_what_sizes_leave_out_is_not_linked(trees: Trees, is_push: bool) -> None:
    yesterday(trees, is_push)
    trees.file("c/large", 5000)
    shutil.copy2(trees.source / "c" / "large", trees.to.parent / "yesterday" / "c" / "large")
    trees.clear()
    result = trees.done(is_push, archive=True, max_size_bytes=4000, **OLD)
    assert (result.files_linked, result.files_left_out) == (5, 1)
    assert not (trees.to / "c" / "large").exists()


def test_what_has_a_backups_name_is_not_linked(trees: Trees, is_push: bool) -> None:
    old = yesterday(trees, is_push)
    for name in ("c/three~", "c/link~"):
        (trees.source / name).symlink_to("x")
        (old / name).symlink_to("x")
        for path in (trees.source / name, old / name):
            os.utime(path, ns=(S, S), follow_symlinks=False)
    trees.clear()
    result = trees.copy(is_push, archive=True, backup=True, **OLD)
    assert {each.path for each in result.failures} == {"c/three~", "c/link~"}
    assert not {"three~", "link~"} & {*os.listdir(trees.to / "c")}
    assert same_file(trees, old, "c/three") and same_file(trees, old, "c/link")


@pytest.mark.parametrize("is_dry", [False, True])
def test_what_is_there_and_differs_is_decided_file_by_file(
    trees: Trees, is_push: bool, asked: Asked, is_dry: bool
) -> None:
    """It was replaced by yesterday's file, whatever the options said of it."""
    old = yesterday(trees, is_push)
    os.utime(trees.to / "c" / "three", ns=(2 * S, 2 * S))  # newer
    (trees.to / "c" / "deep" / "four").chmod(0o600)
    asked.clear()
    result = trees.done(is_push, archive=True, update=True, dry_run=is_dry, **OLD)
    assert (result.files_linked, result.files_skipped, result.metadata_set) == (0, 1, 1)
    assert {"c/three", "c/deep/four"} <= asked.paths and "c/link" not in asked.paths
    assert not same_file(trees, old, "c/three")
    assert (trees.to / "c" / "three").stat().st_mtime_ns == 2 * S


def test_each_file_that_is_linked_is_told_of(
    trees: Trees, is_push: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    yesterday(trees, is_push)
    (trees.to / "c" / "three").unlink()
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Notes, "wants_files", True)
    monkeypatch.setattr(Notes, "file", lambda _, *what: told.append(what))
    asked.clear()
    trees.done(is_push, archive=True, **OLD)
    found = {(path, outcome, is_new) for path, outcome, _, is_new in told}
    assert {("c/three", "linked", True), ("c/deep/four", "unchanged", False)} <= found
    assert "c/three" not in asked.paths


# --- other modes and owners, and whole paths


@pytest.mark.parametrize(
    "fields", [{"chmod": "D711,F640"}, {"chmod": "go-w"}, {"numeric_ids": True}], ids=str
)
def test_what_has_the_mode_that_it_is_to_get_is_not_asked_about(
    trees: Trees, is_push: bool, asked: Asked, fields: dict[str, Any]
) -> None:
    make(trees)
    (trees.source / "c" / "three").chmod(0o666)
    trees.done(is_push, archive=True, **fields)
    asked.clear()
    result = trees.done(is_push, archive=True, **fields)
    assert (result.files_unchanged, result.metadata_set) == (6, 0)
    assert asked.paths <= {"a", "a/one", "a/other", "b", "b/two"}
    (trees.to / "c" / "three").chmod(0o667)
    result = trees.done(is_push, archive=True, **fields)
    assert (result.files_unchanged, result.metadata_set) == (6, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files to others")
@pytest.mark.parametrize("chown", ["1:1", ":1"])
def test_what_has_the_owner_that_it_is_to_get_is_not_asked_about(
    trees: Trees, is_push: bool, asked: Asked, chown: str
) -> None:
    make(trees)
    trees.copied(is_push, archive=True)
    os.chown(trees.to / "c" / "three", 0, 2)
    for _ in range(2):
        asked.clear()
        result = trees.done(is_push, archive=True, chown=chown)
    assert (result.files_unchanged, result.metadata_set) == (6, 0)
    assert asked.paths <= {"a", "a/one", "a/other", "b", "b/two"}
    owners = {path.lstat()[4:6] for path in trees.to.rglob("*")}
    assert owners == {(1 if chown == "1:1" else 0, 1)}


def test_whole_paths(trees: Trees, is_push: bool, asked: Asked) -> None:
    make(trees)
    far = ("", "bench:") if is_push else ("bench:", "")
    sources = [f"{far[0]}{trees.source}/./{name}" for name in ("a", "c/deep", "c/three")]
    trees.bench = Bench()
    for files in (4, 0):
        asked.clear()
        with trees.bench.session() as session:
            result = session.copy(sources, f"{far[1]}{trees.to}", archive=True, relative=True)
        assert (result.files, result.files_unchanged) == (files, 4 - files)
    trees.bench.close()
    assert asked.paths == {"a", "a/one", "c", "c/three"}


def test_a_listing_that_is_too_long_with_other_modes(
    trees: Trees, is_push: bool, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(trees)
    trees.done(is_push, archive=True, chmod="F640")
    (trees.to / "c" / "three").chmod(0o644)
    asked.clear()
    monkeypatch.setattr(folder_check, "as_listing", lambda *_: None)
    result = trees.done(is_push, archive=True, chmod="F640")
    assert (result.files_unchanged, result.metadata_set) == (6, 1)
    assert {"c/three", "c/link", "c/deep/four"} <= asked.paths
    assert (trees.to / "c" / "three").stat().st_mode & 0o777 == 0o640
