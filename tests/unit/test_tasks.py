"""How much work a task of a cluster gets, how long one took, and when it ends in vain.

Not here: workers that do tasks (../faults/test_cluster.py), which of them get any
(test_standing.py).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from dask_client import worker_at

from pscp.cluster import here, mover
from pscp.cluster.dispatcher import Pace
from pscp.cluster.tasks import Errand, Login, Task, outcome_of, pack
from pscp.connect.spare_logins import IdleConnections
from pscp.ground import stops
from pscp.ground.errors import Cancelled, ConnectionLost
from pscp.ground.locations import parse_location
from pscp.ground.values import MIB
from pscp.options.arguments import version
from pscp.options.options import Options
from pscp.transfer.lanes.in_flight import Window
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.work_queue import WorkQueue

THREADS = [2, 2]  # of two workers: twelve tasks are out at once


def paced(mib_per_s: int) -> Pace:
    """Return the pace of two workers, each of which moves so many MiB/s with each thread."""
    pace = Pace()
    pace.see(THREADS)
    pace.note(20 * mib_per_s * MIB, 10.0)
    return pace


def test_the_first_tasks_are_of_one_size() -> None:
    pace = Pace()
    assert pace.task_bytes(None) == pace.task_bytes(0) == 8 * MIB
    pace.see(THREADS)
    assert pace.task_bytes(None) == 8 * MIB
    assert pace.slots == 12


def test_a_task_is_of_some_seconds() -> None:
    assert paced(100).task_bytes(None) == 400 * MIB
    assert paced(100).task_bytes(10**15) == 400 * MIB
    assert paced(100_000).task_bytes(None) == 16384 * MIB  # at most


def test_with_many_workers_it_is_longer() -> None:
    pace = paced(100)
    pace.see([2] * 200)
    assert pace.task_bytes(None) == 1200 / 50 * 100 * MIB


def test_toward_the_end_what_is_left_is_shared() -> None:
    """It is a second's work at least, or what the first ones get, if that is less."""
    assert paced(100).task_bytes(12 * 30 * MIB) == 30 * MIB
    assert paced(100).task_bytes(12 * MIB) == 8 * MIB
    assert paced(3).task_bytes(12 * MIB) == 3 * MIB
    pace = paced(3)
    pace.see([200])
    assert pace.task_bytes(0) == MIB


def test_what_was_long_ago_counts_less() -> None:
    pace = paced(100)
    for _ in range(20):
        pace.note(2 * MIB, 1.0)
    assert pace.task_bytes(None) == pytest.approx(4 * MIB, rel=0.01)


def test_a_task_is_counted_once_that_ran_beside_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And each worker by itself: a process may have two of a run."""
    now: Any = SimpleNamespace(s=0.0)
    monkeypatch.setattr(mover, "time", SimpleNamespace(monotonic=lambda: now.s))
    login = Login("a copy", True, parse_location("host:/in"), Options())
    held = mover._KeptConnections.held
    at_a, at_b = worker_at("a"), worker_at("b")
    with (
        held(login, at_a, 0.0) as one,
        held(login, at_b, 0.0) as two,
        held(login, at_a, 0.0) as again,
    ):
        assert one is again is not two
        now.s = 10.0
        assert one.seconds_since(0.0) == 10.0
        now.s = 11.0
        assert two.seconds_since(0.0) == 11.0
        now.s = 15.0
        assert again.seconds_since(5.0) == 5.0
        now.s = 30.0
        assert one.seconds_since(20.0) == 10.0
    for each in (one, two):
        assert each._timer is not None
        each._timer.join()
    assert mover._kept == {}


def test_a_worker_logs_in_before_its_first_task_and_closes_once_the_copy_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One with another version does not: there will be no copy."""
    called = queue.SimpleQueue[str]()

    def calls(name: str) -> Callable[..., None]:
        return lambda *_, **__: called.put(name)

    connections = SimpleNamespace(
        idle=IdleConnections(),
        start_logins=calls("start"),
        check_logins=calls("check"),
        close=calls("close"),
    )
    monkeypatch.setattr(mover, "connections_to", lambda _: connections)
    login = pack(Login("a copy", True, parse_location("host:/in"), Options()))
    assert mover.begin_login("0.0.1", login, worker_at("a"))[1] == version()
    assert not called.qsize() and mover._kept == {}
    mover.begin_login(version(), login, worker_at("a"))
    assert [called.get(timeout=10) for _ in range(2)] == ["start", "check"]
    mover.close_connections("another copy", worker_at("a"))
    mover.close_connections("a copy", worker_at("b"))
    assert mover._kept
    while mover._kept:  # the thread that logs in has it for a moment longer
        mover.close_connections("a copy", worker_at("a"))
    assert called.get(timeout=10) == "close"


