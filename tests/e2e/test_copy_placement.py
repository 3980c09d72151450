"""Where a copy lands: as with cp, which is asked the same and compared with.

A folder to copy into that cp would miss is made first for it: where DEST ends in a slash, and where
there are several sources.

Not here: what is copied (test_copy_names.py and others), globs and "~" (test_copy_paths.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import pytest
from compare import assert_same_tree, tree_digest

import pscp
from e2e.ways import Way
from pscp.endpoint.reading import metadata
from pscp.ground.errors import DestinationError, UsageError
from pscp.options.option_fields import OptionFields

EVERY_WAY = True

# Sources, destination: as typed, below the folders that fill() makes.
CASES = (
    (["one"], "existing"), (["one"], "existing/"), (["one"], "existing/."),
    (["one"], "existing/folder/.."), (["one"], "link to existing"), (["one"], "file"),
    (["one"], "link to file"), (["one"], "file/"), (["one"], "new"), (["one"], "new/"),
    (["one"], "new/."), (["one"], "missing/new"), (["one"], "missing/new/"), (["one"], "file/new"),
    (["one"], "folder in the way"), (["link to one"], "existing"),
    (["folder"], "new"), (["folder"], "new/"), (["folder"], "new/."), (["folder/."], "new/"),
    (["folder"], "existing"), (["folder/"], "existing"), (["folder/."], "existing"),
    (["folder/."], "new"), (["link to folder"], "existing"), (["folder"], "file"),
    (["folder"], "file in the way"), (["folder"], "missing/new"),
    (["one", "two", "folder"], "existing"), (["folder/.", "one"], "existing"),
    (["one", "folder/.", "two"], "existing/"), (["folder/.", "one"], "new"),
    (["one", "two"], "new"), (["one", "two"], "new/"), (["one", "two"], "missing/new"),
    (["one", "two"], "file"), (["folder", "folder/sub"], "existing"),
)  # fmt: skip
MKPATH_CASES = (
    (["one"], "missing/too/new"), (["one", "two"], "missing/too/new"),
    (["folder"], "missing/too/new/"), (["folder/."], "existing/too/new"), (["one"], "existing"),
    (["one"], "file/too/new"), (["one"], "link to existing/too/new"),
)  # fmt: skip


def fill(source: Path, destination: Path) -> None:
    write(source, {"one": "1", "two": "22", "folder/a": "a", "folder/sub/b": "b"})
    (source / "folder" / "empty").mkdir()
    (source / "link to one").symlink_to("one")
    (source / "link to folder").symlink_to("folder")
    write(
        destination,
        {
            "file": "of before",
            "existing/one": "the one of before",
            "existing/folder/old": "stays",
            "folder in the way/one/x": "stays",
            "file in the way/folder": "stays",
        },
    )
    (destination / "link to existing").symlink_to("existing")
    (destination / "link to file").symlink_to("file")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def copied_by_cp(
    way: Way, names: Sequence[str], to: str, mkpath: bool = False
) -> tuple[Path, bool]:
    twin = way.destination.with_name(f"{way.destination.name}-by-cp")
    shutil.copytree(way.destination, twin, symlinks=True)
    sources = [os.path.join(way.source, name) for name in names]
    if mkpath:
        with contextlib.suppress(NotADirectoryError):
            (twin / to).parent.mkdir(parents=True, exist_ok=True)
    if len(names) > 1 or to.endswith(("/", "/.")):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            (twin / to).mkdir()
    argv = ["cp", "-rL", "--", *sources, os.path.join(twin, to)]
    done = subprocess.run(argv, capture_output=True, check=False)
    return twin, done.returncode == 0


def is_content(way: Way, names: Sequence[str], to: str, **fields: Unpack[OptionFields]) -> bool:
    try:
        return way.copy(*names, to=to, **fields).ok
    except DestinationError:
        return False


def in_folder(way: Way, number: int) -> Way:
    """Return the way between filled folders of this case alone."""
    source, destination = way.source / str(number), way.destination / str(number)
    fill(source, destination)
    return dataclasses.replace(way, source=source, destination=destination)


def test_it_lands_where_cp_puts_it(way: Way) -> None:
    for number, (names, to) in enumerate(CASES):
        one = in_folder(way, number)
        twin, cp_is_content = copied_by_cp(one, names, to)
        assert is_content(one, names, to) == cp_is_content, (names, to)
        assert_same_tree(one.destination, twin)


def test_mkpath_makes_the_folders_above(way: Way) -> None:
    """USERS A41: as if mkdir -p had made them before."""
    for number, (names, to) in enumerate(MKPATH_CASES):
        one = in_folder(way, number)
        twin, cp_is_content = copied_by_cp(one, names, to, mkpath=True)
        before = tree_digest(one.destination)
        assert is_content(one, names, to, mkpath=True, dry_run=True) == cp_is_content, (names, to)
        assert tree_digest(one.destination) == before
        assert is_content(one, names, to, mkpath=True) == cp_is_content, (names, to)
        assert_same_tree(one.destination, twin)
    ran = way.command("-r", "-n", "--mkpath", names=["0/one", "0/two"], to="missing/too/new")
    assert ran.code == 0 and ran.out, ran.err
    assert all(line.startswith("missing/too/new") for line in ran.out.splitlines()), ran.out


@pytest.mark.parametrize("to", ["nightly/", "nightly"])
def test_the_same_line_gives_the_same_place_every_night(way: Way, to: str) -> None:
    """USERS A2: with the slash one source is enough; two make the folder with or without it."""
    names = ["data"] if to.endswith("/") else ["data", "log"]
    write(way.source, {"log": "one"})
    for night in range(3):
        write(way.source, {f"data/{night}": str(night), "data/changed": "x" * night})
        assert way.copy(*names, to=to).ok
        assert sorted(path.name for path in (way.destination / "nightly").iterdir()) == names
        assert_same_tree(way.source / "data", way.destination / "nightly" / "data")


def test_a_folder_that_is_made_is_as_open_as_the_umask_allows(way: Way) -> None:
    fill(way.source, way.destination)
    umask = metadata.current_umask() if way.is_push else 0o077  # sshd has that of the tests
    ran = dataclasses.replace(way, umask=umask).command("-r", names=["folder"], to="nightly/")
    assert ran.code == 0, ran.err
    assert stat.S_IMODE((way.destination / "nightly").stat().st_mode) == 0o777 & ~umask


def test_a_refusal_names_the_destination_and_exits_1(way: Way) -> None:
    fill(way.source, way.destination)
    ran = way.command("-r", names=["folder"], to="file")
    assert (ran.code, ran.out) == (1, "")
    assert f"{way.destination}/file" in ran.err and "not a folder" in ran.err
    ran = way.command("-n", names=["one"], to="missing/nightly/")
    assert (ran.code, f"no such folder: {way.destination}/missing" in ran.err) == (1, True)
    assert "--mkpath makes" in ran.err
    with pytest.raises(DestinationError, match="no such folder") as raised:
        way.copy("one", to="missing/nightly/")
    assert raised.value.hint.startswith("mkpath makes")


def test_a_folder_needs_r(way: Way) -> None:
    fill(way.source, way.destination)
    before = tree_digest(way.destination)
    [failure] = way.copy("folder", to="existing", recursive=False).failures
    assert (failure.path, failure.message) == ("folder", "is a folder (use recursive)")
    assert failure.hint == "recursive copies folders, archive with everything"
    assert tree_digest(way.destination) == before


def test_a_folder_of_this_side_needs_r_before_anything_is_contacted(push: Way) -> None:
    fill(push.source, push.destination)
    logins = push.server.log.count("Accepted publickey")
    ran = push.command(names=["folder"], to="existing")
    assert (ran.code, ran.out) == (2, "")
    assert "folder is a folder: use -r" in ran.err
    with pytest.raises(UsageError):
        pscp.copy([], str(push.destination))
    assert push.server.log.count("Accepted publickey") == logins


@pytest.mark.parametrize(
    ("names", "said"), [(["a/same", "b/same"], "same"), (["a/.", "b/."], "contents of two folders")]
)
def test_two_sources_for_one_place_are_refused(way: Way, names: list[str], said: str) -> None:
    write(way.source, {"a/same": "1", "b/same": "2"})
    with pytest.raises(DestinationError, match=said):
        way.copy(*names)
    assert list(way.destination.iterdir()) == []


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_in_a_folder_gives_way_to_a_source_of_its_name(way: Way, order: int) -> None:
    write(way.source, {"folder/one": "2", "folder/t/x": "2", "folder/two": "2"})
    write(way.source, {"one": "1", "t/y": "1"})
    result = way.copy(*["folder/.", "one", "t"][::order])
    assert {each.path for each in result.failures} == {"one", "t", "t/x"}
    assert {each.message for each in result.failures} == {"another source has this name"}
    assert way.arrived == {"one", "t", "t/y", "two"}
    assert (way.destination / "one").read_text() == "1"


@pytest.mark.parametrize("order", [1, -1])
def test_what_was_there_already_gives_way_too(way: Way, order: int) -> None:
    """It was unchanged in its folder's listing, and then replaced without a word."""
    write(way.source, {"folder/one": "2", "folder/t": "2", "folder/two": "2"})
    assert way.copy("folder/.", preserve=True).files == 3
    write(way.source, {"one": "11", "t/y": "1"})
    sources = ["folder/.", "one", "t"][::order]
    result = way.copy(*sources, preserve=True, delete=True)
    assert {each.path for each in result.failures} == {"one", "t"}
    assert {each.message for each in result.failures} == {"another source has this name"}
    assert result.files_unchanged == 1
    assert (way.destination / "one").read_text() == "11"


