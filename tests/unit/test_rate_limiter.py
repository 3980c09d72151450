"""What lanes do at once: the rate that they keep to together, their windows, awaited chunks.

Not here: a copy under a limit whose connection dies (../faults/test_lanes_lost.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.ground.values import KIB, MIB
from pscp.options.options import Options
from pscp.transfer.begin_requests import source_request
from pscp.transfer.lanes import in_flight
from pscp.transfer.lanes import lane_context as limiter_module
from pscp.transfer.lanes.in_flight import LaneShare, Window
from pscp.transfer.lanes.lane_context import RateLimiter
from pscp.transfer.lanes.lane_traffic import ExpectedChunks
from pscp.transfer.pieces.plan import Chunk

# --- the rate, on a clock that only waiting moves


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
    limiter = RateLimiter(lambda: 8, Waiting(clock))
    for _ in range(10):
        limiter.wait(count, never)
    assert clock.now_s == pytest.approx(10 * count / 1000)


def test_what_was_not_used_is_not_saved_up(clock: Clock) -> None:
    limiter = RateLimiter(lambda: 8, Waiting(clock))
    clock.now_s = 100.0
    limiter.wait(500, never)
    assert clock.now_s == pytest.approx(100.5)


def test_a_lane_that_is_lost_leaves_and_takes_nobodys_time(clock: Clock) -> None:
    """C3: at -l 1 a block of 256 KiB is 2097 s, which the next connection waited for as well."""
    limiter = RateLimiter(lambda: 1, Waiting(clock))
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


def test_a_rate_that_changes_holds_from_the_next_turn_on(clock: Clock) -> None:
    """What was promised at the rate before is a tenth of a second, however much is to be sent."""
    limiter = RateLimiter(lambda: 1 if clock.now_s < 3 else 8000, Waiting(clock))
    limiter.wait(10**6, never)
    assert clock.now_s == pytest.approx(3.0 + (10**6 - 375) / 10**6, abs=0.2)


def test_a_limit_that_ends_lets_all_go_at_once(clock: Clock) -> None:
    limiter = RateLimiter(lambda: 1 if clock.now_s < 3 else None, Waiting(clock))
    limiter.wait(10**9, never)
    assert clock.now_s < 3.2


def test_a_limit_that_comes_holds_for_what_comes_then(clock: Clock) -> None:
    now: list[int | None] = [None]
    limiter = RateLimiter(lambda: now[0], Waiting(clock))
    limiter.wait(10**9, never)
    now[0] = 8
    limiter.wait(500, never)
    assert clock.now_s == pytest.approx(0.5)


def test_a_lane_that_waits_for_its_turn_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an idle lane would send the same, or have it given up."""
    clock = Clock()
    monkeypatch.setattr(in_flight, "time", clock)
    share = LaneShare(Window(MIB, 0.0))
    chunk: Any = Chunk(None, 0, MIB, takers=1)  # type: ignore[arg-type]
    chunk.job = SimpleNamespace(may_be_short=False)
    share.take(1, chunk)
    with share.on_hold():
        clock.now_s += 1000
        assert share.age_s(1) == 0 and share.held_for(1) is None
    clock.now_s += 2
    assert share.age_s(1) == 2 and share.held_for(1) is chunk


# --- the window


@given(
    st.integers(1, 100),
    st.lists(st.integers(1, 150).map(lambda n: ("take", n)) | st.just(("credit", 0)), max_size=40),
)
def test_a_window_is_never_overdrawn_but_by_one_chunk(
    capacity: int, steps: list[tuple[str, int]]
) -> None:
    window, taken = Window(capacity, 0.0), [0] * 0
    for step, count in steps:
        if step == "credit" and taken:
            window.credit(taken.pop(0))
        elif step == "take":
            assert window.has_room is (not taken or sum(taken) < capacity)
            if window.has_room:
                window.take(count)
                taken.append(count)
        assert window.in_flight_bytes == sum(taken)
        assert sum(taken[:-1]) < capacity


def test_no_more_credit_than_was_taken() -> None:
    window = Window(10, 0.0)
    window.take(4)
    with pytest.raises(RuntimeError):
        window.credit(5)
    window.credit(4)
    assert window.in_flight_bytes == 0


def paced(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, *paces: tuple[int, float]
) -> Iterator[int]:
    """What a window holds after so many chunks of 4 MiB, each of which takes so long."""
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    window = Window(16 * MIB, 0.1, most_bytes)
    for count, each_s in paces:
        for _ in range(count):
            window.take(4 * MIB)
            now_s[0] += each_s
            window.credit(4 * MIB)
            window.follow_pace(4 * MIB)
        yield window.capacity_bytes


def test_the_window_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MiB/s, and then a tenth of that; a fast lane gets more than it began with."""
    first, second = paced(monkeypatch, 16 * MIB, (50, 0.2), (10, 2.0))
    assert 6 * MIB < first < 12 * MIB and second == 2 * MIB
    [fast] = paced(monkeypatch, 96 * MIB, (100, 0.04))
    assert 36 * MIB < fast < 44 * MIB


# --- chunks that are awaited


class Job:
    """A file whose number is asked for just while the lane's other thread takes a chunk."""

    def __init__(self, expected: ExpectedChunks, number: int) -> None:
        self._expected, self._number = expected, number

    @property
    def number(self) -> int:
        if self._expected.first() is not None:
            self._expected.take_first()
        return self._number


def expecting(count: int) -> tuple[ExpectedChunks, list[Chunk]]:
    expected = ExpectedChunks()
    chunks = [Chunk(cast(Any, Job(expected, number)), 0, 1) for number in range(count)]
    for number, chunk in enumerate(chunks):
        expected.add(number, chunk)
    return expected, chunks


def test_a_chunk_may_be_taken_while_the_files_are_listed() -> None:
    """It was "deque mutated during iteration", which stopped the whole copy."""
    expected, _ = expecting(5)
    assert expected.job_numbers() == set(range(5))
    assert expected.first() is None


def test_chunks_are_awaited_in_the_order_of_their_requests() -> None:
    expected, chunks = expecting(3)
    expected.remove(1, chunks[1])
    assert expected.first() == (0, chunks[0])
    expected.take_first()
    assert expected.first() == (2, chunks[2])
