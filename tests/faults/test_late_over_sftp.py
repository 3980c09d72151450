"""What comes late over SFTP, and what earlier runs left, where nothing there can be locked.

The relay stands before the lane's program, so what it lets go late the program hears late.

Not here: the same with the agent, where the far end refuses it (test_lanes_lost.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from compare import assert_same_tree
from core.link import asking

from faults.conftest import MIB, Breaking, Running, Way, fill, until
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.paths import part_name
from pscp.endpoint.writing.fence import FENCE_SUFFIX
from pscp.ground.processes import descendants

BIG_BYTES = 14 * MIB + 7
MTIME_S = 1_000_000_000
BEGIN_BYTES = len(b"null")  # of the answer to "begin"; that to "finish" is the same


@pytest.fixture
def sftp(push: Way) -> Way:
    return dataclasses.replace(push, remote="sftp")


def assert_copied(sftp: Way, running: Running) -> None:
    running.finished()
    assert_same_tree(sftp.source, sftp.destination)  # and nothing else is left there
    assert not sftp.journals


def is_finished(sftp: Way) -> bool:
    return (sftp.destination / "big").exists()


def late_part(folder: Path) -> Path:
    """What the part of "big" is called in the run that owns the copy."""
    [fence] = folder.glob(f".*{FENCE_SUFFIX.decode()}")
    key = fence.name[1 : -len(FENCE_SUFFIX)] + json.loads(fence.read_text())["run"]
    return folder / os.fsdecode(part_name(b"big", key))


def held_up(sftp: Way, after: int) -> Breaking:
    """The second lane is held up in its first chunk, after so many bytes, and the copy at its end.

    The first lane does nothing before the second has its chunk.
    """
    breaking = sftp.breaking().rule("block", gate="first")
    breaking.rule("block", connections=[1], after=after, gate="late")
    breaking.rule("block", connections=[1], way="from", type=wire.ACK, gate="end")
    asks = {"type": wire.ASK, "contains": asking(requests.Release), "gate": "end"}
    return breaking.rule("block", connections=[0, 1], **asks)


@pytest.mark.parametrize(
    ("after", "is_damaged"), [(0, False), (1, True)], ids=["before it opens the part", "damaged"]
)
def test_a3_a_chunk_that_comes_after_the_file_has_its_name(
    sftp: Way, after: int, is_damaged: bool
) -> None:
    """ADVERSARY A3: neither the contents nor the time of the file change, and no part is left."""
    fill(sftp.source / "big", BIG_BYTES)
    os.utime(sftp.source / "big", (MTIME_S, MTIME_S))
    breaking = held_up(sftp, after)
    if is_damaged:
        breaking.rule("flip", connections=[1], after=after)
    running = sftp.start("-p", "-c", "2", "--chunk-size", "4M", breaking=breaking)
    try:
        until(lambda: breaking.is_blocked(0, "first") and breaking.is_blocked(1, "late"))
        breaking.go("first")
        until(lambda: is_finished(sftp), "the first lane takes the chunk over")
        breaking.go("late")
        until(lambda: breaking.is_blocked(1, "end"), "the late chunk is answered")
        big = sftp.destination / "big"
        assert big.stat().st_mtime == MTIME_S
        assert big.read_bytes() == (sftp.source / "big").read_bytes()
        breaking.go("end")
        assert_copied(sftp, running)
    finally:
        running.kill()


@pytest.mark.parametrize("ghost", ["", "full size"])
def test_a4_finish_is_asked_again_after_the_file_has_its_name(sftp: Way, ghost: str) -> None:
    """ADVERSARY A4: a part that another lane made meanwhile does not take the file's place."""
    fill(sftp.source / "big", BIG_BYTES)
    os.utime(sftp.source / "big", (MTIME_S, MTIME_S))
    # The first connection dies in a chunk, so two lanes had it; the second when it has finished.
    breaking = sftp.breaking().rule("kill", after=6 * MIB)
    answers = {"way": "from", "type": wire.REPLY, "contains": "null", "after": BEGIN_BYTES}
    breaking.rule("kill", connections=[1], **answers)
    breaking.rule("block", connections=[2], way="from", type=wire.HELLO, gate="again")
    running = sftp.start("-p", "-c", "1", "--chunk-size", "4M", breaking=breaking)
    try:
        until(lambda: is_finished(sftp) and breaking.is_blocked(2, "again"))
        if ghost:
            with open(late_part(sftp.destination), "xb") as part:
                part.truncate(BIG_BYTES)
        breaking.go("again")
        assert_copied(sftp, running)
        assert (sftp.destination / "big").stat().st_mtime == MTIME_S
    finally:
        running.kill()


