"""--delete and --max-delete: what is deleted at the destination, what is protected, what stops it.

Not here: what dies meanwhile (../faults/test_mirror_cut_short.py), --remove-source-files
(test_moving.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree, tree_digest
from conftest import unavailable

from e2e.ways import Way, make

EVERY_WAY = True


@contextlib.contextmanager
def mounted(what: Path, place: Path) -> Iterator[None]:
    if shutil.which("mount") is None or os.getuid() != 0:
        unavailable("mounting takes root's powers")
    subprocess.run(["mount", "--bind", what, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


# --- what is deleted


def test_the_destination_has_what_the_source_has(way: Way) -> None:
    make(way.source, "t/same", "t/sub/a", "t/sub/new", "t/empty/")
    make(way.destination, "t/same", "t/extra", "t/sub/old", "t/sub/deep/er/x", "t/gone/y", "t/z/")
    make(way.destination, "beside", "other/of/mine")
    (way.destination / "t" / "link").symlink_to(way.destination / "beside")
    (way.destination / "t" / "into").symlink_to(way.destination / "other")
    result = way.copy("t", delete=True)
    assert result.ok, result.failures
    assert result.files_deleted == 10
    assert_same_tree(way.source / "t", way.destination / "t")
    assert way.arrived >= {"beside", "other/of/mine"}


def test_a_folder_of_very_many_names(way: Way) -> None:
    (way.source / "t").mkdir()
    (way.destination / "t").mkdir()
    for number in range(2500):
        name = f"{number:05d}" + "n" * 200
        (way.source / "t" / name).touch()
        (way.destination / "t" / (name + ("" if number % 100 else "x"))).touch()
    result = way.copy("t", delete=True)
    assert (result.ok, result.files_deleted) == (True, 25)
    assert_same_tree(way.source, way.destination)


def test_a_dry_run_lists_what_would_be_deleted(way: Way) -> None:
    make(way.source, "t/a", "t/sub/b")
    make(way.destination, "t/a", "t/sub/old", "t/gone/x/y")
    before = tree_digest(way.destination, times=True)
    ran = way.command("-rn", "--delete", names=["t"])
    assert ran.code == 0, ran.err
    lines = [line for line in ran.out.splitlines() if line.startswith("deleting")]
    assert sorted(lines[:2]) == ["deleting t/gone/x/y", "deleting t/sub/old"]
    assert lines[2:] == ["deleting t/gone/x/", "deleting t/gone/"]
    assert tree_digest(way.destination, times=True) == before


def test_v_says_what_was_deleted(push: Way) -> None:
    make(push.source, "a")
    make(push.destination, "old")
    ran = push.command("-rv", "--delete", names=["."])
    assert (ran.code, ran.out.splitlines()) == (0, ["deleting old"])
    assert "1 deleted" in ran.err


def test_between_two_far_ends(push: Way) -> None:
    make(push.source, "t/a", "t/sub/b")
    make(push.destination, "t/old", "t/gone/x")
    host = push.server.host
    words = ("-r", "--delete", f"{host}:{push.source}/t", f"{host}:{push.destination}")
    ran = push.typed(*words)
    assert ran.code == 0, ran.err
    assert_same_tree(push.source, push.destination)
    moving = ("-r", "--remove-source-files", f"{host}:{push.source}/t/.")
    assert push.typed(*moving, f"{host}:{push.destination}/moved/").code == 0
    assert not [path for path in push.source.rglob("*") if path.is_file()]


# --- what is protected


def test_what_is_excluded_is_protected(way: Way) -> None:
    make(way.source, "t/a", "t/b.o", "t/skip/x")
    make(way.destination, "t/old", "t/c.o", "t/skip/y", "t/gone/keep.o", "t/gone/deep/z", "t/w/u")
    filters = (("exclude", "*.o"), ("exclude", "skip"))
    result = way.copy("t", delete=True, filters=filters)
    assert (result.ok, result.files_deleted) == (True, 5)
    files = {"t/a", "t/c.o", "t/skip/y", "t/gone/keep.o"}
    assert way.arrived == files | {"t", "t/skip", "t/gone"}


def test_what_the_copy_leaves_out_on_purpose_is_protected(way: Way) -> None:
    """With -r a socket is an error; what is pscp's own is in no copy, and stays where it is."""
    make(way.source, "t/a")
    part = f".x.{'0' * 16}.{'1' * 16}.pscp-part"
    make(way.destination, f"t/{part}", f"t/gone/{part}")
    result = way.copy("t", delete=True)
    assert (way.destination / "t" / part).exists()
    assert (way.destination / "t" / "gone" / part).exists()
    assert [failure.path for failure in result.failures] == ["t/gone"]


