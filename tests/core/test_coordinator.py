"""A copy's first questions, its last steps, its small files (coordinator.py, walk/items.py).

Not here: large files (test_file_job.py), connections as such (test_lane_pool.py).
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from core.link import (
    CALL,
    CUT,
    FLIP,
    FROM,
    HOLD,
    KILL,
    NONSENSE,
    NONSENSES,
    QUESTIONS,
    TO,
    Fault,
    asking,
)
from core.trees import LARGE_BYTES, Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.there import hardlinks
from pscp.ground.errors import ConnectError, ConnectionLost, ProtocolError


def tree_of_all_kinds(trees: Trees) -> None:
    trees.usual()
    os.link(trees.source / "large", trees.source / "folder" / "the same")
    (trees.source / "empty" / "below").mkdir(parents=True)
    (trees.source / "link").symlink_to("large")


def test_the_connection_is_lost_before_the_agent_speaks(trees: Trees, is_push: bool) -> None:
    """It is opened again, as where a server takes no more of them at once."""
    trees.usual()
    result = trees.copy(is_push, *(Fault(number, FROM, 0, KILL) for number in range(3)))
    assert (result.ok, result.connections_lost) == (True, 0)
    trees.assert_copied()


@pytest.mark.parametrize(("way", "nth"), [(TO, 0), (TO, 1), (FROM, 1), (FROM, 2)])
@pytest.mark.parametrize("lost", [1, 3])
def test_the_connection_is_lost_at_the_first_questions(
    trees: Trees, is_push: bool, way: str, nth: int, lost: int
) -> None:
    """Before one arrives, or with the answer: it is asked again over another connection.

    The first one comes with the agent: what is lost before that speaks was no connection yet.
    """
    trees.usual()
    faults = [Fault(number, way, nth, KILL) for number in range(lost)]
    result = trees.copied(is_push, *faults, connections=1)  # else another lane may do it all
    assert result.connections_lost == (lost if (way, nth) != (TO, 0) else result.connections_lost)


def test_the_first_question_comes_with_the_agent(trees: Trees, is_push: bool) -> None:
    """The HELLO stands still until it has come."""
    trees.usual()
    faults = Fault(0, FROM, 0, HOLD), Fault(0, TO, 0, CALL)
    trees.copied(is_push, *faults, call=lambda: trees.bench.release(), connections=1)


def test_each_connection_is_lost_at_the_first_question(trees: Trees, is_push: bool) -> None:
    """The copy says so; the same one, run again, is complete. Of the first connections an agent may
    have spoken before it was lost, or not.
    """
    trees.usual()
    with pytest.raises(ConnectionLost):
        trees.copy(is_push, *(Fault(number, TO, 0, KILL) for number in range(9)))
    assert 4 <= len(trees.bench.links) <= 7
    assert not trees.arrived()
    trees.copied(is_push)


def test_the_first_questions_are_answered_with_nonsense(trees: Trees, is_push: bool) -> None:
    trees.usual()
    for nth in range(QUESTIONS[FROM]):
        for at in range(nth, NONSENSES, 4):
            try:
                trees.copy(is_push, Fault(0, FROM, nth, NONSENSE, at))
            except (ProtocolError, ConnectError) as error:
                assert str(error), (nth, at)
                assert not trees.arrived()
                trees.done(is_push)
            trees.assert_copied()
            trees.clear()


LAST = [hardlinks.HardLinks, requests.Folders, requests.Release]


@pytest.mark.parametrize("do", [KILL, CUT])
@pytest.mark.parametrize("request_type", LAST)
def test_a_lane_is_lost_at_the_last_steps(trees: Trees, request_type: type, do: str) -> None:
    tree_of_all_kinds(trees)
    fault = Fault(0, TO, 0, do, 0, wire.ASK, asking(request_type))
    result = trees.copied(True, fault, connections=1, archive=True)
    assert result.connections_lost == 1
    assert result.files == 6


def test_the_last_lane_is_lost_when_the_copy_has_let_go(trees: Trees) -> None:
    """The answer to Release, the fourth "null", is lost: who comes next finds no fence, and the
    copy is complete all the same.
    """
    trees.file("large", LARGE_BYTES)
    left: list[list[str]] = []
    faults = (Fault(0, FROM, 3, do, 0, wire.REPLY, "null") for do in (CALL, KILL))
    result = trees.copied(True, *faults, call=lambda: left.append(trees.left()), connections=1)
    assert left == [[]]
    assert (result.files, result.connections_lost) == (1, 1)


def test_a_tree_of_all_kinds(trees: Trees, is_push: bool) -> None:
    tree_of_all_kinds(trees)
    result = trees.copied(is_push, archive=True, strong=True)
    assert (result.files, result.connections_lost) == (6, 0)
    large = (trees.source / "large").read_bytes()
    assert result.digests["folder/the same"] == hashlib.sha256(large).hexdigest()


@pytest.mark.parametrize("nth", range(4))
def test_a_fifo_that_a_lost_lane_has_made_is_no_obstacle(trees: Trees, nth: int) -> None:
    """Its answer is lost, and the pack is sent again."""
    trees.usual()
    os.mkfifo(trees.source / "fifo")
    trees.done(True, Fault(0, FROM, nth, KILL, 0, wire.REPLY, "[]"), connections=2, archive=True)
    assert (trees.to / "fifo").is_fifo()


def test_a_damaged_pack_is_sent_once_more(trees: Trees, is_push: bool) -> None:
    trees.usual()
    way = TO if is_push else FROM
    fault = Fault(0, way, 0, FLIP, -1, wire.PACK)
    result = trees.copied(is_push, fault, connections=1)
    assert result.chunks_resent == 1
    assert result.bytes_sent == trees.source_bytes + 1002  # the last file of the pack


def test_a_small_file_that_is_damaged_twice_fails_alone(trees: Trees, is_push: bool) -> None:
    trees.usual()
    way = TO if is_push else FROM
    faults = [Fault(0, way, nth, FLIP, -1, wire.PACK) for nth in range(2)]
    result = trees.copy(is_push, *faults, connections=1)
    assert [(each.path, each.error) for each in result.failures] == [
        ("folder/small2", "VerifyError")
    ]
    assert trees.arrived().keys() == trees.files().keys() - {"folder/small2"}
    trees.assert_whole()
    assert trees.left() == []


def test_what_is_there_already_is_not_sent(trees: Trees, is_push: bool) -> None:
    """Also where the lane that compares is lost at each of its first frames."""
    trees.usual()
    trees.done(is_push)
    for nth in range(QUESTIONS[TO], QUESTIONS[TO] + 6):
        result = trees.copied(is_push, Fault(0, TO, nth, KILL), connections=1)
        assert (result.files_resumed, result.bytes_sent) == (4, 0), nth


@pytest.mark.parametrize(
    "fields", [{"dry_run": True}, {"dry_run": True, "archive": True}, {"check": True}], ids=str
)
def test_what_only_tells_changes_nothing(
    trees: Trees, is_push: bool, fields: dict[str, Any]
) -> None:
    """Folders that it tells of are no files too many."""
    trees.usual()
    before = trees.facts()
    result = trees.copy(is_push, **fields)
    is_check = "check" in fields
    assert (result.files, result.differing) == ((0, 5) if is_check else (4, 0))
    assert (result.failures, result.ok) == ((), not is_check)
    assert trees.facts() == before


def test_one_source_that_cannot_be_copied_is_named(trees: Trees, is_push: bool) -> None:
    trees.usual()
    (trees.source / "dangling").symlink_to("nowhere")
    result = trees.copy(is_push)
    assert [each.path for each in result.failures] == ["dangling"]
    assert trees.arrived().keys() == trees.files().keys()
    assert trees.left() == []
