"""Turns of threads that make many short system calls (pscp.transfer.lanes.turns).

Not here: what they gain (scripts/bench --regime small-loopback).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from pscp.endpoint.reading import tree
from pscp.transfer.lanes import turns as module
from pscp.transfer.lanes.turns import Turns


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "time", clock := Clock())
    return clock


def begin_beside(turns: Turns, do: Callable[[], None]) -> threading.Thread:
    """Have another thread do a batch."""

    def run() -> None:
        with turns.take():
            do()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_one_batch_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "_WAIT_S", 60)
    turns, is_begun, is_over = Turns(), threading.Event(), threading.Event()
    done: list[str] = []

    def do_first() -> None:
        is_begun.set()
        is_over.wait(60)
        done.append("first")

    thread = begin_beside(turns, do_first)
    is_begun.wait(60)
    second = begin_beside(turns, lambda: done.append("second"))
    is_over.set()
    thread.join()
    second.join()
    assert done == ["first", "second"]


def test_a_batch_that_waits_for_a_disk_keeps_no_other_waiting() -> None:
    """Else all lanes would wait, where the walk has come to a file system that hangs."""
    turns, is_done = Turns(), threading.Event()
    with turns.take():
        thread = begin_beside(turns, is_done.set)
        assert is_done.wait(60)
    thread.join()


def test_after_three_long_batches_none_waits_for_a_while(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(Turns, "_WAIT_S", 60)
    turns = Turns()
    for _ in range(3):
        with turns.take():
            clock.now_s += 0.002
    is_done = threading.Event()
    with turns.take():
        thread = begin_beside(turns, is_done.set)
        assert is_done.wait(30)
    thread.join()
    for _ in range(Turns._FREE):
        with turns.take():
            pass
    assert turns._turn.acquire(blocking=False)  # so they ended theirs as well
    turns._turn.release()
    with turns.take():
        assert turns._turn.locked()


def test_quick_batches_keep_their_turns(clock: Clock) -> None:
    turns = Turns()
    for took_s in (0.002, 0.002, 0.0005) * 5:
        with turns.take():
            assert turns._turn.locked()
            clock.now_s += took_s


def test_a_walk_that_is_slow_gives_what_it_has(clock: Clock) -> None:
    walked: list[int] = []

    def walk() -> Iterator[tree.Entry]:
        for number in range(200):
            walked.append(number)
            clock.now_s += 0.0015 if number < 4 else 0
            yield tree.Entry(tree.FILE, 0, str(number), 0, 0, 0, 0, {})

    ahead = [len(walked) - int(entry.path) for entry in Turns().batches(walk())]
    assert ahead[:4] == [2, 1, 2, 1]
    assert len(ahead) == 200 and max(ahead) == 64
