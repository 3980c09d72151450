"""tree.py and source.py with -a: what somebody puts in a folder's place meanwhile is not read.

Finding B5: root archives a tree of another user, who swaps a folder and a link to a private one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pscp.endpoint.frames import wire
from pscp.endpoint.reading import files, source, tree

ARCHIVE = tree.Rules(recursive=True, follow=False, preserve=True, archive=True, filters=())
LARGE = files.PACK_FILE_BYTES + 1
RENAME_EXCHANGE = 2  # renameat2(2)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A tree with u/l/shadow and u/l/large; beside it a private folder with files of these names.

    They are the same files (hard links), so that nothing but the way to them tells them apart.
    """
    below, private = tmp_path / "top/u/l", tmp_path / "private"
    below.mkdir(parents=True)
    private.mkdir(mode=0o700)
    for name, size in (("large", LARGE), ("shadow", 5)):
        (below / name).write_bytes(b"x" * size)
        (private / name).hardlink_to(below / name)
    (private / "secret").write_text("secret")
    return tmp_path / "top"


def swap(folder: Path, how: str) -> None:
    """Put something else in the folder's place: a link, or (by who may do that) a folder."""
    private = folder.parents[2] / "private"
    folder.rename(folder.with_name("moved"))
    if how == "link":
        folder.symlink_to(private)
    else:
        private.rename(folder)


def walk_of(top: Path) -> Iterator[tree.Entry]:
    return tree.Walk([("top", os.fsencode(top))], ARCHIVE).entries()


def until_path(entries: Iterator[tree.Entry], path: str) -> None:
    """Have the walk come to the entry of this path."""
    assert any(entry.path == path for entry in entries)


@pytest.mark.parametrize("how", ["link", "folder"])
def test_b5_what_is_put_in_a_folder_s_place_before_it_is_entered(top: Path, how: str) -> None:
    entries = walk_of(top)
    until_path(entries, "top/u/l")
    swap(top / "u/l", how)
    [entry] = [each for each in entries if each.path.startswith("top/u/l")]
    assert entry.kind == tree.ERROR and entry.extra["path"] == "top/u/l"


@pytest.mark.parametrize("how", ["link", "folder"])
def test_b5_what_is_put_in_a_folder_s_place_while_the_walk_is_in_it(top: Path, how: str) -> None:
    os.setxattr(top / "u/l/shadow", "user.a", b"1")
    private = top.parent / "private"
    (private / "shadow").unlink()
    (private / "shadow").write_text("other")
    os.setxattr(private / "shadow", "user.a", b"secret")
    inode = (top / "u/l/shadow").stat().st_ino
    entries = walk_of(top)
    until_path(entries, "top/u/l/large")
    swap(top / "u/l", how)
    [entry] = [each for each in entries if each.path.startswith("top/u/l/")]
    assert (entry.path, entry.inode, entry.extra["x"]) == (
        "top/u/l/shadow", inode, {"user.a": "MQ=="},
    )  # fmt: skip


def reading(top: Path) -> source.Source:
    return source.Source([source.Top("top", str(top), True)], ARCHIVE, "sha256", 1 << 18, False)


@pytest.mark.parametrize("where", ["u", "u/l"])
def test_b5_what_is_put_in_a_folder_s_place_before_its_files_are_read(
    top: Path, where: str
) -> None:
    large, shadow = [entry for entry in walk_of(top) if entry.kind == tree.FILE]
    assert (large.path, shadow.path) == ("top/u/l/large", "top/u/l/shadow")
    moved = (top / where).rename(top / "moved")
    (top / where).symlink_to(moved)  # the same files, by another way
    reader = reading(top)
    [failure], bodies = reader.pack([shadow])
    assert isinstance(failure, dict)
    assert (failure["kind"], failure["path"], bodies) == ("changed", shadow.path, [])
    sent: list[Any] = []
    reader.know(1, large)
    reader.send_chunk(1, 0, LARGE, lambda *frame: sent.append(frame))
    assert [(frame[0], frame[4]) for frame in sent] == [(wire.DIGEST, wire.FAILED)]
    reader.close()


def test_b5_a_top_that_has_become_a_link(top: Path) -> None:
    [_, shadow] = [entry for entry in walk_of(top) if entry.kind == tree.FILE]
    top.rename(top.with_name("moved"))
    top.symlink_to("moved")
    reader = reading(top)
    [failure], _ = reader.pack([shadow])
    assert isinstance(failure, dict)
    assert failure["kind"] == "system"
    reader.close()


def test_b5_swapped_again_and_again(top: Path) -> None:
    """As it was broken: a folder and a link exchanged by a loop, while the walk goes by."""
    (top / "u/link").symlink_to(top.parent / "private")
    libc, over = ctypes.CDLL(None, use_errno=True), threading.Event()
    at, pair = ctypes.c_int(-100), [os.fsencode(top / "u" / name) for name in ("l", "link")]

    def exchange() -> None:
        while not over.is_set():
            assert libc.renameat2(at, pair[0], at, pair[1], RENAME_EXCHANGE) == 0

    swapper = threading.Thread(target=exchange)
    swapper.start()
    try:
        for _ in range(300):
            assert not [each.path for each in walk_of(top) if each.path.endswith("secret")]
    finally:
        over.set()
        swapper.join()


def test_b5_all_descriptors_are_closed(top: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    entries = walk_of(top)
    until_path(entries, "top/u/l/large")
    assert len(os.listdir("/proc/self/fd")) > before
    del entries
    for place in range(6):
        assert len(list(itertools.islice(walk_of(top), place))) == min(place, 5)
    reader = reading(top)
    reader.pack([entry for entry in walk_of(top) if entry.kind == tree.FILE][1:])
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
