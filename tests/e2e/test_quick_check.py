"""What is at the destination already, by the quick check: size and time, and what asks for more.

Not here: files that are hashed (test_copy_again.py), --update (test_copy_options.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree, tree_digest

import pscp
from e2e.ways import Way
from pscp.endpoint.reading.tree import FOLDER
from pscp.options.option_fields import OptionFields
from pscp.transfer.pieces.plan import PlannedEntry
from pscp.transfer.walk.lookups import DestinationLookup

EVERY_WAY = True

S = 10**9
OLD_NS, NEW_NS = 1_500_000_000 * S + 123_456_789, 1_600_000_000 * S + 123_456_789
NAMES = ("a", "sub/b", "sub/c", "sub/deep/d")


def fill(folder: Path) -> None:
    for name in NAMES:
        write(folder / name, f"{name} as it was")
    write(folder / "large", "x" * 300_000)


def write(path: Path, text: str, time_ns: int = OLD_NS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(time_ns, time_ns))


def alter(path: Path, text: str = "A") -> None:
    status = path.stat()
    write(path, text + path.read_text()[len(text) :], status.st_mtime_ns)


def seen(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


# --- size and time


def test_what_has_the_same_size_and_time_is_not_read(way: Way) -> None:
    fill(way.source)
    assert way.copy(".", preserve=True).files == 5
    for name in ("sub/b", "large"):
        alter(way.source / name)
    size_bytes = sum(path.stat().st_size for path in way.source.rglob("*") if path.is_file())
    for archive in (False, True):
        counted: list[pscp.Counters] = []
        result = way.copy(".", preserve=True, archive=archive, progress=counted.append)
        assert counted[-1].bytes_unneeded == size_bytes
        assert (result.ok, result.files, result.bytes, result.chunks_verified) == (True, 0, 0, 0)
        assert (result.files_unchanged, result.files_resumed) == (5, 0)
    hashed = way.copy(".", preserve=True, checksum=True)
    assert (hashed.files, hashed.files_resumed, hashed.files_unchanged) == (2, 3, 0)
    assert_same_tree(way.source, way.destination)


@pytest.mark.parametrize("fields", [{}, {"preserve": True, "strong": True}], ids=["", "strong"])
def test_without_times_it_is_hashed(way: Way, fields: OptionFields) -> None:
    fill(way.source)
    way.copy(".", preserve=True)
    alter(way.source / "a")
    result = way.copy(".", **fields)
    assert (result.files, result.files_resumed, result.files_unchanged) == (1, 4, 0)
    assert_same_tree(way.source, way.destination)


def test_size_alone(way: Way) -> None:
    fill(way.source)
    way.copy(".")
    for path in way.destination.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(NEW_NS, NEW_NS))
    alter(way.source / "a")
    write(way.source / "sub/b", "longer than it was before")
    assert way.copy(".", size_only=True).files_unchanged == 4
    there = seen(way.destination)
    assert there["a"] == "a as it was"
    assert there["sub/b"] == "longer than it was before"
    assert way.copy(".", size_only=True, preserve=True).files_unchanged == 5
    assert (way.destination / "a").stat().st_mtime_ns // S == OLD_NS // S


def test_what_differs_among_much_that_does_not(way: Way) -> None:
    fill(way.source)
    for name in ("empty", "empty too"):
        (way.source / name).mkdir()
    assert way.copy(".", archive=True).ok
    (way.destination / "sub/c").unlink()
    write(way.destination / "sub/extra", "of the destination")
    write(way.source / "sub/deep/d", "sub/deep/d is new", NEW_NS)
    write(way.source / "sub/new/e", "new")
    (way.destination / "empty").rmdir()
    os.chmod(way.destination / "a", 0o600)
    os.chmod(way.destination / "empty too", 0o700)
    os.utime(way.destination / "sub", ns=(NEW_NS, NEW_NS))
    result = way.copy(".", archive=True)
    assert (result.ok, result.files, result.files_unchanged) == (True, 3, 3)
    assert (way.destination / "sub/extra").read_text() == "of the destination"
    (way.destination / "sub/extra").unlink()
    os.utime(way.destination / "sub", ns=(0, 0))
    os.utime(way.source / "sub", ns=(0, 0))
    assert way.copy(".", archive=True).files_unchanged == 6
    assert_same_tree(way.source, way.destination, modes=True)
    whole_s = [
        {name: facts["mtime_ns"] // S for name, facts in tree_digest(end, times=True).items()}
        for end in (way.source, way.destination)
    ]
    assert whole_s[0] == whole_s[1]


def test_of_a_folder_that_is_the_same_no_file_is_looked_up(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: set[str] = set()
    request = DestinationLookup.request

    def recorded(self: DestinationLookup, items: list[PlannedEntry]) -> object:
        looked_up.update(item.entry.path for item in items if item.entry.kind != FOLDER)
        return request(self, items)

    monkeypatch.setattr(DestinationLookup, "request", recorded)
    fill(way.source)
    (way.source / "sub/link").symlink_to("b")
    (way.source / "new\nline").write_text("n")
    assert way.copy(".", archive=True).ok
    for name in ("sub/b", "large"):  # as another program has copied it
        status = (way.source / name).stat()
        os.utime(way.destination / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    looked_up.clear()
    result = way.copy(".", archive=True, delete=True)
    assert (result.files, result.files_unchanged, looked_up) == (0, 7, set())
    write(way.source / "sub/deep/d", "sub/deep/d is new", NEW_NS)
    (way.destination / "sub/link").unlink()
    (way.destination / "sub/link").symlink_to("c")
    write(way.destination / "sub/more/x", "of the destination")
    (way.destination / "sub/deep").chmod(0o700)
    result = way.copy(".", archive=True, delete=True)
    assert (result.files, result.files_unchanged, result.files_deleted) == (2, 5, 2)
    assert looked_up == {"sub/deep/d", "sub/link"}
    assert_same_tree(way.source, way.destination, modes=True)


def test_a_folder_into_which_something_new_comes_keeps_its_time(way: Way) -> None:
    """What --exclude left out comes later, into a folder that is the same but for that."""
    fill(way.source)
    os.utime(way.source / "sub", ns=(OLD_NS, OLD_NS))
    for _ in range(2):
        way.copy(".", preserve=True, filters=(("exclude", "deep/"),))
    result = way.copy(".", preserve=True)
    assert (result.files, result.files_unchanged) == (1, 4)
    assert (way.destination / "sub").stat().st_mtime_ns // S == OLD_NS // S


@pytest.mark.needs_agent(reason="over SFTP neither attributes nor hard links of a pull are kept")
def test_links_names_and_attributes(way: Way) -> None:
    fill(way.source)
    (way.source / "same link").symlink_to("a")
    (way.source / "other link").symlink_to("a")
    time_ns = (way.source / "other link").lstat().st_mtime_ns
    os.link(way.source / "a", way.source / "sub/another name")
    os.setxattr(way.source / "sub/b", "user.kept", b"1")
    assert way.copy(".", archive=True).ok
    before = (way.destination / "same link").lstat().st_ino
    (way.source / "other link").unlink()
    (way.source / "other link").symlink_to("b")  # as long, and as old
    os.utime(way.source / "other link", ns=(time_ns, time_ns), follow_symlinks=False)
    os.setxattr(way.source / "sub/b", "user.kept", b"2")
    result = way.copy(".", archive=True)
    assert (result.ok, result.files_unchanged) == (True, 7)
    assert (way.destination / "same link").lstat().st_ino == before
    assert os.readlink(way.destination / "other link") == "b"
    assert os.getxattr(way.destination / "sub/b", "user.kept") == b"2"
    assert_same_tree(way.source, way.destination, modes=True, times=True, hard_links=True)


@pytest.mark.needs_agent(reason="over SFTP attributes are not kept")
def test_attributes_of_what_a_link_leads_to(way: Way) -> None:
    fill(way.source)
    way.source.with_name("led to").write_text("x")
    (way.source / "link").symlink_to("../led to")
    assert way.copy(".", archive=True, copy_links=True).ok
    os.setxattr(way.source / "link", "user.kept", b"1")
    assert way.copy(".", archive=True, copy_links=True).ok
    assert os.getxattr(way.destination / "link", "user.kept") == b"1"


# --- what is there, and what is not


def test_only_what_is_there(way: Way) -> None:
    fill(way.source)
    write(way.destination / "sub/b", "other")
    result = way.copy(".", existing=True)
    assert (result.ok, result.files, result.files_skipped) == (True, 1, 4)
    assert seen(way.destination) == {"sub/b": "sub/b as it was"}
    assert not (way.destination / "sub/deep").exists()


def test_only_what_is_not_there(way: Way) -> None:
    fill(way.source)
    write(way.destination / "sub/b", "other")
    for preserve in (False, True):
        result = way.copy(".", ignore_existing=True, preserve=preserve)
        assert (result.ok, result.files_skipped) == (True, 5 if preserve else 1)
        assert seen(way.destination) == {**seen(way.source), "sub/b": "other"}


# --- hard links whose first name an option leaves out


def names_of_one_file(way: Way) -> None:
    """Have t/a, t/y and t/z at the source be one file, and t/a at the destination another."""
    write(way.source / "t/a", "content")
    os.link(way.source / "t/a", way.source / "t/y")
    os.link(way.source / "t/a", way.source / "t/z")


@pytest.mark.needs_agent(reason="over SFTP a pull makes no hard links")
def test_names_of_a_file_that_is_nowhere_yet(way: Way) -> None:
    """N11: the further name went into a pack, and the copy ended as a broken protocol."""
    names_of_one_file(way)
    result = way.copy("t", archive=True, ignore_existing=True)
    assert (result.ok, result.files) == (True, 3)
    assert_same_tree(way.source, way.destination, hard_links=True)


@pytest.mark.needs_agent(reason="over SFTP a pull makes no hard links")
def test_no_name_is_linked_to_what_is_left_out(way: Way) -> None:
    """A new name got the mode, the owner and the bytes of what lay there under another one."""
    names_of_one_file(way)
    (way.source / "t/a").chmod(0o600)
    write(way.destination / "t/a", "CONTENT", (way.source / "t/a").stat().st_mtime_ns)
    (way.destination / "t/a").chmod(0o666)
    assert way.copy("t", archive=True, ignore_existing=True).ok
    found = way.destination / "t"
    assert seen(found) == {"a": "CONTENT", "y": "content", "z": "content"}
    assert (found / "y").stat().st_mode & 0o777 == 0o600
    assert (found / "y").samefile(found / "z")


@pytest.mark.needs_agent(reason="over SFTP a pull makes no hard links")
@pytest.mark.parametrize("option", ["--ignore-existing", "-u"])
def test_a_missing_name_of_a_file_whose_first_name_is_there(way: Way, option: str) -> None:
    """N18: it was never copied, and a dry run said that it would be."""
    names_of_one_file(way)
    write(way.destination / "t/a", "its own", NEW_NS)
    listed = way.command("-an", option, names=["t"])
    assert set(listed.out.splitlines()) >= {"t/y", "t/z"}
    ran = way.command("-a", option, names=["t"])
    assert (ran.code, "1 skipped" in ran.err) == (0, True)
    found = way.destination / "t"
    assert seen(found) == {"a": "its own", "y": "content", "z": "content"}
    assert (found / "y").samefile(found / "z")
    again = way.command("-a", option, names=["t"])
    assert (again.code, seen(found)["a"]) == (0, "its own")


def test_what_lands_where_another_source_does_is_told_by_its_own_name(push: Way) -> None:
    """N3: the path that was told did not exist."""
    write(push.source / "a/b/1", "one")
    write(push.source / "b/2", "two")
    (push.source / "a/b/gone").symlink_to("nowhere")
    ran = push.command("-r", names=["a/.", "b"])
    assert ran.code == 1
    assert f"{push.source}/a/b/gone: is a dangling link (to nowhere)" in ran.err
    for name in ("a/b", "a/b/1"):
        assert f"{push.source}/{name}: another source has this name" in ran.err
    assert f"{push.source}/b" not in ran.err


# --- --check


def test_check_lists_what_differs_and_copies_nothing(way: Way) -> None:
    fill(way.source)
    assert way.copy(".", preserve=True).ok
    for more in ((), ("--no-resume",)):
        same = way.command("-rp", "--check", *more, names=["."])
        assert (same.code, same.out) == (0, "")
        assert "0 different, 5 files the same" in same.err
    alter(way.destination / "a")
    write(way.destination / "sub/b", "short")
    write(way.destination / "sub/c", "sub/c as it was", NEW_NS)
    (way.destination / "large").unlink()
    (way.source / "new folder").mkdir()
    before = tree_digest(way.destination, modes=True, times=True)
    ran = way.command("-rp", "--check", names=["."])
    assert (ran.code, sorted(ran.out.splitlines())) == (
        1,
        [
            "large: is not there",
            "new folder: is not there",
            "sub/b: differs in size",
            "sub/c: differs in time",
        ],
    )
    hashed = way.command("-rp", "--check", "--checksum", names=["."])
    assert hashed.code == 1
    assert "a: differs in content" in hashed.out.splitlines()
    assert "sub/c: differs in time" not in hashed.out.splitlines()
    assert tree_digest(way.destination, modes=True, times=True) == before


@pytest.mark.parametrize("how", ["check", "dry_run"])
def test_h3_a_program_is_told_what_differs(push: Way, how: str) -> None:
    """No name was anywhere."""
    fill(push.source)
    assert push.copy(".", preserve=True).ok
    write(push.destination / "sub/b", "short")
    (push.destination / "large").unlink()
    write(push.destination / "more", "more")
    told: list[pscp.FileEvent] = []
    [source], there = push.locations(["."], "")
    fields: Any = {how: True, "recursive": True, "preserve": True, "delete": how == "dry_run"}
    config = push.server.ssh_config
    pscp.copy(source, there, on_file=told.append, config_file=config, **fields)
    assert sorted((each.path, each.why, each.is_new) for each in told) == [
        ("large", "is not there", True),
        *([("more", "is not in the source", False)] if how == "dry_run" else []),
        ("sub/b", "differs in size", False),
    ]
    assert {each.outcome for each in told} == {"different"}


def test_check_hashes_where_no_times_are_kept(push: Way) -> None:
    fill(push.source)
    push.copy(".")
    same = push.copy(".", check=True)
    assert (same.ok, same.differing, same.files_resumed) == (True, 0, 5)
    alter(push.destination / "a")
    checked = push.copy(".", check=True)
    assert (checked.ok, checked.differing, checked.files) == (False, 1, 0)
    would = push.copy(".", dry_run=True)
    assert (would.ok, would.differing, would.files) == (True, 0, 1)
