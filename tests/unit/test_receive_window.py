"""The receive window: what it becomes over simulated paths.

Not here: who grants it (../conformance, ../e2e/test_transports.py).
"""

from __future__ import annotations

import socket

import pytest

from pscp.ground.values import MIB
from pscp.transports.libraries.asyncssh_pump import FIRST_BYTES, Window, most_bytes, round_trip_s

PACKET_BYTES = 32 * 1024


def carried(window: Window, rtt_s: float, rate_bytes_s: float, seconds: float) -> None:
    """What a path of this rate carries, with no more than a window of it each round trip."""
    now_s = 0.0
    while now_s < seconds:
        rate = min(rate_bytes_s, window.bytes / rtt_s)
        now_s += PACKET_BYTES / rate
        window.came(PACKET_BYTES, now_s)


@pytest.mark.parametrize("rtt_s", [0.02, 0.1, 0.24])
@pytest.mark.parametrize("rate_mbit", [100, 1000])
def test_it_covers_the_path_and_not_much_more(rtt_s: float, rate_mbit: int) -> None:
    window, rate = Window(rtt_s, 256 * MIB), rate_mbit * 125_000
    carried(window, rtt_s, rate, 10.0)
    assert window.bytes >= rate * rtt_s
    assert window.bytes <= max(FIRST_BYTES, rtt_s * 125_000_000, rate * rtt_s * 1.5)


def test_it_stays_as_it_is_on_a_short_path() -> None:
    window = Window(0.0001, 256 * MIB)
    carried(window, 0.0001, 1000 * MIB, 1.0)
    assert window.bytes == FIRST_BYTES


def test_memory_is_the_limit() -> None:
    window = Window(0.5, 16 * MIB)
    carried(window, 0.5, 1000 * MIB, 20.0)
    assert 12 * MIB <= window.bytes <= 16 * MIB
    assert FIRST_BYTES <= most_bytes() <= 64 * MIB


def test_one_crowded_round_trip_is_no_reason() -> None:
    """After a stall all comes at once."""
    window = Window(0.1, 256 * MIB)
    before = window.bytes
    for round_trip in range(20):
        count = before if round_trip % 2 else 0
        window.came(count, (round_trip + 1) * 0.1001)
    assert window.bytes == before


def test_a_consumer_that_stands_still_needs_no_larger_one() -> None:
    window = Window(0.1, 256 * MIB)
    before = window.bytes
    for round_trip in range(20):
        window.came(before, (round_trip + 1) * 0.1001)
        window.stalled()
    assert window.bytes == before


def test_the_kernel_tells_the_round_trip() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as made,
    ):
        found = round_trip_s(made)
        assert found is None or 0 < found < 1
    with socket.socket() as unconnected:
        assert round_trip_s(unconnected) is None
    assert round_trip_s(None) is None
