"""Who gets which connection: copies that begin at once, logins that end late, twice or never.

Not here: real logins (../e2e/test_login.py), the first one's kinds (test_first_login.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_logins import WAIT_S, FakeChannel, FakeOpener, FakePrompts, FakeRemoteAgent, failing, held

from pscp.connect import bootstrap
from pscp.connect.connections import ConnectionRequest
from pscp.connect.direct_plane import DirectPlane
from pscp.connect.direct_sockets import NoDirectLane
from pscp.connect.first_login import Ahead, worth_many
from pscp.connect.known.host_memory import HostMemory, PathRecord
from pscp.connect.logins import authenticator
from pscp.connect.one_host import OneHost
from pscp.endpoint.plane.congestion import Sending
from pscp.ground.errors import (
    AuthenticationError,
    ConnectionLost,
    HostKeyError,
    Unreachable,
    UsageError,
)
from pscp.ground.locations import parse_location
from pscp.ground.values import LOGINS_MAX
from pscp.options.options import Options
from pscp.transports import SshSetup, socket_options

HOST = parse_location("host:")
OPTIONS = Options(batch=True)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, own_state: Path) -> None:
    monkeypatch.setattr(bootstrap, "RemoteAgent", FakeRemoteAgent)
    monkeypatch.setattr(bootstrap, "send_agent", lambda channel, is_known: b"marker")


def made(*planned: FakeChannel) -> tuple[OneHost, FakeOpener]:
    opener = FakeOpener(*planned)
    return OneHost(HOST, opener), opener


def take(session: OneHost) -> list[Any]:
    return session.take(OPTIONS, lambda text: None)


def start(session: OneHost) -> None:
    session.start_logins(OPTIONS, is_push=True, worth=worth_many)


def wanted(
    opened: Callable[[Any], None] = lambda channel: None, of: Any = None
) -> ConnectionRequest:
    return ConnectionRequest(of, "", opened)


def prompted(session: OneHost, monkeypatch: pytest.MonkeyPatch, prompts: FakePrompts) -> None:
    """Have the session's logins answered by these prompts."""
    monkeypatch.setattr(authenticator, "_prompts", lambda key, options: prompts)
    session._authenticator.log_in("host", Options(), True, lambda asks: FakeChannel())


@contextlib.contextmanager
def three_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[OneHost, FakeOpener, FakeChannel, list[Future[Any]]]]:
    """Have three lanes connect: the second login of the session stands still, two wait for it."""
    second = held()
    session, opener = made(second)
    prompted(session, monkeypatch, FakePrompts())
    with ThreadPoolExecutor() as pool:
        lanes = [pool.submit(session.connect, OPTIONS, wanted()) for _ in range(3)]
        assert second.greeted.wait(WAIT_S)
        yield session, opener, second, lanes


def remembered(logins: int) -> None:
    HostMemory(HOST, OPTIONS).remember(True, PathRecord(logins, logins, 0.1))


def test_as_many_logins_begin_as_passed_the_last_time() -> None:
    remembered(4)
    session, opener = made()
    start(session)
    assert len(opener.opened) == 4 and session.has_early()
    start(session)  # another copy of the session: no more
    session.check_logins(OPTIONS, is_push=True, worth=worth_many)
    assert len(opener.opened) == 4
    session.close(is_cut=True)
    assert all(channel.is_closed for channel in opener.opened)


def test_a_far_host_has_no_more_early_logins_than_the_copy_is_worth() -> None:
    remembered(8)
    for connections, count in ((None, 2), (5, 5)):
        session, opener = made()
        options = dataclasses.replace(OPTIONS, connections=connections)
        session.start_logins(options, is_push=True, worth=lambda rtt_s: round(20 * rtt_s))
        assert len(opener.opened) == count
        session.close()


