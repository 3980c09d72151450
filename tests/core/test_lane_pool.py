"""Connections that are lost again and again, are refused, or misbehave (transfer/lane_pool.py).

Not here: where in a lane's work it is lost (test_lane.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from core.link import (
    CHUNK_BYTES,
    FAIL,
    FROM,
    HOLD,
    KILL,
    LATE,
    NONSENSE,
    NONSENSES,
    PATIENCE_S,
    START,
    TO,
    Bench,
    Fault,
)
from core.trees import LARGE_BYTES, Trees
from pscp.connect import bootstrap
from pscp.connect.known.host_memory import PathRecord
from pscp.connect.spare_logins import IdleConnections
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.plane.congestion import Choice, Sending
from pscp.ground.errors import ConnectionLost, ProtocolError
from pscp.ground.values import GIB, MIB
from pscp.options.options import Options
from pscp.progress.progress import LiveCounters
from pscp.transfer import lane_pool, logins
from pscp.transfer.lanes.autotune import Path
from pscp.transfer.lanes.in_flight import LaneShare, Window
from pscp.transfer.lanes.lane_context import LaneContext
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.lanes.worker import Worker
from pscp.transfer.pieces.plan import Ask, Chunk, Work
from pscp.transfer.terms.copy_terms import PoolTerms

LONG_BYTES = 16 * CHUNK_BYTES
MANY = range(1, 40)


def done(is_push: bool) -> int:
    """The type of the frame that ends a chunk."""
    return wire.ACK if is_push else wire.DIGEST


def test_connections_are_lost_again_and_again(trees: Trees, is_push: bool) -> None:
    """More often than a lane may fail to connect: each of them had done some work."""
    trees.file("large", LONG_BYTES)
    faults = [Fault(number, FROM, 1, KILL, 0, done(is_push)) for number in range(12)]
    result = trees.copied(is_push, *faults, connections=1)
    assert result.connections_lost == 12
    assert result.bytes_sent == LONG_BYTES


def test_no_connection_can_be_opened_for_a_while(trees: Trees, is_push: bool) -> None:
    trees.file("large", LONG_BYTES)
    faults = [Fault(number, FROM, 0, KILL) for number in range(1, 6)]
    trees.copied(is_push, Fault(0, FROM, 1, KILL, 0, done(is_push)), *faults, connections=1)
    assert len(trees.bench.links) == 7


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault(0, FROM, 0, KILL), ConnectionLost), (Fault(0, FROM, 3, NONSENSE, 9), ProtocolError)],
    ids=["refused", "misbehave"],
)
def test_no_connection_is_of_use_any_more(
    trees: Trees, is_push: bool, lanes: int, fault: Fault, error: type[Exception]
) -> None:
    trees.file("large", LONG_BYTES)
    first = Fault(0, FROM, 1, KILL, 0, done(is_push)) if fault.do == KILL else fault
    with pytest.raises(error):
        others = (fault._replace(connection=number) for number in MANY)
        trees.copy(is_push, first, *others, connections=lanes)
    assert not trees.arrived()
    trees.copied(is_push)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_pack_over_which_every_connection_is_lost(trees: Trees, lanes: int) -> None:
    """N17: what a lost lane had is revoked over the next one, and that is no progress."""
    trees.file("small", 10)
    faults = [Fault(number, TO, 0, KILL, 0, wire.PACK) for number in range(1000)]
    with pytest.raises(ConnectionLost):
        trees.copy(True, *faults, connections=lanes)
    # Each of two tries so often, and one may be on its way while the other gives up.
    assert len(trees.bench.links) <= 2 * (logins._ATTEMPTS_ALONE + 1)
    assert not trees.arrived()
    trees.done(True)


class FailingNotes(list[str]):
    """Notes of which one cannot be shown."""

    def __init__(self, failing: int) -> None:
        super().__init__()
        self.failing = failing

    def append(self, text: str) -> None:
        super().append(text)
        if len(self) == self.failing:
            raise LookupError(text)


def test_whichever_note_cannot_be_shown_every_connection_is_closed(
    trees: Trees, is_push: bool
) -> None:
    """Bench.close() looks: also those that are connecting, or have, when the reporter fails."""
    trees.file("large", LARGE_BYTES)
    again = Fault(0, FROM, 1, KILL, 0, done(is_push)), Fault(1, FROM, 0, KILL)
    for number in itertools.count(1):
        trees.clear()
        trees.bench = bench = Bench(*again)
        bench.notes = notes = FailingNotes(number)
        try:
            bench.copy(trees.source, trees.to, is_push, connections=1, itemize=True)
        except LookupError as error:
            assert error.args == (notes[number - 1],)
        finally:
            bench.close()
        if len(notes) < number:
            break
    assert "connected again" in notes


@pytest.mark.parametrize("at", [9, NONSENSES - 2, NONSENSES - 1], ids=["shape", "file", "place"])
def test_a_lane_that_misbehaves_leaves_its_work_to_others(
    trees: Trees, is_push: bool, at: int
) -> None:
    """It says something of another shape, or of what was not asked for.

    The other lane may be lost too, since SILENCE_S is short on a busy machine; it is tried again.
    """
    trees.file("large", LONG_BYTES)
    type_ = None if at == 9 else wire.ACK if is_push else wire.DATA
    trees.copied(is_push, Fault(0, FROM, 3, NONSENSE, at, type_), connections=2)
    notes = [note.split(":")[0] for note in trees.bench.notes]
    assert notes.count("fewer connections than were wanted") == 1


def pool_of(
    connections: int | None,
    known: PathRecord | None = None,
    *,
    is_push: bool = True,
    path: Path | None = None,
) -> lane_pool.LanePool:
    """A pool whose workers are not started."""
    session: Any = SimpleNamespace(
        connect=lambda *wanted: pytest.fail("nobody connects"), keeps=False, idle=IdleConnections(),
        has_one_login=False, has_early=lambda: False, count=1,
    )  # fmt: skip
    context = LaneContext(WorkQueue(), is_push=is_push, rtt_s=0.0, keeps=False)
    return lane_pool.LanePool(
        PoolTerms(
            context, session, Options(connections=connections), LiveCounters(),
            path or Path(0.0, 0.0, 2), known or PathRecord(), lambda text: None,
        )
    )  # fmt: skip


def test_a_worker_that_may_connect_is_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no second one may before the first has begun to connect."""
    monkeypatch.setattr(logins, "LOGINS_MAX", 1)
    pool = pool_of(2)
    for _ in range(2):
        pool.queue.add(Ask(True, requests.Ping(), print, print))
    first, second = Worker(1, pool), Worker(2, pool)
    assert pool.queue.run_alone(first._may_begin)
    assert not pool.queue.run_alone(second._may_begin)
    pool.connected(first, is_refused=False)
    assert pool.queue.run_alone(second._may_begin)


