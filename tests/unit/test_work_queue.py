"""The board: every piece of work comes to exactly one end, whatever lanes do and die of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint import requests, tree
from pscp.transfer import work_queue as board_module
from pscp.transfer.plan import Ask, Chunk, Pack, Work
from pscp.transfer.work_queue import Board, InFlight


class Lane:
    def __init__(self, board: Board) -> None:
        self.is_lost = False
        self.is_parked = False
        self.share = InFlight(1 << 40, 0.0)
        board.join(self.share)


class Job:
    """Counts what became of its chunks."""

    number, is_closed, may_be_short, was_shared = 1, False, False, False
    item: Any = None

    def __init__(self) -> None:
        self.ends = 0

    def landed(self, chunk: Chunk, digest: str, receipt: int) -> None:
        self.ends += 1

    def mismatched(self, chunk: Chunk) -> None: ...

    def failed(self, chunk: Chunk, failure: Any) -> None: ...


def take(board: Board, lane: Lane) -> tuple[int, Any]:
    with board.changed:
        taken = board.try_take(lane, lane.share)
    assert taken is not None
    return taken


def add(board: Board, work: Work | Iterator[Work]) -> None:
    with board.changed:
        board.add(work)


def finish(board: Board, lane: Lane, number: int) -> bool:
    with board.changed:
        return board.finish(lane.share, number)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setattr(board_module, "_PATIENCE_S", -1.0)  # every chunk has been held for long
    return Board()


def test_work_is_taken_once_and_ends_once(board: Board) -> None:
    one, two = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    number, chunk = take(board, one)
    assert chunk.length == 10 and not board.is_idle()
    assert finish(board, one, number) and board.is_idle()
    assert not finish(board, one, number)
    assert board.try_take(two, two.share) is None


def test_an_iterator_is_taken_piece_by_piece_and_its_follow_up_too(board: Board) -> None:
    lane, job = Lane(board), Job()

    def pieces() -> Iterator[Work]:
        yield Chunk(job, 0, 1)
        yield Chunk(job, 1, 1)
        board.add(Chunk(job, 2, 1))

    add(board, pieces())
    offsets = [take(board, lane)[1].offset for _ in range(3)]
    assert offsets == [0, 1, 2]


def test_what_a_dead_lane_had_goes_to_another(board: Board) -> None:
    one, two = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    number, chunk = take(board, one)
    with board.changed:
        board.give_back(one.share)
    assert not finish(board, one, number), "a dead lane's word counts no more"
    assert take(board, two)[1] is chunk


def test_a_lost_lane_is_told_off_before_another_finishes_a_file(board: Board) -> None:
    """A4: where inodes tell nothing, the lost lane's finish could find another part later."""
    one, two = Lane(board), Lane(board)
    told = Ask(False, requests.Revoke(1), lambda _: None, lambda _: None)
    asked: list[list[Work]] = []
    board.revocation = lambda lane, works: asked.append(works) or told  # type: ignore[func-returns-value]
    one_file = tree.Entry(tree.FILE, 0, "file", 1, 0o644, 0, 1, {})
    look = Ask(False, requests.Look([]), lambda _: None, lambda _: None)
    finishing = Ask(
        False, requests.Finish(one_file, "", 1), lambda _: None, lambda _: None, is_exclusive=True
    )
    add(board, look)
    add(board, finishing)
    take(board, one)
    take(board, one)
    with board.changed:
        board.give_back(one.share)
    assert asked == [[finishing]]
    assert [take(board, two)[1], take(board, two)[1]] == [look, told]
    assert board.try_take(two, two.share) is None


def test_an_idle_lane_takes_over_and_the_first_end_counts(board: Board) -> None:
    slow, idle = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    first, chunk = take(board, slow)
    second, same = take(board, idle)
    assert same is chunk
    assert finish(board, idle, second)
    assert board.is_idle(), "nobody waits for the slow lane"
    assert not finish(board, slow, first)
    with board.changed:
        board.give_back(slow.share)
    assert board.is_idle()


def test_no_third_lane_takes_over(board: Board) -> None:
    lanes = [Lane(board) for _ in range(3)]
    board.put(Chunk(Job(), 0, 10))
    take(board, lanes[0])
    take(board, lanes[1])
    assert board.try_take(lanes[2], lanes[2].share) is None


def test_a_lane_with_work_of_its_own_takes_nothing_over(board: Board) -> None:
    slow, busy = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    board.put(Chunk(Job(), 10, 10))
    take(board, slow)
    take(board, busy)
    assert board.try_take(busy, busy.share) is None


def test_a_mismatch_on_one_lane_leaves_it_to_the_other(board: Board) -> None:
    slow, idle = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    first, chunk = take(board, slow)
    second, _ = take(board, idle)
    assert finish(board, idle, second)
    add(board, chunk)  # what FileJob.mismatched() does
    assert not board.is_idle() and not board.has_work()
    assert finish(board, slow, first) and board.is_idle()


def test_the_other_of_two_lanes_dies(board: Board) -> None:
    slow, idle = Lane(board), Lane(board)
    board.put(Chunk(Job(), 0, 10))
    take(board, slow)
    second, _ = take(board, idle)
    with board.changed:
        board.give_back(slow.share)
    assert not board.has_work(), "the other lane still has it"
    assert finish(board, idle, second) and board.is_idle()


