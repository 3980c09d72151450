"""What is remembered of a host, and that nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pscp import hosts
from pscp.hosts import Known
from pscp.journal import state_folder
from pscp.options import Options, parse_location

HOST = parse_location("someone@host:")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_each_direction_is_remembered() -> None:
    assert hosts.recall(HOST, Options(), True) == Known()
    hosts.remember(HOST, Options(), True, Known(8, 8, 0.1))
    hosts.remember(HOST, Options(), False, Known(3, 2, 0.2))
    assert hosts.recall(HOST, Options(), True) == Known(8, 8, 0.1)
    assert hosts.recall(HOST, Options(), False) == Known(3, 2, 0.2)


def test_another_way_to_the_host_is_another_host() -> None:
    hosts.remember(HOST, Options(), True, Known(5, 5, 0.1))
    assert hosts.recall(HOST, Options(port=2222), True) == Known()
    assert hosts.recall(parse_location("host:"), Options(), True) == Known()


def test_a_fixed_number_says_nothing_about_what_auto_would_come_to() -> None:
    hosts.remember(HOST, Options(), True, Known(8, 8, 0.1))
    hosts.remember(HOST, Options(connections=1), True, Known(1, 1, 0.1))
    assert hosts.recall(HOST, Options(), True) == Known(1, 8, 0.1)


@pytest.mark.parametrize(
    ("rtt_s", "lanes"), [(0.1, 8), (0.06, 8), (0.19, 8), (0.2, 0), (0.04, 0), (0.0001, 0)]
)
def test_lanes_are_good_for_the_same_path_only(rtt_s: float, lanes: int) -> None:
    assert Known(8, 8, 0.1).lanes_over(rtt_s) == lanes


def test_all_near_paths_are_alike() -> None:
    assert Known(3, 3, 0.0001).lanes_over(0.009) == 3


@pytest.mark.parametrize(
    "text", ["", "[", "[]", '{"push": "many"}', '{"push": [1, 2]}', '{"push": ["a", 1, 0.1]}']
)
def test_a_damaged_memory_is_no_memory(text: str) -> None:
    hosts.remember(HOST, Options(), True, Known(5, 5, 0.1))
    [file] = (state_folder() / "hosts").iterdir()
    file.write_text(text)
    assert hosts.recall(HOST, Options(), True) == Known()
