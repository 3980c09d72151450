"""session.py: every frame in every state, blocks that follow each other.

Read next: pscp/endpoint/session.py, whose tables these tests write out a second time.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint import session, wire
from pscp.endpoint.wire import ACK, ASK, DATA, DIGEST, FILE, GET, HELLO, PACK, REPLY, TICK

LEGAL = {
    ("agent", "new"): set(),
    ("agent", "ready"): {ASK},
    ("agent", "sink"): {ASK, FILE, DATA, DIGEST, PACK},
    ("agent", "source"): {ASK, FILE, GET},
    ("agent", "lent"): set(),
    ("guest", "new"): {ASK},
    ("guest", "sink"): {ASK, FILE, DATA, DIGEST, PACK},
    ("guest", "source"): {ASK, FILE, GET},
    ("guest", "over"): set(),
    ("coordinator", "new"): {HELLO},
    ("coordinator", "ready"): {REPLY, TICK},
    ("coordinator", "push"): {REPLY, TICK, ACK},
    ("coordinator", "pull"): {REPLY, TICK, DATA, DIGEST, PACK},
}
EVENTS = ("hello", "begin sink", "begin source", "end", "hand over", "take back")
LEADS = {
    ("agent", "new"): {"hello": "ready"},
    ("agent", "ready"): {
        "begin sink": "sink", "begin source": "source", "end": "ready", "hand over": "lent",
    },
    ("agent", "sink"): {"end": "ready"},
    ("agent", "source"): {"end": "ready"},
    ("agent", "lent"): {"take back": "ready"},
    ("guest", "new"): {"begin sink": "sink", "begin source": "source", "end": "over"},
    ("guest", "sink"): {"end": "over"},
    ("guest", "source"): {"end": "over"},
    ("coordinator", "new"): {"hello": "ready"},
    ("coordinator", "ready"): {"begin sink": "push", "begin source": "pull"},
    ("coordinator", "push"): {"end": "ready"},
    ("coordinator", "pull"): {"end": "ready"},
}  # fmt: skip
TABLES = {"agent": session.AGENT, "guest": session.GUEST, "coordinator": session.COORDINATOR}


def a_frame(type_: int) -> wire.Frame:
    return wire.Frame(type_, 0, 0, 0, memoryview(b""))


def in_state(end: str, state: str) -> session.Session:
    """A session that events have led to this state."""
    ways: dict[str, list[str]] = {"new": []}
    while state not in ways:
        for known, way in list(ways.items()):
            for event, following in LEADS.get((end, known), {}).items():
                ways.setdefault(following, [*way, event])
    one = session.Session(TABLES[end])
    for event in ways[state]:
        one.advance(event)
    assert one.state == state
    return one


def test_there_is_no_state_beside_these() -> None:
    states = {(end, state) for end, table in TABLES.items() for state in table}
    assert states == set(LEGAL)
    led_to = {(end, to) for (end, _), events in LEADS.items() for to in events.values()}
    assert led_to | {(end, "new") for end in TABLES} == states


@pytest.mark.parametrize(("end", "state"), sorted(LEGAL))
def test_each_frame_in_each_state(end: str, state: str) -> None:
    one = in_state(end, state)
    for type_, name in wire.NAMES.items():
        if type_ in LEGAL[end, state]:
            one.check(a_frame(type_))
        else:
            with pytest.raises(wire.WireError, match=f"{name} frame in state {state}"):
                one.check(a_frame(type_))
        assert one.state == state


@pytest.mark.parametrize("event", [*EVENTS, "sink"])
@pytest.mark.parametrize(("end", "state"), sorted(LEGAL))
def test_each_event_in_each_state(end: str, state: str, event: str) -> None:
    one = in_state(end, state)
    following = LEADS.get((end, state), {}).get(event)
    if following is not None:
        one.advance(event)
        assert one.state == following
        return
    with pytest.raises(wire.WireError, match=f"{event} in state {state}"):
        one.advance(event)
    assert one.state == state


def test_nothing_but_an_event_changes_a_state() -> None:
    one = session.Session(session.AGENT)
    with pytest.raises(AttributeError):
        one.state = "ready"  # type: ignore[misc]


# --- Arriving

chunks = st.tuples(
    st.integers(1, 3), st.integers(0, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=5)
)
SIZE = 2000  # no chunk above goes beyond it


def arrive(arriving: session.Arriving, id_: int, offset: int, lengths: list[int]) -> list[bool]:
    begins = []
    for length in lengths:
        begins.append(arriving.block(id_, offset, length, SIZE))
        offset += length
    return begins


@given(st.lists(chunks, max_size=6))
def test_chunks_arrive_one_after_the_other(sent: list[tuple[int, int, list[int]]]) -> None:
    arriving = session.Arriving()
    for id_, offset, lengths in sent:
        begins = arrive(arriving, id_, offset, lengths)
        assert begins == [True] + [False] * (len(lengths) - 1)
        arriving.complete(id_, offset, sum(lengths))


@given(chunks, st.integers(1, 3), st.integers(0, 1300))
def test_a_block_that_does_not_follow_is_refused(
    sent: tuple[int, int, list[int]], id_: int, offset: int
) -> None:
    arriving = session.Arriving()
    arrive(arriving, *sent)
    follows = (id_, offset) == (sent[0], sent[1] + sum(sent[2]))
    try:
        assert arriving.block(id_, offset, 1, SIZE) is False
        assert follows
    except wire.WireError:
        assert not follows


@given(chunks, st.integers(1, 3), st.integers(0, 1300), st.integers(0, 300))
def test_a_digest_for_other_bytes_is_refused(
    sent: tuple[int, int, list[int]], id_: int, offset: int, length: int
) -> None:
    arriving = session.Arriving()
    arrive(arriving, *sent)
    if (id_, offset, length) == (sent[0], sent[1], sum(sent[2])):
        arriving.complete(id_, offset, length)
        return
    with pytest.raises(wire.WireError):
        arriving.complete(id_, offset, length)
    arriving.complete(sent[0], sent[1], sum(sent[2]))  # the true one is still awaited


def test_a_digest_without_blocks_is_refused() -> None:
    with pytest.raises(wire.WireError):
        session.Arriving().complete(1, 0, 0)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_a_block_lies_inside_its_file(offset: int, length: int, size: int) -> None:
    arriving = session.Arriving()
    if length > 0 and offset + length <= size:
        assert arriving.block(1, offset, length, size)
        return
    with pytest.raises(wire.WireError):
        arriving.block(1, offset, length, size)


@given(chunks, chunks)
def test_after_a_chunk_that_was_given_up_another_begins(
    first: tuple[int, int, list[int]], second: tuple[int, int, list[int]]
) -> None:
    arriving = session.Arriving()
    arrive(arriving, *first)
    arriving.abandon()
    assert arrive(arriving, *second)[0] is True
    arriving.complete(second[0], second[1], sum(second[2]))