# --- what stops it


def test_a_failure_stops_all_deleting(way: Way) -> None:
    make(way.source, "t/a", "t/taken/x")
    make(way.destination, "t/taken", "t/old")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(way.source / "t" / "socket"))
    ran = way.command("-r", "--delete", names=["t"])
    assert ran.code == 1 and "nothing was deleted" in ran.err
    assert way.arrived >= {"t/a", "t/taken", "t/old"}


def test_a_folder_that_cannot_be_read(powerless: Way) -> None:
    make(powerless.source, "t/a", "t/closed/x")
    make(powerless.destination, "t/old", "t/closed/x")
    (powerless.source / "t" / "closed").chmod(0)
    try:
        ran = powerless.command("-r", "--delete", names=["t"])
    finally:
        (powerless.source / "t" / "closed").chmod(0o755)
    assert ran.code == 1
    assert powerless.arrived == {"t", "t/a", "t/old", "t/closed", "t/closed/x"}


def test_a_source_that_is_missing(way: Way) -> None:
    make(way.source, "t/a")
    make(way.destination, "t/old", "u/old")
    for names in (["t", "u"], ["u"]):
        ran = way.command("-r", "--delete", names=names)
        assert ran.code == 1 and "nothing was deleted" in ran.err
        assert way.arrived >= {"t/old", "u/old"}


@pytest.mark.parametrize(("most", "is_deleted"), [(3, False), (4, True)])
def test_max_delete(way: Way, most: int, is_deleted: bool) -> None:
    make(way.source, "t/a")
    make(way.destination, "t/old", "t/gone/x", "t/gone/y")
    ran = way.command("-r", "--delete", "--max-delete", str(most), names=["t"])
    assert ran.code == (0 if is_deleted else 1)
    assert way.arrived >= {"t/a"}
    assert ("t/old" in way.arrived, "t/gone/x" in way.arrived) == (not is_deleted, not is_deleted)
    if not is_deleted:
        assert f"4 files and folders would be, more than --max-delete {most}" in ran.err


def test_without_r_there_is_nothing_to_mirror(push: Way) -> None:
    make(push.source, "a")
    ran = push.command("--delete", names=["a"])
    assert ran.code == 2 and "-r or -a" in ran.err


@pytest.mark.parametrize("token", ["0123abcd", "89abcdef"])
def test_a_folder_that_goes_has_a_part_in_it(
    way: Way, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """N16: exit 1 at every run, and no word of what to do. This copy's own parts go."""
    monkeypatch.setattr("pscp.transfer.copy.Run._token", lambda run: "0123abcd")
    is_own = token == "0123abcd"
    make(way.source, "t/a")
    make(way.destination, "t/sub/")
    key = f"{token}{'1' * 8}"
    part = way.destination / "t" / "sub" / f".x.{'0' * 16}.{key}.pscp-part"
    part.touch()
    result = way.copy("t", delete=True)
    assert (result.ok, part.exists()) == (is_own, not is_own)
    if not is_own:
        [failure] = result.failures
        assert failure.path == "t/sub" and "pscp --clean" in failure.message


@pytest.mark.needs_agent(reason="SFTP tells file systems apart, not mounts of the same one")
def test_a_folder_that_is_mounted_there_keeps_what_is_in_it(way: Way, tmp_path: Path) -> None:
    """T1: of the same file system, so that its device tells nothing."""
    make(way.source, "t/a")
    make(way.destination, "t/x/y/", "t/x/z")
    make(tmp_path, "other/keep")
    with mounted(tmp_path / "other", way.destination / "t" / "x" / "y"):
        result = way.copy("t", delete=True)
        assert result.failures == ()
        assert (tmp_path / "other" / "keep").exists()
    assert way.arrived == {"t", "t/a", "t/x", "t/x/y"}
