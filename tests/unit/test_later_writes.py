"""What bookkeeping has to write: all of it, in order, while nobody else waits for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from pscp.endpoint.asking import requests
from pscp.transfer.lanes import work_queue
from pscp.transfer.lanes.in_flight import LaneShare, Window
from pscp.transfer.lanes.work_queue import LaterWrites, WorkQueue
from pscp.transfer.pieces.plan import Ask

WAIT_S = 20.0


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
    monkeypatch.setattr(work_queue, "_WAITING_MOST", 2)
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
