"""The queue: each piece of work comes to one end, whatever lanes do, and all is written down."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.there import lookup
from pscp.ground.values import MIB
from pscp.transfer.lanes import in_flight, work_queue
from pscp.transfer.lanes.in_flight import LaneShare, Window
from pscp.transfer.lanes.lane_traffic import LaneTraffic
from pscp.transfer.lanes.lost_work import revoke_first
from pscp.transfer.lanes.work_queue import LaterWrites, WorkQueue
from pscp.transfer.pieces.plan import Ask, Chunk, Pack, PlannedEntry, Work

WAIT_S = 20.0
PING = requests.Ping()


class Lane:
    def __init__(self, queue: WorkQueue) -> None:
        self.is_parked = False
        self.share = LaneShare(Window(1 << 40, 0.0), is_parked=lambda: self.is_parked)
        queue.join(self.share)


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


def question(request: requests.Request = PING, **more: Any) -> Ask:
    """Something that is asked of the source, and whose answer nobody needs."""
    return Ask(True, request, lambda answer: None, lambda failure: None, **more)


def put_packs(queue: WorkQueue, count: int) -> None:
    entry = tree.Entry(tree.FILE, 0, "file", 1, 0o644, 0, 1, {})
    for _ in range(count):
        queue.put(Pack([PlannedEntry(entry, entry)], lambda pack, failed: None))


def take(queue: WorkQueue, lane: Lane) -> tuple[int, Any]:
    taken = queue.try_take(lane.share)
    assert taken is not None
    return taken


def finish(queue: WorkQueue, lane: Lane, number: int) -> bool:
    return queue.settle(lane.share, number, lambda: None)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> WorkQueue:
    monkeypatch.setattr(in_flight, "_PATIENCE_S", -1.0)  # every chunk has been held for long
    return WorkQueue()


def test_what_nobody_needs_any_more_is_not_taken(queue: WorkQueue) -> None:
    """The rest stays, and what a lane gave back as well."""
    one, two = Lane(queue), Lane(queue)
    for number in range(4):
        queue.put(Chunk(Job(), number, 1))
    take(queue, one)
    queue.give_back(one.share)
    queue.drop(lambda work: isinstance(work, Chunk) and work.offset >= 2)
    assert [take(queue, two)[1].offset for _ in range(2)] == [0, 1]
    assert queue.try_take(two.share) is None


def test_a_lost_lane_is_told_off_before_another_finishes_a_file(queue: WorkQueue) -> None:
    """A4: where inodes tell nothing, the lost lane's finish could find another part later."""
    one, two = Lane(queue), Lane(queue)
    told = question(requests.Revoke(1))
    asked: list[list[Work]] = []
    queue.when_lost(lambda lane, works, was_given_up: asked.append(works) or told)  # type: ignore[func-returns-value]
    one_file = tree.Entry(tree.FILE, 0, "file", 1, 0o644, 0, 1, {})
    look = question(lookup.Lookup([]))
    finishing = question(requests.Finish(one_file, "", 1), is_exclusive=True)
    queue.add(look)
    queue.add(finishing)
    take(queue, one)
    take(queue, one)
    queue.give_back(one.share)
    assert asked == [[finishing]]
    assert [take(queue, two)[1], take(queue, two)[1]] == [look, told]
    assert queue.try_take(two.share) is None


def test_nobody_sees_a_piece_ended_before_what_follows_was_added(queue: WorkQueue) -> None:
    """A copy that was found idle in between would end too early."""
    lane = Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    number, _ = take(queue, lane)
    is_adding, may_add = threading.Event(), threading.Event()

    def outcome() -> None:
        is_adding.set()
        assert may_add.wait(WAIT_S)
        queue.add(Chunk(Job(), 10, 10))

    with ThreadPoolExecutor() as threads:
        threads.submit(queue.settle, lane.share, number, outcome)
        assert is_adding.wait(WAIT_S)
        is_idle = threads.submit(queue.is_idle)
        assert not is_idle.done()
        may_add.set()
        assert not is_idle.result(WAIT_S)


