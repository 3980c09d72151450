"""--remove-source-files: what is removed at the source, and what stays there.

Not here: --delete (test_mirror.py), a source that changes meanwhile (../faults/).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compare import tree_digest
from conftest import until
from programs import mounted

import pscp
from e2e.ways import Way, files_of, make
from pscp.ground.values import MIB

EVERY_WAY = True


def test_what_has_landed_is_removed_and_folders_stay(way: Way) -> None:
    make(way.source, "t/small", "t/sub/there", "t/sub/other", "t/empty/")
    (way.source / "t" / "large").write_bytes(os.urandom(MIB))
    make(way.destination, "t/sub/there")
    before = tree_digest(way.source)
    result = way.copy("t", remove_source_files=True)
    assert result.ok, result.failures
    assert tree_digest(way.destination) == before
    assert files_of(way.source) == set()
    assert (way.source / "t" / "empty").is_dir() and (way.source / "t" / "sub").is_dir()


def test_fifos_move_as_with_rsync_where_they_can_be_made(way: Way) -> None:
    for path in (way.source / "new", way.source / "there", way.destination / "there"):
        os.mkfifo(path)
        os.utime(path, (10**9, 10**9))
    result = way.copy(".", archive=True, remove_source_files=True)
    is_left_out = way.is_push and way.remote == "sftp"
    assert result.ok and way.arrived == ({"there"} if is_left_out else {"new", "there"})
    assert files_of(way.source) == ({"new", "there"} if is_left_out else set())


def test_a_file_that_changes_before_its_other_name_is_walked(push: Way) -> None:
    """What has landed is what it was under its first name."""
    make(push.source, "1/", "2/between", "3/")
    (push.source / "1" / "large").write_bytes(b"old" * MIB)
    os.link(push.source / "1" / "large", push.source / "3" / "too")

    def select(path: str, *_: int) -> bool:
        if path.endswith("between"):
            until((push.destination / "1" / "large").exists)
            (push.source / "1" / "large").write_bytes(b"new" * MIB)
        return True

    fields: dict[str, Any] = {"archive": True, "remove_source_files": True, "resume": False}
    result = push.copy("1", "2", "3", terms=pscp.JobTerms(select), **fields)
    assert {each.path for each in result.failures} == {"1/large", "3/too"}
    assert files_of(push.source) == {"1/large", "3/too"}


def test_what_a_killed_run_has_copied_is_removed_by_the_next_with_u(way: Way) -> None:
    """It was skipped, having its source's time, and stayed at the source for ever."""
    make(way.source, "t/done", "t/new")
    result = way.copy("t", archive=True)
    (way.destination / "t" / "new").unlink()
    result = way.copy("t", archive=True, update=True, remove_source_files=True)
    assert result.ok and result.files_removed == 2
    assert files_of(way.source) == set()


@pytest.mark.needs_agent(reason="SFTP knows no hard links of a source")
@pytest.mark.parametrize("option", ["update", "ignore_existing", "backup"])
def test_another_name_of_what_was_not_copied(way: Way, option: str) -> None:
    """It would be a name of whatever the destination has under the first one.

    N18: what -u and --ignore-existing leave out is the first name alone.
    """
    (way.source / "a~").write_text("mine")
    os.link(way.source / "a~", way.source / "b")
    (way.destination / "a~").write_text("your")
    os.utime(way.source / "a~", (10**9, 10**9))
    fields: dict[str, Any] = {option: True}
    way.copy(".", archive=True, remove_source_files=True, **fields)
    assert (way.source / "a~").read_text() == "mine"
    assert (way.destination / "a~").read_text() == "your"
    is_copied = option in ("update", "ignore_existing")
    assert (way.source / "b").exists() != is_copied
    assert (way.destination / "b").exists() == is_copied
    if is_copied:
        assert (way.destination / "b").read_text() == "mine"


def test_what_was_reached_through_a_link_stays(way: Way) -> None:
    make(way.source, "t/own", "beside/x")
    (way.source / "t" / "link").symlink_to(way.source / "beside")
    (way.source / "t" / "file").symlink_to(way.source / "beside" / "x")
    result = way.copy("t", remove_source_files=True)
    assert {failure.path for failure in result.failures} == {"t/link/x", "t/file"}
    assert all("through a link" in failure.message for failure in result.failures)
    assert files_of(way.source) == {"beside/x", "t/link", "t/file"}
    assert files_of(way.destination) == {"t/own", "t/link/x", "t/file"}


def test_a_source_that_is_a_link_to_a_folder_stands_for_that(way: Way) -> None:
    make(way.source, "t/own")
    (way.source / "link").symlink_to(way.source / "t")
    assert way.copy("link", remove_source_files=True).files_removed == 1
    assert files_of(way.source) == {"link"}
    assert files_of(way.destination) == {"link/own"}


@pytest.mark.parametrize("name", ["t", "t/."])
def test_the_source_is_the_destination(way: Way, name: str) -> None:
    """Or the only copy would be lost."""
    make(way.source, "t/a", "t/sub/b")
    same = dataclasses.replace(way, destination=way.source)
    result = same.copy(name, to="t" if name == "t/." else "", remove_source_files=True)
    assert [failure.error for failure in result.failures] == ["NotRemoved"]
    assert files_of(way.source) == {"t/a", "t/sub/b"}


