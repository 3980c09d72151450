"""names.py: what a part is called, which names are refused, folders reached without links.

Read next: pscp/endpoint/reading/paths.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import paths

file_names = st.binary(min_size=1, max_size=paths.NAME_MAX).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, ord("/")}
)
tokens = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(file_names, tokens)
@example(b"n" * 255, "01234567")
@example("\u00fc".encode() * 127, "01234567")
def test_a_part_is_hidden_and_no_longer_than_a_name_may_be(name: bytes, token: str) -> None:
    part = paths.part_name(name, token)
    assert part.startswith(b".") and part.endswith(paths.PART_SUFFIX)
    assert token.encode() in part
    assert len(part) <= paths.NAME_MAX and not set(part) & {0, ord("/")}


@given(file_names, file_names, tokens, tokens)
@example(b"n" * 254 + b"1", b"n" * 254 + b"2", "01234567", "01234567")
def test_no_two_files_or_copies_share_a_part(a: bytes, b: bytes, x: str, y: str) -> None:
    is_same = paths.part_name(a, x) == paths.part_name(b, y)
    assert is_same is ((a, x) == (b, y))


def test_a_part_tells_whose_it_is_where_there_is_room() -> None:
    assert paths.part_name(b"name", "01234567") == b".name.82a3537ff0dbce7e.01234567.pscp-part"
    assert paths.part_name(b"n" * 255, "01234567").startswith(b".nnnn")


@given(st.lists(file_names, min_size=1, max_size=5))
def test_a_good_path_passes(parts: list[bytes]) -> None:
    paths.check(paths.to_text(b"/".join(parts)))


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/", "/etc/passwd", "a/", "a//b", "a/../b", "a/./b", "../a", "a/..", "a\0b",
     "\0", "a/\0/b", "\ud800", "a\udfff"],
)  # fmt: skip
def test_a_hostile_path_is_refused(path: str) -> None:
    with pytest.raises(failures.Refusal) as caught:
        paths.check(path)
    assert (caught.value.kind, caught.value.path) == (failures.UNSAFE, path)


@given(st.text(st.characters() | st.sampled_from("./\0\udc2f"), max_size=12))
def test_no_path_has_a_component_that_leads_elsewhere(path: str) -> None:
    try:
        paths.check(path)
    except failures.Refusal:
        return
    for name in paths.to_bytes(path).split(b"/"):
        assert name not in (b"", b".", b"..") and not set(name) & {0, ord("/")}


@given(st.binary(max_size=40))
def test_text_is_any_bytes(name: bytes) -> None:
    assert paths.to_bytes(paths.to_text(name)) == name


# --- Root

MKDIR = os.mkdir


@pytest.fixture
def root(tmp_path: Path) -> paths.Root:
    (tmp_path / "root").mkdir()
    return paths.Root(str(tmp_path / "root"))


@pytest.mark.parametrize("make", [False, True])
def test_no_link_is_followed_on_the_way(root: paths.Root, tmp_path: Path, make: bool) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/up").symlink_to("..")
    (tmp_path / "root/loop").symlink_to("loop")
    (tmp_path / "root/file").touch()
    for path in ("link/x", "up/x", "loop/x", "file/x", "link/deeper/x"):
        with pytest.raises(failures.Refusal):
            root.at(path, make)
    assert list((tmp_path / "outside").iterdir()) == []
    root.close()


def test_a_folder_that_is_replaced_by_a_link_is_still_the_folder(
    root: paths.Root, tmp_path: Path
) -> None:
    """The descriptor that is kept leads to the folder, whatever its name is given to."""
    before = os.fstat(root.at("a/x", make=True)[0]).st_ino
    (tmp_path / "root/a").rename(tmp_path / "root/moved")
    (tmp_path / "root/a").symlink_to("/")
    assert os.fstat(root.at("a/x")[0]).st_ino == before
    root.close()


def mkdir_of_bsd(name: bytes, mode: int, dir_fd: int | None = None) -> None:
    MKDIR(name, mode & 0o777, dir_fd=dir_fd)


@pytest.mark.parametrize("mkdir", [MKDIR, mkdir_of_bsd], ids=["Linux", "BSD"])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_b1_a_folder_that_is_made_is_private_and_known_as_unfinished(
    root: paths.Root, tmp_path: Path, mkdir: Any, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", mkdir)
    (tmp_path / "root" / "there").mkdir(mode=0o700)
    (tmp_path / "root" / "setgid").mkdir()
    (tmp_path / "root" / "setgid").chmod(0o2755)
    before = os.umask(umask)
    try:
        made = [root.folder("a/b", make=True), root.at("c/file", make=True)[0]]
        made.append(root.folder("setgid/d", make=True))
    finally:
        os.umask(before)
    found = [os.fstat(fd).st_mode for fd in made]
    assert all(paths.is_unfinished(mode) and mode & 0o777 == 0o700 for mode in found)
    assert not paths.is_unfinished(os.fstat(root.folder("there", make=True)).st_mode)
    root.close()


def test_a_folder_stays_open_for_whom_it_was_opened(root: paths.Root, tmp_path: Path) -> None:
    """Another thread may open any number of folders before its descriptor is used."""
    folder_fd, name = root.at("first/file", make=True)
    wanted = (tmp_path / "root/first").stat().st_ino
    for number in range(2 * paths._FOLDERS_KEPT):
        root.folder(f"more/{number}", make=True)
    assert os.fstat(folder_fd).st_ino == wanted
    root.close()
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder_fd))
    assert (tmp_path / "root/first/file").exists()
    number = int(folder_fd)
    del folder_fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_few_descriptors_are_kept_and_all_are_closed(root: paths.Root, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    deep = "/".join("d" * 100)
    for path in [deep, *(f"{n}/sub" for n in range(100)), deep]:
        fd, name = root.at(f"{path}/x", make=True)
        wanted = (tmp_path / "root" / path).stat().st_ino
        assert (os.fstat(fd).st_ino, name) == (wanted, b"x")
    assert len(os.listdir("/proc/self/fd")) <= before + paths._FOLDERS_KEPT
    del fd
    root.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
