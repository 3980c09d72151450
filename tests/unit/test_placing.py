"""What DEST means, and whether a folder there is the one that a cut run has made.

Not here: real copies (../e2e/test_copy_placement.py, ../faults/test_same_place.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading.paths import UNFINISHED, Root, marker_name, private_parts
from pscp.endpoint.writing import placing
from pscp.endpoint.writing.fence import NoFence, fence_name
from pscp.endpoint.writing.parts import Parts

TOKEN = "0123abcd"

users = st.one_of(st.none(), st.integers(0, 3))
seen = st.one_of(st.none(), st.builds(placing.FileStatus, st.booleans(), users))


@given(owner=users, marker=seen, fence=seen, is_empty=st.booleans())
def test_a_folder_with_something_in_it_needs_a_marker_that_only_its_owner_or_root_can_have_made(
    owner: int | None,
    marker: placing.FileStatus | None,
    fence: placing.FileStatus | None,
    is_empty: bool,
) -> None:
    """ADVERSARY N5: the name proves nothing, nor does a fence beside what holds other things."""
    if not placing.is_own(owner, marker, fence, is_empty=is_empty):
        return
    if marker is None:
        assert is_empty and fence is not None and fence.is_file
    else:
        assert marker.is_file
        assert marker.owner in (None, 0, owner)


@given(
    destination=st.sampled_from(["d", "d/", "d/.", "/", ""]),
    folders=st.lists(st.booleans(), min_size=1, max_size=3),
    is_folder=st.booleans(),
    exists=st.booleans(),
    is_own=st.booleans(),
)
def test_evidence_changes_the_meaning_of_a_folder_alone(
    destination: str, folders: list[bool], is_folder: bool, exists: bool, is_own: bool
) -> None:
    def meaning(is_own: bool) -> str:
        try:
            return placing.decide(
                destination, folders, is_folder=is_folder, exists=exists or is_folder, is_own=is_own
            )
        except Refusal as error:
            return str(error)

    if meaning(is_own) != meaning(False):
        assert is_folder and is_own
        assert (meaning(True), meaning(False)) == (placing.AS, placing.INTO)
    if placing.may_be_own(destination, folders):  # what has evidence meant the same without DEST
        assert (
            placing.decide(destination, folders, is_folder=False, exists=False, is_own=False)
            == placing.AS
        )


def resolved(folder: Path) -> placing.Target:
    return placing.resolve(str(folder), ["data"], [True], make=True, token=TOKEN)


def test_what_counts_is_in_the_folder_itself(tmp_path: Path) -> None:
    new = tmp_path / "new"
    as_new = placing.Target(str(tmp_path), ["new"], [], "new")
    assert resolved(new) == as_new
    new.mkdir()
    into = placing.Target(str(new), ["data"], [])
    assert resolved(new) == into
    fence = tmp_path / os.fsdecode(fence_name(TOKEN))
    fence.touch()
    assert resolved(new) == as_new._replace(existing=["new"])  # killed when it had just made it
    (new / "mail").touch()
    assert resolved(new) == into
    (new / os.fsdecode(fence_name(TOKEN))).touch()  # of a run that copies into it
    assert resolved(new) == into
    (new / os.fsdecode(marker_name("ffffffff"))).touch()  # another copy's
    assert resolved(new) == into
    (new / os.fsdecode(marker_name(TOKEN))).touch()
    fence.unlink()
    assert resolved(new) == as_new._replace(existing=["new"])
    (tmp_path / "link").symlink_to(new)
    assert resolved(tmp_path / "link") == as_new._replace(existing=["new"])


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(str(tmp_path))
    root.mark("new", marker_name(TOKEN))
    return root


def test_only_a_folder_that_was_made_has_a_marker(root: Root, tmp_path: Path) -> None:
    marker = tmp_path / "new" / os.fsdecode(marker_name(TOKEN))
    root.at("new/sub/file", make=True)
    assert marker.exists() and not list((tmp_path / "new" / "sub").iterdir())
    os.utime(tmp_path / "new", (5, 5))
    assert root.unmark() and not root.unmark()
    assert (tmp_path / "new").stat().st_mtime == 5
    root.close()
    again = Root(str(tmp_path))
    again.mark("new", marker_name(TOKEN))
    again.folder("new", make=True)
    assert marker.exists()  # for it is unfinished still
    assert again.unmark()
    (tmp_path / "new").chmod(0o755)
    again.close()
    finished = Root(str(tmp_path))
    finished.mark("new", marker_name(TOKEN))
    finished.folder("new", make=True)
    assert not marker.exists()
    finished.close()


def test_the_marker_goes_from_a_folder_that_nothing_can_be_removed_from(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may remove it anyway, so the system call is made to refuse, as it would others."""
    root.folder("new", make=True)
    (tmp_path / "new").chmod(0o2555)
    unlink = os.unlink

    def refusing(path: bytes, *, dir_fd: int) -> None:
        if not (tmp_path / "new").stat().st_mode & 0o200:
            raise PermissionError(13, "no")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    assert root.unmark()
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o2555
    assert list((tmp_path / "new").iterdir()) == []
    root.close()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_folder_goes_with_its_marker_or_keeps_it(
    root: Root, tmp_path: Path, is_empty: bool
) -> None:
    root.folder("new", make=True)
    if is_empty:
        root.rmdir("new")
        assert list(tmp_path.iterdir()) == []
    else:
        (tmp_path / "new" / "file").touch()
        with pytest.raises(OSError, match="not empty"):
            root.rmdir("new")
        assert (tmp_path / "new" / os.fsdecode(marker_name(TOKEN))).exists()
        assert (tmp_path / "new").stat().st_mode & 0o1777 == UNFINISHED
    root.close()


@given(st.lists(st.from_regex(r"[0-9a-f]{8}", fullmatch=True), max_size=3), st.text(min_size=1))
def test_private_parts_are_those_of_the_runs_that_are_named(nonces: list[str], name: str) -> None:
    """ADVERSARY N6: and no part that a lane may go on with, nor a user's file."""
    root = Root("/")
    for nonce in ["89abcdef", *nonces]:
        parts = Parts(root, NoFence(), TOKEN, nonce)
        raw = name.encode("utf-8", "replace")
        mine, shared = parts.private_name(raw), parts.name(raw)
        assert private_parts([mine, shared, raw, b"." + raw], TOKEN, nonces) == (
            [mine] if nonce in nonces else []
        )
        assert private_parts([mine], "ffffffff", nonces) == []
    root.close()


def test_the_folder_itself_counts_as_there_by_what_is_in_it(tmp_path: Path) -> None:
    def existing(*names: str) -> list[str]:
        return placing.existing(os.fsencode(tmp_path), list(names)).existing

    assert existing("", "data") == []
    (tmp_path / "data").touch()
    assert existing("", "data", "more") == ["", "data"]
