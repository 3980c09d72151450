"""SIGINT, SIGTERM and SIGHUP: the end is soon, says how to go on, and leaves only what that needs.

Not here: SIGKILL (test_killed.py), signals at any moment (test_signals_anywhere.py).
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, Running, Way, fill, until
from faults.signalled import CODES
from pscp.ground.processes import descendants

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

BIG_BYTES = 24 * MIB
SOON_S = 20.0  # on a busy machine; what it must not wait for takes 30 s and more
WORDS = ("--progress", "none", "--chunk-size", "1M", "-c", "2")


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


@pytest.mark.parametrize("kind", list(CODES), ids=lambda kind: kind.name)
def test_it_ends_and_the_next_run_goes_on(way: Way, kind: signal.Signals) -> None:
    running = standing_still(way)
    running.send(kind)
    assert_ended(way, running, kind)
    landed_bytes = way.journaled_bytes()
    ended = way.finish("-c", "2")
    assert ended.end["bytes_resumed"] >= landed_bytes >= 8 * MIB
    assert ended.end["bytes_sent"] == BIG_BYTES - ended.end["bytes_resumed"]
    assert_same_tree(way.source, way.destination)


def test_a_second_one_does_not_disturb_the_end(push: Way) -> None:
    """Whenever it comes."""
    running = standing_still(push)
    running.send(signal.SIGINT)
    while running.process.poll() is None:
        running.send(signal.SIGINT)
        time.sleep(0.001)
    assert_ended(push, running, signal.SIGINT)


@pytest.mark.usefixtures("push")
def test_ctrl_c_reaches_every_ssh_too(way: Way) -> None:
    """A terminal sends SIGINT to the whole group, the ssh that may prompt among it."""
    fill(way.source / "big", BIG_BYTES)
    slow = ("--chunk-size", "256K", "-l", str(8 * 2 * 1024))  # 12 s in all, for who looks late
    running = way.start(*WORDS, *slow, start_new_session=True)
    until(lambda: way.journaled_bytes() >= MIB, "something has landed")
    os.killpg(running.process.pid, signal.SIGINT)
    assert_ended(way, running, signal.SIGINT)


def test_before_the_login(push: Way) -> None:
    fill(push.source / "big", 1000)
    breaking = push.breaking().rule("block", way="from", type=None)
    running = push.start("--progress", "none", breaking=breaking)
    until(lambda: breaking.blocked, "ssh logs in")
    running.send(signal.SIGINT)
    ended = running.ended()
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert not descendants(running.process.pid) and not push.journals


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
    running.finished()
    assert_same_tree(push.source, push.destination)
