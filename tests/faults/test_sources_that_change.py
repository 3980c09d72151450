"""A source that is written to, cut, replaced or deleted while it is copied.

Each test stops the copy at a known place, changes the source, and lets the copy go on.

Not here: changes between two runs (test_killed.py), every kind of change
(../core/test_file_job.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from core.link import asking

from faults.conftest import MIB, Breaking, Ended, Way, fill, until
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

BIG_BYTES = 24 * MIB


def write_into(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(BIG_BYTES - 100)
        file.write(b"other")


def write_into_what_was_sent(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"other")


def shrink(path: Path) -> None:
    os.truncate(path, 10 * MIB)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def copied_with_a_change(
    way: Way, breaking: Breaking, change: Callable[[Path], None], *words: str
) -> Ended:
    running = way.start("-c", "1", *words, breaking=breaking)
    until(lambda: breaking.blocked, "the copy stands still")
    change(way.source / "changing")
    breaking.go()
    return running.ended()


def assert_told(way: Way, ended: Ended, kind: str = "SourceChanged") -> None:
    assert ended.code == 1, ended.err
    [failure] = ended.end["failures"]
    assert (failure["path"], failure["error"]) == ("changing", kind)
    assert "Traceback" not in ended.err
    assert set(way.arrived()) == {"other"}
    assert not way.parts()


def make_old(path: Path, size: int) -> None:
    """SFTP tells times in whole seconds: what is written now is of another one."""
    fill(path, size)
    os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize(
    ("change", "error"),
    [(write_into, "SourceChanged"), (shrink, "SourceChanged"), (Path.unlink, "SystemFailure")],
)
def test_a_large_file(way: Way, change: Callable[[Path], None], error: str) -> None:
    make_old(way.source / "changing", BIG_BYTES)
    fill(way.source / "other", MIB)
    breaking = way.breaking().rule("block", after=6 * MIB)
    ended = copied_with_a_change(way, breaking, change, "--chunk-size", "1M")
    assert_told(way, ended, error)


@pytest.mark.needs_openssh(reason="a library's buffers may hold all of the file before it changes")
def test_over_several_connections(way: Way) -> None:
    """What the others have read before the change is thrown away as well."""
    make_old(way.source / "changing", BIG_BYTES)
    fill(way.source / "other", MIB)
    breaking = way.breaking().rule("block", connections=[0, 1, 2], after=2 * MIB)
    running = way.start("-c", "3", "--chunk-size", "1M", breaking=breaking)
    until(lambda: breaking.blocked == 3, "all stand still")
    write_into_what_was_sent(way.source / "changing")
    breaking.go()
    assert_told(way, running.ended())


def test_a_small_file(pull: Way) -> None:
    """It changes between the walk, which told its size, and the reading of it."""
    make_old(pull.source / "changing", 5000)
    fill(pull.source / "other", 5000)
    breaking = pull.breaking().rule(
        "block", way="to", type=wire.ASK, contains=asking(requests.Pack)
    )
    assert_told(pull, copied_with_a_change(pull, breaking, grow))


def test_a_small_file_that_vanishes(pull: Way) -> None:
    """It is no missing source: it was there when the walk saw it, and may have another name now."""
    make_old(pull.source / "changing", 5000)
    fill(pull.source / "other", 5000)
    rule = pull.breaking().rule("block", way="to", type=wire.ASK, contains=asking(requests.Pack))
    ended = copied_with_a_change(pull, rule, Path.unlink)
    assert_told(pull, ended, "SystemFailure")
    [failure] = ended.end["failures"]
    assert failure["message"] == "was removed, or renamed, before it was copied"


def test_a_change_before_the_strong_check(way: Way) -> None:
    """-s reads the source once more: what changed since it was sent is found."""
    make_old(way.source / "changing", 3 * MIB)
    fill(way.source / "other", MIB)
    # The last answer before it: on push the ACK of the last chunk, on pull its DIGEST.
    kind = wire.ACK if way.is_push else wire.DIGEST
    breaking = way.breaking().rule("block", way="from", type=kind)
    ended = copied_with_a_change(
        way, breaking, write_into_what_was_sent, "-s", "--chunk-size", "4M"
    )
    assert_told(way, ended)
