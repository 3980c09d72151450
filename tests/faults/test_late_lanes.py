"""Lanes of one run that come late: overtaken by others, or lost while they still had work to do.

Not here: what an earlier run had on its way (test_late_runs.py), lost lanes as such
(test_lanes_lost.py).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from core.link import asking

from faults.conftest import MIB, Running, Way, fill
from faults.late import CHUNKS, FarEnds, assert_copied
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.ground.processes import descendants

BIG_BYTES = 6 * MIB
SHARED_BYTES = 40 * MIB  # more than a lane that stands still can hold, so it is asked nothing else
TWO = ("--chunk-size", "1M", "-c", "2")


def finish(way: Way, *words: str) -> None:
    ended = way.run(*words)
    assert ended.code == 0, ended.err
    assert ended.end["failures"] == []


def kill_connection(running: Running) -> None:
    """The one connection of the command dies."""
    found = []
    for process in descendants(running.process.pid):
        argv = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        found += [process.pid] * argv.startswith(b"ssh\0")
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def facts_of(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """What a write to a file, or its replacement, would change."""
    found = {}
    for path in folder.rglob("*"):
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode, status.st_size)
    return found


# --- A3: bytes of a lane that was overtaken


@pytest.mark.parametrize("ends", ["the lane's chunks", "the whole copy"])
def test_a3_late_chunks_change_nothing_of_the_finished_file(
    push: Way, far: FarEnds, ends: str
) -> None:
    """Its mtime and its mode stay, its privileges are not stripped, and no part is made anew."""
    late = far.plan().hold(wire.DATA, after=MIB if ends == "the lane's chunks" else 0)
    fill(push.source / "big", SHARED_BYTES)
    os.chmod(push.source / "big", 0o4750)
    os.utime(push.source / "big", (1, 1))
    finish(push, *TWO, "-p")
    assert_copied(push, modes=True, times=True)
    before = facts_of(push.destination)
    late.go()
    late.until_ended()
    assert facts_of(push.destination) == before
    assert_copied(push, modes=True, times=True)


def test_a3_late_chunks_that_are_damaged(push: Way, far: FarEnds) -> None:
    """They are not written, though nobody waits for the word that they do not match."""
    late = far.plan().hold(wire.DATA, after=MIB)
    late.frame("flip", wire.DATA, after=MIB, always=True)
    fill(push.source / "big", SHARED_BYTES)
    finish(push, *TWO)
    late.go()
    late.until_ended()
    assert_copied(push)


def test_a3_late_chunks_leave_what_the_user_changed_since(push: Way, far: FarEnds) -> None:
    late = far.plan().hold(wire.DATA, after=MIB)
    fill(push.source / "big", SHARED_BYTES)
    finish(push, *TWO)
    (push.destination / "big").write_bytes(b"edited since")
    late.go()
    late.until_ended()
    assert [path.name for path in push.destination.iterdir()] == ["big"]
    assert (push.destination / "big").read_bytes() == b"edited since"


def test_a3_a_late_pack_of_a_lane_that_was_lost(push: Way, far: FarEnds) -> None:
    """Another did its files, and the user has changed one since."""
    late = far.plan().hold(wire.PACK)
    for number in range(100):
        fill(push.source / str(number), 1000)
    running = push.start(*CHUNKS)
    late.until_held()
    kill_connection(running)
    ended = running.ended()
    assert ended.code == 0, ended.err
    (push.destination / "7").write_bytes(b"edited since")
    before = facts_of(push.destination)
    late.go()
    late.until_ended()
    assert facts_of(push.destination) == before
    (push.source / "7").write_bytes(b"edited since")
    assert_copied(push)


@pytest.mark.parametrize("still", [0, 1])
def test_a3_a_lane_stands_still_at_the_last_question(push: Way, far: FarEnds, still: int) -> None:
    """Another asks it, whichever of them was first, so the copy ends and leaves nothing."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.Release), connections=[still])
    fill(push.source / "big", BIG_BYTES)
    finish(push, *TWO, "-l", "16000")
    assert_copied(push)
    late.go()
    late.until_ended()
    assert_copied(push)


# --- A1 and C4: a lane that is lost while it settles


@pytest.mark.parametrize("options", [("-p",), ("-p", "-s")])
def test_c4_a_lane_is_lost_while_its_settle_is_slow(
    push: Way, far: FarEnds, options: tuple[str, ...]
) -> None:
    """Another lane finishes the file, which has not failed, also not when the first is done."""
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    os.chmod(push.source / "big", 0o640)
    os.utime(push.source / "big", (1, 1))
    running = push.start(*CHUNKS, *options)
    late.until_waiting()
    kill_connection(running)
    ended = running.ended()
    assert ended.code == 0, ended.err
    assert_copied(push, modes=True, times=True)
    before = facts_of(push.destination)
    late.go()
    late.until_ended()
    assert facts_of(push.destination) == before


def test_c4_both_lanes_are_slow_to_settle(push: Way, far: FarEnds) -> None:
    """The lost one comes first: the other finds the file finished, and that is no failure."""
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    running = push.start(*CHUNKS, "-p")
    late.until_waiting()
    also_late = far.plan().call("fsync", contains="big")
    kill_connection(running)
    also_late.until_waiting()
    late.go()
    late.until_ended()
    also_late.go()
    ended = running.ended()
    assert ended.code == 0, ended.err
    assert_copied(push, modes=True, times=True)


def test_c4_a_lane_is_lost_while_its_settle_is_slow_at_this_end(pull: Way, far: FarEnds) -> None:
    """The settle that a lost lane began is waited for; then another lane finds it done."""
    late = far.plan().call("fsync", contains="big")
    fill(pull.source / "big", BIG_BYTES)
    running = pull.start(*CHUNKS, "-p", env=late.environment)
    late.until_waiting()
    kill_connection(running)
    late.go()
    ended = running.ended()
    assert ended.code == 0, ended.err
    assert_copied(pull, modes=True, times=True)


def test_a1_a_lost_lane_stands_in_the_middle_of_a_rename(push: Way, far: FarEnds) -> None:
    """Another lane finishes the file once it is not waited for any more."""
    late = far.plan().call("rename", contains="big")
    fill(push.source / "big", BIG_BYTES)
    running = push.start(*CHUNKS, "-p")
    late.until_waiting()
    kill_connection(running)
    late.go()
    ended = running.ended()
    assert ended.code == 0, ended.err
    late.until_ended()
    assert_copied(push, modes=True, times=True)
