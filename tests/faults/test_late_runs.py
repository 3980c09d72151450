"""What an earlier run still had on its way comes during the next run of the copy, or after it.

The earlier run was ended by Ctrl-C or kill -9, or ended well. What it sent, or what its agent is
about to do, comes when the next run is under way, finished or was killed as well.

Not here: lanes of one run that come late (test_late_lanes.py), two runs at once (test_two_runs.py).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from core.link import asking

from faults.conftest import MIB, Breaking, Running, Way, fill, until
from faults.late import CHUNKS, FarEnds, assert_copied, in_the_middle
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire

BIG_BYTES = 6 * MIB
SHARED_BYTES = 40 * MIB  # more than a lane that stands still can hold, so it is asked nothing else
OLD = b"what was there before" * 1000


def end(running: Running, ending: signal.Signals) -> None:
    running.send(ending)
    code = running.ended().code
    assert code == (130 if ending == signal.SIGINT else -ending)


def go_on(running: Running, breaking: Breaking) -> None:
    """A run that stood still comes to its end."""
    breaking.go()
    ended = running.ended()
    assert ended.code == 0, ended.err


def change(way: Way, name: str = "big", size: int = BIG_BYTES) -> None:
    """The source is another file now."""
    fill(way.source / "other", size)
    (way.source / "other").replace(way.source / name)


def finish(way: Way, *words: str) -> None:
    ended = way.run(*CHUNKS, *words)
    assert ended.code == 0, ended.err


# --- A1: a settle that comes late


@pytest.mark.parametrize(
    ("ending", "options"),
    [(signal.SIGINT, ()), (signal.SIGINT, ("-p",)), (signal.SIGKILL, ("-p", "-s"))],
)
def test_a1_a_late_settle_meets_the_half_written_part_of_the_next_run(
    push: Way, far: FarEnds, ending: signal.Signals, options: tuple[str, ...]
) -> None:
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    (push.destination / "big").write_bytes(OLD)
    before = (push.destination / "big").stat().st_mode & 0o777
    first = push.start(*CHUNKS)
    late.until_waiting()
    end(first, ending)
    change(push)
    os.chmod(push.source / "big", 0o640)
    os.utime(push.source / "big", (1, 1))
    far.plan()
    second, breaking = in_the_middle(push, *options)
    late.go()
    late.until_ended()
    assert (push.destination / "big").read_bytes() == OLD
    go_on(second, breaking)
    assert_copied(push, modes="-p" in options, times="-p" in options)
    mode = 0o640 if "-p" in options else before
    assert (push.destination / "big").stat().st_mode & 0o777 == mode


def test_a1_half_a_file_never_has_a_final_name(push: Way, far: FarEnds) -> None:
    """The second run is killed as well, after the first one's settle came."""
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_waiting()
    end(first, signal.SIGINT)
    change(push)
    far.plan()
    second, _ = in_the_middle(push)
    late.go()
    late.until_ended()
    second.kill()
    assert not (push.destination / "big").exists()
    finish(push)
    assert_copied(push)


@pytest.mark.parametrize("changed", [False, True])
def test_a1_a_late_settle_after_the_next_run(push: Way, far: FarEnds, changed: bool) -> None:
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_waiting()
    end(first, signal.SIGINT)
    if changed:
        change(push)
    far.plan()
    finish(push, "-p")
    there = (push.destination / "big").stat()
    late.go()
    late.until_ended()
    assert_copied(push, modes=True, times=True)
    assert (push.destination / "big").stat().st_ino == there.st_ino


def test_a1_the_same_source_while_the_next_run_settles_as_well(push: Way, far: FarEnds) -> None:
    """Two ends are in fsync of one file: one gives it its name, and neither is a failure."""
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_waiting()
    end(first, signal.SIGINT)
    also_late = far.plan().call("fsync", contains="big")
    second = push.start(*CHUNKS, "-p")
    also_late.until_waiting()
    late.go()
    late.until_ended()
    also_late.go()
    ended = second.ended()
    assert ended.code == 0, ended.err
    assert_copied(push, modes=True, times=True)