def test_a_worker_connects_for_what_another_lane_has_too_much_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though nothing waits that no lane has taken."""
    pool = pool_of(3)
    share = LaneShare(Window(MIB, 0.0))
    pool.queue.join(share)
    for _ in range(3):
        pool.queue.add(Ask(True, requests.Ping(), print, print))
        assert pool.queue.try_take(share)
    worker = Worker(2, pool)
    assert not pool.queue.run_alone(worker._may_begin)
    monkeypatch.setattr(pool.queue, "is_slow", lambda: True)
    assert pool.queue.run_alone(worker._may_begin)


def begun(pool: lane_pool.LanePool, workers: list[Worker]) -> list[Worker]:
    """The workers that log in now."""
    return [each for each in workers if pool.queue.run_alone(each._may_begin)]


def test_after_a_refusal_fewer_log_in_at_once_and_then_more_again() -> None:
    """sshd drops logins beyond MaxStartups; those that were dropped come once there is room."""
    pool = pool_of(16)
    for _ in range(32):
        pool.queue.add(Ask(True, requests.Ping(), print, print))
    workers = [Worker(number, pool) for number in range(16)]
    first = begun(pool, workers)
    assert len(first) == 8
    for worker in first:
        pool.connected(worker, is_refused=worker in first[:2])
    assert len(begun(pool, workers)) == 3  # 8, 4, 2, and one more after three of six that came


def test_a_small_copy_leaves_what_is_known_of_logins() -> None:
    assert pool_of(None, PathRecord(8, 8, 0.0001)).lesson().logins == 8


def test_a_pull_for_which_one_login_was_enough_has_the_next_begin_with_one() -> None:
    """Its size is not known before the first login is over."""
    assert pool_of(None, PathRecord(8, 8, 0.0001), is_push=False).lesson().logins == 1


def test_a_far_pull_has_the_next_begin_with_as_many_as_it_was_worth() -> None:
    far = Path(0.1, 1.5, 2)
    for sent_bytes, count in ((20 * MIB, 2), (64 * MIB, 3), (GIB, 8)):
        pool = pool_of(None, PathRecord(8, 8, 0.1), is_push=False, path=far)
        pool._logins.useful = 2  # as many as its rate was worth
        pool._terms.counters.add(bytes_sent=sent_bytes)
        assert pool.lesson().logins == count
    pool._terms.counters.add(bytes_sent=-GIB, files_unchanged=3)  # all was there
    assert pool.lesson().logins == 8
    fixed = pool_of(8, PathRecord(8, 8, 0.1), is_push=False, path=far)
    fixed._logins.useful = 2
    assert fixed.lesson().logins == 8


def test_a_refusal_is_remembered() -> None:
    pool = pool_of(None, PathRecord(8, 8, 0.0001))
    pool.queue.add(Ask(True, requests.Ping(), print, print))
    [worker] = begun(pool, [Worker(1, pool)])
    pool.connected(worker, is_refused=True)
    assert pool.lesson().logins == 0


def test_lossy_lanes_get_bbr_and_no_lane_is_added_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sockets are lent, so nothing is logged in again to find out."""
    clock = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: next(clock) * 0.25)
    pool = pool_of(None, PathRecord(congestion="bbr"), path=Path(0.05, 0.8, 2, has_bbr=True))
    scaler, wanted = pool._scaler, []
    assert scaler.congestion == "bbr"  # as was found where no socket was lent
    looks = itertools.count()

    def sendings() -> dict[int, Sending]:
        look = next(looks)
        rate = 10_000_000 if "bbr" in wanted else 1_000_000
        return dict.fromkeys(range(4), Sending(look * rate, look, 0.05, 0.05))

    sockets: Any = SimpleNamespace(update=lambda pids, name: wanted.append(name), sendings=sendings)
    choice = Choice()
    for _ in range(20):
        scaler._choose(choice, sockets)
    assert wanted[0] == "" and wanted[-1] == "bbr" and scaler.congestion == ""


