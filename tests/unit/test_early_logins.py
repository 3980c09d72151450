"""Logins that begin early: each goes to one lane, with the marker of its own agent, or ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from fake_logins import FakeChannel

from pscp.connect.spare_logins import EarlyLogins
from pscp.transports import Channel


def filled(number: int) -> tuple[EarlyLogins, list[FakeChannel]]:
    early, channels = EarlyLogins(), [FakeChannel() for _ in range(number)]
    for channel in channels:
        early.add(channel)
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
    early.add(last := FakeChannel())
    early.send_agents(send)
    assert sent == [*channels, last]
    assert [early.take() for _ in range(4)] == [*zip(sent, (b"0", b"1", b"2"), strict=True), None]


def test_what_was_not_sent_has_no_marker() -> None:
    early, [channel] = filled(1)
    assert early.take() == (channel, b"")


def test_no_two_lanes_take_one_login() -> None:
    early, channels = filled(200)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: early.take(), range(250)))
    assert {found[0] for found in taken if found} == {*channels} and taken.count(None) == 50
