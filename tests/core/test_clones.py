"""Where the file system shares blocks, the part of a changed file begins as a clone of the old one.

What stands in for the system call copies the bytes. The bytes of a clone are the old file's, so
none of them counts unless it is read in the part and has the source's digest.

Not here: what is taken from an old file as such (test_reuse.py), the same where every step of two
lanes may come late (../model).
"""

from __future__ import annotations

import fcntl
import os
import random
import stat
from collections.abc import Callable
from typing import Any

import pytest

from core.trees import Trees
from pscp.endpoint.reading import files
from pscp.endpoint.there import reuse
from pscp.endpoint.there.reuse import PIECE_BYTES

PIECES = 9
SIZE_BYTES = PIECES * PIECE_BYTES
OLD = random.Random("old").randbytes(SIZE_BYTES)
NEW = b"x" * PIECE_BYTES + OLD[PIECE_BYTES:-PIECE_BYTES] + b"y" * PIECE_BYTES


def copy_all(fd: int, old_fd: int) -> None:
    os.pwrite(fd, os.pread(old_fd, os.fstat(old_fd).st_size, 0), 0)


class Cloning:
    """Stands in for the module `fcntl` where parts are cloned."""

    def __init__(self, clone: Callable[[int, int], None]) -> None:
        self.clone, self.count = clone, 0

    def ioctl(self, fd: int, request: int, old_fd: int) -> None:
        assert request == reuse._CLONE
        self.clone(fd, old_fd)
        self.count += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)


def have_clones(patch: pytest.MonkeyPatch, clone: Callable[[int, int], None] = copy_all) -> Cloning:
    found = Cloning(clone)
    patch.setattr(reuse, "fcntl", found)
    return found


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How many bytes were written where into parts; what two lanes wrote counts once."""
    found: dict[int, int] = {}
    write = files.FileSink.write

    def counted(self: files.FileSink, view: memoryview, offset: int) -> None:
        found[offset] = len(view)
        write(self, view, offset)

    monkeypatch.setattr(files.FileSink, "write", counted)
    return found


def changed(trees: Trees, new: bytes = NEW, old: bytes = OLD) -> None:
    (trees.source / "large").write_bytes(new)
    (trees.to / "large").write_bytes(old)


@pytest.mark.parametrize("size_bytes", [SIZE_BYTES, SIZE_BYTES - 100])
def test_only_what_differs_is_written(
    trees: Trees, is_push: bool, size_bytes: int, written: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    changed(trees, NEW[:size_bytes])
    cloning = have_clones(monkeypatch)
    sent_bytes = trees.copied(is_push).bytes_sent
    assert cloning.count  # several lanes may have made one, of which one became the part
    assert sum(written.values()) == sent_bytes <= 2 * PIECE_BYTES
    assert stat.S_IMODE((trees.to / "large").stat().st_mode) & 0o111 == 0


def test_zeros_are_not_written_again(
    trees: Trees, is_push: bool, written: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has grown, too: nothing is written before the part has begun."""
    middle = bytes(3 * PIECE_BYTES)
    changed(trees, NEW[:PIECE_BYTES] + middle + NEW[: 5 * PIECE_BYTES], OLD[:PIECE_BYTES] + middle)
    have_clones(monkeypatch)
    sent_bytes = trees.copied(is_push).bytes_sent
    assert sum(written.values()) == sent_bytes == 6 * PIECE_BYTES


@pytest.mark.parametrize("had_holes", [False, True])
def test_a_file_with_holes_is_no_clone(
    trees: Trees, is_push: bool, had_holes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its holes the old file may have data, and nobody reads holes."""
    changed(trees, old=OLD[:PIECE_BYTES].ljust(SIZE_BYTES, b"\0") if had_holes else OLD)
    with (trees.source / "large").open("wb") as file:
        file.write(NEW[: 2 * PIECE_BYTES])
        file.seek(5 * PIECE_BYTES)
        file.write(NEW[file.tell() :])
    cloning = have_clones(monkeypatch)
    trees.copied(is_push)
    assert cloning.count == 0
    assert (trees.to / "large").stat().st_blocks * 512 <= 6 * PIECE_BYTES + 4096


def test_a_clone_of_other_bytes_changes_nothing(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an old file that is written to meanwhile, or on a bad disk."""

    def clone(fd: int, old_fd: int) -> None:
        os.pwrite(fd, random.Random("other").randbytes(SIZE_BYTES + 10), 0)

    changed(trees)
    have_clones(monkeypatch, clone)
    assert trees.copied(is_push).bytes_sent == 2 * PIECE_BYTES


@pytest.mark.parametrize("done_bytes", [0, PIECE_BYTES])
def test_a_clone_that_fails_leaves_nothing_behind(
    trees: Trees, is_push: bool, done_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(fd: int, old_fd: int) -> None:
        os.pwrite(fd, OLD[:done_bytes], 0)
        raise OSError(95, "Operation not supported")

    changed(trees)
    cloning = have_clones(monkeypatch, clone)
    assert trees.copied(is_push).bytes_sent == 2 * PIECE_BYTES
    assert cloning.count == 0


# --- cut short


# Each pair of these in two copies or more; all of them together are drawn by ../model.
@pytest.mark.parametrize(
    ("has_journal", "resume", "has_old", "clones_again"),
    [(True, True, True, True), (True, True, False, False), (True, False, True, False),
     (False, True, True, False), (False, False, True, True), (False, True, False, True)],
)  # fmt: skip
def test_a_clone_that_was_cut_short(
    trees: Trees, is_push: bool, has_journal: bool, resume: bool, has_old: bool, clones_again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    changed(trees)
    with monkeypatch.context() as patch:
        cloning = have_clones(patch)
        trees.cut_short(is_push)
    assert cloning.count
    assert (trees.to / "large").read_bytes() == OLD
    if not has_journal:
        trees.forget()
    if not has_old:
        (trees.to / "large").unlink()
    if clones_again:
        have_clones(monkeypatch)
    result = trees.copied(is_push, resume=resume)
    assert resume or result.bytes_sent == SIZE_BYTES
    assert not (resume and has_old) or result.bytes_sent <= PIECE_BYTES


@pytest.mark.parametrize("has_journal", [True, False])
def test_n1_a_clone_s_source_that_has_holes_by_now(
    trees: Trees, is_push: bool, has_journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: the journal knows this very file, but where it has holes now the part has old bytes."""
    changed(trees, NEW[: 2 * PIECE_BYTES] + bytes(3 * PIECE_BYTES) + NEW[5 * PIECE_BYTES :])
    large = trees.source / "large"
    with monkeypatch.context() as patch:
        cloning = have_clones(patch)
        trees.cut_short(is_push)
    assert cloning.count
    before = large.stat()
    with large.open("r+b") as file:
        files.fallocate(file.fileno(), files._DIG, 2 * PIECE_BYTES, 3 * PIECE_BYTES)
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert large.stat().st_blocks < before.st_blocks
    if not has_journal:
        trees.forget()
    trees.copied(is_push)
