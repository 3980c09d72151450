"""The first connection: whether the far end has an agent or SFTP, and the one login for all.

Not here: what goes on beside it (test_connections.py).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from fake_logins import FakeChannel, FakeOpener, FakeRemoteAgent, failing

from pscp.connect import bootstrap, first_login
from pscp.connect.control_master import Master
from pscp.connect.first_login import FirstLogin
from pscp.connect.known.host_memory import HostMemory
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.spare_logins import EarlyLogins
from pscp.ground.errors import ConnectError, NoAgent, NoSftp, Unreachable
from pscp.ground.locations import parse_location
from pscp.options.options import Options
from pscp.transports import Control, SshSetup

HOST = parse_location("me@host:")
OPTIONS = Options(batch=True)
CONTROL = Control("/there", True)


class FakeMaster:
    """The one login: it succeeds, unless `error` says why not."""

    control = CONTROL
    is_only = False

    def __init__(self, error: ConnectError | None = None) -> None:
        self.channel = FakeChannel()
        self.error = error
        self.is_lost = self.is_closed = False

    def wait(self, note: object, patience: object) -> ConnectError | None:
        return self.error

    def is_usable(self) -> bool:
        return not self.is_lost

    def close(self) -> None:
        self.is_closed = True


class MasterOpener(FakeOpener):
    """Begins these logins for all channels, one after the other."""

    def __init__(self, masters: list[FakeMaster], *planned: FakeChannel) -> None:
        super().__init__(*planned)
        self.masters = masters

    def open_master(self, setup: HostSetup) -> Master | None:
        return self.masters.pop(0) if self.masters else None  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, own_state: Path) -> None:
    monkeypatch.setattr(bootstrap, "RemoteAgent", FakeRemoteAgent)


def made(opener: FakeOpener) -> FirstLogin:
    return FirstLogin(opener, Authenticator(), EarlyLogins())


def setup(options: Options = OPTIONS) -> HostSetup:
    return HostSetup(HOST, options, SshSetup())


def finish(login: FirstLogin, options: Options = OPTIONS) -> tuple[Any, list[str]]:
    said: list[str] = []
    return login.finish(setup(options), said.append), said


@pytest.mark.parametrize(
    ("idle_s", "crowded"), [((5.0, 5.0), True), ((5.0, 1e9), False), ((math.inf, math.inf), False)]
)
def test_whether_processors_were_busy_meanwhile(
    idle_s: tuple[float, float], crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they were, a login that took long says nothing of how fast they are."""
    told = iter(idle_s)
    monkeypatch.setattr(first_login, "idle_s", lambda: next(told))
    login = made(FakeOpener())
    finish(login)
    assert login.clock.was_crowded is crowded


def test_what_was_started_and_never_waited_for_is_closed() -> None:
    opener = FakeOpener()
    login = made(opener)
    login.start(setup())
    login.close()
    assert opener.opened[0].is_closed and not login.is_started
    login.close()


def test_where_sftp_is_no_more_it_is_the_agent_again() -> None:
    HostMemory(HOST, OPTIONS).remember_sftp(True)
    opener = FakeOpener(failing(NoSftp("none")))
    far, said = finish(made(opener))
    assert not far.is_sftp and not said
    assert not HostMemory(HOST, OPTIONS).uses_sftp()


def test_where_there_is_neither_the_reason_is_why_there_is_no_agent() -> None:
    opener = FakeOpener(failing(NoAgent("a shop")), failing(NoSftp("none")))
    login = made(opener)
    with pytest.raises(NoAgent, match="a shop"):
        finish(login)
    assert not HostMemory(HOST, OPTIONS).uses_sftp()
    assert not finish(login)[0].is_sftp  # the next time the agent is tried first again


def test_one_login_that_fails_is_begun_anew_the_next_time() -> None:
    bad, good = FakeMaster(Unreachable("away", "ssh HOST")), FakeMaster()
    login = made(MasterOpener([bad, good]))
    login.start(setup())
    with pytest.raises(Unreachable, match="me@host: away") as caught:
        finish(login)
    assert bad.is_closed and caught.value.hint == "ssh me@host"
    assert finish(login)[0].channel.control == CONTROL and not good.is_closed


def test_a_connection_of_one_login_that_was_lost_is_replaced() -> None:
    lost, good = FakeMaster(), FakeMaster()
    login = made(MasterOpener([lost, good]))
    finish(login)
    lost.is_lost = True
    finish(login)
    assert lost.is_closed and not good.is_closed


def test_what_is_asked_for_goes_before_what_is_remembered() -> None:
    HostMemory(HOST, OPTIONS).remember_sftp(True)
    login = made(FakeOpener())
    kinds = (setup(Options(remote=remote)) for remote in ("auto", "agent", "sftp"))
    assert [login.uses_sftp(each) for each in kinds] == [True, False, True]


def test_a_session_stays_with_what_it_has_found() -> None:
    login = made(FakeOpener())
    assert not login.uses_sftp(setup())
    HostMemory(HOST, OPTIONS).remember_sftp(True)  # by another one
    assert not login.uses_sftp(setup())