def test_no_lane_of_a_task_begins_with_more_than_its_share_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the lanes to one far host of three have all of it, and its line alone is used."""
    seen: list[Window] = []
    context = LaneContext(WorkQueue(), is_push=False, rtt_s=0.05, keeps=False)

    def begin(*_: object) -> None:
        seen.append(context.new_window())
        context.queue.stop(Cancelled("enough was seen"))

    pool: Any = SimpleNamespace(
        queue=context.queue,
        context=context,
        layout=SimpleNamespace(count=3),
        begin=begin,
        end=lambda: None,
    )
    entry: Any = SimpleNamespace(path="a", size=12 * MIB)
    item: Any = SimpleNamespace(entry=entry)
    task = Task(1, [(item, [(at * MIB, MIB) for at in range(12)])], [], [], None)
    nothing: Any = None
    login = Login("a copy", False, parse_location("host:/out"), Options())
    moving = mover._Moving(pack(Errand(login, nothing, nothing, nothing)), pack(task), "")
    with pytest.raises(Cancelled, match="enough"):
        moving._work(pool, [], nothing)
    (window,) = seen
    taken = 0
    while window.has_room:
        window.take(MIB)
        taken += 1
    assert 1 < taken < 4  # of the twelve


def test_a_task_that_cannot_connect_asks_before_each_attempt_whether_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not only once --retry-for is over."""
    attempts: list[int] = []

    def take(*_: object) -> NoReturn:
        while True:
            attempts.append(len(attempts))
            stops.pause(0.0 if len(attempts) < 3 else 3600.0)

    monkeypatch.setattr(here, "is_cancelled", lambda: len(attempts) == 3)
    found = outcome_of(moved_with(take, monkeypatch))
    assert isinstance(found.problem, Cancelled) and attempts == [0, 1, 2]


def test_a_login_that_a_task_waits_for_ends_with_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next copy of this cluster waited for it: until ssh gave up, thirty seconds later."""
    has_begun, ended = threading.Event(), threading.Event()

    def take(*_: object) -> NoReturn:
        with stops.ended_by(lambda error: ended.set()):
            has_begun.set()
            assert ended.wait(60)
        raise ConnectionLost("the login has ended")

    monkeypatch.setattr(mover, "LET_GO_S", 0.0)
    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(moved_with, take, monkeypatch)
        assert has_begun.wait(60)
        mover.close_connections("a copy")
        assert isinstance(outcome_of(moving.result()).problem, Cancelled)


def moved_with(take: Callable[..., NoReturn], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Do a task of "a copy", to a host that this connects to; return its outcome."""

    def pass_by(*_: object, **__: object) -> None: ...

    connections = SimpleNamespace(
        idle=IdleConnections(),
        start_logins=pass_by,
        check_logins=pass_by,
        take=take,
        close=pass_by,
        admission=None,
    )
    monkeypatch.setattr(mover, "_KEPT_S", 0.0)
    monkeypatch.setattr(mover, "connections_to", lambda _: connections)
    monkeypatch.setattr(mover, "_sees_place", lambda _: True)
    nothing: Any = None
    host, options = parse_location("host:/in"), Options(retry_for_s=7200)
    errand = Errand(Login("a copy", True, host, options), nothing, nothing, nothing)
    return mover.move(version(), pack(errand), pack(Task(1, [], [], [], None)))
