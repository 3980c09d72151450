"""Whose prompts are answered, and what a refusal is worth.

Not here: the answers (test_prompts.py), the second login among lanes (test_connections.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from fake_logins import FakeChannel, FakePrompts

from pscp.connect.logins import authenticator
from pscp.connect.logins.authenticator import Authenticator
from pscp.ground.errors import AuthenticationError, ConnectionLost
from pscp.options.options import Options


def opened(environment: object) -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> FakePrompts:
    made = FakePrompts(was_asked=False)
    monkeypatch.setattr(authenticator, "_prompts", lambda key, options: made)
    return made


@pytest.fixture
def policy(prompts: FakePrompts) -> Authenticator:
    return Authenticator()


def far() -> Any:
    return object()


def test_a_refusal_is_that_of_its_channel(policy: Authenticator, prompts: FakePrompts) -> None:
    one, other = (policy.log_in("key", Options(), True, opened) for _ in range(2))
    prompts.refused["2"] = AuthenticationError("refused")
    assert policy.end_login(one) is None
    assert policy.end_login(other) is prompts.refused["2"]
    assert policy.end_login(other) is None  # it has ended


def test_a_login_that_is_lost_is_no_refusal(policy: Authenticator, prompts: FakePrompts) -> None:
    """Only wrong answers are: a connection that was lost says nothing about them."""
    policy.log_in("key", Options(), True, opened)
    prompts.was_asked = True

    def lost() -> Any:
        raise ConnectionLost("closed")

    with pytest.raises(ConnectionLost):
        policy.repeat(lost)
    assert policy.repeat(far) is not None


def test_answers_that_were_good_twice_are_good(policy: Authenticator, prompts: FakePrompts) -> None:
    """A refusal of a third login is not remembered: the next may get in."""
    policy.log_in("key", Options(), True, opened)
    prompts.was_asked = True
    policy.repeat(far)

    def refused() -> Any:
        raise AuthenticationError("too many")

    with pytest.raises(AuthenticationError):
        policy.repeat(refused)
    assert policy.repeat(far) is not None