@pytest.fixture
def far_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says that a round trip takes 0.1 s."""
    sending = Sending(0, 0, 0.2, 0.1)
    monkeypatch.setattr(socket_options, "sending_of", lambda channel: sending)


def take_for(session: OneHost, lanes: int, options: Options = OPTIONS) -> list[Any]:
    """Take the first connection for a copy that will have so many lanes."""
    ahead = Ahead(lambda rtt_s: lanes if rtt_s == 0.1 else 0)
    return session.take(options, lambda text: None, ahead)


@pytest.mark.usefixtures("far_path")
def test_others_begin_once_the_first_is_let_in() -> None:
    """Before it answers, and to a host of which nothing is known; no more than may log in at once.

    What they are sent does not ask for a HELLO.
    """
    session, opener = made()
    [first] = take_for(session, 12)
    assert len(opener.opened) == LOGINS_MAX and session.has_early()
    far: Any = session.connect(OPTIONS, wanted())
    assert far.channel is opener.opened[1] and far.facts is first.facts
    session.close()


@pytest.mark.usefixtures("far_path")
def test_those_that_began_with_the_first_are_counted() -> None:
    remembered(3)
    session, opener = made()
    start(session)
    take_for(session, 5)
    assert len(opener.opened) == 5
    session.close()


def test_on_a_near_path_others_begin_when_there_is_work_for_them() -> None:
    session, opener = made()
    take_for(session, 8)
    assert len(opener.opened) == 1


@pytest.mark.usefixtures("far_path")
@pytest.mark.parametrize("single", [True, False])
def test_where_the_first_login_asked_somebody_no_others_begin(
    single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, opener = made()
    prompted(session, monkeypatch, FakePrompts(is_single_use=single))
    take_for(session, 8)
    assert len(opener.opened) == 1


def test_two_copies_that_begin_at_once_do_not_log_in_at_once() -> None:
    """What the first one's person types is an answer for the second one as well."""
    one, other = held(), FakeChannel()
    session, opener = made(one, other)
    with ThreadPoolExecutor() as pool:
        takes = [pool.submit(take, session), pool.submit(take, session)]
        assert one.greeted.wait(WAIT_S)
        assert not other.greeted.wait(0.2) and len(opener.opened) == 1
        assert one.gate is not None
        one.gate.set()
        channels = [future.result(WAIT_S)[0].channel for future in takes]
    assert {*channels} == {one, other}


def test_lanes_connect_while_another_copy_waits_for_its_first_login() -> None:
    remembered(2)
    first = held()
    session, opener = made(first)
    start(session)
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(take, session)
        assert first.greeted.wait(WAIT_S)
        early = pool.submit(session.connect, OPTIONS, wanted()).result(WAIT_S)
        new = pool.submit(session.connect, OPTIONS, wanted()).result(WAIT_S)
        assert first.gate is not None
        first.gate.set()
        assert taken.result(WAIT_S)[0].channel is first
    assert [early.channel, new.channel] == opener.opened[1:]


def test_a_session_can_be_closed_while_a_login_goes_on() -> None:
    first = held()
    session, _ = made(first)
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(take, session)
        assert first.greeted.wait(WAIT_S)
        pool.submit(session.close).result(WAIT_S)
        assert first.gate is not None
        first.gate.set()
        assert taken.result(WAIT_S)[0].channel is first


def test_a_lane_whose_turn_comes_after_the_end_logs_in_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for the second login, which goes alone; nobody would close what it begins."""
    with three_lanes(monkeypatch) as (session, opener, second, lanes):
        session.close()
        assert second.gate is not None
        second.gate.set()
        ends = [lane.exception(WAIT_S) for lane in lanes]
    assert [type(end) for end in ends if end is not None] == [ConnectionLost] * 2
    assert opener.opened == [second]


def test_a_lane_has_the_connection_that_came_late() -> None:
    session, opener = made()
    dead, good = session.connect(OPTIONS, wanted()), session.connect(OPTIONS, wanted())
    dead.is_dead = True  # type: ignore[attr-defined]
    session.idle.give([dead, good])
    opened: list[Any] = []
    assert session.connect(OPTIONS, wanted(opened.append)) is good
    assert opened == [good.channel] and dead.channel.is_closed  # type: ignore[attr-defined]
    assert len(opener.opened) == 2


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the answers were wrong for a second login, no third one tries them."""
    session, opener = made(failing(AuthenticationError("refused")))
    prompted(session, monkeypatch, FakePrompts())
    for _ in range(3):
        with pytest.raises(AuthenticationError, match="refused"):
            session.connect(OPTIONS, wanted())
    assert len(opener.opened) == 1


