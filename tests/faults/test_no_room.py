"""A destination without space: what does not fit is named, what fits is copied.

Not here: what may not be read or written, and what is too large for the system
(../e2e/test_copy_failures.py).
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree
from programs import small_disk

from faults.conftest import MIB, Ended, Way, fill
from pscp.ground.errors import CopyError
from pscp.transfer.pieces import spool

EVERY_WAY = True

ROOM_BYTES = 8 * MIB
NO_SPACE = "No space left on device"


@pytest.fixture
def cramped(way: Way) -> Iterator[Way]:
    """A destination of 8 MiB, on a file system of its own."""
    with small_disk(way.destination, f"size={ROOM_BYTES}"):
        yield way


def failed(ended: Ended) -> dict[str, str]:
    assert ended.code == 1, ended.err
    assert "Traceback" not in ended.err
    told = ended.end["failures"]
    assert {each["errno"] for each in told if each["message"] == NO_SPACE} == {errno.ENOSPC}
    return {failure["path"]: failure["message"] for failure in told}


def test_a_large_file_that_does_not_fit(cramped: Way) -> None:
    sizes = {"a": 100_000, "b": 16 * MIB, "c": 2 * MIB, "z": 1000}
    for name, size in sizes.items():
        fill(cramped.source / name, size)
    assert failed(cramped.run("-c", "3")) == {"b": NO_SPACE}
    assert set(cramped.arrived()) == {"a", "c", "z"}
    assert cramped.arrived_bytes() == 100_000 + 2 * MIB + 1000
    assert not cramped.parts()
    (cramped.source / "b").unlink()
    cramped.finish("-c", "3")
    assert_same_tree(cramped.source, cramped.destination)


def test_nothing_is_deleted_where_there_was_no_room(cramped: Way) -> None:
    """H3: the old name of a file was deleted, and its new one did not fit: neither was there."""
    fill(cramped.source / "new", 5 * MIB)
    fill(cramped.destination / "old", 5 * MIB)
    ended = cramped.run("-r", "--delete")
    assert failed(ended) == {"new": NO_SPACE}
    said = ended.out + ended.err
    assert "nothing was deleted: there was no room at the destination" in said
    assert "--dry-run lists what --delete would remove" in said
    assert "deleting old" in cramped.run("-rn", "--delete").out
    assert set(cramped.arrived()) == {"old"}
    (cramped.destination / "old").unlink()
    cramped.finish("-r", "--delete")


def test_a_sparse_file_whose_data_does_not_fit(cramped: Way) -> None:
    """Its space cannot be asked for beforehand: it ends in the middle of a chunk."""
    with open(cramped.source / "a-sparse", "wb") as file:
        file.truncate(1 << 30)
        file.seek(MIB)
        file.write(os.urandom(11 * MIB))
    fill(cramped.source / "z", 1000)
    found = failed(cramped.run("-c", "1", "--chunk-size", "1M"))
    assert found["a-sparse"] == NO_SPACE
    # Small files may meet the moment in which there is no room; what does not is copied.
    assert {*found, *cramped.arrived()} == {"a-sparse", "z"}
    assert set(found.values()) == {NO_SPACE}
    assert not cramped.parts()


def test_small_files_that_do_not_fit(cramped: Way) -> None:
    for number in range(200):
        fill(cramped.source / f"{number:03}", 60_000)
    found = failed(cramped.run("-c", "2"))
    assert set(found.values()) == {NO_SPACE}
    assert len(found) + len(cramped.arrived()) == 200
    assert cramped.arrived_bytes() > ROOM_BYTES / 2
    assert not cramped.parts()


def test_folders_that_do_not_fit(way: Way, cramped: Way) -> None:
    """Inodes can run out as well."""
    remount = f"remount,nr_inodes=20,size={ROOM_BYTES}"
    subprocess.run(["mount", "-o", remount, str(way.destination)], check=True)
    for number in range(30):
        fill(cramped.source / f"{number:02}" / "file", 10)
    found = failed(cramped.run("-c", "1"))
    assert set(found.values()) <= {NO_SPACE, "No such file or directory"}
    assert NO_SPACE in found.values()
    # Over SFTP a push makes all folders at once, and none is left for a file.
    assert cramped.arrived_bytes() >= (10 if way.remote == "agent" or not way.is_push else 0)
    assert not cramped.parts()


def test_no_room_for_the_journal(push: Way) -> None:
    """It costs what the journal is for, and not the copy."""
    with small_disk(push.home / "state", "size=4k,nr_inodes=10"):
        fill(push.source / "big", 200 * 260_000)
        push.finish("-c", "2", "--chunk-size", "256K")
        assert_same_tree(push.source, push.destination)


@pytest.mark.parametrize(
    ("place", "words"), [("/proc", []), ("a file", ["--no-resume"])], ids=["proc", "file"]
)
def test_no_folder_for_the_journal(
    way: Way, place: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A22: as in a unit of systemd with ProtectHome; it costs resume, and not the copy."""
    in_the_way = way.home / "a file"
    in_the_way.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(way.home / place))
    fill(way.source / "big", 3 * MIB)
    fill(way.source / "small", 1000)
    ended = way.finish(*words)
    assert ended.out.count("no journal can be kept in ") == 1, ended.out
    assert "XDG_STATE_HOME" in ended.out
    assert_same_tree(way.source, way.destination)


FOLDERS = 300


@pytest.fixture
def full_tmp(way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that has room for a page."""
    full = way.home / "full"
    full.mkdir()
    monkeypatch.setenv("TMPDIR", str(full))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with small_disk(full, "size=4k"):
        for number in range(FOLDERS):
            fill(way.source / f"{number:03}" / "file", 10)
        yield full


def test_no_room_for_temporary_files(push: Way, full_tmp: Path) -> None:
    """D5: a tree of some hundred folders needs none."""
    push.finish("-p")
    assert_same_tree(push.source, push.destination)


def test_no_room_for_the_folders_of_a_large_tree(
    push: Way, full_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: a traceback, when there are more than memory is used for."""
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 1000)
    with pytest.raises(CopyError, match=f"^{full_tmp}: no room for .*: {NO_SPACE}") as raised:
        push.copy(preserve=True)
    assert raised.value.exit_code == 1 and "TMPDIR" in raised.value.hint
