"""Random files over random lanes whose connections fail at random frames, in both directions.

Whatever the schedule, the copy ends; a file has its bytes under its final name, or it is named as
failed, or the copy says why it stopped and, run again, is complete. Where connections only end,
stand still, crawl or are late, nothing fails at all. What comes when all is over changes nothing.

PSCP_CORE_EXAMPLES is the number of schedules, for a soak: then they are others in every run, else
the same 120. A failure shows its schedule, which is data: @example(Schedule(...)) repeats it.

Not here: chosen failures at chosen steps (test_lane.py, test_file_job.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import pscp
from core.link import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    CUT,
    FLIP,
    FROM,
    HOLD,
    KILL,
    LATE,
    NONSENSE,
    NONSENSES,
    QUESTIONS,
    STALL,
    START,
    TO,
    TWICE,
    Fault,
)
from core.trees import Trees
from pscp.endpoint.frames import wire
from pscp.endpoint.reading.files import PACK_FILE_BYTES
from pscp.ground.errors import PscpError
from pscp.transfer.lanes import in_flight
from pscp.transfer.pieces.plan import PACK_BYTES

EXAMPLES = os.environ.get("PSCP_CORE_EXAMPLES")
LOSSES = (KILL, KILL, CUT, CUT, LATE, LATE, STALL)  # what a network may do; a stall takes longest

BORDERS = (
    0, 1, BLOCK_BYTES, PACK_FILE_BYTES, PACK_FILE_BYTES + CHUNK_BYTES, PACK_BYTES,
    PACK_FILE_BYTES + 2 * CHUNK_BYTES, 2 * PACK_FILE_BYTES + CHUNK_BYTES,
)  # fmt: skip


class Schedule(NamedTuple):
    """A copy, and what happens to its connections."""

    is_push: bool
    sizes: tuple[int, ...]  # of the files, in bytes
    lanes: int
    faults: tuple[Fault, ...]
    is_there: bool = True  # the destination is a folder already, so each entry is looked for there
    is_strong: bool = False
    has_old: bool = False  # and has other versions of the files there
    small: int = 0  # further files, of packs that hold a dozen each


SIZES = st.one_of(
    st.builds(lambda size, more: max(0, size + more), st.sampled_from(BORDERS), st.integers(-1, 1)),
    st.integers(0, 5 * CHUNK_BYTES),
)


@st.composite
def faults(draw: st.DrawFn, *kinds: str) -> Fault:
    connection = draw(st.integers(0, 5))
    do = draw(st.sampled_from(kinds))
    if do in (KILL, LATE) and draw(st.integers(0, 7)) == 0:
        return Fault(connection, START, draw(st.integers(0, 1)), do)
    way = FROM if do == NONSENSE else draw(st.sampled_from((TO, FROM)))
    nth = draw(st.one_of(st.integers(0, 12), st.integers(0, 60)))
    at = 0
    if do in (FLIP, NONSENSE):
        at = draw(st.integers(0, NONSENSES - 1 if do == NONSENSE else 8 * 256))
    return Fault(connection, way, nth + (0 if connection else QUESTIONS[way]), do, at)


def schedules(*kinds: str) -> st.SearchStrategy[Schedule]:
    return st.builds(
        Schedule, is_push=st.booleans(), sizes=st.lists(SIZES, max_size=6).map(tuple),
        lanes=st.integers(1, 4), faults=st.lists(faults(*kinds), max_size=6).map(tuple),
        is_there=st.booleans(), is_strong=st.booleans(), has_old=st.booleans(), small=st.just(0),
    )  # fmt: skip


@st.composite
def crawling(draw: st.DrawFn) -> Schedule:
    """Draw a schedule with packs, at one of which a lane stands still that goes on to tick."""
    schedule = draw(schedules(*LOSSES))
    lanes, small = max(2, schedule.lanes), draw(st.integers(30, 160))
    way = TO if schedule.is_push else FROM
    losses = draw(st.lists(st.sampled_from(LOSSES), max_size=2))
    at_packs = [
        Fault(draw(st.integers(0, lanes)), way, draw(st.integers(0, 3)), do, 0, wire.PACK)
        for do in (HOLD, *losses)
    ]
    return schedule._replace(
        lanes=lanes, small=small, faults=(*at_packs, *schedule.faults[: 3 - len(losses)])
    )


def searched(examples: int) -> settings:
    return settings(
        max_examples=int(EXAMPLES or examples), deadline=None, derandomize=EXAMPLES is None,
        database=None, report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.explicit, Phase.generate],  # one that hangs would be tried for very long
    )  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedules")


@searched(60)
@given(schedule=schedules(*LOSSES))
def test_lost_connections_fail_no_file(folders: Path, schedule: Schedule) -> None:
    result = played(folders, schedule)
    assert result is not None and result.ok, (result, schedule)


@searched(30)
@given(schedule=crawling())
def test_a_lane_that_crawls_is_given_up(folders: Path, schedule: Schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "_STALLED_S", 0.1)
        patch.setattr(in_flight, "_CRAWLING", 1)
        patch.setattr(in_flight, "_UNKNOWN_S", 0.2)
        result = played(folders, schedule)
    assert result is not None and result.ok, (result, schedule)


@searched(20)
@given(schedule=schedules(FLIP, FLIP, TWICE, *LOSSES))
def test_damage_is_found(folders: Path, schedule: Schedule) -> None:
    played(folders, schedule)


@searched(40)
@given(schedule=schedules(NONSENSE, NONSENSE, *LOSSES))
def test_nonsense_is_no_bug(folders: Path, schedule: Schedule) -> None:
    played(folders, schedule)


def played(folders: Path, schedule: Schedule) -> pscp.Result | None:
    """Copy by the schedule, and check what became of the files. None: the copy stopped."""
    trees = made(folders, schedule)
    try:
        result = copied(trees, schedule)
        if result is None or not result.ok:
            assert_whole_or_old(trees)
            again = trees.copy(schedule.is_push, strong=schedule.is_strong)
            assert again.ok, again.failures
        trees.assert_copied()
        return result
    except BaseException as error:
        error.add_note(f"in {schedule}")
        raise
    finally:
        trees.remove()


def made(folders: Path, schedule: Schedule) -> Trees:
    folder = folders / str(len(list(folders.iterdir())))
    folder.mkdir()
    trees = Trees(folder)
    for number, size in enumerate(schedule.sizes):
        trees.file(f"{number}" if number % 2 else f"folder/{number}", size)
    for number in range(schedule.small):
        trees.file(f"small/{number}", 20_000)
    if not schedule.is_there:
        trees.to.rmdir()
    elif schedule.has_old:
        for name, path in trees.files().items():
            (trees.to / name).parent.mkdir(exist_ok=True)
            (trees.to / name).write_bytes(old_version(path))
    return trees


def old_version(path: Path) -> bytes:
    """What was there before the file: of another size, its first third as in the file."""
    new = path.read_bytes()
    return new[: len(new) // 3] + b"old" + new[len(new) // 3 + 4 :] + b"old"


def assert_whole_or_old(trees: Trees) -> None:
    """What has a file's name is what was copied, or what was there before."""
    for name, path in trees.arrived().items():
        source = trees.source / name
        assert path.read_bytes() in (source.read_bytes(), old_version(source)), name


def copied(trees: Trees, schedule: Schedule) -> pscp.Result | None:
    try:
        result = trees.copy(
            schedule.is_push, *schedule.faults,
            connections=schedule.lanes, strong=schedule.is_strong,
        )  # fmt: skip
    except PscpError:
        return None
    if result.ok:
        assert_counted(trees, result)
    elif not (schedule.is_there and schedule.has_old):
        assert_named(trees, result)
    return result


def assert_counted(trees: Trees, result: pscp.Result) -> None:
    """Each byte is counted once, and as sent once more where it arrived damaged."""
    assert result.files == len(trees.files())
    assert result.bytes == trees.source_bytes
    assert result.bytes_sent + result.bytes_resumed >= result.bytes
    assert result.chunks_resent or result.bytes_sent + result.bytes_resumed == result.bytes


def assert_named(trees: Trees, result: pscp.Result) -> None:
    """What is missing is named as failed, and nothing else is."""
    missing = trees.files().keys() - trees.arrived().keys()
    assert missing == {each.path.removeprefix("to/") for each in result.failures}
