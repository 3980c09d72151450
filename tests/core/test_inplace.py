"""A large file that is changed itself has no name but a part's meanwhile, and loses nothing.

Not here: what is the same in it (test_reuse.py).
"""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest
from conftest import until

from core.link import CALL, FROM, KILL, LATE, TO, TWICE, Fault, asking
from core.trees import Trees
from pscp.endpoint import wire
from pscp.endpoint.inplace import Become
from pscp.endpoint.reuse import PIECE_BYTES
from pscp.errors import ConnectionLost

SIZE_BYTES = 6 * PIECE_BYTES
OLD = os.urandom(SIZE_BYTES)
NEW = b"x" * PIECE_BYTES + OLD[PIECE_BYTES:-PIECE_BYTES] + b"y" * PIECE_BYTES


@pytest.fixture
def there(trees: Trees) -> Path:
    """The file at the destination, which differs from the source's at both ends."""
    (trees.source / "large").write_bytes(NEW)
    there = trees.to / "large"
    there.write_bytes(OLD)
    there.chmod(0o640)
    return there


def assert_changed(trees: Trees, there: Path, inode: int) -> None:
    trees.assert_copied()
    status = there.stat()
    assert (status.st_ino, stat.S_IMODE(status.st_mode)) == (inode, 0o640)


@pytest.mark.parametrize(
    ("size_bytes", "pieces"),
    [(SIZE_BYTES, 2), (SIZE_BYTES - PIECE_BYTES - 1, 1), (9 * PIECE_BYTES, 5)],
)
def test_the_file_itself_is_changed(
    trees: Trees, is_push: bool, there: Path, size_bytes: int, pieces: int
) -> None:
    (trees.source / "large").write_bytes(NEW[:size_bytes].ljust(size_bytes, b"z"))
    inode = there.stat().st_ino
    result = trees.copy(is_push, inplace=True)
    assert result.ok, result.failures
    assert result.bytes_sent == pieces * PIECE_BYTES
    assert_changed(trees, there, inode)


@pytest.mark.parametrize("do", [LATE, TWICE, KILL])
@pytest.mark.parametrize("way", [TO, FROM])
def test_the_request_comes_late_twice_or_never(
    trees: Trees, there: Path, do: str, way: str
) -> None:
    inode = there.stat().st_ino
    fault = Fault(0, TO, 0, do, 0, wire.ASK, asking(Become))
    if way == FROM:
        fault = Fault(0, FROM, 0, do, 0, wire.REPLY, "true")
    result = trees.copy(True, fault, connections=2, inplace=True)
    assert result.ok, result.failures
    assert_changed(trees, there, inode)


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_copy_that_was_cut_short(
    trees: Trees, is_push: bool, there: Path, has_journal: bool, goes_on: bool
) -> None:
    """Both with --inplace again and without, the file that there was is gone on with."""
    inode = there.stat().st_ino
    type_ = wire.ACK if is_push else wire.DIGEST
    wait, *faults = (Fault(0, FROM, 1, do, 0, type_) for do in (CALL, KILL))
    faults += [Fault(number, FROM, 0, KILL) for number in range(1, 40)]

    def has_landed() -> bool:
        return any(b'["chunk"' in each.read_bytes() for each in trees.new_journals())

    with pytest.raises(ConnectionLost):
        trees.copy(
            is_push, wait, *faults, call=partial(until, has_landed), connections=1, inplace=True
        )
    assert not trees.arrived()
    assert [path.stat().st_ino for path in trees.to.glob(".large*.pscp-part")] == [inode]
    if not has_journal:
        for path in trees.new_journals():
            path.unlink()
    result = trees.copy(is_push, inplace=goes_on)
    assert result.ok, result.failures
    if goes_on:
        assert result.bytes_sent <= PIECE_BYTES
    assert_changed(trees, there, inode)


def test_a_source_that_changes_meanwhile(trees: Trees, there: Path) -> None:
    """What there was stays as a part, and the same command goes on with it."""
    inode = there.stat().st_ino
    large = trees.source / "large"

    def change() -> None:
        large.write_bytes(NEW[::-1])
        os.utime(large, (1, 1))

    fault = Fault(0, TO, 0, CALL, 0, wire.FILE)
    result = trees.copy(True, fault, call=change, connections=1, inplace=True)
    assert [each.error for each in result.failures] == ["SourceChanged"]
    assert not trees.arrived()
    [part] = trees.to.glob(".large*.pscp-part")
    assert part.stat().st_ino == inode
    assert trees.copy(True, inplace=True).ok
    assert_changed(trees, there, inode)


def test_a_file_with_two_names_is_copied(trees: Trees, there: Path, is_push: bool) -> None:
    """Else the other name would have half of a file meanwhile."""
    other = trees.to / "other"
    os.link(there, other)
    assert trees.copy(is_push, inplace=True).ok
    assert other.read_bytes() == OLD
    other.unlink()
    trees.assert_copied()


def test_holes_are_kept(trees: Trees, is_push: bool, there: Path) -> None:
    """Where the old file has data: what is in holes of the source has to become zeros."""
    with (trees.source / "large").open("wb") as file:
        file.truncate(SIZE_BYTES)
        file.seek(3 * PIECE_BYTES)
        file.write(b"data")
    inode = there.stat().st_ino
    assert trees.copy(is_push, inplace=True).ok
    assert_changed(trees, there, inode)
    assert there.stat().st_blocks * 512 <= 2 * PIECE_BYTES
