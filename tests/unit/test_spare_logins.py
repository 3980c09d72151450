"""Connections that come late, and logins that begin early: who has them, and how they end."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_logins import WAIT_S, FakeChannel, FakeRemoteAgent

from pscp.connect import spare_logins
from pscp.connect.spare_logins import EarlyLogins, IdleConnections
from pscp.ground.errors import ConnectionLost
from pscp.transports.channel import AGENT

# --- connections that come late, before a copy, in its midst, after the session


def far() -> Any:
    return FakeRemoteAgent(FakeChannel())


@pytest.mark.parametrize("given", [[far()], []], ids=["one succeeds", "none does"])
def test_a_lane_waits_for_logins_that_go_on(given: list[Any]) -> None:
    idle = IdleConnections()
    idle.expect(2)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(idle.next)
        idle.give(given)
        idle.expect(-1)
        idle.expect(-1)
        assert waiting.result(WAIT_S) is (given[0] if given else None)


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
        idle.expect(-1)
        closing.result(WAIT_S)


# --- logins that begin early


def filled(number: int) -> tuple[EarlyLogins, list[FakeChannel]]:
    early, channels = EarlyLogins(), [FakeChannel() for _ in range(number)]
    for channel in channels:
        early.add(channel)
    return early, channels


def test_the_agent_is_sent_once_to_each() -> None:
    early, read_fds = EarlyLogins(), list[int]()
    for _ in range(3):
        early.add(channel := FakeChannel(is_sftp=True))
        read_fd, channel.write_fd = os.pipe()
        read_fds.append(read_fd)
        early.send_agents(are_known=True)
    markers = []
    while (sent := early.take("auto")) is not None:
        os.close(sent.write_fd)
        markers.append(sent.marker)
    assert [os.read(fd, 1000) for fd in read_fds] == markers and len({*markers}) == 3
    for fd in read_fds:
        os.close(fd)


def test_no_two_lanes_take_one_login() -> None:
    early, channels = filled(200)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: early.take(AGENT), range(250)))
    assert {*taken} == {*channels, None} and taken.count(None) == 50


def test_w1_a_lane_takes_no_login_of_another_kind() -> None:
    """One over SFTP verifies as the call that began it wanted, and an agent is no SFTP."""
    early, [agent] = filled(1)
    early.add(read_back := FakeChannel())
    read_back.kind = "read-back"
    assert early.take("none") is None
    assert early.take("read-back") is read_back
    assert early.take(AGENT) is agent