def test_a4_finish_is_asked_again_before_the_file_has_its_name(sftp: Way) -> None:
    """The part is the right one: it gets its name over the next connection."""
    fill(sftp.source / "big", BIG_BYTES)
    breaking = sftp.breaking().rule("kill", after=6 * MIB)
    asks = {"type": wire.ASK, "contains": asking(requests.Finish)}
    breaking.rule("kill", connections=[1], **asks)
    running = sftp.start("-c", "1", "--chunk-size", "4M", breaking=breaking)
    try:
        assert_copied(sftp, running)
        assert breaking.connections == 3
    finally:
        running.kill()


def interrupted(sftp: Way) -> Path:
    """A copy that was killed when a part of "big" had landed; its fence."""
    fill(sftp.source / "big", BIG_BYTES)
    breaking = sftp.breaking().rule("block", after=10 * MIB)
    running = sftp.start("-c", "1", "--chunk-size", "4M", breaking=breaking)
    try:
        until(lambda: breaking.blocked and sftp.journaled_bytes() >= 4 * MIB, "chunks land")
    finally:
        running.kill()
    until(lambda: not descendants(sftp.server.pid), "its far end ends")
    [fence] = sftp.destination.glob(f".*{FENCE_SUFFIX.decode()}")
    assert len(sftp.parts()) == 1
    return fence


def test_a_run_that_is_not_known_is_taken_over_from(sftp: Way) -> None:
    """The journal is lost: what the earlier run left is found by the fence, and hashed."""
    interrupted(sftp)
    sftp.forget()
    ended = sftp.run("-c", "1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.end["bytes_resumed"] >= 4 * MIB
    assert_same_tree(sftp.source, sftp.destination)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_where_the_root_takes_no_fence_the_journal_tells_of_earlier_runs(
    sftp: Way, make: Callable[[Path], None]
) -> None:
    """A folder has its name, which nothing here would remove; or what never ends when opened."""
    fence = interrupted(sftp)
    fence.unlink()
    make(fence)
    ended = sftp.finish("-c", "1")
    assert ended.err == "" and ended.end["bytes_resumed"] >= 4 * MIB
    if make is os.mkdir:
        fence.rmdir()
    assert_same_tree(sftp.source, sftp.destination)


def test_a_copy_that_finds_all_there_leaves_the_root_as_it_was(sftp: Way) -> None:
    """In whole seconds: the fence comes and goes."""
    fill(sftp.source / "big", BIG_BYTES)
    sftp.finish()
    os.utime(sftp.destination, (MTIME_S, MTIME_S))
    ended = sftp.run()
    assert (ended.code, ended.end["bytes_sent"]) == (0, 0)
    assert sftp.destination.stat().st_mtime == MTIME_S


def test_n6_what_a_killed_run_left_of_small_files_goes(sftp: Way) -> None:
    """ADVERSARY N6: no later run can guess the ends of these names, so it looks for them."""
    fence = interrupted(sftp)
    (sftp.source / "sub" / "deep").mkdir(parents=True)
    (sftp.destination / "sub" / "deep").mkdir(parents=True)
    fill(sftp.source / "sub" / "deep" / "small", 10)
    for path in (sftp.source / "sub", sftp.source / "sub" / "deep"):
        os.utime(path, (MTIME_S, MTIME_S))
    token, run = fence.name[1:9], json.loads(fence.read_text())["run"]
    theirs = sftp.destination / os.fsdecode(part_name(b"small", f"{token}{run[::-1]}abcdef"))
    theirs.touch()
    for folder in ("", "sub", "sub/deep"):
        name = part_name(b"small", f"{token}{run}abcdef")
        (sftp.destination / folder / os.fsdecode(name)).write_bytes(b"half")
    sftp.finish("-p", "-c", "1")
    assert sftp.parts() == [theirs]  # of a run that nobody knows
    theirs.unlink()
    assert not list(sftp.destination.rglob(".*.pscp-*"))
    for path in (sftp.destination / "sub", sftp.destination / "sub" / "deep"):
        assert path.stat().st_mtime == MTIME_S


def test_n6_what_a_lost_connection_left_of_small_files_goes(sftp: Way) -> None:
    """That of the run itself, whose other lane has sent the file again."""
    fill(sftp.source / "big", BIG_BYTES)
    breaking = sftp.breaking().rule("block", after=4 * MIB)
    breaking.rule("kill", after=8 * MIB)
    running = sftp.start("-c", "1", "--chunk-size", "4M", breaking=breaking)
    try:
        until(lambda: breaking.blocked)
        [fence] = sftp.destination.glob(f".*{FENCE_SUFFIX.decode()}")
        key = fence.name[1:9] + json.loads(fence.read_text())["run"]
        (sftp.destination / os.fsdecode(part_name(b"small", f"{key}abcdef"))).touch()
        breaking.go()
        assert_copied(sftp, running)
    finally:
        running.kill()
