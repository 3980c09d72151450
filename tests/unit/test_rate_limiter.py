"""The rate that lanes keep to together, on a clock that only waiting moves.

Not here: a copy under a limit whose connection dies (faults/test_limited.py).
"""

from __future__ import annotations

import threading

import pytest

from pscp.options import Options
from pscp.transfer import lane_context as limiter_module
from pscp.transfer.beginnings import source_request
from pscp.transfer.lane_context import RateLimiter
from pscp.values import KIB, MIB


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Waiting(threading.Condition):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None and timeout > 0
        self._clock.now_s += timeout
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limiter_module, "time", clock)
    return clock


def never() -> bool:
    return False


@pytest.mark.parametrize("count", [5, 100, 500, 333])
def test_it_gives_turns_at_its_rate(clock: Clock, count: int) -> None:
    limiter = RateLimiter(1000.0, Waiting(clock))
    for _ in range(10):
        limiter.wait(count, never)
    assert clock.now_s == pytest.approx(10 * count / 1000)


def test_without_a_rate_nobody_waits(clock: Clock) -> None:
    RateLimiter(None, Waiting(clock)).wait(1 << 40, never)
    assert clock.now_s == 0


def test_what_was_not_used_is_not_saved_up(clock: Clock) -> None:
    limiter = RateLimiter(1000.0, Waiting(clock))
    clock.now_s = 100.0
    limiter.wait(500, never)
    assert clock.now_s == pytest.approx(100.5)


def test_a_lane_that_is_lost_leaves_and_takes_nobodys_time(clock: Clock) -> None:
    """C3: at -l 1 a block of 256 KiB is 2097 s, which the next connection waited for as well."""
    limiter = RateLimiter(125.0, Waiting(clock))
    limiter.wait(256 * 1024, lambda: clock.now_s >= 3.0)
    assert clock.now_s < 3.2
    limiter.wait(25, never)
    assert clock.now_s < 3.6


@pytest.mark.parametrize(
    ("options", "block_bytes"),
    [
        (Options(), MIB),
        (Options(limit_kbit_s=1_000_000), 256 * KIB),
        (Options(limit_kbit_s=1, block_bytes=4 * KIB), 4 * KIB),
    ],
)
def test_under_a_limit_blocks_are_small(options: Options, block_bytes: int) -> None:
    assert source_request([], options, "sha256").block_bytes == block_bytes
