"""Bits that change between the two ends: found, sent again, counted; or a clear end, never a wrong
file.

SSH itself ends a connection whose bytes were changed on the network, so what is damaged here is
what faulty memory damages: the bytes between ssh and the programs at its ends.

Not here: each field of each header, and what is said (../core/test_damage.py), damage that comes
twice (../core/test_file_job.py, ../core/test_coordinator.py), a far end that lies
(test_hostile.py).
"""

from __future__ import annotations

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, Way, fill
from pscp.endpoint.frames import wire

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

BIG_BYTES = 3 * MIB + 5
SMALL = {f"small/{number}": 20_000 + number for number in range(12)}


def fill_all(way: Way) -> None:
    fill(way.source / "big", BIG_BYTES)
    for name, size in SMALL.items():
        fill(way.source / name, size)


@pytest.mark.parametrize("fields", [{}, {"type": wire.PACK, "at": -1}], ids=["chunk", "pack"])
def test_a_bit_changes_once(way: Way, fields: dict[str, int]) -> None:
    fill_all(way)
    breaking = way.breaking().rule("flip", bit=3, **fields)
    result = way.copy(breaking=breaking, chunk_bytes=MIB)
    assert result.ok, result.failures
    assert_same_tree(way.source, way.destination)
    assert result.chunks_resent == 1
    assert result.bytes_sent > result.bytes == BIG_BYTES + sum(SMALL.values())


def test_bits_change_always(way: Way) -> None:
    """The file fails, nothing is left of it, and the others are copied."""
    fill_all(way)
    breaking = way.breaking().rule("flip", always=True)
    ended = way.run(breaking=breaking)
    assert ended.code == 1
    assert "big: arrived damaged twice" in ended.out
    assert set(way.arrived()) == set(SMALL)
    assert way.arrived_bytes() == sum(SMALL.values())
    assert not way.parts()
    [failure] = ended.end["failures"]
    assert (failure["path"], failure["error"]) == ("big", "VerifyError")