def test_an_outcome_that_fails_stops_the_copy_before_anybody_sees_it_done(queue: WorkQueue) -> None:
    """Nobody would do that piece again, and the queue is idle."""
    lane = Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    number, _ = take(queue, lane)

    def outcome() -> None:
        raise ValueError("a bug")

    assert queue.settle(lane.share, number, outcome)
    assert not queue.wait_until(queue.is_idle)
    with pytest.raises(ValueError, match="a bug"):
        queue.check()
    assert queue.take(lane.share) is None


def test_a_lane_that_is_behind_gets_no_more_work(queue: WorkQueue) -> None:
    """It may stand still, and a request that takes long would wait for it."""
    still, idle = Lane(queue), Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    late, _ = take(queue, still)
    assert finish(queue, idle, take(queue, idle)[0])
    asked = question()
    queue.add(asked)
    assert queue.try_take(still.share) is None
    queue.add(own := question(share=still.share))
    assert take(queue, still)[1] is own
    assert take(queue, idle)[1] is asked
    queue.add(question())
    assert not finish(queue, still, late)
    assert queue.try_take(still.share), "it has caught up"


def test_a_lane_that_stands_still_with_exclusive_work_is_given_up(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other may do that meanwhile, so all would wait for it."""
    still, idle = Lane(queue), Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    queue.put(pack := Pack([], lambda pack, failed: None))
    take(queue, still)
    assert take(queue, still)[1] is pack
    still.share.give_up = lambda: queue.give_back(still.share)
    assert finish(queue, idle, take(queue, idle)[0])
    assert queue.try_take(idle.share) is None
    monkeypatch.setattr(in_flight, "_STALLED_S", -1.0)
    taken = queue.take(idle.share)
    assert taken is not None and taken[1] is pack


@pytest.mark.parametrize("is_steady", [True, False])
def test_a_lane_that_finishes_what_it_holds_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, is_steady: bool
) -> None:
    """A pack that waits behind others of its lane is not what crawls."""
    queue, now_s, given_up = WorkQueue(), [1.0], list[bool]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    lane, idle = Lane(queue), Lane(queue)
    lane.share.give_up = lambda: given_up.append(True)
    put_packs(queue, 20)
    held = [take(queue, lane)[0] for _ in range(20)]
    for number in held[:15]:
        now_s[0] += 1.5
        assert finish(queue, lane, number)
        assert queue._in_flight.lane_to_give_up(idle.share) is None
    now_s[0] += 1.5 if is_steady else 20.0
    assert (queue._in_flight.lane_to_give_up(idle.share) is None) is is_steady


@pytest.mark.parametrize("was_given_up", [True, False])
def test_only_a_lane_that_was_given_up_with_it_tells_of_a_pack_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, was_given_up: bool
) -> None:
    """Where paths are bad a lane is lost, and the next one crawls."""
    queue, now_s = WorkQueue(), [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    first, second, idle = Lane(queue), Lane(queue), Lane(queue)
    first.share.was_given_up = was_given_up
    second.share.give_up = lambda: None
    put_packs(queue, 1)
    take(queue, first)
    queue.give_back(first.share)
    take(queue, second)
    now_s[0] += 70.0
    assert (queue._in_flight.lane_to_give_up(idle.share) is None) is was_given_up
    now_s[0] += 420.0
    assert queue._in_flight.lane_to_give_up(idle.share) is not None


def test_what_waits_behind_a_pack_that_is_slow_is_not_slow() -> None:
    queue = WorkQueue()
    lane = Lane(queue)
    put_packs(queue, 3)
    taken = [take(queue, lane)[1] for _ in range(3)]
    lane.share.was_given_up = True
    queue.give_back(lane.share)
    assert [isinstance(each, Pack) and each.lanes_given_up for each in taken] == [1, 0, 0]


def test_one_more_lane_is_wanted_where_one_has_taken_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pull's first lane had all of 16 MiB; over a path with losses nobody else logged in."""
    queue, now_s = WorkQueue(), [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    lane = Lane(queue)
    lane.share.window = Window(16 * MIB, 0.1, 96 * MIB)
    for number in range(20):
        queue.put(Chunk(Job(), number * MIB, MIB))
    numbers = [take(queue, lane)[0] for _ in range(16)]
    for number in numbers[:4]:
        assert not queue.is_slow()
        now_s[0] += 1.0
        finish(queue, lane, number)
    assert queue.is_slow()  # 12 MiB at 1 MiB/s
    idle = Lane(queue)
    assert not queue.is_slow()  # that one takes them over
    queue.give_back(idle.share)
    assert queue.is_slow()
    for number in numbers[4:13]:
        finish(queue, lane, number)
    assert not queue.is_slow()  # 3 MiB


@pytest.mark.parametrize("connection", ["a", "b"])
def test_channels_of_one_connection_do_not_give_each_other_up(
    monkeypatch: pytest.MonkeyPatch, connection: str
) -> None:
    """It might carry all lanes, and nobody could log in again without being asked."""
    queue, now_s = WorkQueue(), [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    lane, idle = Lane(queue), Lane(queue)
    lane.share.give_up, lane.share.connection = lambda: None, "a"
    idle.share.connection = connection
    put_packs(queue, 1)
    take(queue, lane)
    now_s[0] += 70.0
    assert (queue._in_flight.lane_to_give_up(idle.share) is None) is (connection == "a")
    assert not queue.is_held_up()  # the idle lane sees to it
    queue.give_back(idle.share)
    assert queue.is_held_up() is (connection == "a")


def test_a_lane_that_was_given_up_is_shut_out_however_long_it_holds_the_fence() -> None:
    """Its files failed: its agent waited for a disk, and another pscp was to blame."""
    added, failed = list[Work](), list[Any]()
    entry = tree.Entry(tree.FILE, 0, "file", 1, 0o644, 0, 1, {})
    pack = Pack([PlannedEntry(entry, entry)], lambda pack, failed: None)
    holds = failures.data(failures.DESTINATION, "", "an earlier run of this copy still holds it")
    for was_given_up in (True, False):
        revoke_first(added.append, failed.append, 3, [pack], was_given_up).failed(holds)
        assert len(failed) == (not was_given_up)
    [again] = added
    assert isinstance(again, Ask)
    again.then(None)
    assert added == [again, pack]


def test_no_third_lane_takes_over(queue: WorkQueue) -> None:
    lanes = [Lane(queue) for _ in range(3)]
    queue.put(Chunk(Job(), 0, 10))
    take(queue, lanes[0])
    take(queue, lanes[1])
    assert queue.try_take(lanes[2].share) is None


@pytest.mark.parametrize(
    ("flight_s", "after_s"), [(0.1, 1.0), (0.5, 1.5), (2.0, 6.0), (60.0, 10.0), (None, 10.0)]
)
def test_a_chunk_is_taken_over_that_takes_three_times_as_long_as_others(
    monkeypatch: pytest.MonkeyPatch, flight_s: float | None, after_s: float
) -> None:
    """Within bounds; at most so long where nothing has landed yet."""
    queue, now_s = WorkQueue(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    queue.take_over_after(1.0, 10.0)
    slow, idle = Lane(queue), Lane(queue)
    for _ in range(5 if flight_s is not None else 0):
        queue.put(Chunk(Job(), 0, 10))
        number, _ = take(queue, idle)
        now_s[0] += flight_s or 0.0
        finish(queue, idle, number)
    queue.put(Chunk(Job(), 0, 10))
    _, chunk = take(queue, slow)
    now_s[0] += after_s - 0.001
    assert queue.try_take(idle.share) is None
    now_s[0] += 0.002
    assert take(queue, idle)[1] is chunk


def test_a_lane_with_work_of_its_own_takes_nothing_over(queue: WorkQueue) -> None:
    slow, busy = Lane(queue), Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    queue.put(Chunk(Job(), 10, 10))
    take(queue, slow)
    take(queue, busy)
    assert queue.try_take(busy.share) is None


def test_a_mismatch_on_one_lane_leaves_it_to_the_other(queue: WorkQueue) -> None:
    slow, idle = Lane(queue), Lane(queue)
    queue.put(Chunk(Job(), 0, 10))
    first, chunk = take(queue, slow)
    second, _ = take(queue, idle)
    assert finish(queue, idle, second)
    queue.add(chunk)  # what FileJob.mismatched() does
    assert not queue.is_idle() and not queue.has_work()
    assert finish(queue, slow, first) and queue.is_idle()


def test_the_first_chunk_of_a_stream_goes_over_another_lane_once_it_is_overdue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue, now_s = WorkQueue(is_stream=True), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    slow, fast = Lane(queue), Lane(queue)
    first, *others = [Chunk(Job(), n << 20, 1 << 20) for n in range(40)]
    queue.add(first)
    number, _ = take(queue, slow)
    for other in others:
        queue.add(other)
    taken, chunk = take(queue, fast)
    while chunk is not first:
        now_s[0] += 0.01
        finish(queue, fast, taken)
        taken, chunk = take(queue, fast)
    assert first.takers == 2
    assert now_s[0] > 0.25, "it might still have come in time"
    assert take(queue, slow)[1] is not first
    assert take(queue, fast)[1] is not first
    assert finish(queue, fast, taken) and not finish(queue, slow, number)


def test_a_question_waits_for_its_lane_while_that_lives(queue: WorkQueue) -> None:
    one, two = Lane(queue), Lane(queue)
    ask = question(share=one.share)
    queue.add(ask)
    assert queue.try_take(two.share) is None
    queue.give_back(one.share)
    assert take(queue, two)[1] is ask


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_question_that_should_be_answered_is_asked_once_more(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch, is_prompt: bool
) -> None:
    """By a busy lane too; what is answered first counts, also once both lanes were lost."""
    monkeypatch.setattr(in_flight, "_ANSWER_S", -1.0)
    still, busy, third = (Lane(queue) for _ in range(3))
    ask = question(is_prompt=is_prompt)
    queue.add(ask)
    take(queue, still)
    queue.put(Chunk(Job(), 0, 10))
    queue.put(Chunk(Job(), 10, 10))
    taken = [take(queue, busy) for _ in range(2)]
    if not is_prompt:
        assert ask not in busy.share.work.values()
        return
    assert taken[0][1] is ask
    queue.give_back(still.share)
    queue.give_back(busy.share)
    assert ask in [take(queue, third)[1] for _ in range(3)]
    number = next(n for n, work in third.share.work.items() if work is ask)
    assert finish(queue, third, number)
    assert queue.try_take(busy.share)[1] is not ask  # type: ignore[index]


def test_the_question_that_goes_before_lost_packs_is_asked_once_more(
    queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane that has to ask it may stand still as well."""
    monkeypatch.setattr(in_flight, "_ANSWER_S", -1.0)
    lost, still, other = (Lane(queue) for _ in range(3))
    ask = question(is_prompt=True)
    queue.when_lost(lambda lane, packs, was_given_up: ask)
    queue.add(Pack([], lambda pack, failed: None))
    take(queue, lost)
    queue.give_back(lost.share)
    assert take(queue, still)[1] is ask is take(queue, other)[1]


def test_who_has_but_a_question_left_hears_of_what_may_be_taken_over(queue: WorkQueue) -> None:
    lane = Lane(queue)
    queue.add(question())
    queue.put(Chunk(Job(), 0, 10))
    number = next(
        n for n, work in (take(queue, lane), take(queue, lane)) if isinstance(work, Chunk)
    )
    told: list[bool] = []
    queue._changed.notify_all = lambda: told.append(True)  # type: ignore[method-assign]
    assert finish(queue, lane, number)
    assert told


def test_a_parked_lane_takes_only_what_must_be_its_own(queue: WorkQueue) -> None:
    parked, other = Lane(queue), Lane(queue)
    parked.is_parked = True
    queue.put(Chunk(Job(), 0, 10))
    own = question(share=parked.share)
    anyones = question()
    queue.add(anyones)
    queue.add(own)
    assert take(queue, parked)[1] is own
    assert queue.try_take(parked.share) is None
    assert take(queue, other)[1] is anyones


def step(queue: WorkQueue, lanes: list[Lane], job: Job, action: str, which: int, pick: int) -> None:
    """t: take; f, m: finish well, or with a mismatch; d: the lane dies."""
    share = lanes[which].share
    numbers = list(share.work)
    if action == "t":
        queue.try_take(share)
    elif action == "d":
        queue.give_back(share)
        lanes[which] = Lane(queue)
    elif numbers:
        number = numbers[pick % len(numbers)]
        chunk = share.work[number]

        def outcome() -> None:
            if action == "m":
                queue.add(chunk)
            else:
                job.ends += 1

        queue.settle(share, number, outcome)


@given(st.lists(st.tuples(st.sampled_from("tfdm"), st.integers(0, 2), st.integers(0, 9))))
def test_every_chunk_ends_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "_PATIENCE_S", -1.0)
        queue, job = WorkQueue(), Job()
        lanes = [Lane(queue) for _ in range(3)]
        for offset in range(5):
            queue.put(Chunk(job, offset, 1))
        for each in steps:
            step(queue, lanes, job, *each)
        for lane in lanes[1:]:
            queue.give_back(lane.share)
        for _ in range(5):
            step(queue, lanes, job, "t", 0, 0)
        for _ in range(5):
            step(queue, lanes, job, "f", 0, 0)
    assert job.ends == 5
    assert queue.is_idle()


def test_the_rows_of_a_pack_are_those_of_the_lane_that_has_it() -> None:
    """A lane may be lost, and another one do its pack, while its source still reads the files."""
    queue = WorkQueue()
    entry = tree.Entry(tree.FILE, 0, "file", 1, 0, 0, 0, {})
    pack = Pack([PlannedEntry(entry, entry)], lambda pack, failed: None)
    queue.put(pack)
    lost, other = Lane(queue), Lane(queue)
    number, _ = take(queue, lost)
    context: Any = SimpleNamespace(queue=queue)
    far: Any = None
    late = LaneTraffic(context, far, far, lost.share)
    queue.give_back(lost.share)
    assert not late.take_rows(number, pack, [[1, "late"]])
    number, _ = take(queue, other)
    assert LaneTraffic(context, far, far, other.share).take_rows(number, pack, [[1, "in time"]])
    assert not late.take_rows(number, pack, [[1, "late"]])
    assert pack.rows == [[1, "in time"]]


# --- what bookkeeping has to write, while nobody else waits for it


class SlowDisk:
    """Takes numbers, in the order of their writing; each waits until `is_well`."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.is_writing, self.is_well = threading.Event(), threading.Event()

    def write(self, number: int) -> None:
        self.is_writing.set()
        assert self.is_well.wait(WAIT_S)
        self.written.append(number)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


def raising(error: Exception) -> None:
    raise error


def test_who_comes_while_another_writes_goes_on_and_loses_nothing(disk: SlowDisk) -> None:
    writes = LaterWrites(raising)
    with ThreadPoolExecutor() as threads:
        writes.add(lambda: disk.write(1))
        first = threads.submit(writes.start)
        assert disk.is_writing.wait(WAIT_S)
        writes.add(lambda: disk.write(2))
        writes.start()
        assert disk.written == []
        disk.is_well.set()
        first.result(WAIT_S)
    assert disk.written == [1, 2]


def test_finish_waits_for_who_writes_already(disk: SlowDisk) -> None:
    writes = LaterWrites(raising)
    with ThreadPoolExecutor() as threads:
        writes.add(lambda: disk.write(1))
        threads.submit(writes.start)
        assert disk.is_writing.wait(WAIT_S)
        finishing = threads.submit(writes.finish)
        assert not finishing.done()
        disk.is_well.set()
        finishing.result(WAIT_S)
        assert disk.written == [1]


def test_no_write_is_lost_and_their_order_is_kept_by_many_threads() -> None:
    written: list[int] = []
    writes, lock = LaterWrites(raising), threading.Lock()
    numbers = iter(range(4000))

    def add() -> None:
        while True:
            with lock:  # as the queue's: numbers are given and added at once
                number = next(numbers, None)
                if number is None:
                    return
                writes.add(partial(written.append, number))
            writes.start()

    with ThreadPoolExecutor(4) as threads:
        for running in [threads.submit(add) for _ in range(4)]:
            running.result(WAIT_S)
    assert written == list(range(4000))


def test_what_is_added_just_as_a_turn_ends_is_written_too() -> None:
    """Who adds it finds the turn taken; who has it has found nothing more to write."""
    written: list[int] = []
    writes = LaterWrites(raising)

    class Turn:
        is_first = True

        def acquire(self, blocking: bool) -> bool:
            return True

        def release(self) -> None:
            if self.is_first:
                self.is_first = False
                writes.add(lambda: written.append(2))

    writes._turn = Turn()  # type: ignore[assignment]
    writes.add(lambda: written.append(1))
    writes.start()
    assert written == [1, 2]


def test_the_next_is_written_after_one_that_failed() -> None:
    failed: list[Exception] = []
    written: list[int] = []
    writes = LaterWrites(failed.append)
    writes.add(lambda: 1 / 0)
    writes.add(lambda: written.append(2))
    writes.start()
    assert written == [2] and isinstance(failed[0], ZeroDivisionError)


def test_who_adds_much_waits(disk: SlowDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "_WRITES_MOST", 2)
    writes = LaterWrites(raising)
    disk.is_well.set()
    writes.add(lambda: disk.write(1))
    writes.keep_short()
    assert disk.written == []
    writes.add(lambda: disk.write(2))
    writes.keep_short()
    assert disk.written == [1, 2]


def test_lanes_go_on_while_the_journal_hangs(disk: SlowDisk) -> None:
    """The queue's lock is free while one of them writes what came of its piece."""
    queue = WorkQueue()
    slow, other = (LaneShare(Window(1 << 40, 0.0)) for _ in range(2))
    for share in (slow, other):
        queue.join(share)
        queue.put(Ask(True, requests.Ping(), lambda answer: None, lambda failure: None))
    first, second = queue.take(slow), queue.take(other)
    assert first is not None and second is not None
    with ThreadPoolExecutor() as threads:
        settling = threads.submit(
            queue.settle, slow, first[0], lambda: queue.write_later(lambda: disk.write(1))
        )
        assert disk.is_writing.wait(WAIT_S)
        assert threads.submit(queue.settle, other, second[0], lambda: None).result(WAIT_S)
        assert queue.is_idle() and disk.written == []
        disk.is_well.set()
        assert settling.result(WAIT_S)
    queue.finish_writing()
    assert disk.written == [1]


def test_what_cannot_be_written_stops_the_copy() -> None:
    queue = WorkQueue()
    queue.run_alone(lambda: queue.write_later(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        queue.check()


def test_what_the_queue_runs_cannot_have_it_run_more() -> None:
    """Else a write would be done before the lock was let go."""
    queue = WorkQueue()
    with pytest.raises(RuntimeError):
        queue.run_alone(lambda: queue.run_alone(lambda: None))
    with pytest.raises(RuntimeError):
        queue.wait_until(lambda: queue.run_alone(lambda: True))
    queue.run_alone(lambda: None)
