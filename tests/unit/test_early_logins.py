"""Logins that begin early: each goes to one lane, with the marker of its own agent, or ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from fake_logins import FakeChannel

from pscp.connect.spare_logins import EarlyLogins, Login
from pscp.transports import Channel

AGENT = (False, "")


def filled(number: int) -> tuple[EarlyLogins, list[FakeChannel]]:
    early, channels = EarlyLogins(), [FakeChannel() for _ in range(number)]
    for channel in channels:
        early.add(Login(channel, AGENT))
    return early, channels


def markers() -> Iterator[bytes]:
    return (b"%d" % number for number in count())


def test_the_agent_is_sent_once_to_each() -> None:
    early, channels = filled(2)
    marker, sent = markers(), list[Channel]()

    def send(channel: Channel) -> bytes:
        sent.append(channel)
        return next(marker)

    early.send_agents(send)
    early.add(Login(last := FakeChannel(), AGENT))
    early.send_agents(send)
    assert sent == [*channels, last]
    expected = [Login(each, AGENT, b"%d" % number) for number, each in enumerate(sent)]
    assert [early.take(AGENT) for _ in range(4)] == [*expected, None]


def test_what_was_not_sent_has_no_marker() -> None:
    early, [channel] = filled(1)
    assert early.take(AGENT) == Login(channel, AGENT)


def test_no_two_lanes_take_one_login() -> None:
    early, channels = filled(200)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: early.take(AGENT), range(250)))
    assert {found.channel for found in taken if found} == {*channels} and taken.count(None) == 50


def test_w1_a_lane_takes_no_login_of_another_kind() -> None:
    """One over SFTP verifies as the call that began it wanted, and an agent is no SFTP."""
    early, [agent] = filled(1)
    read_back = Login(FakeChannel(), (True, "read-back"))
    early.add(read_back)
    assert early.take((True, "none")) is None
    assert early.take(read_back.kind) == read_back
    assert early.take(AGENT) == Login(agent, AGENT)
