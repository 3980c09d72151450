"""What becomes of one large file whose chunks are damaged, lost, refused (walk/file_job.py).

Not here: a lane that fails at each of its steps (test_lane.py), small files (test_coordinator.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pscp
from core.link import CALL, CHUNK_BYTES, FLIP, FROM, KILL, TO, Fault, asking
from core.trees import LARGE_BYTES, Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.transfer.walk import file_job

IN_PAYLOAD = 8 * wire.HEADER.size + 3  # a bit
LONG_BYTES = 1024 * 1024  # more than the sockets of a link hold
MANY = range(1, 40)


def of_source(is_push: bool) -> str:
    """The direction in which the file's bytes go."""
    return TO if is_push else FROM


def failed(result: pscp.Result) -> list[tuple[str, str]]:
    return [(each.path, each.error) for each in result.failures]


def assert_failed(trees: Trees, result: pscp.Result, error: str) -> None:
    """The large file has failed and left nothing; the small ones are there."""
    assert failed(result) == [("large", error)]
    assert trees.left() == []
    assert trees.arrived().keys() == trees.files().keys() - {"large"}
    trees.assert_whole()


def test_a_damaged_chunk_is_sent_once_more(trees: Trees, is_push: bool) -> None:
    trees.usual()
    fault = Fault(0, of_source(is_push), 0, FLIP, IN_PAYLOAD, wire.DATA)
    result = trees.copied(is_push, fault, connections=1)
    assert result.chunks_resent == 1
    assert result.bytes_sent == trees.source_bytes + CHUNK_BYTES


def test_a_file_whose_chunks_are_damaged_twice_fails(trees: Trees, is_push: bool) -> None:
    trees.usual()
    way = of_source(is_push)
    faults = [Fault(0, way, nth, FLIP, IN_PAYLOAD, wire.DATA) for nth in range(100)]
    result = trees.copy(is_push, *faults, connections=1)
    assert_failed(trees, result, "VerifyError")


def rewrite(path: Path, size: int) -> None:
    """As a program does that writes into the file."""
    path.write_bytes(bytes(size))
    os.utime(path, (1, 1))


