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
    prompts.callers[1].refusal = AuthenticationError("refused")
    assert policy.end_login(one) is None
    assert policy.end_login(other) is prompts.callers[1].refusal
    assert policy.end_login(other) is None  # it has ended


@pytest.mark.parametrize("was_good", [False, True])
def test_neither_a_lost_login_nor_one_after_good_answers_is_a_refusal(
    policy: Authenticator, prompts: FakePrompts, was_good: bool
) -> None:
    """Only wrong answers are. What refuses a third login, after a second, is not remembered."""
    policy.log_in("key", Options(), True, opened)
    prompts.was_asked = True
    if was_good:
        policy.repeat(far)
    error = AuthenticationError("too many") if was_good else ConnectionLost("closed")

    def fails() -> Any:
        raise error

    with pytest.raises(type(error)):
        policy.repeat(fails)
    assert policy.repeat(far) is not None