def test_the_first_chunk_of_a_stream_goes_over_another_lane_once_it_is_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board, now_s = Board(is_stream=True), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    slow, fast = Lane(board), Lane(board)
    first, *others = [Chunk(Job(), n << 20, 1 << 20) for n in range(40)]
    add(board, first)
    number, _ = take(board, slow)
    for other in others:
        add(board, other)
    taken, chunk = take(board, fast)
    while chunk is not first:
        now_s[0] += 0.01
        finish(board, fast, taken)
        taken, chunk = take(board, fast)
    assert first.takers == 2
    assert now_s[0] > 0.25, "it might still have come in time"
    assert take(board, slow)[1] is not first
    assert take(board, fast)[1] is not first
    assert finish(board, fast, taken) and not finish(board, slow, number)


def test_a_question_waits_for_its_lane_while_that_lives(board: Board) -> None:
    one, two = Lane(board), Lane(board)
    ask = Ask(True, requests.Ping(), lambda answer: None, lambda failure: None, lane=one)
    add(board, ask)
    assert board.try_take(two, two.share) is None
    one.is_lost = True
    assert take(board, two)[1] is ask


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_question_that_should_be_answered_is_asked_once_more(
    board: Board, monkeypatch: pytest.MonkeyPatch, is_prompt: bool
) -> None:
    """By a busy lane too; what is answered first counts, also once both lanes were lost."""
    monkeypatch.setattr(board_module, "_ANSWER_S", -1.0)
    still, busy, third = (Lane(board) for _ in range(3))
    ask = Ask(True, requests.Ping(), lambda answer: None, lambda failure: None, is_prompt=is_prompt)
    add(board, ask)
    take(board, still)
    board.put(Chunk(Job(), 0, 10))
    board.put(Chunk(Job(), 10, 10))
    taken = [take(board, busy) for _ in range(2)]
    if not is_prompt:
        assert ask not in busy.share.work.values()
        return
    assert taken[0][1] is ask
    with board.changed:
        board.give_back(still.share)
        board.give_back(busy.share)
    assert ask in [take(board, third)[1] for _ in range(3)]
    number = next(n for n, work in third.share.work.items() if work is ask)
    assert finish(board, third, number)
    assert take(board, busy)[1] is not ask


def test_the_question_that_goes_before_lost_packs_is_asked_once_more(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane that has to ask it may stand still as well."""
    monkeypatch.setattr(board_module, "_ANSWER_S", -1.0)
    lost, still, other = (Lane(board) for _ in range(3))
    ask = Ask(False, requests.Ping(), lambda answer: None, lambda failure: None, is_prompt=True)
    board.revocation = lambda lane, packs: ask
    add(board, Pack([], lambda pack, failed: None))
    take(board, lost)
    with board.changed:
        board.give_back(lost.share)
    assert take(board, still)[1] is ask is take(board, other)[1]


def test_who_has_but_a_question_left_hears_of_what_may_be_taken_over(board: Board) -> None:
    lane = Lane(board)
    add(board, Ask(True, requests.Ping(), lambda answer: None, lambda failure: None))
    board.put(Chunk(Job(), 0, 10))
    number = next(
        n for n, work in (take(board, lane), take(board, lane)) if isinstance(work, Chunk)
    )
    told: list[bool] = []
    board.changed.notify_all = lambda: told.append(True)  # type: ignore[method-assign]
    assert finish(board, lane, number)
    assert told


def test_a_parked_lane_takes_only_what_must_be_its_own(board: Board) -> None:
    parked, other = Lane(board), Lane(board)
    parked.is_parked = True
    board.put(Chunk(Job(), 0, 10))
    own = Ask(True, requests.Ping(), lambda answer: None, lambda failure: None, lane=parked)
    anyones = Ask(True, requests.Ping(), lambda answer: None, lambda failure: None)
    add(board, anyones)
    add(board, own)
    assert take(board, parked)[1] is own
    assert board.try_take(parked, parked.share) is None
    assert take(board, other)[1] is anyones


def step(board: Board, lanes: list[Lane], job: Job, action: str, which: int, pick: int) -> None:
    """t: take; f, m: finish well, or with a mismatch; d: the lane dies."""
    share = lanes[which].share
    numbers = list(share.work)
    if action == "t":
        board.try_take(lanes[which], share)
    elif action == "d":
        board.give_back(share)
        lanes[which] = Lane(board)
    elif numbers:
        number = numbers[pick % len(numbers)]
        chunk = share.work[number]
        if board.finish(share, number):
            if action == "m":
                board.add(chunk)
            else:
                job.ends += 1


@given(st.lists(st.tuples(st.sampled_from("tfdm"), st.integers(0, 2), st.integers(0, 9))))
def test_every_chunk_ends_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(board_module, "_PATIENCE_S", -1.0)
        board, job = Board(), Job()
        lanes = [Lane(board) for _ in range(3)]
        for offset in range(5):
            board.put(Chunk(job, offset, 1))
        with board.changed:
            for each in steps:
                step(board, lanes, job, *each)
            for lane in lanes[1:]:
                board.give_back(lane.share)
            for _ in range(5):
                step(board, lanes, job, "t", 0, 0)
            for _ in range(5):
                step(board, lanes, job, "f", 0, 0)
    assert job.ends == 5
    assert board.is_idle()


def test_the_window_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    share = InFlight(16 << 20, 0.1)
    for number in range(50):  # 4 MiB each 0.2 s: 20 MiB/s
        share.take(number, Chunk(Job(), 0, 4 << 20))
        now_s[0] += 0.2
        share.pop(number)
    assert 6 << 20 < share.window.capacity_bytes < 12 << 20
    for number in range(50, 60):  # a tenth of that
        share.take(number, Chunk(Job(), 0, 4 << 20))
        now_s[0] += 2.0
        share.pop(number)
    assert share.window.capacity_bytes == 2 << 20
