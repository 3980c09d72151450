"""When a copy asks how long a round trip is: not where a kept connection shows it to be as before.

Not here: what is remembered of a host (test_host_memory.py).
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from pscp.connect.known.host_memory import HostMemory, PathRecord
from pscp.ground.locations import parse_location
from pscp.options.options import Options
from pscp.transfer.negotiation import Negotiation
from pscp.transports import socket_options

pytestmark = pytest.mark.usefixtures("own_state")

HOST, OPTIONS = parse_location("host:/in"), Options()


def measured(monkeypatch: pytest.MonkeyPatch, opening_s: float) -> tuple[float, int]:
    """Return the round trip that is found, and how many requests that took."""
    asked: list[object] = []

    def ask(_: object, agents: list[Any], request: object) -> tuple[object, bool]:
        agents[0].rtt_s = 0.5
        asked.append(request)
        return None, False

    monkeypatch.setattr(Negotiation, "_ask_far", ask)
    monkeypatch.setattr(socket_options, "sending_of", lambda _: None)  # it is another process's
    negotiation = Negotiation.__new__(Negotiation)
    connections = SimpleNamespace(host=HOST)
    request: Any = SimpleNamespace(connections=connections, is_push=True)
    vars(negotiation).update(_request=request, _options=OPTIONS)
    channel = SimpleNamespace(opening_s=opening_s)
    far: Any = SimpleNamespace(rtt_s=math.inf, channel=channel, start_s=1.0)
    negotiation.measure_path([far])
    return far.rtt_s, len(asked)


def test_a_kept_connection_that_opens_as_fast_as_before_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    HostMemory(HOST, OPTIONS).remember(True, PathRecord(logins=2, rtt_s=0.24))
    assert measured(monkeypatch, 0.25) == (0.24, 0)
    assert measured(monkeypatch, 0.23) == (0.23, 0)


@pytest.mark.parametrize("opening_s", [0.6, 0.1, math.inf])
def test_one_that_does_not_is(monkeypatch: pytest.MonkeyPatch, opening_s: float) -> None:
    """It is another path by now, or this machine was busy; without a kept one nothing is known."""
    HostMemory(HOST, OPTIONS).remember(True, PathRecord(logins=2, rtt_s=0.24))
    assert measured(monkeypatch, opening_s) == (0.5, 1)


def test_a_path_of_which_nothing_is_remembered_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, 0.001) == (0.5, 1)
