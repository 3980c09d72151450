"""What the processes of pscp-serve share: counts and penalties, and who is let in by them.

Not here: connections (test_serve_logins.py).
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from pscp.serve.server import gate, shared
from pscp.serve.server.shared import Shared
from pscp.serve.settings import Current, Settings


def a_gate(numbers: Shared, **limits: int) -> gate.Gate:
    settings = Settings({}, (), **limits)  # type: ignore[arg-type]
    return gate.Gate(Current(settings), numbers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still but where the test changes it."""
    now = [1000.0]
    for module in (shared, gate):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_what_one_process_counts_the_others_see() -> None:
    numbers = Shared(2)
    child = os.fork()
    if not child:
        numbers.become(1)
        numbers.add("a", 3)
        numbers.penalize("a", 100, 600)
        os._exit(0)
    os.waitpid(child, 0)
    numbers.add("a", 2)
    assert numbers.count("a") == 5 and numbers.count("b") == 0
    assert 90 < numbers.penalty_s("a") <= 100
    numbers.wipe(1)  # it has died
    assert numbers.count("a") == 2 and numbers.penalty_s("a") == 0


def test_many_keys(clock: list[float]) -> None:
    """More than there is room for: what counts is kept, and of penalties the longest."""
    numbers = Shared(1)
    for number in range(2000):
        numbers.add(f"held {number}", 1)
    for number in range(30_000):
        numbers.penalize(f"guess {number}", 5, 600)
    assert all(numbers.count(f"held {number}") == 1 for number in range(2000))
    for number in range(2000):
        numbers.add(f"held {number}", -1)
    assert not any(numbers.count(f"held {number}") for number in range(2000))


def test_penalties_add_up_and_pass(clock: list[float]) -> None:
    its = a_gate(Shared(1))
    for _ in range(3):
        assert its.why_refused("192.0.2.1") == ""
        its.penalize("192.0.2.1", gate.FAILED_S)
    assert its.why_refused("192.0.2.1") == ""  # 15 s
    its.penalize("192.0.2.1", gate.NOTHING_S)
    assert "failed logins" in its.why_refused("192.0.2.1")
    assert its.why_refused("192.0.2.2") == ""
    clock[0] += 1.5
    assert its.why_refused("192.0.2.1") == ""
    for _ in range(1000):
        its.penalize("192.0.2.1", gate.FAILED_S)
    clock[0] += 584
    assert its.why_refused("192.0.2.1") != ""
    clock[0] += 2
    assert its.why_refused("192.0.2.1") == ""


def test_a_network_of_ipv6_is_one_source(clock: list[float]) -> None:
    its = a_gate(Shared(1))
    for number in range(4):
        its.penalize(f"2001:db8::{number}", gate.FAILED_S)
    assert its.why_refused("2001:db8::ffff") != ""
    assert its.why_refused("2001:db8:0:1::1") == ""
    assert gate.source_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert gate.source_of("fe80::1%eth0") == gate.source_of("fe80::2")


def test_a_user_at_whom_somebody_guesses_waits_and_is_never_shut_out(clock: list[float]) -> None:
    its = a_gate(Shared(1))
    for _ in range(3):
        its.penalize_user("bob")
        assert its.pause_s("bob") == 0
    for _ in range(1000):
        its.penalize_user("bob")
    assert its.pause_s("bob") == 10 and its.pause_s("alice") == 0
    clock[0] += 60
    assert its.pause_s("bob") == 0


def test_a_refusal_is_told_once_in_ten_seconds(clock: list[float]) -> None:
    its = a_gate(Shared(1))
    assert [its.is_told("a"), its.is_told("a"), its.is_told("b")] == [True, False, True]
    clock[0] += 10
    assert its.is_told("a")


def test_limits(clock: list[float]) -> None:
    numbers = Shared(2)
    its = a_gate(numbers, connections=3, per_address=2, per_user=1)
    for address in ("a", "a", "b"):
        assert its.why_refused(address) == ""
        its.enter(address)
    assert its.why_refused("c") == "too many connections"
    its.leave("b")
    assert its.why_refused("a") == "too many connections from this address"
    assert its.why_refused("c") == ""
    assert its.enter_user("alice") and not its.enter_user("alice")


@pytest.mark.parametrize(
    ("address", "network", "is_in"),
    [
        ("192.0.2.7", "192.0.2.0/24", True),
        ("192.0.3.7", "192.0.2.0/24", False),
        ("::ffff:192.0.2.7", "192.0.2.0/24", True),
        ("2001:db8::1", "192.0.2.0/24", False),
        ("2001:db8::1", "2001:db8::/32", True),
        ("fe80::1%eth0", "fe80::/10", True),
        ("no address", "0.0.0.0/0", False),
    ],
)
def test_networks(address: str, network: str, is_in: bool) -> None:
    assert gate.is_within(address, (network,)) is is_in
