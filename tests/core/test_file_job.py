"""What becomes of one large file whose chunks are damaged, lost, refused (walk/file_job.py).

Not here: a lane that fails at each of its steps (test_lane.py), small files (test_coordinator.py).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from conftest import until

import pscp
from core.link import CALL, CHUNK_BYTES, FLIP, FROM, KILL, TO, Fault, asking
from core.trees import LARGE_BYTES, Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.ground.errors import ConnectionLost
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
    result = trees.copy(is_push, fault, connections=1)
    assert result.ok, result.failures
    assert result.chunks_resent == 1
    assert result.bytes_sent == trees.source_bytes + CHUNK_BYTES
    trees.assert_copied()


def test_a_file_whose_chunks_are_damaged_twice_fails(trees: Trees, is_push: bool) -> None:
    trees.usual()
    way = of_source(is_push)
    faults = [Fault(0, way, nth, FLIP, IN_PAYLOAD, wire.DATA) for nth in range(100)]
    result = trees.copy(is_push, *faults, connections=1)
    assert_failed(trees, result, "VerifyError")


def test_a_source_that_changes_meanwhile_is_not_delivered(trees: Trees, is_push: bool) -> None:
    trees.usual()
    large = trees.file("large", LONG_BYTES)

    def change() -> None:
        large.write_bytes(bytes(LONG_BYTES))
        os.utime(large, (1, 1))

    fault = Fault(0, TO, 0, CALL, 0, wire.FILE if is_push else wire.GET)
    result = trees.copy(is_push, fault, call=change, connections=1)
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


def has_landed(trees: Trees, count: int) -> bool:
    """Does the journal of the copy name so many chunks?"""
    return sum(each.read_bytes().count(b'["chunk"') for each in trees.new_journals()) >= count


def test_a_file_that_cannot_be_finished_leaves_nothing(trees: Trees, is_push: bool) -> None:
    """All of it has landed, and then a folder has its name."""
    trees.usual()
    fault = Fault(0, FROM, 3, CALL, 0, wire.ACK if is_push else wire.DIGEST)
    result = trees.copy(is_push, fault, call=(trees.to / "large").mkdir, connections=1)
    assert_failed(trees, result, "FileError")


def lose_the_last_chunk(trees: Trees, is_push: bool) -> None:
    """The connection is lost with the last of four answers, once the others are in the journal."""
    trees.file("large", LARGE_BYTES)
    type_ = wire.ACK if is_push else wire.DIGEST
    wait, *faults = (Fault(0, FROM, 3, do, 0, type_) for do in (CALL, KILL))
    faults += [Fault(number, FROM, 0, KILL) for number in MANY]
    with pytest.raises(ConnectionLost):
        landed = partial(until, partial(has_landed, trees, 3))
        trees.copy(is_push, wait, *faults, call=landed, connections=1)
    assert not trees.arrived()
    assert trees.left()


@pytest.mark.parametrize("has_journal", [True, False])
def test_what_landed_before_all_was_lost_is_not_sent_again(
    trees: Trees, is_push: bool, has_journal: bool
) -> None:
    lose_the_last_chunk(trees, is_push)
    if not has_journal:
        for path in trees.new_journals():
            path.unlink()
    result = trees.copy(is_push)
    assert result.ok, result.failures
    assert result.bytes_resumed >= 3 * CHUNK_BYTES
    assert result.bytes_sent + result.bytes_resumed == LARGE_BYTES
    trees.assert_copied()


@pytest.mark.parametrize("has_journal", [True, False])
def test_only_the_end_is_missing_and_an_old_file_is_there_that_has_no_end(
    trees: Trees, is_push: bool, has_journal: bool
) -> None:
    lose_the_last_chunk(trees, is_push)
    if not has_journal:
        for path in trees.new_journals():
            path.unlink()
    (trees.to / "large").write_bytes(bytes(3 * CHUNK_BYTES))
    result = trees.copy(is_push)
    assert result.ok, result.failures
    trees.assert_copied()


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
    result = trees.copy(is_push, *faults, connections=1)
    assert result.ok, result.failures
    trees.assert_copied()


def test_a_file_that_has_its_name_already_is_done(trees: Trees) -> None:
    """The lane was lost with the answer to Finish, the second "null"; another one asks again."""
    trees.file("large", LARGE_BYTES)
    finished: list[bool] = []
    fault, kill = (Fault(0, FROM, 1, do, 0, wire.REPLY, "null") for do in (CALL, KILL))

    def look() -> None:
        finished.append((trees.to / "large").exists())

    result = trees.copy(True, fault, kill, call=look, connections=1)
    assert result.ok, result.failures
    assert finished == [True]
    assert (result.connections_lost, result.bytes_sent) == (1, LARGE_BYTES)
    trees.assert_copied()


@pytest.mark.parametrize("listing", [{"check": True}, {"dry_run": True}])
def test_folders_that_are_told_of_are_no_files_too_many(
    trees: Trees, is_push: bool, listing: dict[str, Any]
) -> None:
    trees.usual()
    result = trees.copy(is_push, archive=True, **listing)
    assert result.ok, result.failures
