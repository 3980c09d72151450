"""What a lane may have in flight: no more than the window but for one piece, and by its pace."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.transfer.lanes.in_flight import Window


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


def test_the_window_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    window = Window(16 << 20, 0.1)
    for _ in range(50):  # 4 MiB each 0.2 s: 20 MiB/s
        window.take(4 << 20)
        now_s[0] += 0.2
        window.credit(4 << 20)
        window.follow_pace(4 << 20)
    assert 6 << 20 < window.capacity_bytes < 12 << 20
    for _ in range(10):  # a tenth of that
        window.take(4 << 20)
        now_s[0] += 2.0
        window.credit(4 << 20)
        window.follow_pace(4 << 20)
    assert window.capacity_bytes == 2 << 20


def test_a_fast_lane_gets_more_than_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    window = Window(16 << 20, 0.1, 96 << 20)
    for _ in range(100):  # 4 MiB each 40 ms: 100 MiB/s
        window.take(4 << 20)
        now_s[0] += 0.04
        window.credit(4 << 20)
        window.follow_pace(4 << 20)
    assert 36 << 20 < window.capacity_bytes < 44 << 20
