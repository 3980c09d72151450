"""Connections that die, stand still, are refused or never come back while a copy runs.

Not here: a loss at each frame, again and again or for a while (../core/test_lane.py,
../core/test_lane_pool.py), bytes that change on the way (../core/test_damage.py), an end of
the client (test_killed.py).
"""

from __future__ import annotations

import re
import signal

import pytest
from compare import assert_same_tree
from conftest import MakeServer, Together

import pscp
from faults.conftest import MIB, Way, fill, until
from pscp.connect import bootstrap
from pscp.endpoint.frames import wire
from pscp.ground.processes import descendants

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

BIG_BYTES = 24 * MIB + 7


def assert_copied(way: Way, result: pscp.Result) -> None:
    assert result.ok, result.failures
    until(lambda: not descendants(way.server.pid), "agents of lost connections end")
    if way.remote == "sftp":  # nobody is left there who would remove parts of small files
        for part in way.parts():
            part.unlink()
    assert_same_tree(way.source, way.destination)
    assert not way.parts() and not way.journals


def test_a_connection_dies(way: Way, quick_retries: None) -> None:
    fill(way.source / "big", BIG_BYTES)
    breaking = way.breaking().rule("kill", after=6 * MIB)
    result = way.copy(connections=1, breaking=breaking, chunk_bytes=MIB)
    assert_copied(way, result)
    assert result.connections_lost == 1
    assert result.bytes_sent == BIG_BYTES  # what landed is counted once


def test_a_connection_stands_still(
    way: Way, quick_retries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped ssh takes no SIGTERM, and a pipe to it is never read again."""
    monkeypatch.setattr(bootstrap, "SILENCE_S", 3.0)
    fill(way.source / "big", BIG_BYTES)
    breaking = way.breaking().rule("stop", after=MIB // 2)
    result = way.copy(connections=1, breaking=breaking, chunk_bytes=MIB)
    assert_copied(way, result)
    assert result.connections_lost >= 1


def test_c3_a_lost_connection_does_not_wait_for_its_turn(way: Way) -> None:
    """C3: the block that was lost with it takes half an hour at this rate.

    The connection dies while its first block waits for its turn: on push before the block is sent,
    on pull after it has arrived.
    """
    fill(way.source / "big", 600_000)
    rule = {"type": wire.FILE} if way.is_push else {"after": 1}
    breaking = way.breaking().rule("kill", **rule)
    running = way.start("-l", "1", "-c", "1", breaking=breaking)
    try:
        until(lambda: breaking.connections == 2, "it has connected again")
        running.send(signal.SIGTERM)
        assert running.ended().code == 143
    finally:
        running.kill()


@pytest.mark.parametrize("limit", ["2:100:2", "10:30:100"])
def test_max_startups(push: Way, make_sshd: MakeServer, limit: str, together: Together) -> None:
    """sshd refuses who comes while so many others log in: it is not asked too much.

    On a busy machine it counts some for a while that are in already, and lanes come slowly.
    """
    object.__setattr__(push, "server", make_sshd([f"MaxStartups {limit}"]))
    least = 3 if limit.startswith("2:") else 4
    fill(push.source / "big", 32 * MIB)
    result = push.copy(chunk_bytes=MIB, **{**together(least), "connections": 12})
    assert_copied(push, result)
    drops = len(re.findall("^drop connection", push.server.log, re.MULTILINE))
    assert drops <= (7 if limit.startswith("2:") else 2), push.server.log
    assert result.connections >= least
