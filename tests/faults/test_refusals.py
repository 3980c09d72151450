"""An agent that refuses a frame: the copy ends with the agent's reason, over each plane (N17).

Here the coordinator sends what no state of the agent takes, in the place of each piece of work.

Not here: far ends that lie (test_hostile.py), lanes that are lost without a word
(test_lanes_lost.py, ../core/test_lane_pool.py).
"""

from __future__ import annotations

import zlib

import pytest

from faults.conftest import Way
from pscp.connect import agent_program, bootstrap
from pscp.endpoint.frames import wire
from pscp.ground.errors import ProtocolError
from pscp.transfer.lanes.lane_traffic import LaneTraffic

EVERY_WAY = True


@pytest.mark.differs_by_way(reason="each plane has lanes of its own")
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_copy_ends_with_the_agents_reason(
    way: Way, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (way.source / "small").write_bytes(b"small")
    refused = wire.GET if way.is_push else wire.ACK

    def send(traffic: LaneTraffic, number: int, work: object) -> None:
        traffic.far.send(refused, number, 0, b"")

    monkeypatch.setattr(LaneTraffic, "send", send)
    with pytest.raises(ProtocolError, match=f"a {wire.NAMES[refused]} frame in state") as caught:
        way.copy(connections=lanes)
    assert caught.value.exit_code == 4


@pytest.mark.needs_agent(reason="the error is in an agent")
def test_an_agents_bug_is_its_reason_as_well(pull: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent did not expect: here its program was sent with an error in it."""
    (pull.source / "large").write_bytes(b"l" * 200_000)
    whole = zlib.decompress(agent_program.bundle())
    broken = zlib.compress(whole.replace(b"frame.number()", b"frame.nothing()"))
    monkeypatch.setattr(bootstrap, "bundle", lambda: broken)
    with pytest.raises(ProtocolError, match="AttributeError"):
        pull.copy(connections=2)


@pytest.mark.needs_agent(reason="an agent refuses it")
def test_a_frame_that_is_cut_short_is_refused(pull: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    (pull.source / "large").write_bytes(b"l" * 200_000)

    def send(traffic: LaneTraffic, number: int, work: object) -> None:
        traffic.far.send(wire.GET, number, 0, b"")

    monkeypatch.setattr(LaneTraffic, "send", send)
    with pytest.raises(ProtocolError, match="a short GET frame"):
        pull.copy(connections=2)
