"""Connections that come late: before a copy, in the middle of one, after the session, never."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_logins import WAIT_S, FakeChannel, FakeRemoteAgent

from pscp.connect import spare_logins
from pscp.connect.spare_logins import IdleConnections
from pscp.ground.errors import ConnectionLost


def far() -> Any:
    return FakeRemoteAgent(FakeChannel())


def test_a_lane_waits_for_a_login_that_goes_on() -> None:
    idle, one = IdleConnections(), far()
    idle.expect(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(idle.next)
        idle.give([one])
        idle.no_longer_expect()
        assert waiting.result(WAIT_S) is one


def test_a_login_that_never_succeeds_ends_the_wait() -> None:
    idle = IdleConnections()
    idle.expect(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(idle.next)
        idle.no_longer_expect()
        idle.no_longer_expect()
        assert waiting.result(WAIT_S) is None


def test_after_the_end_nothing_is_kept() -> None:
    idle, before, after = IdleConnections(), far(), far()
    idle.expect(1)
    idle.give([before])
    idle.close()
    idle.give([after])
    assert before.channel.is_closed and after.channel.is_closed
    with pytest.raises(ConnectionLost):
        idle.next()  # though one is still expected
    idle.close()


def test_who_is_expected_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a lane that waits is over: the lane itself is one of those that go on."""
    monkeypatch.setattr(spare_logins, "_PATIENCE_S", 0.01)
    idle = IdleConnections()
    idle.expect(1)
    assert idle.next() is None


def test_logins_that_need_answers_have_ended_before_nobody_gives_any() -> None:
    """ssh would send an empty password, which is counted as a wrong one."""
    idle = IdleConnections()
    idle.expect(1)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(idle.close, is_cut=True)
        while not idle.is_cut:
            assert not closing.done()
        assert not closing.done()
        idle.no_longer_expect()
        closing.result(WAIT_S)
