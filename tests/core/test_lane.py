"""A lane whose connection fails at each of its steps, push and pull (pscp.transfer.lanes.lane).

The frames of an undisturbed copy over one lane are counted; then one copy after the other fails at
the first of them, at the second, and so on.

Not here: several failures at once, and frames that are nonsense (test_schedules.py), bits that
change (test_damage.py), what becomes of a file (test_file_job.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.link import (
    CALL,
    CUT,
    FROM,
    HOLD,
    KILL,
    LATE,
    PATIENCE_S,
    QUESTIONS,
    STALL,
    START,
    TO,
    TWICE,
    Fault,
    asking,
    at_steps,
)
from core.trees import Trees
from pscp.connect import bootstrap
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.ground.errors import ConnectionLost
from pscp.transfer import logins
from pscp.transfer.lanes import in_flight
from pscp.transfer.lanes.lane import Lane

LONG_BYTES = 2 * 1024 * 1024  # far more than the sockets of a link hold


def each_frame(trees: Trees, is_push: bool, way: str) -> Iterator[int]:
    """Yield the number of each frame of the lane of an undisturbed copy, with no file copied."""
    trees.copied(is_push, connections=1)
    for nth in range(QUESTIONS[way], trees.bench.links[0].carried[way]):
        trees.clear()
        yield nth


def test_it_is_lost_before_it_takes_part(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a near end on another host does it, whose connection broke: that was a traceback."""
    trees.usual()
    join, lost = Lane._join, list[Lane]()

    def lose_and_join(self: Lane) -> bool:
        if not lost:
            lost.append(self)
            self._break(ConnectionLost("the source's host has gone"))
        return join(self)

    monkeypatch.setattr(Lane, "_join", lose_and_join)
    result = trees.copied(is_push, connections=1)
    assert result.connections_lost == 1


@pytest.mark.parametrize(
    ("way", "do"), [(TO, KILL), (TO, CUT), (TO, LATE), (FROM, KILL), (FROM, LATE)]
)
def test_it_is_lost_or_late_at_each_frame(trees: Trees, is_push: bool, way: str, do: str) -> None:
    """Nothing fails, no byte is counted twice, and it connects again at most once."""
    trees.usual()
    for nth in each_frame(trees, is_push, way):
        result = trees.copied(is_push, Fault(0, way, nth, do), connections=1)
        assert (result.files, result.bytes_sent) == (4, trees.source_bytes), nth
        assert result.connections_lost <= (do != LATE), nth


# Silence is noticed at any step; what is done again is that of a lane which is lost there.
STEPS = {
    "push": [
        (TO, wire.ASK, asking(requests.BeginSink)), (TO, wire.DATA, ""),
        (TO, wire.ASK, asking(requests.Finish)), (FROM, wire.REPLY, "null"),
    ],
    "pull": [
        (TO, wire.ASK, asking(requests.Walk)), (TO, wire.GET, ""), (FROM, wire.DATA, ""),
        (FROM, wire.PACK, ""),
    ],
}  # fmt: skip


@at_steps(STEPS)
def test_its_path_stands_still(trees: Trees, is_push: bool, step: tuple[str, int, str]) -> None:
    """It is given up after a while of silence; what stood still comes when all is over."""
    trees.usual()
    way, type_, contains = step
    fault = Fault(0, way, 0, STALL, 0, type_, contains)
    result = trees.copied(is_push, fault, connections=1)
    assert result.connections_lost == 1


@pytest.mark.parametrize("way", [TO, FROM])
def test_a_frame_comes_twice(trees: Trees, is_push: bool, way: str) -> None:
    """Another lane does the work, or the chunk is sent once more."""
    trees.usual()
    for nth in each_frame(trees, is_push, way):
        result = trees.copied(is_push, Fault(0, way, nth, TWICE), connections=2)
        assert result.chunks_resent <= 1


def test_an_idle_lane_takes_over_what_stands_still(trees: Trees, is_push: bool) -> None:
    """A block does not arrive; its lane is full, so nothing else is asked of it, and comes late."""
    trees.file("large", LONG_BYTES)
    way = TO if is_push else FROM
    result = trees.copied(is_push, Fault(0, way, 0, HOLD, 0, wire.DATA), connections=2)
    assert result.bytes_sent == LONG_BYTES


def fill_packs(
    trees: Trees,
    monkeypatch: pytest.MonkeyPatch,
    stalled_s: float,
    crawling: int,
    files: int = 160,
) -> None:
    """Make small files of ten packs and some, more than the sockets of a link hold; and have a lane
    be given up for one so soon.
    """
    monkeypatch.setattr(bootstrap, "SILENCE_S", 10 * PATIENCE_S)  # it is not what gives it up
    monkeypatch.setattr(in_flight, "_UNKNOWN_S", 2 * stalled_s)
    monkeypatch.setattr(in_flight, "_STALLED_S", stalled_s)
    monkeypatch.setattr(in_flight, "_CRAWLING", crawling)
    for number in range(files):
        trees.file(f"d/{number}", 20_000)


def test_a_lane_that_crawls_with_packs_is_given_up(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other lane may do them meanwhile, and it ticks, so that it is not lost by itself."""
    fill_packs(trees, monkeypatch, 0.1, 1)
    held = Fault(0, TO if is_push else FROM, 1, HOLD, 0, wire.PACK)
    other = Fault(1, START, 0, CALL)  # begins when that has two of the packs
    faults = {"call": lambda: trees.bench.until_held(), "connections": 2}
    assert trees.copied(is_push, held, other, **faults).connections_lost


@pytest.mark.parametrize("files", [12, 26, 0], ids=["one-pack", "two-packs", "chunks"])
def test_who_has_no_lane_connects_where_another_crawls(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """It waited for work that no lane had taken, and there was none: the copy crawled as well.

    A lane is given up for packs; chunks are taken over.
    """
    fill_packs(trees, monkeypatch, 0.1, 1, files)
    if not files:
        trees.file("large", LONG_BYTES)
    # The one that crawls may be given up before that one has come.
    monkeypatch.setattr(logins, "_ATTEMPTS_ALONE", 40)
    way = TO if is_push else FROM
    refused = [Fault(number, START, 0, KILL) for number in range(1, 20)]
    held = Fault(0, way, 0, HOLD, 0, wire.PACK if files else wire.DATA)
    lost = trees.copied(is_push, held, *refused, connections=2).connections_lost
    assert lost > 0 if files else lost == 0


def test_a_pack_is_less_and_less_a_reason_to_give_up_a_lane(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be slow, as on a tape: here all seem so at once."""
    fill_packs(trees, monkeypatch, 0.0001, 0)
    lost = trees.copied(is_push, connections=3).connections_lost
    assert lost <= 13 * 5  # each of the packs, until 0.4 s are not too long