def replace(path: Path, size: int) -> None:
    """By another file of the same size and time."""
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(bytes(size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)


def grow(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def become_a_link(path: Path, size: int) -> None:
    """One that -a does not follow, and that leads nowhere else either."""
    other = path.with_name("other")
    other.symlink_to(path.name)
    other.rename(path)


CHANGES: dict[str, tuple[Callable[[Path, int], object], str]] = {
    "rewritten": (rewrite, "SourceChanged"),
    "shrunk": (lambda path, size: os.truncate(path, size // 2), "SourceChanged"),
    "emptied": (lambda path, size: os.truncate(path, 0), "SourceChanged"),
    "grown": (grow, "SourceChanged"),
    "touched": (lambda path, size: os.utime(path, (1, 1)), "SourceChanged"),
    "replaced": (replace, "SourceChanged"),
    "a link": (become_a_link, "SourceChanged"),
    "deleted": (lambda path, size: path.unlink(), "SystemFailure"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("is_push", "size", "lanes"),
    [(True, LONG_BYTES, 1), (False, LONG_BYTES, 3), (False, 5000, 1)],
)
def test_a_source_that_changes_meanwhile_is_not_delivered(
    trees: Trees, is_push: bool, change: str, size: int, lanes: int
) -> None:
    """What was there before stays. A small file changes between the walk and the reading of it."""
    trees.usual()
    large = trees.file("large", size)
    (trees.to / "large").write_bytes(b"old")
    act, error = CHANGES[change]
    type_ = wire.FILE if is_push else wire.GET if size == LONG_BYTES else wire.ASK
    asked = asking(requests.Pack) if type_ == wire.ASK else ""
    faults = [Fault(number, TO, 0, CALL, 0, type_, asked) for number in range(lanes)]
    once = [partial(act, large, size)]  # by whichever lane is the first

    def call() -> None:
        with contextlib.suppress(IndexError):
            once.pop()()

    result = trees.copy(is_push, *faults, call=call, connections=lanes)
    assert failed(result) == [("large", error)]
    if change == "deleted":
        why = "was removed, or renamed, before it was copied"
        assert result.failures[0].message == why
    assert (trees.to / "large").read_bytes() == b"old"
    assert trees.left() == []


def test_a_change_before_the_strong_check_is_found(trees: Trees, is_push: bool) -> None:
    """All chunks have landed; -s reads the source once more."""
    trees.usual()
    last = Fault(0, FROM, 3, CALL, 0, wire.ACK if is_push else wire.DIGEST)
    change = partial(rewrite, trees.source / "large", LARGE_BYTES)
    result = trees.copy(is_push, last, call=change, connections=1, strong=True)
    assert_failed(trees, result, "SourceChanged")


def test_a_part_that_somebody_removes_fails_its_file(trees: Trees) -> None:
    """Once a chunk of it was acknowledged: no file is made of the others."""
    trees.usual()

    def remove() -> None:
        [part] = trees.to.glob(".large*.pscp-part")
        part.unlink()

    result = trees.copy(True, Fault(0, FROM, 0, CALL, 0, wire.ACK), call=remove, connections=1)
    assert failed(result)[0][0] == "large"
    assert_failed(trees, result, failed(result)[0][1])


def test_a_file_that_cannot_be_finished_leaves_nothing(trees: Trees, is_push: bool) -> None:
    """All of it has landed, and then a folder has its name."""
    trees.usual()
    fault = Fault(0, FROM, 3, CALL, 0, wire.ACK if is_push else wire.DIGEST)
    result = trees.copy(is_push, fault, call=(trees.to / "large").mkdir, connections=1)
    assert_failed(trees, result, "FileError")


@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize("has_journal", [True, False])
def test_what_landed_before_all_was_lost_is_not_sent_again(
    trees: Trees, is_push: bool, has_journal: bool, has_old: bool
) -> None:
    """The last of four chunks; an old file that is there has no end."""
    trees.file("large", LARGE_BYTES)
    trees.cut_short(is_push, landed=3)
    assert not trees.arrived()
    assert trees.left()
    if not has_journal:
        trees.forget()
    if has_old:
        (trees.to / "large").write_bytes(bytes(3 * CHUNK_BYTES))
    result = trees.copied(is_push)
    assert has_old or result.bytes_resumed >= 3 * CHUNK_BYTES
    assert result.bytes_sent + result.bytes_resumed == LARGE_BYTES


def lose(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Have this become of the chunks of a file."""
    chunks = file_job.FileJob._chunks

    def lost(self: file_job.FileJob, extents: Any) -> Any:
        return change(partial(chunks, self))(extents)

    monkeypatch.setattr(file_job.FileJob, "_chunks", lost)


def test_a_file_of_which_something_was_never_sent_is_not_made(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is verified; that there is one for each byte is counted."""
    trees.usual()
    lose(monkeypatch, lambda chunks: lambda extents: chunks([(0, CHUNK_BYTES)]))
    assert_failed(trees, trees.copy(is_push), "SystemFailure")


def test_a_file_that_is_forgotten_fails_the_copy(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither finished nor discarded, and nothing waits for it."""
    trees.usual()
    lose(monkeypatch, lambda chunks: lambda extents: itertools.islice(chunks(extents), 1, None))
    result = trees.copy(is_push, remove_source_files=True)
    assert [each.error for each in result.failures][-1:] == ["SystemFailure"], result
    assert "neither copied" in result.failures[0].message
    assert "large" in trees.files()


@pytest.mark.parametrize("request_type", [requests.Extents, requests.Make, requests.Finish])
@pytest.mark.parametrize("way", [TO, FROM])
def test_a_lane_is_lost_while_a_sparse_file_is_asked_about(
    trees: Trees, is_push: bool, request_type: type, way: str
) -> None:
    """Before the question arrives, or instead of its answer."""
    trees.file("hole", 10, hole_bytes=LONG_BYTES)
    trees.file("sparse", LONG_BYTES + CHUNK_BYTES, hole_bytes=LONG_BYTES)
    question = Fault(0, TO, 0, KILL, 0, wire.ASK, asking(request_type))
    faults = [question] if way == TO else [Fault(0, FROM, 4, KILL, 0, wire.REPLY)]
    trees.copied(is_push, *faults, connections=1)


def test_a_file_that_has_its_name_already_is_done(trees: Trees) -> None:
    """The lane was lost with the answer to Finish, the third "null"; another one asks again."""
    trees.file("large", LARGE_BYTES)
    finished: list[bool] = []
    fault, kill = (Fault(0, FROM, 2, do, 0, wire.REPLY, "null") for do in (CALL, KILL))

    def look() -> None:
        finished.append((trees.to / "large").exists())

    result = trees.copied(True, fault, kill, call=look, connections=1)
    assert finished == [True]
    assert (result.connections_lost, result.bytes_sent) == (1, LARGE_BYTES)
