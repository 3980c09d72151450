"""Agent or SFTP: what was asked for, what was found out, what is remembered."""

from __future__ import annotations

from typing import Any

import pytest
from fake_logins import FakeChannel, FakeRemoteAgent

from pscp.connect.first_login import RemoteKind
from pscp.connect.logins import host_cache
from pscp.ground.locations import parse_location
from pscp.options.options import Options

HOST = parse_location("host:")
pytestmark = pytest.mark.usefixtures("own_state")
AUTO, AGENT, SFTP = (Options(remote=remote) for remote in ("auto", "agent", "sftp"))


def far(is_sftp: bool, verify: str = "auto") -> Any:
    made = FakeRemoteAgent(FakeChannel(is_sftp))
    made.verify = verify
    return made


def test_what_is_asked_for_goes_before_what_is_remembered() -> None:
    host_cache.remember_sftp(HOST, AUTO, True)
    kind = RemoteKind(HOST)
    assert [kind.uses_sftp(each) for each in (AUTO, AGENT, SFTP)] == [True, False, True]


def test_a_session_stays_with_what_it_has_found() -> None:
    kind = RemoteKind(HOST)
    assert not kind.uses_sftp(AUTO)
    host_cache.remember_sftp(HOST, AUTO, True)  # by another one
    assert not kind.uses_sftp(AUTO)
    kind.forget()
    assert kind.uses_sftp(AUTO)


def test_only_a_connection_of_the_same_kind_suits() -> None:
    """Over SFTP it was also begun with a way to verify."""
    kind = RemoteKind(HOST)
    assert kind.suits(far(False), AGENT) and kind.suits(far(False, "read"), AGENT)
    assert not kind.suits(far(True), AGENT) and not kind.suits(far(False), SFTP)
    assert kind.suits(far(True, SFTP.verify), SFTP)
    assert not kind.suits(far(True, "other"), SFTP)
