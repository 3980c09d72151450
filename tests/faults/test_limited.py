"""Connections that die while a copy is held to a rate: they come again as fast as without one.

Not here: the rate itself (../unit/test_rate_limiter.py), other deaths (test_lanes_lost.py).
"""

from __future__ import annotations

import signal

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, Breaking, Way, fill, until
from pscp.endpoint.frames import wire

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

BIG_BYTES = 600_000


def dying_in_its_first_wait(way: Way) -> Breaking:
    """A connection that dies while its first block waits for its turn: on push before the block
    is sent, on pull after it has arrived.
    """
    if way.is_push:
        return way.breaking().rule("kill", type=wire.FILE)
    return way.breaking().rule("kill", after=1)


def test_a_lost_connection_does_not_wait_for_its_turn(way: Way) -> None:
    """C3: the block that was lost with the connection takes half an hour at this rate."""
    fill(way.source / "big", BIG_BYTES)
    breaking = dying_in_its_first_wait(way)
    running = way.start("-l", "1", "-c", "1", breaking=breaking)
    try:
        until(lambda: breaking.connections == 2, "it has connected again")
        running.send(signal.SIGTERM)
        assert running.ended().code == 143
    finally:
        running.kill()


def test_a_slow_copy_completes_over_another_connection(way: Way, quick_retries: None) -> None:
    data = fill(way.source / "big", BIG_BYTES)
    breaking = dying_in_its_first_wait(way)
    result = way.copy(breaking=breaking, limit_kbit_s=2400, chunk_bytes=MIB)
    assert result.ok and result.bytes == len(data)
    assert result.connections_lost == 1
    assert_same_tree(way.source, way.destination)