@pytest.mark.parametrize("nth", [0, 1])
def test_a_login_that_never_ends_holds_up_nothing(
    trees: Trees, is_push: bool, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an agent that never begins: the other lane does the chunks that were sent to it.

    It gets no request here, which nobody repeats until it is lost for its silence.
    """
    take = WorkQueue.try_take

    def take_chunks(queue: WorkQueue, share: LaneShare) -> tuple[int, Work] | None:
        if share.lane == 2:
            share.wants = lambda work: isinstance(work, Chunk)
        return take(queue, share)

    monkeypatch.setattr(WorkQueue, "try_take", take_chunks)
    monkeypatch.setattr(bootstrap, "SILENCE_S", 10 * PATIENCE_S)  # the copy does not wait for that
    trees.file("large", LONG_BYTES)
    held = Fault(1, START, nth, HOLD)
    result = trees.copied(is_push, held, connections=2, timeout_s=round(10 * PATIENCE_S))
    assert result.connections_lost == 0


@pytest.mark.parametrize("do", [KILL, LATE, FAIL])
@pytest.mark.parametrize("nth", [0, 1])
def test_an_agent_begins_late_or_never(trees: Trees, is_push: bool, nth: int, do: str) -> None:
    """A lane that waits for no HELLO has sent work by then: it is done once, by whoever is left."""
    trees.file("large", LONG_BYTES)
    trees.copied(is_push, *(Fault(number, START, nth, do) for number in (1, 2)), connections=3)


def test_the_next_copy_has_the_connections_of_the_last(
    trees: Trees, is_push: bool, make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_pool, "_END_S", PATIENCE_S)  # that of a slow lane is not kept
    trees.file("large", LARGE_BYTES)
    bench = make_bench()
    source, to = f"{trees.source}/.", str(trees.to)
    froms = (source, f"bench:{to}") if is_push else (f"bench:{source}", to)
    with bench.session(connections=1) as session:
        for _ in range(3):
            assert session.copy(*froms, recursive=True).ok
            trees.assert_copied()
            trees.clear()
        assert len(bench.links) == 1
        bench.links[0].kill()  # and the one after that finds it dead
        assert session.copy(*froms, recursive=True).ok
        trees.assert_copied()
    assert len(bench.links) == 2


def test_a_lost_connection_that_nobody_needs_is_not_opened_again(
    trees: Trees, is_push: bool
) -> None:
    """The goodbye of a lane is lost: the copy is over."""
    trees.file("large", LARGE_BYTES)
    trees.done(is_push, connections=1)
    last = trees.bench.links[0].carried[TO] - 1
    trees.clear()
    result = trees.copied(is_push, Fault(0, TO, last, KILL), connections=1)
    assert (result.connections_lost, len(trees.bench.links)) == (0, 1)
