"""Which workers of a cluster are given tasks (pscp/cluster/standing.py)."""

from __future__ import annotations

import pytest

from pscp.cluster import standing
from pscp.cluster.standing import Standing


def test_who_can_do_nothing_is_passed_over_while_others_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Standing()
    workers.see(["a", "b"])
    assert workers.chosen() is None
    for _ in range(10):
        workers.note("b", has_done=False)
    assert workers.chosen() == ["a"] and not workers.is_hopeless
    monkeypatch.setattr(standing, "_PASSED_OVER_S", 0.0)  # its time is over
    assert workers.chosen() is None
    workers.note("b", has_done=True)
    monkeypatch.undo()
    assert workers.chosen() is None


def test_a_copy_ends_once_no_worker_does_anything() -> None:
    workers = Standing()
    workers.see(["a", "b"])
    for each in "ab":
        workers.note(each, has_done=False)
    assert workers.chosen() is None and not workers.is_hopeless
    workers.note("a", has_done=False)
    assert workers.is_hopeless
    workers.see(["a", "b", "c"])  # it may do better
    assert not workers.is_hopeless and workers.chosen() == ["c"]


def test_whose_process_dies_at_each_task_is_not_known() -> None:
    workers = Standing()
    workers.see(["a"])
    workers.note("", has_done=False)
    workers.note("", has_done=False)
    workers.note("a", has_done=True)
    workers.note("", has_done=False)
    assert not workers.is_hopeless