def test_a1_a_rename_that_is_under_way(push: Way, far: FarEnds) -> None:
    """Its process is the one that may change the file, and cannot be waited for: it is ended."""
    late = far.plan().call("rename", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_waiting()
    end(first, signal.SIGKILL)
    change(push)
    far.plan()
    finish(push)
    late.go()
    late.until_ended()
    assert_copied(push)


def test_u1_a_backup_that_a_run_has_begun(push: Way, far: FarEnds) -> None:
    """Its part is in the folder of backups, and goes like those beside the files."""
    late = far.plan().call("rename", contains="big")
    fill(push.source / "big", BIG_BYTES)
    (push.destination / "big").write_text("old")
    words = (*CHUNKS, "--backup", "--backup-dir", "kept")
    first = push.start(*words)
    late.until_waiting()
    end(first, signal.SIGKILL)
    far.plan()
    ended = push.start(*words).ended()
    assert ended.code == 0, ended.err
    late.go()
    late.until_ended()
    assert (push.destination / "kept" / "big").read_text() == "old"
    assert not list(push.destination.rglob(".*.pscp-*"))


def test_a1_a_late_finish(push: Way, far: FarEnds) -> None:
    """The question itself comes late, when the next run's part is there."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.Finish))
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGINT)
    change(push)
    far.plan()
    second, breaking = in_the_middle(push)
    late.go()
    late.until_ended()
    assert not (push.destination / "big").exists()
    go_on(second, breaking)
    assert_copied(push)


def test_a1_a_late_failure_removes_nothing_of_the_next_run(push: Way, far: FarEnds) -> None:
    """The source changed while it was read, so the first run has its part discarded."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.Discard))
    fill(push.source / "big", BIG_BYTES)
    breaking = push.breaking().rule("block", way="from", type=wire.ACK)
    first = push.start("--chunk-size", "256K", "-c", "1", "-l", "40000", breaking=breaking)
    until(lambda: breaking.blocked, "some of it was sent")
    change(push)
    breaking.go()
    late.until_held()
    end(first, signal.SIGINT)
    far.plan()
    second, breaking = in_the_middle(push)
    parts = set(push.parts())
    late.go()
    late.until_ended()
    assert parts & set(push.parts())
    go_on(second, breaking)
    assert_copied(push)


# --- A2: bytes that come late


@pytest.mark.parametrize(
    ("ending", "size"),
    [
        (signal.SIGINT, BIG_BYTES),
        (signal.SIGKILL, BIG_BYTES + 2 * MIB),
        (signal.SIGINT, BIG_BYTES - 2 * MIB),
    ],
)
def test_a2_late_chunks_meet_the_next_run(
    push: Way, far: FarEnds, ending: signal.Signals, size: int
) -> None:
    """The first run's agent has not opened the part yet when they come."""
    late = far.plan().hold(wire.DATA)
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, ending)
    change(push, size=size)
    far.plan()
    second, breaking = in_the_middle(push)
    late.go()
    late.until_ended()
    go_on(second, breaking)
    assert_copied(push)


@pytest.mark.parametrize("size", [SHARED_BYTES, SHARED_BYTES + 2 * MIB])
def test_a2_late_chunks_of_a_run_that_ended_well(push: Way, far: FarEnds, size: int) -> None:
    """A lane stood still and another took its chunks over, so the run ended with exit code 0."""
    late = far.plan().hold(wire.DATA)
    fill(push.source / "big", SHARED_BYTES)
    finish(push, "-c", "2")
    late.until_held()
    assert_copied(push)
    change(push, size=size)
    far.plan()
    second, breaking = in_the_middle(push)
    late.go()
    late.until_ended()
    go_on(second, breaking)
    assert_copied(push)


def fill_small(folder: Path) -> None:
    for number in range(300):
        fill(folder / str(number % 5) / str(number), 1000 + number)


def test_a2_late_packs_change_no_file_of_the_next_run(push: Way, far: FarEnds) -> None:
    late = far.plan().hold(wire.PACK)
    fill_small(push.source)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGKILL)
    fill_small(push.source)
    far.plan()
    finish(push, "-p")
    assert_copied(push, modes=True, times=True)
    late.go()
    late.until_ended()
    assert_copied(push, modes=True, times=True)


def test_a2_late_packs_in_the_middle_of_the_next_run(push: Way, far: FarEnds) -> None:
    late = far.plan().hold(wire.PACK)
    fill_small(push.source)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGINT)
    fill_small(push.source)
    fill(push.source / "z" / "big", BIG_BYTES)
    far.plan()
    second, breaking = in_the_middle(push)
    late.go()
    late.until_ended()
    go_on(second, breaking)
    assert_copied(push)


# --- A2: questions that come late


def test_a2_a_late_begin(push: Way, far: FarEnds) -> None:
    """The first run was ended when it owned the copy and its first lane was not there yet."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.BeginSink))
    fill(push.source / "big", BIG_BYTES)
    fill_small(push.source / "small")
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGINT)
    change(push)
    far.plan()
    finish(push)
    late.go()
    late.until_ended()
    assert_copied(push)


def test_a2_a_late_claim_after_the_next_run(push: Way, far: FarEnds) -> None:
    """The far end hears of the first run when the copy is complete: no file changes, and the mark
    that says whose the copy is goes with the next run of it.
    """
    late = far.plan().hold(wire.ASK, contains=asking(requests.Target))
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGINT)
    change(push)
    far.plan()
    finish(push)
    late.go()
    late.until_ended()
    assert (push.destination / "big").read_bytes() == (push.source / "big").read_bytes()
    finish(push)
    assert_copied(push)


def test_a2_a_late_claim_takes_nothing_over(push: Way, far: FarEnds) -> None:
    """The next run owns the copy when the first one's question about it arrives."""
    late = far.plan().hold(wire.ASK, contains=asking(requests.Target))
    fill(push.source / "big", BIG_BYTES)
    first = push.start(*CHUNKS)
    late.until_held()
    end(first, signal.SIGKILL)
    change(push)
    far.plan()
    second, breaking = in_the_middle(push)
    late.go()
    late.until_ended()
    go_on(second, breaking)
    assert_copied(push)
