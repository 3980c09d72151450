"""What an earlier run still had on its way comes during the next run of the copy, or after it.

Not here: every order of system calls (../model/test_model.py), lanes of one run that come late
(test_late_lanes.py), two runs at once (test_two_runs.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.link import asking

from faults.conftest import MIB, Breaking, Running, Way, fill, until
from faults.late import CHUNKS, FarEnds, Plan, assert_copied, in_the_middle
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire

BIG_BYTES = 6 * MIB
OLD = b"what was there before" * 1000


def end(running: Running, ending: signal.Signals) -> None:
    running.send(ending)
    code = running.ended().code
    assert code == (130 if ending == signal.SIGINT else -ending)


def first_run(
    push: Way, is_late: Callable[[], None], *words: str, ending: signal.Signals = signal.SIGINT
) -> None:
    """A run that is ended when something of it is late."""
    running = push.start(*CHUNKS, *words)
    is_late()
    end(running, ending)


def next_run(push: Way, far: FarEnds, late: Plan, *words: str) -> tuple[Running, Breaking]:
    """A run that stands still in its middle, where what was late has come."""
    far.plan()
    running, breaking = in_the_middle(push, *words)
    late.come()
    return running, breaking


def go_on(running: Running, breaking: Breaking) -> None:
    """A run that stood still comes to its end."""
    breaking.go()
    running.finished()


def change(way: Way, name: str = "big", size: int = BIG_BYTES) -> None:
    """The source is another file now."""
    fill(way.source / "other", size)
    (way.source / "other").replace(way.source / name)


# --- A1: a settle that comes late


@pytest.mark.parametrize(
    ("ending", "options"), [(signal.SIGINT, ()), (signal.SIGKILL, ("-p", "-s"))]
)
def test_a1_a_late_settle_meets_the_half_written_part_of_the_next_run(
    push: Way, far: FarEnds, ending: signal.Signals, options: tuple[str, ...]
) -> None:
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    (push.destination / "big").write_bytes(OLD)
    before = (push.destination / "big").stat().st_mode & 0o777
    first_run(push, late.until_waiting, ending=ending)
    change(push)
    os.chmod(push.source / "big", 0o640)
    os.utime(push.source / "big", (1, 1))
    second, breaking = next_run(push, far, late, *options)
    assert (push.destination / "big").read_bytes() == OLD
    go_on(second, breaking)
    assert_copied(push, modes="-p" in options, times="-p" in options)
    mode = 0o640 if "-p" in options else before
    assert (push.destination / "big").stat().st_mode & 0o777 == mode


def test_a1_a_late_settle_after_the_next_run(push: Way, far: FarEnds) -> None:
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first_run(push, late.until_waiting)
    change(push)
    far.plan()
    push.finish(*CHUNKS, "-p")
    there = (push.destination / "big").stat()
    late.come()
    assert_copied(push, modes=True, times=True)
    assert (push.destination / "big").stat().st_ino == there.st_ino


def test_a1_the_same_source_while_the_next_run_settles_as_well(push: Way, far: FarEnds) -> None:
    """Two ends are in fsync of one file: one gives it its name, and neither is a failure."""
    late = far.plan().call("fsync", contains="big")
    fill(push.source / "big", BIG_BYTES)
    first_run(push, late.until_waiting)
    also_late = far.plan().call("fsync", contains="big")
    second = push.start(*CHUNKS, "-p")
    also_late.until_waiting()
    late.come()
    also_late.go()
    second.finished()
    assert_copied(push, modes=True, times=True)


@pytest.mark.parametrize("backup", [(), ("--backup", "--backup-dir", "kept")], ids=["a1", "u1"])
def test_a_rename_that_is_under_way(push: Way, far: FarEnds, backup: tuple[str, ...]) -> None:
    """A1: the process that may change the file cannot be waited for, so it is ended.

    U1: a part in the folder of backups goes like those beside the files.
    """
    late = far.plan().call("rename", contains="big")
    fill(push.source / "big", BIG_BYTES)
    (push.destination / "big").write_text("old")
    first_run(push, late.until_waiting, *backup, ending=signal.SIGKILL)
    if not backup:
        change(push)
    far.plan()
    push.finish(*CHUNKS, *backup)
    late.come()
    assert (push.destination / "big").read_bytes() == (push.source / "big").read_bytes()
    assert not list(push.destination.rglob(".*.pscp-*")) and not push.journals
    assert not backup or (push.destination / "kept" / "big").read_text() == "old"


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
    late.come()
    assert parts & set(push.parts())
    go_on(second, breaking)
    assert_copied(push)


# --- A2: bytes and questions that come late


@pytest.mark.parametrize(
    ("frame", "ending"),
    [
        ({"type_": wire.DATA}, signal.SIGKILL),
        ({"type_": wire.PACK}, signal.SIGINT),
        ({"type_": wire.ASK, "contains": asking(requests.Target)}, signal.SIGKILL),
        ({"type_": wire.ASK, "contains": asking(requests.Finish)}, signal.SIGINT),
    ],
    ids=["chunks", "packs", "a claim", "a finish"],
)
def test_a2_what_is_late_meets_the_next_run(
    push: Way, far: FarEnds, frame: dict[str, Any], ending: signal.Signals
) -> None:
    """The first run's agent has no part open yet, or the next one owns the copy when it is asked.

    A finish is of A1: its part is there when the question comes.
    """
    late = far.plan().hold(**frame)
    fill(push.source / "big", BIG_BYTES)
    if frame["type_"] == wire.PACK:
        fill_small(push.source)
    first_run(push, late.until_held, ending=ending)
    change(push, size=BIG_BYTES + 2 * MIB)
    if frame["type_"] == wire.PACK:
        fill_small(push.source)
    second, breaking = next_run(push, far, late)
    assert not (push.destination / "big").exists()
    go_on(second, breaking)
    assert_copied(push)


def fill_small(folder: Path) -> None:
    for number in range(300):
        fill(folder / str(number % 5) / str(number), 1000 + number)


@pytest.mark.parametrize("question", [requests.BeginSink, requests.Target], ids=["begin", "claim"])
def test_a2_a_late_question_after_the_next_run(
    push: Way, far: FarEnds, question: type[requests.Request]
) -> None:
    """No file changes; where it is a claim, the mark that says whose the copy is goes with the next
    run of it.
    """
    late = far.plan().hold(wire.ASK, contains=asking(question))
    fill(push.source / "big", BIG_BYTES)
    first_run(push, late.until_held)
    change(push)
    far.plan()
    push.finish(*CHUNKS)
    late.come()
    assert (push.destination / "big").read_bytes() == (push.source / "big").read_bytes()
    if question is requests.Target:
        push.finish(*CHUNKS)
    assert_copied(push)
