"""--files-from and -R: rsync with the same words makes the same of an empty folder.

Not here: how a list is read and sorted (../unit/test_path_list.py), filters.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree, rsync_made

import pscp
from e2e.ways import Way, below

EVERY_WAY = True
OLD_S = 1_000_000_000


def fill(folder: Path) -> None:
    for name, size in (
        ("a/b/c", 3), ("a/b/large", 200_000), ("a/x", 1), ("a-b/y", 2), ("a b/z", 0),
        ("other/deep/er/1", 1), ("other/deep/2", 2), ("top", 5),
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("top")
    (folder / "to a").symlink_to("a")
    (folder / "astray").symlink_to("no folder/file")
    (folder / "a/b").chmod(0o750)
    (folder / "other").chmod(0o500)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (OLD_S, OLD_S), follow_symlinks=False)


LISTS = (
    ["top", "a/b/c", "a/b/large", "astray"],
    ["a/b/c", "./a//b/c", "/a/x", "a/b", "a-b/y"],  # each once, and in any order
    ["a", "other/deep/er/1", "empty", "link", "to a"],
    ["# a comment", "", "; another", "a b/z"],
)


@pytest.mark.parametrize(
    ("number", "option"),
    [(0, "-a"), (1, "-a"), (2, "-a"), (2, "-ar"), (2, "-r"), (2, "-p"), (3, "-p")],
)
def test_what_is_listed_is_copied_as_by_rsync(
    way: Way, number: int, option: str, tmp_path: Path
) -> None:
    fill(way.source)
    listed = tmp_path / "list"
    listed.write_text("\n".join(LISTS[number]))
    words = {"-a": ["-a"], "-ar": ["-ar"], "-r": ["-rL"], "-p": ["-ptL"]}[option]
    twin = rsync_made(way.source, tmp_path / "twin", *words, f"--files-from={listed}")
    ran = way.command(option, f"--files-from={listed}", names=["."], to="new")
    assert ran.code == 0, ran.err
    for folder in (way.destination / "new", twin):  # their own times are those of the copy
        os.utime(folder, (OLD_S, OLD_S))
    is_exact = option != "-r"
    assert_same_tree(way.destination / "new", twin, modes=is_exact, times=is_exact)


def test_what_a_list_says_of_folders(way: Way, tmp_path: Path) -> None:
    """With -a a folder is copied alone, one with a slash with all in it; "." is DEST itself."""
    fill(way.source)
    (way.source / "#none").touch()
    os.utime(way.source, (OLD_S, OLD_S))
    listed = tmp_path / "list"
    listed.write_bytes(b"other/\0.\0a/\0a\0a-b\0other/deep\0#none\0")
    result = way.copy(
        ".", to="new", archive=True, recursive=False, files_from=str(listed), from0=True
    )
    assert result.ok
    new = way.destination / "new"
    names = {"a", "a/b", "a/b/c", "a/b/large", "a/x", "a-b", "#none", "other", "other/deep"}
    names |= {"other/deep/2", "other/deep/er", "other/deep/er/1"}
    assert below(new) == names
    assert int(new.stat().st_mtime) == OLD_S
    assert_same_tree(new / "other", way.source / "other", modes=True, times=True)
    again = way.copy(
        ".", to="new", archive=True, recursive=False, files_from=str(listed), from0=True
    )
    assert (again.bytes_sent, again.files_unchanged) == (0, result.files)


def test_a_path_of_a_list_that_is_wrong_is_named_and_the_rest_copied(
    way: Way, tmp_path: Path
) -> None:
    fill(way.source)
    listed = tmp_path / "list"
    listed.write_text("missing\na/../x\nto a/x\nno/such/y\na/./b/c\ntop/z\n")
    result = way.copy(".", archive=True, files_from=str(listed))
    assert {each.path: each.error for each in result.failures} == {
        "missing": "SystemFailure",
        "a/../x": "UnsafeName",
        "to a/x": "UnsupportedFile",
        "no/such/y": "SystemFailure",
        "top/z": "UnsupportedFile",
    }
    assert not any("-a" in each.hint for each in result.failures)
    assert way.arrived == {"a", "a/b", "a/b/c"}
    listed.write_text("to a/x")
    assert way.copy(".", archive=True, copy_links=True, files_from=str(listed)).ok
    assert (way.destination / "to a" / "x").read_text() == "x"


def test_a_long_list(way: Way, tmp_path: Path) -> None:
    """More than is looked up at once, in any order, with whole folders between."""
    for number in range(300):
        (way.source / f"{number % 7}" / "sub").mkdir(parents=True, exist_ok=True)
        (way.source / f"{number % 7}" / "sub" / f"{number}").write_text(str(number))
    for number in range(300):
        (way.source / f"file-{number}").touch()
    lines = [f"file-{number}" for number in range(270)] + ["3/", "5/sub/"]
    (tmp_path / "list").write_text("\n".join(reversed(lines)))
    twin = rsync_made(way.source, tmp_path / "twin", "-r", f"--files-from={tmp_path}/list")
    assert way.copy(".", files_from=str(tmp_path / "list")).ok
    assert_same_tree(way.destination, twin)
    ran = way.command("-n", f"--files-from={tmp_path}/list", names=["."])
    assert ran.out.splitlines() == []  # all is there


def test_a_list_on_standard_input(push: Way) -> None:
    fill(push.source)
    argv = push.argv("--files-from", "-", str(push.source), f"{push.sent_to}{push.destination}")
    subprocess.run(argv, input=b"a/x\ntop\n", check=True, capture_output=True)
    assert (push.destination / "a" / "x").exists() and (push.destination / "top").exists()


@pytest.mark.parametrize(
    ("words", "names", "said"),
    [
        (["--files-from=/no/such"], ["."], "--files-from: /no/such: No such file"),
        (["--files-from=/dev/null"], [".", "a"], "takes one SOURCE"),
        (["-r", "--delete", "--files-from=/dev/null"], ["."], "--delete does not go with"),
    ],
)
def test_a_list_that_makes_no_sense(
    push: Way, words: list[str], names: list[str], said: str
) -> None:
    logins = push.server.log.count("Accepted publickey")
    ran = push.command(*words, names=names)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert push.server.log.count("Accepted publickey") == logins


# --- -R

SOURCES = (
    ["./a/b/c", "./other/deep/er", "./top"],
    ["./a/b", "./a/b/c", "./a-b"],  # what is in another source is copied once
    ["./other/./deep/er/1", "a/./x"],
    ["./to a/b"],
    ["./a/b/.", "./other/deep/2"],
    ["./."],
)


@pytest.mark.differs_by_way(reason="each end, and SFTP, finds the folders above by itself")
@pytest.mark.parametrize("names", SOURCES, ids=range(len(SOURCES)))
def test_whole_paths_are_kept_as_by_rsync(way: Way, names: list[str], tmp_path: Path) -> None:
    fill(way.source)
    typed = [f"{way.source}/{name}" for name in names]
    subprocess.run(["rsync", "-aR", "--", *typed, f"{tmp_path}/twin/"], check=True)
    if names == SOURCES[0]:
        ran = way.command("-anR", names=names, to="new")
        assert ran.code == 0 and ran.out.startswith("new/"), ran.err
    for _ in range(2):
        assert way.copy(*names, to="new", archive=True, relative=True).ok
    for folder in (way.destination / "new", tmp_path / "twin"):
        os.utime(folder, (OLD_S, OLD_S))
    assert_same_tree(way.destination / "new", tmp_path / "twin", modes=True, times=True)


def test_patterns_keep_the_paths_that_they_match(way: Way) -> None:
    fill(way.source)
    names = ["./a*/b/c", "a*/./x"] if not way.is_push else ["./a/b/c", "a/./x"]
    assert way.copy(*names, relative=True).ok
    assert way.arrived == {"a", "a/b", "a/b/c", "x"}


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (["./a", "other/./a"], 1, "a: several sources have this place"),
        (["./a", "other/./a/x"], 1, "a/x: several sources have this place"),
        (["a/./x", "./other/../a/x"], 2, 'takes no ".."'),
    ],
)
def test_sources_that_would_land_in_one_place_are_refused(
    way: Way, names: list[str], code: int, said: str
) -> None:
    fill(way.source)
    (way.source / "other").chmod(0o700)
    (way.source / "other" / "a").mkdir()
    (way.source / "other" / "a" / "x").touch()
    ran = way.command("-rR", names=names)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert list(way.destination.iterdir()) == []


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_from_host_to_host(push: Way, remote: str, tmp_path: Path) -> None:
    """The source is asked for a list, and for the folders above, through this machine."""
    fill(push.source)
    (tmp_path / "list").write_text("a/b/\na/x\ngone\n")
    far = f"{push.server.host}:"
    fields: dict[str, Any] = {
        "config_file": push.server.ssh_config, "remote": remote, "batch": True, "connections": 1,
        "archive": True, "chmod": "D700,F600",
    }  # fmt: skip
    to = f"{far}{push.destination}"
    listed = pscp.copy(
        f"{far}{push.source}", f"{to}/1", files_from=f"{tmp_path}/list", raises=False, **fields
    )
    assert [(each.path, each.error) for each in listed.failures] == [("gone", "SystemFailure")]
    assert pscp.copy(f"{far}{push.source}/./a/*", f"{to}/2", relative=True, **fields).ok
    assert_same_tree(push.destination / "1", push.destination / "2", modes=True, times=False)
    assert below(push.destination / "2") == {"a", "a/b", "a/b/c", "a/b/large", "a/x"}
    assert (push.destination / "2" / "a").stat().st_mode & 0o7777 == 0o700
