"""session.py, frame_server.py: what no table has, chunks that arrive, and answers without room.

Not here: the tables as such, which docs/protocol.md has a second time (scripts/docs --check).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames import session, wire
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving.frame_server import FrameServer


def test_what_the_table_does_not_have_is_refused_and_changes_nothing() -> None:
    one = session.Session(session.AGENT)
    asked = wire.Frame(wire.ASK, 0, 0, 0, memoryview(b""))
    with pytest.raises(wire.WireError, match="a ASK frame in state new"):
        one.check(asked)
    with pytest.raises(wire.WireError, match="begin sink in state new"):
        one.advance(session.BEGIN_SINK)
    one.advance(session.HELLO)
    one.check(asked)
    assert one.state == "ready"


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


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_a_block_lies_inside_its_file(offset: int, length: int, size: int) -> None:
    arriving = session.Arriving()
    if length > 0 and offset + length <= size:
        assert arriving.block(1, offset, length, size)
        return
    with pytest.raises(wire.WireError):
        arriving.block(1, offset, length, size)


# --- answers


def test_an_answer_that_no_frame_has_room_for_is_a_failure() -> None:
    sent: list[tuple[Any, ...]] = []
    back_end: Any = None
    server = FrameServer(session.AGENT, back_end, lambda *frame: sent.append(frame))
    server.reply(7, ["x" * wire.MAX_PAYLOAD_BYTES])
    [(type_, id_, _, payload, flags)] = sent
    assert (type_, id_, flags) == (wire.REPLY, 7, wire.FAILED)
    assert b"more names than an answer has room for" in bytes(payload)


def test_a_file_that_is_over_is_forgotten() -> None:
    forgotten: list[int] = []
    role = SimpleNamespace(forget=forgotten.append, place=None)
    end = SimpleNamespace(sink=role, source=None, the_sink=lambda: role)
    back_end: Any = SimpleNamespace(end=end)
    server = FrameServer(session.AGENT, back_end, lambda *frame: None)
    server.hello({})
    server.follow_role()
    server.decoder.feed(wire.frame(wire.FILE, b"", 7))
    assert server.take_all() and forgotten == [7]


def test_a_file_of_a_source_that_there_is_not_is_refused() -> None:
    """It was an IndexError, which ended the agent with a traceback."""
    known = source.SourceFile(1, "file", 10, 1, 1)
    rules = tree.Rules(False, True, False, False, ())
    top = source.Top("file", "/nowhere/file", False)
    of = source.Source([top], rules, "sha256", 1 << 16, False)
    of.know(1, source.entry_of(known))
    with pytest.raises(wire.WireError, match="of a source that there is not"):
        of.send_chunk(1, 0, 10, lambda *args: None)
    for asked in (of.place, lambda value: of.extents(value, 0), lambda value: of.pack([value])):
        with pytest.raises(wire.WireError, match="of a source that there is not"):
            asked(source.entry_of(known))
