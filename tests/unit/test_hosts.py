"""What is remembered of a host, and that nothing depends on it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pscp import hosts
from pscp.crew import auto_lanes
from pscp.journal import state_folder
from pscp.options import Options, parse_location

HOST = parse_location("someone@host:")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_each_direction_is_remembered() -> None:
    assert hosts.recall(HOST, Options(), True) == 0
    hosts.remember(HOST, Options(), True, 8)
    hosts.remember(HOST, Options(), False, 3)
    assert hosts.recall(HOST, Options(), True) == 8
    assert hosts.recall(HOST, Options(), False) == 3


def test_another_way_to_the_host_is_another_host() -> None:
    hosts.remember(HOST, Options(), True, 5)
    assert hosts.recall(HOST, Options(port=2222), True) == 0
    assert hosts.recall(parse_location("host:"), Options(), True) == 0


def test_advice_is_kept_beside_what_copies_leave() -> None:
    assert hosts.advice(HOST, Options()) == (0, "")
    hosts.remember(HOST, Options(), True, 5)
    assert hosts.save_advice(HOST, Options(), 8, "aes128-ctr")
    hosts.remember(HOST, Options(), False, 3)
    assert hosts.advice(HOST, Options()) == (8, "aes128-ctr")
    assert [hosts.recall(HOST, Options(), is_push) for is_push in (True, False)] == [5, 3]


def test_a_host_that_was_only_measured_needs_no_prompt_either() -> None:
    hosts.save_advice(HOST, Options(), 8, "aes128-ctr")
    assert hosts.recall(HOST, Options(), True) == 8


@pytest.mark.parametrize(
    "text",
    ["[", "7", '{"connections": "8", "cipher": 7}', '{"connections": 1000, "cipher": "-oX=y z"}'],
)
def test_damaged_advice_is_no_advice(text: str) -> None:
    hosts.save_advice(HOST, Options(), 8, "aes128-ctr")
    [file] = (state_folder() / "hosts").iterdir()
    file.write_text(text)
    assert hosts.advice(HOST, Options()) == (0, "")


@pytest.mark.parametrize("text", ["", "[", "[]", '{"push": "many"}', '{"pull": 1}'])
def test_a_damaged_memory_is_no_memory(text: str) -> None:
    hosts.remember(HOST, Options(), True, 5)
    [file] = (state_folder() / "hosts").iterdir()
    file.write_text(text)
    assert hosts.recall(HOST, Options(), True) == 0


@pytest.mark.parametrize(
    ("rtt_s", "cpus", "lanes"),
    [
        (0.0001, 1, 2),
        (0.0001, 2, 2),
        (0.0001, 64, 8),
        (0.01, 2, 2),
        (0.1, 2, 8),
        (0.24, 2, 16),
        (0.24, 64, 16),
        (math.inf, 2, 16),
    ],
)
def test_lanes_by_path_and_processors(rtt_s: float, cpus: int, lanes: int) -> None:
    assert auto_lanes(rtt_s, cpus) == lanes