def test_a_special_file_is_never_replaced(way: Way) -> None:
    write(way.source, {"fifo": "a file"})
    (way.destination / "folder").mkdir()
    fifos = [way.destination / "fifo", way.destination / "folder" / "fifo"]
    for fifo in fifos:
        os.mkfifo(fifo)
    (way.destination / "link to fifo").symlink_to("fifo")
    for to in ("fifo", "link to fifo", "folder"):
        result = way.copy("fifo", to=to)
        assert [(each.path, each.error) for each in result.failures] == [("fifo", "FileError")]
        assert "special file" in result.failures[0].message
    assert all(fifo.is_fifo() for fifo in fifos)
    assert (way.destination / "link to fifo").is_symlink()
    assert way.arrived == {"fifo", "folder", "folder/fifo", "link to fifo"}


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_file_where_a_folder_is_is_not_sent(way: Way, dry_run: bool) -> None:
    """USERS J7: it was sent whole first."""
    write(way.source, {"t/large": "x" * 300_000, "t/small": "x", "t/other": "x"})
    for name in ("large", "small"):
        (way.destination / "t" / name / "stays").mkdir(parents=True)
    result = way.copy("t", dry_run=dry_run)
    assert [(each.path, each.message) for each in result.failures] == [
        (f"t/{name}", "is a folder at the destination") for name in ("large", "small")
    ]
    assert (result.files, result.bytes_sent) == (1, 0 if dry_run else 1)
    assert (way.destination / "t" / "large" / "stays").is_dir()


