"""What removes something comes last: what stays is durable by then, or what would go stays.

Findings N4, N8, N9, N10, N12, N13 and N16. Calls that fail are patched in this process, as both
ends run in it. Not here: what a move removes (../e2e/test_moving.py), what a mirror deletes
(../e2e/test_mirror.py), the rule itself and which errors count (../unit/test_removal.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pscp
from core.trees import LARGE_BYTES, Trees
from pscp.endpoint.there import moving
from pscp.endpoint.writing import fence

OTHERS = b"another user's bytes"


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """fails(FOLDER, ERRNO): fsync(2) of the folder fails from now on."""

    def set_up(folder: Path, number: int) -> None:
        def fsync(fd: int) -> None:
            if folder.exists() and os.path.samestat(os.fstat(fd), folder.stat()):
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    return set_up


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what was synced."""
    found: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: found.append(os.readlink(f"/proc/self/fd/{fd}")))
    return found


# --- N4: what cannot be synced


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_one_file_whose_folder_cannot_be_synced(
    trees: Trees, is_push: bool, fails: Callable[[Path, int], None], size: int
) -> None:
    """N4: exit 0, and the source was removed."""
    trees.file("one", size)
    fails(trees.to, errno.EIO)
    result = trees.copy(is_push, remove_source_files=True)
    assert {each.path for each in result.failures} >= {"one"}
    assert set(trees.files()) == {"one"}


def test_files_of_a_folder_whose_name_cannot_be_synced(
    trees: Trees, is_push: bool, fails: Callable[[Path, int], None]
) -> None:
    """N4: all of them were removed at the source."""
    for name in ("good", "d/one", "d/sub/two"):
        trees.file(name, 10)
    trees.to.rmdir()
    trees.copy(is_push)
    for name in ("d/one", "d/sub/two"):
        (trees.to / name).unlink()
    (trees.to / "d" / "sub").rmdir()
    fails(trees.to / "d", errno.EIO)
    result = trees.copy(is_push, preserve=True, remove_source_files=True)
    assert not result.ok
    assert set(trees.files()) == {"d/one", "d/sub/two"}


def test_what_was_there_already_is_synced_first(
    trees: Trees, is_push: bool, synced: list[str]
) -> None:
    trees.file("d/one", 10)
    trees.copy(is_push)
    synced.clear()
    trees.done(is_push, remove_source_files=True)
    assert {str(trees.to / name) for name in ("", "d", "d/one")} <= {*synced}
    assert not trees.files()


def test_what_was_there_and_cannot_be_synced_stays(
    trees: Trees, is_push: bool, fails: Callable[[Path, int], None]
) -> None:
    trees.file("d/one", 10)
    trees.file("two", 10)
    trees.copy(is_push)
    fails(trees.to / "d", errno.EIO)
    result = trees.copy(is_push, remove_source_files=True)
    assert [each.path for each in result.failures] == ["d/one"]
    assert set(trees.files()) == {"d/one"}


