"""What -d, and a program that listens to logging, get to know of what went wrong.

Not here: how records are made (../unit/test_log.py).
"""

from __future__ import annotations

import logging

import pytest

from faults.conftest import MIB, Way, fill


def test_a_program_finds_out_why_a_lane_connected_again(
    push: Way, quick_retries: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pscp")
    fill(push.source / "big", 24 * MIB)
    breaking = push.breaking().rule("kill", after=2 * MIB)
    assert push.copy(breaking=breaking, chunk_bytes=MIB).connections_lost == 1
    [lane] = {each.threadName for each in caplog.records if "ended: " in each.message}
    of_lane = [each.message for each in caplog.records if each.threadName == lane]
    steps = ("works over process", "attempt 1 ended: ", "connects again in", "works over process")
    places = iter(of_lane)
    assert all(any(step in message for message in places) for step in steps), of_lane


def test_d_shows_ssh_and_the_agent_of_each_lane(push: Way) -> None:
    fill(push.source / "big", 8 * MIB)
    ended = push.finish("-d", "--progress", "plain")
    assert " writes: debug1: " in ended.err  # ssh -v
    assert "MainThread: process " in ended.err and " the far end answers: {" in ended.err
    assert "lane 1: works over process " in ended.err
    assert "writes: pscp agent: BeginSink" in ended.err and "agent: Finish big" in ended.err


def test_without_d_nothing_of_it_is_shown(push: Way) -> None:
    fill(push.source / "big", MIB)
    ended = push.finish("--progress", "plain")
    assert "process" not in ended.err and "debug" not in ended.err