@pytest.mark.parametrize("more", [{"dry_run": True}, {"check": True}, {}], ids=["n", "check", ""])
@pytest.mark.parametrize("preserve", [False, True])
def test_where_a_file_is_nothing_of_a_folder_is_sent_or_promised(
    way: Way, more: OptionFields, preserve: bool
) -> None:
    write(way.source, {"t/folder/one": "1", "t/folder/sub/two": "2" * 300_000})
    write(way.destination, {"t/folder": "a file"})
    fields: OptionFields = {**more, "preserve": preserve}
    result = way.copy("t", **fields)
    assert {each.path for each in result.failures} == {
        "t/folder", "t/folder/one", "t/folder/sub", "t/folder/sub/two",
    }  # fmt: skip
    assert (result.files, result.bytes_sent, result.differing) == (0, 0, 0)


def test_where_a_file_is_what_is_skipped_does_not_fail(way: Way) -> None:
    write(way.source, {"t/folder/one": "1", "t/here": "22"})
    write(way.destination, {"t/folder": "a file", "t/here": "2"})
    result = way.copy("t", existing=True)
    assert {each.path for each in result.failures} == {"t/folder"}
    assert (result.files, result.files_skipped) == (1, 1)


def test_a_link_in_the_way_is_replaced_and_not_written_through(way: Way) -> None:
    outside = way.destination.with_name("outside")
    outside.write_text("of before")
    write(way.source, {"folder/name": "new"})
    (way.destination / "folder").mkdir()
    (way.destination / "folder" / "name").symlink_to(outside)
    assert way.copy("folder").ok
    assert outside.read_text() == "of before"
    assert not (way.destination / "folder" / "name").is_symlink()
    assert (way.destination / "folder" / "name").read_text() == "new"


def test_a_folder_that_is_a_link_there_is_not_entered(way: Way) -> None:
    outside = way.destination.with_name("outside")
    outside.mkdir()
    write(way.source, {"folder/sub/name": "new", "folder/other": "copied"})
    (way.destination / "folder").mkdir()
    (way.destination / "folder" / "sub").symlink_to(outside)
    result = way.copy("folder")
    assert list(outside.iterdir()) == []
    assert (way.destination / "folder" / "other").read_text() == "copied"
    assert {each.path for each in result.failures} == {"folder/sub", "folder/sub/name"}


def test_a_dry_run_tells_of_an_empty_folder_before_what_would_come_into_it(push: Way) -> None:
    write(push.source, {f"folder/{name}/file": "1" for name in "abc"})
    (push.source / "folder").chmod(0o700)
    (push.destination / "to").mkdir(mode=0o755)
    ran = push.command("-a", "-n", names=["folder/."], to="to/")
    assert ran.out.splitlines() == ["./", "a/", "a/file", "b/", "b/file", "c/", "c/file"], ran.err
