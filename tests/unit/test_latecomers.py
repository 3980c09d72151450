"""Connections that come late: before a copy, in the middle of one, after the session, never."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_logins import WAIT_S, FakeChannel, FakeRemoteAgent

from pscp.connect import spare_logins
from pscp.connect.spare_logins import Latecomers
from pscp.ground.errors import ConnectionLost


def far() -> Any:
    return FakeRemoteAgent(FakeChannel())


def test_a_lane_waits_for_a_login_that_goes_on() -> None:
    late, one = Latecomers(), far()
    late.expect(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(late.next)
        late.accept(one)
        late.no_longer_expect()
        assert waiting.result(WAIT_S) is one


def test_a_login_that_never_succeeds_ends_the_wait() -> None:
    late = Latecomers()
    late.expect(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(late.next)
        late.no_longer_expect()
        late.no_longer_expect()
        assert waiting.result(WAIT_S) is None


def test_after_the_end_nothing_is_kept() -> None:
    late, before, after = Latecomers(), far(), far()
    late.expect(1)
    late.accept(before)
    late.close()
    late.accept(after)
    assert before.channel.is_closed and after.channel.is_closed
    with pytest.raises(ConnectionLost):
        late.next()  # though one is still expected
    late.close()


def test_who_is_expected_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a lane that waits is over: the lane itself is one of those that go on."""
    monkeypatch.setattr(spare_logins, "_PATIENCE_S", 0.01)
    late = Latecomers()
    late.expect(1)
    assert late.next() is None


def test_logins_that_need_answers_have_ended_before_nobody_gives_any() -> None:
    """ssh would send an empty password, which is counted as a wrong one."""
    late = Latecomers()
    late.expect(1)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(late.close, is_cut=True)
        while not late.is_cut:
            assert not closing.done()
        assert not closing.done()
        late.no_longer_expect()
        closing.result(WAIT_S)