def test_the_second_login_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with three_lanes(monkeypatch) as (_, opener, second, lanes):
        assert len(opener.opened) == 1
        assert second.gate is not None
        second.gate.set()
        assert len({lane.result(WAIT_S) for lane in lanes}) == 3
    assert len(opener.opened) == 3


def test_where_an_answer_is_good_once_all_lanes_share_one_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remembered(3)
    session, opener = made()
    start(session)
    prompted(session, monkeypatch, FakePrompts(is_single_use=True))
    take(session)
    assert session.has_one_login
    assert [channel.is_closed for channel in opener.opened] == [False, True, True]
    with pytest.raises(AuthenticationError, match="the only login's connection was lost"):
        session.connect(OPTIONS, wanted())
    session.remember(OPTIONS, True, PathRecord(8, 8, 0.1))
    assert HostMemory(HOST, OPTIONS).recall(True).logins == 1


def test_a_setup_that_changed_begins_anew() -> None:
    take(made()[0])  # a copy after which the setup is remembered
    session, opener = made()
    start(session)
    opener.ssh = SshSetup(ciphers_are_ours=True)
    session.check_logins(OPTIONS, is_push=True, worth=worth_many)
    assert [channel.is_closed for channel in opener.opened] == [True, False]
    assert take(session)[0].channel is opener.opened[1]


def test_between_two_attempts_others_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    session, opener = made(failing(ConnectionLost("closed")), failing(ConnectionLost("closed")))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        other = threading.Thread(target=start, args=(session,), daemon=True)
        other.start()
        other.join(WAIT_S)
        assert not other.is_alive()

    monkeypatch.setattr(time, "sleep", pause)
    assert take(session)[0].channel is opener.opened[2]
    assert pauses == [1, 2]


FOR_GOOD = ConnectionLost("closed for good")
FOR_GOOD.retry = False


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (ConnectionLost("closed"), 4), (FOR_GOOD, 1), (Unreachable("host: away"), 1),
        (HostKeyError("other"), 1),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_tried_again(error: Any, attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session, opener = made(*[failing(error) for _ in range(5)])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(type(error)):
        take(session)
    assert len(opener.opened) == attempts


def test_retry_for_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [time.monotonic()]
    session, opener = made(*[failing(Unreachable("host: away")) for _ in range(50)])
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock_s.__setitem__(0, clock_s[0] + seconds))
    said: list[str] = []
    with pytest.raises(Unreachable):
        session.take(Options(batch=True, retry_for_s=60), said.append)
    assert said == ["host: away; trying again for up to 60 s"]
    assert len(opener.opened) == 6  # after 1, 2, 4, 8 and 16 s; 30 more would be too late
    with pytest.raises(Unreachable):
        session.take(Options(batch=True, retry_for_s=1, quiet=True), said.append)
    assert len(said) == 1


def test_nothing_is_remembered_of_a_connection_that_the_program_made() -> None:
    session, opener = made()
    opener.logs_in = False
    session.remember(OPTIONS, True, PathRecord(8, 8, 0.1))
    assert HostMemory(HOST, OPTIONS).recall(True) == PathRecord()


def test_direct_lanes_that_were_refused_are_not_tried_again() -> None:
    """Neither a listening port is asked for, nor anything said, while that is remembered."""
    options = Options(batch=True, plane="tls")
    HostMemory(HOST, options).remember_no_direct()
    session, _ = made()
    agents, said = take(session), list[str]()
    session.expect_lanes(options, agents[0])
    session.spread(options, agents, 4, said.append)
    assert [far.plane for far in agents] == ["ssh"] and said == []


