"""SIGINT, SIGTERM and SIGHUP: the end is soon, says how to go on, and leaves only what that needs.

Not here: SIGKILL (test_killed.py).
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from compare import assert_same_tree
from soak_signals import is_before_the_first_line

from faults.conftest import MIB, Running, Way, fill, until
from pscp.processes import descendants

EVERY_WAY = True

BIG_BYTES = 24 * MIB
SOON_S = 5.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
WORDS = ("--progress", "none", "--chunk-size", "1M", "-c", "2")

each = pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.name)


def standing_still(way: Way, *words: str) -> Running:
    """A copy of which a third has landed, and which goes on for no other reason than a signal."""
    fill(way.source / "big", BIG_BYTES)
    breaking = way.breaking().rule("block", connections=[0, 1], after=5 * MIB)
    running = way.start(*WORDS, *words, breaking=breaking)
    until(lambda: breaking.blocked == 2 and way.journaled_bytes() >= 8 * MIB, "a third has landed")
    return running


def assert_ended(way: Way, running: Running, kind: signal.Signals) -> None:
    begun_s = time.monotonic()
    ended = running.ended()
    assert time.monotonic() - begun_s < SOON_S
    assert ended.code == CODES[kind]
    assert ended.err.count("\n") == 2, ended.err
    assert "run the same command again" in ended.err
    assert "Traceback" not in ended.err
    assert not descendants(running.process.pid)
    assert not way.arrived() and way.parts() and way.journals


@each
def test_it_ends_and_the_next_run_goes_on(way: Way, kind: signal.Signals) -> None:
    running = standing_still(way)
    running.send(kind)
    assert_ended(way, running, kind)
    landed_bytes = way.journaled_bytes()
    ended = way.run("-c", "2")
    assert ended.code == 0, ended.err
    assert ended.end["bytes_resumed"] >= landed_bytes >= 8 * MIB
    assert ended.end["bytes_sent"] == BIG_BYTES - ended.end["bytes_resumed"]
    assert_same_tree(way.source, way.destination)


@each
def test_a_second_one_does_not_disturb_the_end(push: Way, kind: signal.Signals) -> None:
    """Whenever it comes."""
    running = standing_still(push)
    running.send(kind)
    while running.process.poll() is None:
        running.send(kind)
        time.sleep(0.001)
    assert_ended(push, running, kind)


def test_ctrl_c_reaches_every_ssh_too(way: Way) -> None:
    """A terminal sends SIGINT to the whole group, the ssh that may prompt among it."""
    fill(way.source / "big", BIG_BYTES)
    slow = ("-l", str(8 * 8 * 1024))
    running = way.start(*WORDS, *slow, start_new_session=True)
    until(lambda: way.journaled_bytes() >= 3 * MIB, "something has landed")
    os.killpg(running.process.pid, signal.SIGINT)
    assert_ended(way, running, signal.SIGINT)


@each
def test_before_the_login(push: Way, kind: signal.Signals) -> None:
    fill(push.source / "big", 1000)
    breaking = push.breaking().rule("block", way="from", type=None)
    running = push.start("--progress", "none", breaking=breaking)
    until(lambda: breaking.blocked, "ssh logs in")
    running.send(kind)
    ended = running.ended()
    assert ended.code == CODES[kind]
    assert "Traceback" not in ended.err
    assert not descendants(running.process.pid) and not push.journals


@each
def test_at_any_moment(push: Way, kind: signal.Signals) -> None:
    """From the start of the program on: a clear end, with its code or the signal itself."""
    for number in range(400):
        fill(push.source / f"{number}", 3000)
    fill(push.source / "z", 8 * MIB)
    for step in range(10):
        running = push.start("--progress", "none", "-c", "2")
        deadline_s = time.monotonic() + 0.09 * step
        while time.monotonic() < deadline_s and running.process.poll() is None:
            time.sleep(0.001)
        running.send(kind)
        ended = running.ended()
        if not is_before_the_first_line(ended.err):
            # -kind: Python itself had hardly begun.
            assert ended.code in (CODES[kind], -kind, 0), (step, ended)
            assert "Traceback" not in ended.err, (step, ended.err)
        until(lambda pid=running.process.pid: not descendants(pid))  # type: ignore[misc]
    assert push.run("-c", "2").code == 0
    assert_same_tree(push.source, push.destination)
    assert not push.parts()


def test_what_is_ignored_stays_ignored(push: Way) -> None:
    """As for a command in the background of a script."""
    fill(push.source / "big", 8 * MIB)
    breaking = push.breaking().rule("block", after=2 * MIB)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        running = push.start("-c", "1", breaking=breaking)
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: breaking.blocked, "the copy stands still")
    running.send(signal.SIGINT)
    breaking.go()
    assert running.ended().code == 0
    assert_same_tree(push.source, push.destination)
