"""How many lanes a copy logs in for before its walk begins.

Not here: the logins themselves (test_connections.py), when a worker may log in
(../core/test_lane_pool.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pscp.calls.call_arguments import worth_of
from pscp.connect.known.host_memory import HostMemory, PathRecord
from pscp.connect.one_host import OneHost
from pscp.endpoint.reading.source import Top
from pscp.ground.counters import LiveCounters
from pscp.ground.locations import parse_location
from pscp.ground.values import KIB, MIB
from pscp.options.options import Options
from pscp.progress.progress import Reporter
from pscp.transfer import first_look
from pscp.transfer.logins import lanes_ahead
from pscp.transfer.terms.copy_terms import CopyRequest

HOST = parse_location("host:")
pytestmark = pytest.mark.usefixtures("own_state")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[int], Top]:
    def make(size_bytes: int) -> Top:
        path = tmp_path / str(size_bytes)
        with path.open("wb") as made:
            made.truncate(size_bytes)
        return Top(path.name, str(path), False)

    return make


def lanes(*tops: Top, is_push: bool = True, rtt_s: float = 0.1, **fields: Any) -> int:
    options, here = Options(batch=True, **fields), parse_location("/here")
    ends = ([here], HOST) if is_push else ([HOST], here)
    counters = LiveCounters(started_s=0.0, host="host")
    request = CopyRequest(OneHost(HOST), *ends, options, Reporter(), counters, False)
    found = lanes_ahead(request, tops)
    return found(rtt_s) if found is not None else 0


def test_as_many_as_the_known_bytes_are_worth(file: Callable[[int], Top]) -> None:
    assert lanes(file(4 * KIB)) == 1
    assert lanes(file(MIB * 64)) == 3  # two move 42 MB/s, and a login takes 1.2 s
    assert lanes(file(MIB * 512)) == 8
    assert lanes(file(MIB * 512), connections=3) == 3
    assert lanes(file(MIB * 512), rtt_s=0.24) > 8


def test_folders_are_looked_into_and_small_files_count_for_more(tmp_path: Path) -> None:
    top = Top("t", str(tmp_path), True)
    assert lanes(top) == 1
    (tmp_path / "below").mkdir()
    for number in range(60):
        (tmp_path / "below" / str(number)).write_bytes(b"x")
    assert lanes(top) == 1
    with (tmp_path / "below" / "large").open("wb") as made:
        made.truncate(512 * MIB)
    assert lanes(top, Top("gone", str(tmp_path / "gone"), False)) == 8


def test_what_the_sources_are_worth_is_known_before_anyone_logs_in(
    file: Callable[[int], Top], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worth(*paths: str, rtt_s: float = 0.1) -> int:
        found = worth_of([parse_location(path) for path in paths])
        return 1 if found is None else found(rtt_s)

    assert worth("host:x") == 8
    assert worth(str(tmp_path / "gone")) == 1
    assert worth(file(4 * KIB).path) == 1
    assert worth(file(64 * MIB).path) == 3
    assert worth(file(64 * MIB).path, rtt_s=0.001) == 8  # where a login takes no time
    (tmp_path / "folder").mkdir()
    for number in range(20):
        (tmp_path / "folder" / str(number)).write_bytes(b"x")
    assert worth(str(tmp_path / "folder")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(first_look, "_LOOK_ENTRIES", 10)
        assert worth(str(tmp_path / "folder")) == 8  # there is more than it looks at
    (tmp_path / "folder" / "empty").mkdir()
    monkeypatch.setattr(first_look, "_LOOK_S", -1.0)
    assert worth(str(tmp_path / "folder" / "empty")) == 8  # it takes too long


def test_of_a_pull_it_is_not_known_what_there_is() -> None:
    assert lanes(is_push=False) == 3
    assert lanes(is_push=False, connections=2) == 2


@pytest.mark.parametrize("field", ["dry_run", "check", "transfer_test"])
def test_what_moves_nothing_needs_one(file: Callable[[int], Top], field: str) -> None:
    assert lanes(file(512 * MIB), **{field: True}) == 0


def test_where_one_was_enough_for_the_last_copy_the_walk_decides(
    file: Callable[[int], Top],
) -> None:
    HostMemory(HOST, Options(batch=True)).remember(True, PathRecord(1, 1, 0.1))
    assert lanes(file(512 * MIB)) == 0
    assert lanes(is_push=False) == 3