def test_the_source_is_the_destination_in_another_spelling(push: Way) -> None:
    """Where names fold case, they are one file; elsewhere it is refused all the same."""
    make(push.source, "file")
    same = dataclasses.replace(push, destination=push.source)
    assert not same.copy("file", to="FILE", remove_source_files=True).ok
    assert "file" in files_of(push.source)


def test_the_destination_is_a_link_to_the_source(way: Way) -> None:
    make(way.source, "t/a")
    (way.destination / "link").symlink_to(way.source)
    assert not way.copy("t", to="link", remove_source_files=True).ok
    assert files_of(way.source) == {"t/a"}


@pytest.mark.parametrize("resume", [True, False])
def test_the_source_is_a_link_into_the_destination(way: Way, resume: bool) -> None:
    """As with a mount that shows a folder of the destination, the only copy would be lost."""
    make(way.destination, "t/a", "t/sub/b")
    (way.source / "t").symlink_to(way.destination / "t")
    result = way.copy("t", preserve=True, remove_source_files=True, resume=resume)
    assert not result.ok
    assert files_of(way.destination) == {"t/a", "t/sub/b"}


@pytest.mark.needs_agent(reason="SFTP cannot tell what is mounted")
def test_a_file_that_is_mounted_at_the_destination_stays(way: Way) -> None:
    """It may be the only one. A hard link is a file of its own: what it names is not lost."""
    make(way.source, "t/a b", "t/linked", "t/other")
    make(way.destination, "t/a b")
    (way.destination / "t" / "linked").hardlink_to(way.source / "t" / "linked")
    with mounted(way.destination / "t" / "a b", "--bind", way.source / "t" / "a b"):
        result = way.copy("t", preserve=True, remove_source_files=True)
    assert [failure.path for failure in result.failures] == ["t/a b"]
    assert "its copy is a mount" in result.failures[0].message
    assert files_of(way.source) == {"t/a b"}
    assert files_of(way.destination) == {"t/a b", "t/linked", "t/other"}


@contextlib.contextmanager
def overlaid(lower: Path, place: Path, work: Path) -> Iterator[None]:
    """Show a folder in another place, with what is written there in a third one."""
    for name in ("upper", "work"):
        (work / name).mkdir(parents=True)
    layers = f"lowerdir={lower},upperdir={work / 'upper'},workdir={work / 'work'}"
    with mounted(place, "-t", "overlay", "-o", layers, "none"):
        yield


@pytest.mark.parametrize("resume", [True, False])
def test_the_source_is_a_layer_of_the_destination(way: Way, tmp_path: Path, resume: bool) -> None:
    """N9: all was "there already", and was removed from both. Over SFTP as well."""
    make(way.source, "t/a", "t/sub/b")
    with overlaid(way.source, way.destination, tmp_path / "layers"):
        result = way.copy("t", remove_source_files=True, resume=resume)
        assert ["the source is what lies" in each.message for each in result.failures] == [True]
        assert files_of(way.destination) == {"t/a", "t/sub/b"}
    assert files_of(way.source) == {"t/a", "t/sub/b"}


# --- what cannot be removed is copied all the same


@pytest.mark.parametrize("is_there", [False, True])
def test_a_source_whose_folder_is_closed_is_told_as_copied(powerless: Way, is_there: bool) -> None:
    """It was "Permission denied ... shows who may read it", as if it had not been copied."""
    make(powerless.source, "t/a")
    if is_there:  # then a mark is made beside the source
        make(powerless.destination, "t/a")
        (powerless.destination / "t" / "a").write_bytes((powerless.source / "t/a").read_bytes())
    (powerless.source / "t").chmod(0o555)
    ran = powerless.command("-r", "--remove-source-files", names=["t"])
    assert ran.code == 1
    assert "a: copied, but could not be removed at the source: Permission denied" in ran.err
    assert "its folder at the source has to be writable for this user" in ran.err
    assert "who may read it" not in ran.err
    assert files_of(powerless.source) == files_of(powerless.destination) == {"t/a"}


@pytest.mark.needs_agent(reason="SFTP has no error of its own for what is mounted read-only")
def test_a_source_that_is_mounted_read_only_is_told_as_copied(way: Way) -> None:
    make(way.source, "t/a")
    with mounted(way.source, "--bind", way.source):
        subprocess.run(["mount", "-o", "remount,bind,ro", way.source], check=True)
        result = way.copy("t", remove_source_files=True)
    [failure] = result.failures
    why = "copied, but could not be removed at the source: Read-only file system"
    assert (failure.path, failure.message) == ("t/a", why)
    assert failure.hint == "the source is mounted read-only"
    assert files_of(way.source) == way.arrived - {"t"} == {"t/a"}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_destination_that_is_mounted_read_only(way: Way, is_there: bool) -> None:
    """That no source was removed is said where something had landed, so that one would be."""
    make(way.source, "t/a")
    (way.destination / "t").mkdir()
    if is_there:
        shutil.copy2(way.source / "t/a", way.destination / "t/a")
    with mounted(way.destination, "--bind", way.destination):
        subprocess.run(["mount", "-o", "remount,bind,ro", way.destination], check=True)
        result = way.copy("t", remove_source_files=True)
    told = [each.message for each in result.failures]
    assert told and ("no source was removed" in " ".join(told)) == is_there, told
    assert "fence" not in " ".join(told)
    assert files_of(way.source) == {"t/a"}