@pytest.mark.parametrize("folder", ["", "d"])
def test_what_a_renamed_folder_has_taken_with_it_stays(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """As where snapshots are rotated meanwhile: exit 0, and nothing had its name there any more."""
    for name in ("d/one", "d/large"):
        trees.file(name, LARGE_BYTES if name == "d/large" else 10)
    bind_mounts, renamed = moving.bind_mounts, trees.to / folder

    def rotate(root: bytes) -> list[bytes]:
        renamed.rename(trees.folder / "older")
        renamed.mkdir()
        return bind_mounts(root)

    monkeypatch.setattr(moving, "bind_mounts", rotate)
    result = trees.copy(is_push, remove_source_files=True)
    assert {each.path.removeprefix("to/") for each in result.failures} >= {"d/one", "d/large"}
    assert set(trees.files()) == {"d/one", "d/large"}


def test_files_and_folders_in_turn(trees: Trees, is_push: bool) -> None:
    """Their folder was marked several times at once, so that a mark met another, and all stayed."""
    for number in range(40):
        trees.file(f"{number:02}", 10)
        trees.file(f"{number:02} d/one", 10)
    trees.done(is_push)
    trees.done(is_push, remove_source_files=True)
    assert not trees.files()


def test_a_file_system_that_cannot_sync_folders(
    trees: Trees, is_push: bool, fails: Callable[[Path, int], None]
) -> None:
    trees.file("one", 10)
    fails(trees.to, errno.EINVAL)
    trees.done(is_push, preserve=True, remove_source_files=True)
    assert not trees.files()


# --- N12: folders that the copy makes to copy into


def test_the_folder_above_one_that_is_made(trees: Trees, is_push: bool, synced: list[str]) -> None:
    """N12: DEST, and what --mkpath makes above it, were never synced as names."""
    trees.file("one", 10)
    trees.to = trees.to / "a" / "b"
    trees.done(is_push, mkpath=True, remove_source_files=True)
    above = trees.to.parent.parent
    assert {str(above), str(above / "a")} <= {*synced}


# --- N8: the backup of what was first there


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
@pytest.mark.parametrize("backup", [{"backup": True}, {"backup": True, "backup_dir": "old"}])
def test_the_same_command_again_keeps_the_first_backup(
    trees: Trees, is_push: bool, size: int, backup: dict[str, Any]
) -> None:
    """N8: with --no-resume the backup was one of the copy then."""
    trees.file("one", size)
    (trees.to / "one").write_bytes(b"the original")
    for _ in range(3):
        trees.done(is_push, resume=False, **backup)
    kept = trees.to / ("old/one" if "backup_dir" in backup else "one~")
    assert kept.read_bytes() == b"the original"
    trees.file("one", size + 1)
    before = (trees.to / "one").read_bytes()
    trees.done(is_push, resume=False, **backup)
    assert kept.read_bytes() == before


def test_a_large_file_of_the_same_size_is_kept(trees: Trees, is_push: bool) -> None:
    """N8: what differs in its last byte alone is another version."""
    body = trees.file("one", LARGE_BYTES).read_bytes()
    (trees.to / "one").write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    trees.done(is_push, resume=False, backup=True)
    assert (trees.to / "one~").read_bytes()[:-1] == body[:-1]


def test_a_backup_in_another_folder_is_synced(
    trees: Trees, is_push: bool, synced: list[str]
) -> None:
    trees.file("d/one", 10)
    (trees.to / "d").mkdir()
    (trees.to / "d" / "one").write_bytes(b"the original")
    trees.done(is_push, backup=True, backup_dir="old")
    assert {str(trees.to / name) for name in ("", "old", "old/d")} <= {*synced}


# --- N9: whether the destination shows the source (../e2e/test_moving.py) cannot be told


def test_a_source_beside_which_nothing_can_be_made(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N9: whether the destination shows it cannot be told, so what is in that folder stays."""
    for name in ("d/one", "e/two"):
        trees.file(name, 10)
    trees.copy(is_push)
    plain = os.open

    def fails(path: Any, *words: Any, **named: Any) -> int:
        if isinstance(path, bytes) and b"pscp-source" in path:
            folder = os.readlink(f"/proc/self/fd/{named['dir_fd']}")
            if folder.endswith("/d"):
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return plain(path, *words, **named)

    monkeypatch.setattr(os, "open", fails)
    result = trees.copy(is_push, remove_source_files=True)
    assert [each.path for each in result.failures] == ["d/one"]
    assert set(trees.files()) == {"d/one"}
    assert not list(trees.source.rglob(".*"))


def test_a_fence_that_cannot_be_removed_is_told(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed, and the copy ended well."""
    trees.file("one", 10)
    plain = os.unlink

    def fails(path: Any, **named: Any) -> None:
        if os.fsencode(path).endswith(b".pscp-run"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        plain(path, **named)

    monkeypatch.setattr(os, "unlink", fails)
    result = trees.copy(is_push)
    assert [each.message for each in result.failures] == [os.strerror(errno.EDQUOT)]
    assert trees.arrived().keys() == {"one"}


# --- N10 and N16: parts of an earlier run


def test_a_part_that_nobody_needs_does_not_change_its_folders_time(
    trees: Trees, is_push: bool
) -> None:
    """N10: the folder's time was that of the part's removal."""
    trees.file("sub/large", LARGE_BYTES)
    trees.cut_short(is_push, preserve=True)
    assert trees.left()
    trees.file("sub/large", 10)
    os.utime(trees.source / "sub", (10**9, 10**9))
    trees.copied(is_push, preserve=True)
    assert (trees.to / "sub").stat().st_mtime == 10**9


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_folder_that_goes_has_a_part_in_it(
    trees: Trees, is_push: bool, has_journal: bool
) -> None:
    """N16: "Directory not empty", exit 1, at every run from then on."""
    trees.file("sub/large", LARGE_BYTES)
    trees.file("stays", 10)
    trees.cut_short(is_push, archive=True, delete=True)
    assert trees.left()
    (trees.source / "sub" / "large").unlink()
    (trees.source / "sub").rmdir()
    if not has_journal:
        trees.forget()
    trees.copied(is_push, archive=True, delete=True)


# --- N13: others may write to the destination


@pytest.fixture
def replaced(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What another user put something else in the place of, just before it got its name."""
    rename, found = os.rename, list[object]()

    def replaced_before(old: Any, new: Any, **folders: Any) -> None:
        if new in (b"one", b"link"):
            his = trees.to / "his"
            his.write_bytes(OTHERS) if new == b"one" else his.symlink_to("elsewhere")
            rename(his, trees.to / os.fsdecode(old))
            found.append(old)
        rename(old, new, **folders)

    monkeypatch.setattr(os, "rename", replaced_before)
    return found


def assert_stayed(trees: Trees, result: pscp.Result, name: str) -> None:
    [failure] = result.failures
    assert (failure.path, failure.message) == (name, "its part was replaced")
    assert os.path.lexists(trees.source / name)


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("has_tmpfile", [False, True])
def test_a_part_that_another_user_replaces(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch, size: int, there: bool,
    has_tmpfile: bool, replaced: list[object],
) -> None:  # fmt: skip
    """N13: his bytes were delivered, verified, with exit 0."""
    if not has_tmpfile:
        monkeypatch.setattr("pscp.endpoint.reading.files._NO_NAME", 0)
    trees.file("one", size)
    if there:
        (trees.to / "one").write_bytes(b"old")
    result = trees.copy(is_push, remove_source_files=True)
    if not replaced:  # a file without a name is given one by link(2), which replaces nothing
        assert has_tmpfile and not there and size == 10 and result.ok
    else:
        assert_stayed(trees, result, "one")


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_link_that_another_user_replaces(trees: Trees, is_push: bool, kind: str) -> None:
    """N13, where a name is made that has no descriptor."""
    trees.file("first", 10)
    if kind == "link":
        (trees.source / "link").symlink_to("first")
    else:
        os.link(trees.source / "first", trees.source / "link")
    result = trees.copy(is_push, archive=True, remove_source_files=True)
    assert_stayed(trees, result, "link")


# --- a fence that cannot be read


def test_files_fail_whose_fence_cannot_be_read(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the model of whole copies: a pull ended with a traceback."""
    for name in ("one", "two"):
        trees.file(name, 10)

    def fails(_: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fence.Fence, "_is_ours", fails)
    monkeypatch.setattr(fence, "PATIENCE_S", 0.05)
    result = trees.copy(is_push)
    assert {each.path for each in result.failures} >= {"one", "two"}
    assert not list(trees.to.glob("[a-z]*"))
