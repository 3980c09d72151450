"""What is recommended, from figures alone: no clock, no connection."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.ground.values import GIB, MIB
from pscp.measuring import advice
from pscp.measuring.advice import DirectionRate, Kernel, Point

LINUX = Kernel(
    "Linux",
    {
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.tcp_wmem": "4096 16384 4194304",
        "net.core.rmem_max": "212992",
        "net.core.wmem_max": "212992",
    },
)
FREEBSD = Kernel(
    "FreeBSD",
    {
        "kern.ipc.maxsockbuf": "2097152",
        "net.inet.tcp.sendbuf_max": "2097152",
        "net.inet.tcp.recvbuf_max": "2097152",
    },
)
OTHER = Kernel("Plan9", {})

rates = st.floats(min_value=1e3, max_value=1e10)


def point(
    push: float, pull: float = 0.0, *, cipher: str = "c", connections: int = 1,
    near: float | None = None, far: float | None = None,
) -> Point:  # fmt: skip
    """In MiB/s; the pull is as fast as the push unless it is said."""
    ways = (DirectionRate(rate * MIB, near, far) for rate in (push, pull or push))
    return Point(cipher, connections, *ways)


def over(*rates: float) -> list[Point]:
    """Over 1, 2, 4, ... connections."""
    return [point(rate, connections=1 << n) for n, rate in enumerate(rates)]


# --- rates


def test_a_rate_is_that_of_its_time_alone() -> None:
    slow = [(0.1 * n, n) for n in range(11)]
    fast = [(1 + 0.1 * n, 10 + 100 * n) for n in range(1, 11)]
    late = [(2.1, 9_000_000)]
    assert advice.rate_between([*slow, *fast, *late], 1.05, 2.05) == pytest.approx(1000)


def test_arrivals_in_bursts_are_no_faster() -> None:
    bursts = [(10 + second, 4 * second + n) for second in range(5) for n in range(4)]
    assert advice.rate_between(bursts, 10, 14) == pytest.approx(4)


def test_too_few_arrivals_for_a_line() -> None:
    assert advice.rate_between([], 1, 2) == 0
    assert advice.rate_between([(0.5, 300)], 1, 3) == 0
    assert advice.rate_between([(0.5, 300), (2.5, 700)], 1, 3) == 200


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 50))), st.floats(0.1, 10))
def test_a_rate_is_never_negative(samples: list[tuple[float, int]], ended_s: float) -> None:
    assert advice.rate_between(samples, 0, ended_s) >= 0
    assert advice.rate_between(samples, 0.05, ended_s) >= 0


@given(st.integers(1, 256))
def test_what_is_tried_begins_with_one_and_ends_with_the_most(most: int) -> None:
    counts = advice.counts_up_to(most)
    assert counts[0] == 1 and counts[-1] == most
    assert all(a < b <= 2 * a for a, b in itertools.pairwise(counts))
    assert advice.counts_up_to(16, 4) == [1, 4, 16]


def test_no_more_connections_are_tried_once_they_bring_nothing() -> None:
    assert advice.may_gain(over(100))
    assert advice.may_gain(over(100, 101))
    assert advice.may_gain(over(100, 101, 150))
    assert not advice.may_gain(over(100, 101, 99))
    assert not advice.may_gain(over(50, 100, 101, 102))
    assert advice.may_gain([*over(100, 101), point(99, 150, connections=4)])  # on pull


# --- what is best


def test_within_five_percent_the_cheapest_cipher_at_both_ends() -> None:
    points = [
        point(100, cipher="first", near=1.0, far=3.0),
        point(96, cipher="cheap", near=1.5, far=1.5),
        point(94, cipher="slow", near=0.1, far=0.1),
    ]
    assert advice.best_cipher(points).cipher == "cheap"


def test_ciphers_of_unknown_cost_stay_in_their_order() -> None:
    assert advice.best_cipher([point(100, cipher="a"), point(102, cipher="b")]).cipher == "a"


def test_enough_is_for_both_directions() -> None:
    points = [point(100, 50), point(100, 90, connections=2), point(100, 180, connections=4)]
    assert advice.enough_connections(points).connections == 4


@given(st.lists(rates, min_size=1, max_size=6))
def test_a_recommended_number_brings_enough(found: list[float]) -> None:
    points = over(*found)
    best = advice.enough_connections(points)
    enough = [p for p in points if p.push.bytes_per_s >= 0.95 * max(found) * MIB]
    assert best.connections == min(p.connections for p in enough)


# --- buffers


def test_a_kernel_that_allows_enough_is_left_alone() -> None:
    """100 ms, 1 Gbit/s, over 8 connections: each has 1.5 MiB in flight."""
    found = advice.advise(0.1, [point(15)], over(15, 30, 60, 119), LINUX, LINUX)
    assert found.connections == 8
    assert found.bdp_bytes == pytest.approx(11.9 * MIB, rel=0.001)
    assert found.settings == ()
    assert any("nothing has to be changed" in reason for reason in found.reasons)


def test_a_size_that_is_rounded_up_is_told_as_that() -> None:
    """It was: 0.04 MiB, and twice that, 1.00 MiB."""
    found = advice.advise(0.001, [point(40)], [point(40)], LINUX, LINUX)
    [said] = [reason for reason in found.reasons if "twice" in reason]
    assert "0.04 MiB for each connection" in said
    assert said.endswith("needs twice that, rounded up to whole MiB: 1")


def test_buffers_that_are_too_small_are_doubled_beyond_what_is_in_flight() -> None:
    """One connection, 40 MiB/s at 100 ms: 4 MiB in flight."""
    found = advice.advise(0.1, [point(40)], [point(40)], LINUX, FREEBSD)
    eight = str(8 * MIB)
    assert [(s.end, s.name, s.value) for s in found.settings] == [
        ("here", "net.ipv4.tcp_wmem", f"4096 16384 {eight}"),
        ("here", "net.core.wmem_max", eight),
        ("here", "net.ipv4.tcp_rmem", f"4096 131072 {eight}"),
        ("here", "net.core.rmem_max", eight),
        ("there", "kern.ipc.maxsockbuf", str(9 * MIB)),
        ("there", "net.inet.tcp.sendbuf_max", eight),
        ("there", "net.inet.tcp.recvbuf_max", eight),
    ]
    assert found.settings[0].now == "4096 16384 4194304"
    assert not any("nothing has to be changed" in reason for reason in found.reasons)
    assert any("40.0 MiB/s x 100.0 ms = 4.00 MiB" in reason for reason in found.reasons)


def test_each_direction_asks_for_its_own_buffers() -> None:
    """What is pushed waits in the sender's buffer here and the receiver's there."""
    found = advice.advise(0.1, [point(80, 1)], [point(80, 1)], LINUX, LINUX)
    assert {(s.end, s.name) for s in found.settings if "ipv4" in s.name} == {
        ("here", "net.ipv4.tcp_wmem"), ("there", "net.ipv4.tcp_rmem"),
    }  # fmt: skip


@given(st.sampled_from([LINUX, FREEBSD, OTHER]), st.integers(0, 1 << 33), st.integers(0, 1 << 33))
def test_only_what_is_lower_than_needed_is_raised(kernel: Kernel, send: int, receive: int) -> None:
    for setting in advice.settings_to_raise("here", kernel, send, receive):
        assert kernel.settings[setting.name] == setting.now
        assert int(setting.value.split()[-1]) > int(setting.now.split()[-1])
        assert setting.value.split()[:-1] == setting.now.split()[:-1]


@given(st.dictionaries(st.sampled_from(sorted({*LINUX.settings, *FREEBSD.settings})), st.text()))
def test_a_kernel_may_say_anything(said: dict[str, str]) -> None:
    for system in ("Linux", "FreeBSD", ""):
        kernel = Kernel(system, said)
        found = advice.advise(0.1, [point(900)], [point(900)], kernel, LINUX)
        assert all(s.value.replace(" ", "").isdigit() for s in found.settings)


def test_another_kernel_is_said_to_be_unknown() -> None:
    found = advice.advise(0.1, [point(40)], [point(40)], LINUX, OTHER)
    assert all(setting.end == "here" for setting in found.settings)
    assert "there: what Plan9 allows is not known" in found.reasons


# --- windows


SMALL = Kernel("Linux", {**LINUX.settings, "net.ipv4.tcp_wmem": "4096 16384 1048576"})


@pytest.mark.parametrize(
    ("rtt_s", "rates", "kernel", "said"),
    [
        (0.1, (19.5, 39), LINUX, "the channel's window holds it back"),
        (0.1, (9.8, 19), SMALL, "the sockets' buffers hold it back"),
        (0.001, (300, 400), OTHER, "neither holds it back"),
    ],
)
def test_what_holds_one_connection_back(
    rtt_s: float, rates: tuple[float, ...], kernel: Kernel, said: str
) -> None:
    found = advice.advise(rtt_s, [point(rates[0])], over(*rates), kernel, kernel)
    assert any(said in reason for reason in found.reasons)


def test_the_windows_are_those_of_the_faster_direction() -> None:
    """A receiver on Linux gives half of its buffer to data."""
    one = point(10, 20)
    windows = advice.windows_of(one, 0.1, LINUX, FREEBSD)
    assert windows.bytes_per_s == 20 * MIB
    assert windows.buffer_bytes == 2 * MIB  # FreeBSD's, which sends
    assert advice.windows_of(one, 0.1, LINUX, OTHER).buffer_bytes == 3 * MIB
    assert advice.windows_of(one, 0.1, OTHER, OTHER).buffer_bytes is None


def test_cpu_seconds_are_told_for_a_gib() -> None:
    assert advice.per_gib(1.5, GIB // 2) == 3
    assert advice.per_gib(None, GIB) is None
    assert advice.per_gib(1.5, 0) is None