@pytest.mark.parametrize("refusal", [NoDirectLane("no"), ConnectionLost("lost")], ids=repr)
def test_a_connection_that_direct_lanes_have_cost_is_nobodys(refusal: Exception) -> None:
    """The far end asks for direct lanes over it; where that fails, the plane has closed it."""
    session, opener = made()
    agents = take(session)
    plane = Mock(refused="", **{"first.side_effect": refusal, "take_control.return_value": None})
    session._plane = plane
    with pytest.raises(ConnectionLost):
        session.spread(Options(batch=True, plane="tls"), agents, 4, lambda text: None)
    assert agents == [] and plane.first.call_args[0][1].channel is opener.opened[0]


def test_without_the_package_for_keys_nobody_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    session, opener = made()
    with pytest.raises(UsageError, match="cryptography is not installed"):
        session.check(Options(batch=True, plane="tls"), True)
    assert session.check(Options(batch=True, plane="plain"), True) == [] and opener.opened == []


def test_w1_connections_of_other_calls_are_looked_at_one_by_one() -> None:
    """Two copies at once verify differently over SFTP; a third has only what suits it."""
    session, _ = made()
    kinds = [Options(batch=True, remote="sftp", verify=each) for each in ("auto", "none")]
    [checked], [unchecked] = (session.take(each, lambda text: None) for each in kinds)
    session.give([checked, unchecked])
    assert session.take(kinds[0], lambda text: None) == [checked]
    assert unchecked.channel.is_closed  # type: ignore[attr-defined]


def test_w1_a_login_that_another_call_has_started_is_not_its_own() -> None:
    checked, unchecked = (Options(batch=True, remote="sftp", verify=e) for e in ("auto", "none"))
    session, opener = made()
    session.start_logins(unchecked, is_push=True, worth=worth_many)
    [far] = session.take(checked, lambda text: None)
    assert [each.is_closed for each in opener.opened] == [True, False]
    assert far.channel.kind == "auto"


def test_w3_two_calls_at_once_have_their_lanes_by_one_control_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lanes of the first ended with it, as the second one's took its place, or it was taken."""
    options = Options(batch=True, plane="plain")
    session, opener = made()
    monkeypatch.setattr(DirectPlane, "_open", lambda *given: [Mock(plane="plain")])
    monkeypatch.setattr(DirectPlane, "_hear", lambda *given: None)
    calls = [session.take(options, lambda text: None) for _ in range(2)]
    for agents in calls:
        session.spread(options, agents, 1, lambda text: None)
    assert [each.is_closed for each in opener.opened] == [False, True]
    [third] = session.take(options, lambda text: None)
    assert third.channel is opener.opened[2]
    for agents in calls:
        session.give(agents)
    session.idle.close()
    assert session.take(options, lambda text: None)[0].channel is opener.opened[0]


def test_w6_who_waits_for_the_plane_holds_no_idle_connections() -> None:
    """The thread that has the plane may need one of them, to log in for another lane."""
    session, _ = made()
    asked, answer = threading.Event(), threading.Event()

    def has_control() -> bool:
        asked.set()
        return not answer.wait(WAIT_S)

    session._plane = Mock(
        refused="", has_control=has_control, **{"take_control.return_value": None}
    )
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(session.take, Options(batch=True, plane="tls"), lambda text: None)
        assert asked.wait(WAIT_S)
        assert pool.submit(session.idle.next).result(WAIT_S) is None
        answer.set()
        taken.result(WAIT_S)


def test_w1_a_copy_over_sftp_does_not_have_the_agent_that_asks_for_direct_lanes() -> None:
    session, opener = made()
    session._plane = Mock(refused="", **{"has_control.return_value": True})
    [far] = session.take(Options(batch=True, remote="sftp"), lambda text: None)
    assert far.channel is opener.opened[0] and far.is_sftp
