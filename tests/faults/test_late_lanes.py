"""Lanes of one run that come late: overtaken by others, or lost while they still had work to do.

Not here: what an earlier run had on its way (test_late_runs.py), lost lanes as such
(test_lanes_lost.py), each frame of a lane that comes late (../core/test_lane.py).
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


def test_a3_late_chunks_change_nothing_of_the_finished_file(push: Way, far: FarEnds) -> None:
    """Its mtime and its mode stay, its privileges are not stripped, and no part is made anew."""
    late = far.plan().hold(wire.DATA, after=MIB)
    fill(push.source / "big", SHARED_BYTES)
    os.chmod(push.source / "big", 0o4750)
    os.utime(push.source / "big", (1, 1))
    push.finish(*TWO, "-p")
    assert_copied(push, modes=True, times=True)
    before = facts_of(push.destination)
    late.come()
    assert facts_of(push.destination) == before
    assert_copied(push, modes=True, times=True)


def test_a3_late_chunks_that_are_damaged(push: Way, far: FarEnds) -> None:
    """They are not written, though nobody waits for the word that they do not match."""
    late = far.plan().hold(wire.DATA, after=MIB)
    late.frame("flip", wire.DATA, after=MIB, always=True)
    fill(push.source / "big", SHARED_BYTES)
    push.finish(*TWO)
    late.come()
    assert_copied(push)


def test_a3_a_late_pack_of_a_lane_that_was_lost(push: Way, far: FarEnds) -> None:
    """Another did its files, and the user has changed one since."""
    late = far.plan().hold(wire.PACK)
    for number in range(100):
        fill(push.source / str(number), 1000)
    running = push.start(*CHUNKS)
    late.until_held()
    kill_connection(running)
    running.finished()
    (push.destination / "7").write_bytes(b"edited since")
    before = facts_of(push.destination)
    late.come()
    assert facts_of(push.destination) == before
    (push.source / "7").write_bytes(b"edited since")
    assert_copied(push)


def test_a3_a_lane_stands_still_at_the_last_question(push: Way, far: FarEnds) -> None:
    """Another asks it, so the copy ends and leaves nothing."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.Release))
    fill(push.source / "big", BIG_BYTES)
    push.finish(*TWO, "-l", "16000")
    assert_copied(push)
    late.come()
    assert_copied(push)


# --- A1 and C4: a lane that is lost while it settles


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_c4_a_lane_is_lost_while_its_settle_is_slow(push: Way, far: FarEnds, call: str) -> None:
    """Another lane finishes the file, which has not failed, also not when the first is done.

    A rename that is under way is waited for first (A1).
    """
    late = far.plan().call(call, contains="big")
    fill(push.source / "big", BIG_BYTES)
    os.chmod(push.source / "big", 0o640)
    os.utime(push.source / "big", (1, 1))
    running = push.start(*CHUNKS, "-p", "-s")
    late.until_waiting()
    kill_connection(running)
    if call == "rename":
        late.go()
    running.finished()
    assert_copied(push, modes=True, times=True)
    before = facts_of(push.destination)
    late.come()
    assert facts_of(push.destination) == before


def test_c4_a_lane_is_lost_while_its_settle_is_slow_at_this_end(pull: Way, far: FarEnds) -> None:
    """The settle that a lost lane began is waited for; then another lane finds it done."""
    late = far.plan().call("fsync", contains="big")
    fill(pull.source / "big", BIG_BYTES)
    running = pull.start(*CHUNKS, "-p", env=late.environment)
    late.until_waiting()
    kill_connection(running)
    late.go()
    running.finished()
    assert_copied(pull, modes=True, times=True)
