"""A copy whose source and destination are both remote: all goes through this machine.

Connection 0 is the sink's, connection 1 the source's.

Not here: what a lane does with what its near end gives it (test_lanes_lost.py, test_damage.py).
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from compare import assert_same_tree

import pscp
from faults.conftest import MIB, Way, fill
from pscp.connect import bootstrap

pytestmark = pytest.mark.needs_ssh(reason="direct lanes lead to the sink alone")

SINK, SOURCE = ("to", 0), ("from", 1)  # where DATA frames go, and over which connection


def through_here(way: Way, **fields: Any) -> pscp.Result:
    """Copy the way's source, at its server, to its destination, at its server."""
    far = f"{way.server.host}:"
    chosen: dict[str, Any] = {
        "config_file": way.server.ssh_config, "remote": way.remote, "batch": True,
        "recursive": True, "connections": 1, **fields,
    }  # fmt: skip
    return pscp.copy(f"{far}{way.source}/.", f"{far}{way.destination}", **chosen)


def fill_all(way: Way) -> None:
    fill(way.source / "big", 9 * MIB + 7)
    for number in range(200):
        fill(way.source / str(number % 3) / str(number), 100 * number)
    with open(way.source / "holes", "wb") as sparse:
        sparse.truncate(5 * MIB)
        sparse.write(b"x" * 70_000)


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_tree(push: Way, remote: str) -> None:
    fill_all(push)
    is_archive = remote == "agent"  # over SFTP links are followed and times are whole seconds
    if is_archive:
        (push.source / "link").symlink_to("big")
        os.link(push.source / "big", push.source / "hard")
    result = through_here(push, remote=remote, archive=is_archive, strong=True)
    assert result.ok, result.failures
    assert_same_tree(push.source, push.destination, times=is_archive)
    assert through_here(push, remote=remote, archive=is_archive, strong=True).bytes_sent == 0


def test_what_is_missing_or_unreadable_is_a_failure_of_that_file(push: Way) -> None:
    fill(push.source / "there", 10)
    far = f"{push.server.host}:"
    sources = [f"{far}{push.source}/{name}" for name in ("there", "gone")]
    to = f"{far}{push.destination}"
    result = pscp.copy(sources, to, config_file=push.server.ssh_config, batch=True)
    assert [failure.path for failure in result.failures] == [f"{push.source}/gone"]
    assert (push.destination / "there").read_bytes() == (push.source / "there").read_bytes()


@pytest.mark.parametrize("end", [SINK, SOURCE], ids=["sink", "source"])
def test_either_connection_dies(push: Way, quick_retries: None, end: tuple[str, int]) -> None:
    fill_all(push)
    direction, connection = end
    breaking = push.breaking().rule("kill", way=direction, connections=[connection], after=4 * MIB)
    result = through_here(push, program=breaking.program, chunk_bytes=MIB)
    assert result.ok, result.failures
    assert result.connections_lost == 1
    assert_same_tree(push.source, push.destination)
    assert not push.parts()


def test_a_source_that_stands_still(
    push: Way, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "SILENCE_S", 0.5)
    fill_all(push)
    breaking = push.breaking().rule("stop", way="from", connections=[1], after=2 * MIB)
    result = through_here(push, program=breaking.program, chunk_bytes=MIB)
    assert result.ok, result.failures
    assert_same_tree(push.source, push.destination)


def test_a_wrong_bit_of_the_source_is_sent_again(push: Way) -> None:
    fill_all(push)
    breaking = push.breaking().rule("flip", way="from", connections=[1], after=2 * MIB)
    result = through_here(push, program=breaking.program, chunk_bytes=MIB)
    assert result.ok, result.failures
    assert result.chunks_resent >= 1
    assert_same_tree(push.source, push.destination)


def test_a_source_that_cannot_be_reached_leaves_nothing(push: Way) -> None:
    with pytest.raises(pscp.ConnectError):
        pscp.copy(
            "nowhere.invalid:x", f"{push.server.host}:{push.destination}/new",
            config_file=push.server.ssh_config, batch=True,
        )  # fmt: skip
    assert list(push.destination.iterdir()) == []
