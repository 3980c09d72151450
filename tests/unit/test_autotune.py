"""The autotuner over simulated paths: no clock, no connection; what it comes to, and how soon.

Not here: lanes that are really opened and parked (../e2e/test_copy_lanes.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.transfer.lanes.autotune import (
    CHANNEL_BYTES,
    LANES_MOST,
    CopyState,
    Path,
    Tuner,
    is_far_and_unattended,
    is_worth_a_login,
    start,
)

MIB = 1 << 20
GIB = 1 << 30
CHUNK_BYTES = 4 * MIB
STEP_S = 0.05  # of the simulation
LOOK_S = 0.25
LOGINS_AT_ONCE = 6


@dataclass(frozen=True)
class Model:
    """A path: what a lane can do alone, and what bounds all of them together."""

    rtt_s: float
    login_s: float
    lane: float  # bytes/s that one lane could move if its window let it
    total: float  # bytes/s of all lanes, however many
    cpus: int = 2
    harm: float = 0.0  # of the rate that is lost as lanes are added that are of no use
    is_busy: bool = False  # the total is bounded by the processors here
    ours: float = 0.5  # of what the processors here do
    bbr: float = 0.0  # what a lane can do with BBR; 0: there is none

    def rate(self, lanes: int) -> float:
        each = min(self.lane, CHANNEL_BYTES / self.rtt_s)
        useful = self.total / each
        lost = self.harm * max(0.0, 1 - useful / lanes)
        return min(lanes * each, self.total) * (1 - lost)

    def idle(self, lanes: int) -> float:
        return max(0.0, 1 - self.rate(lanes) / self.total) if self.is_busy else 0.7


@dataclass
class Ran:
    taken_s: float
    lanes: int
    said: list[str]
    lesson: tuple[int, str, float]  # what the next copy begins with


def ran(model: Model, size: int, fixed: int | None = None, enough: float = 0.0) -> Ran:
    """A copy of `size` bytes, with as many lanes as the tuner wants, or always so many."""
    path = Path(model.rtt_s, model.login_s, model.cpus, model.bbr > 0)
    count = fixed or start(path).lanes
    tuner = Tuner(path, count, "", enough)
    up_at_s = [model.login_s]
    now_s, looked_s, done, idle_s, used_s = model.login_s, model.login_s, 0.0, 0.0, 0.0
    with_bbr_from = 0
    said = []
    while done < size:
        while len(up_at_s) < count:  # more lanes: their logins take their time, some at once
            turn_s = up_at_s[-LOGINS_AT_ONCE] if len(up_at_s) > LOGINS_AT_ONCE else now_s
            up_at_s.append(max(turn_s, now_s) + model.login_s)
        up = sum(each <= now_s for each in up_at_s)
        at_work = min(up, count)
        if tuner.congestion and not with_bbr_from:
            with_bbr_from = len(up_at_s)
        bbr = max(0, at_work - with_bbr_from) if with_bbr_from else 0
        rate = min(model.rate(at_work - bbr) + bbr * model.bbr, model.total)
        done += rate * STEP_S
        idle_s += model.idle(at_work) * STEP_S
        used_s += model.ours * (1 - model.idle(at_work)) * STEP_S
        now_s += STEP_S
        if fixed is None and now_s - looked_s >= LOOK_S:
            looked_s = now_s
            pieces = int(done / CHUNK_BYTES)
            landed = pieces * CHUNK_BYTES
            sentence = tuner.look(
                CopyState(now_s, up, landed, pieces, size - landed, idle_s, used_s)
            )
            said += [sentence] if sentence else []
            count = tuner.count
    lesson = tuner.found[0], tuner.best_congestion, tuner.enough_bytes_s
    return Ran(now_s, count, said, lesson)


def best_fixed(model: Model, size: int) -> float:
    return min(ran(model, size, count).taken_s for count in (1, 2, 4, 8, 16))


NEAR = Model(rtt_s=0.0001, login_s=0.25, lane=350 * MIB, total=500 * MIB, harm=0.3, is_busy=True)
SLOW_CORES = Model(rtt_s=0.0001, login_s=2.5, lane=38 * MIB, total=400 * MIB, harm=0.5)
MS_10 = Model(rtt_s=0.01, login_s=0.3, lane=300 * MIB, total=112 * MIB, harm=0.1)
MS_100 = Model(rtt_s=0.1, login_s=1.4, lane=300 * MIB, total=112 * MIB, harm=0.1)
MS_240 = Model(rtt_s=0.24, login_s=3.2, lane=300 * MIB, total=112 * MIB, harm=0.1)
LOSSY = Model(rtt_s=0.05, login_s=0.8, lane=4 * MIB, total=112 * MIB)
FAST = Model(rtt_s=0.02, login_s=0.4, lane=300 * MIB, total=1100 * MIB, cpus=16, harm=0.1)
MANY_CORES = Model(rtt_s=0.0002, login_s=0.4, lane=60 * MIB, total=1100 * MIB, cpus=8)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (NEAR, GIB), (NEAR, 8 * GIB), (SLOW_CORES, 4 * GIB), (SLOW_CORES, 16 * GIB),
        (MS_10, GIB), (MS_10, 4 * GIB), (MS_100, GIB), (MS_100, 4 * GIB), (MS_240, GIB),
        (MS_240, 4 * GIB), (LOSSY, 4 * GIB), (FAST, 16 * GIB), (MANY_CORES, 64 * GIB),
    ],
)  # fmt: skip
def test_it_is_never_much_worse_than_the_best_fixed_number(model: Model, size: int) -> None:
    assert best_fixed(model, size) >= 0.9 * ran(model, size).taken_s


SLOW = Model(rtt_s=0.05, login_s=0.8, lane=4 * MIB, total=6 * MIB, bbr=0.8 * MIB)
OTHERS = replace(NEAR, ours=0.1, total=1500 * MIB)  # keep the processors busy


@pytest.mark.parametrize(
    ("model", "size", "lanes", "first", "last"),
    [
        (LOSSY, 8 * GIB, range(17, LANES_MOST + 1), "trying 16", ""),
        (LOSSY, 128 * MIB, [8], "ends soon", "ends soon"),
        (MS_100, 8 * GIB, [8], "trying 16", "back to 8"),
        (FAST, 32 * GIB, range(9, 17), "trying 16", "enough"),
        (NEAR, 8 * GIB, [2], "are busy with it", "are busy with it"),
        (OTHERS, 32 * GIB, range(3, LANES_MOST + 1), "trying", ""),
        (SLOW, 4 * GIB, [8], "with bbr", "back to 8"),
    ],
)
def test_it_goes_on_while_more_comes_of_it_and_back_where_nothing_did(
    model: Model, size: int, lanes: Sequence[int], first: str, last: str
) -> None:
    found = ran(model, size)
    assert found.lanes in lanes and found.lesson[1] == ""
    assert first in found.said[0] and found.said[-1].endswith(last)
    assert (len(found.said) == 1) is (first == last)


def test_bbr_is_not_tried_where_lanes_fill_their_windows() -> None:
    found = ran(replace(MS_100, bbr=20 * MIB), 8 * GIB)
    assert not [said for said in found.said if "bbr" in said]


def test_bbr_is_tried_where_lanes_carry_little_and_kept_where_more_comes_of_it() -> None:
    lossy = replace(LOSSY, lane=1.25 * MIB, bbr=12 * MIB)
    found = ran(lossy, 4 * GIB)
    assert (
        found.said[0]
        == "8 lanes move 11 MB/s, 3% of their windows: trying 16, the new ones with bbr"
    )
    assert found.lesson[1] == "bbr"
    assert found.taken_s < 0.5 * ran(replace(lossy, bbr=0), 4 * GIB).taken_s


def test_what_brought_nothing_is_not_tried_again_at_the_same_rate() -> None:
    enough = ran(MS_100, 8 * GIB).lesson[2]
    again = ran(MS_100, 8 * GIB, enough=enough)
    assert [each.partition(", ")[2] for each in again.said] == [
        "as the last time, when more brought nothing"
    ]
    assert again.lesson[2] == enough
    faster = ran(replace(MS_100, total=2 * MS_100.total), 8 * GIB, enough=enough)
    assert "trying" in faster.said[0]


def test_a_login_that_was_slow_by_chance() -> None:
    busy = replace(NEAR, login_s=1.5, harm=0.1)
    path = Path(busy.rtt_s, busy.login_s, busy.cpus)
    assert start(path).lanes == 8
    assert start(Path(0.1, 1.4, 2)).why.startswith("a round trip")
    assert start(path._replace(was_crowded=True)).lanes == 2, "it had to wait: not slow processors"
    found = ran(busy, 8 * GIB)
    assert found.lanes == 2 and found.lesson[0] == 2
    assert found.said[0].endswith("going on with 2")


@pytest.mark.parametrize(
    ("rtt_s", "cpus", "lanes", "channels"),
    [(0.0001, 1, 2, 1), (0.0001, 64, 8, 1), (0.01, 2, 2, 1), (0.03, 2, 8, 1), (0.15, 2, 12, 1),
     (0.24, 2, 24, 2), (math.inf, 2, 24, 2)],
)  # fmt: skip
def test_what_it_begins_with(rtt_s: float, cpus: int, lanes: int, channels: int) -> None:
    assert start(Path(rtt_s, 0.2, cpus))[:2] == (lanes, channels)


@pytest.mark.parametrize(
    ("rtt_s", "login_s", "cpus", "copies", "lanes"),
    [
        (0.0001, 0.2, 16, 4, 2),
        (0.0001, 0.2, 2, 4, 1),
        (0.0001, 2.5, 2, 4, 1),  # four logins on two processors: these are not slow
        (0.0001, 9.0, 2, 4, 2),
        (0.1, 1.4, 16, 4, 2),
        (0.1, 1.4, 16, 20, 1),
        (0.24, 3.0, 16, 4, 6),
    ],
)
def test_copies_at_once_begin_with_what_one_would(
    rtt_s: float, login_s: float, cpus: int, copies: int, lanes: int
) -> None:
    assert start(Path(rtt_s, login_s, cpus, copies=copies)).lanes == lanes


@pytest.mark.parametrize(
    ("rtt_s", "login_s", "lanes", "left_bytes", "passed_s", "worth"),
    [
        (0.05, 0.7, 1, 42e6, 0.0, True),  # 5,000 small files at 50 ms: a second lane,
        (0.05, 0.7, 2, 42e6, 0.0, False),  # and no third
        (0.1, 1.4, 7, GIB, 0.0, True),
        (0.0001, 0.2, 1, 10 * MIB, 0.0, False),
        (0.0001, 0.2, 1, GIB, 0.0, True),
        (0.05, 0.7, 2, 1 * MIB, 1.5, True),  # the walk goes on, so there may be any amount
    ],
)
def test_a_login_must_pay(
    rtt_s: float, login_s: float, lanes: int, left_bytes: float, passed_s: float, worth: bool
) -> None:
    path = Path(rtt_s, login_s, 2)
    assert is_worth_a_login(path, lanes, left_bytes, passed_s) is worth


def test_where_lanes_turn_out_slow_one_more_pays() -> None:
    path = Path(0.1, 3.5, 2)
    assert not is_worth_a_login(path, 4, 256 * MIB, 0.0)
    assert is_worth_a_login(path, 4, 256 * MIB, 0.0, bytes_per_s=5e6)
    assert not is_worth_a_login(path, 4, 16 * MIB, 0.0, bytes_per_s=5e6)


@pytest.mark.parametrize(
    ("rtt_s", "login_s", "unattended"),
    [(0.05, 0.9, True), (0.1, 1.6, True), (0.05, 4.0, False), (0.0001, 0.2, False)],
)
def test_who_types_a_password_takes_longer(rtt_s: float, login_s: float, unattended: bool) -> None:
    assert is_far_and_unattended(Path(rtt_s, login_s, 2)) is unattended


def test_lanes_held_up_by_their_window_are_known() -> None:
    tuner = Tuner(Path(0.1, 1.4, 2), 8)
    rate = 0.9 * 8 * CHANNEL_BYTES / 0.1
    for step in range(100):
        done = int(rate * step * LOOK_S)
        seen = CopyState(step * LOOK_S, 8, done, done // CHUNK_BYTES, 64 * GIB, 0.0, 0.0)
        if said := tuner.look(seen):
            break
    assert said == "8 lanes move 151 MB/s, held up by the channel's window: trying 16"
    assert tuner.needs_window and tuner.count == 16


def test_lanes_that_never_come_are_not_waited_for() -> None:
    tuner = Tuner(Path(0.0001, 0.2, 2), 8)
    said = []
    for step in range(400):
        done = step * 50 * MIB
        said.append(
            tuner.look(CopyState(step * LOOK_S, 3, done, done // CHUNK_BYTES, 1, math.inf, 0.0))
        )
    assert next(filter(None, said)) == "of 8 lanes 3 came: going on with these"
    assert tuner.count == 3


def test_lanes_that_come_late_are_welcome() -> None:
    tuner = Tuner(Path(0.0001, 0.2, 2), 8)
    counts = []
    for step in range(400):
        alive = 7 if step < 200 else 8
        done = step * 50 * MIB
        tuner.look(
            CopyState(step * LOOK_S, alive, done, 0, 1, math.inf, 0.0)
        )  # nothing is measured
        counts.append((tuner.count, tuner.awaited))
    assert counts[199] == (7, 8) and counts[-1] == (8, 8)


@dataclass
class Second:
    """A copy that begins with more lanes than usual, since an earlier one found them good."""

    tuner: Tuner
    at_s: float = 0.0
    done: float = 0.0
    idle_s: float = 0.0

    def run(self, bytes_per_s: float, idle: float = 0.7) -> str:
        """Go on until the tuner says something."""
        for _ in range(1000):
            self.at_s += LOOK_S
            self.done += bytes_per_s * LOOK_S
            self.idle_s += idle * LOOK_S
            pieces, alive = int(self.done / CHUNK_BYTES), self.tuner.count
            seen = CopyState(self.at_s, alive, int(self.done), pieces, math.inf, self.idle_s, 0.0)
            if said := self.tuner.look(seen):
                return said
        raise AssertionError("the tuner says nothing")


def test_what_is_remembered_gives_way_to_what_contradicts_it() -> None:
    copy = Second(Tuner(Path(0.0001, 0.2, 2), 8, known_bytes_s=600e6))
    said = copy.run(400e6)
    assert said == "8 lanes move 400 MB/s, and 600 MB/s in an earlier copy: going on with 2"
    assert copy.tuner.found == (2, 0.0)
    assert copy.run(400e6).startswith("2 lanes move")  # and it is tuned as any other


def test_what_is_remembered_is_kept_as_long_as_it_holds() -> None:
    copy = Second(Tuner(Path(0.0001, 0.2, 2), 8, known_bytes_s=600e6))
    copy.run(590e6)
    assert copy.tuner.found[0] == 8


def test_many_lanes_that_nothing_was_compared_with_are_no_lesson() -> None:
    """A login was slow by chance, and so the copy began with 8."""
    copy = Second(Tuner(Path(0.0001, 2.5, 2), 8))
    copy.run(400e6)
    assert copy.tuner.found[0] == 0


def test_busy_processors_teach_nothing_of_more_lanes() -> None:
    """Whoever keeps them busy: others' work may have stopped while lanes were added."""
    copy = Second(Tuner(Path(0.0001, 0.2, 2), 2))
    assert "trying" in copy.run(200e6, idle=0.0)
    copy.run(800e6, idle=0.5)
    assert copy.tuner.count > 2 and copy.tuner.found[0] == 2


@given(
    rtt_s=st.floats(0.0001, 0.3),
    login_s=st.floats(0.1, 3.0),
    lane=st.floats(1, 400),
    total=st.floats(1, 2000),
    size=st.integers(1, 600),
)
def test_whatever_the_path_it_comes_to_an_end(
    rtt_s: float, login_s: float, lane: float, total: float, size: int
) -> None:
    model = Model(rtt_s, login_s, lane * MIB, max(lane, total) * MIB, harm=0.2)
    found = ran(model, size * 4 * MIB)
    assert 1 <= found.lanes <= LANES_MOST
    assert len(found.said) <= 6
