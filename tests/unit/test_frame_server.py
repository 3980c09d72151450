"""frame_server.py and source.py: what no answer has room for, and files of no source.

Not here: what each frame makes an agent do (../core/test_agent.py, ../conformance).
"""

from __future__ import annotations

from typing import Any

import pytest

from pscp.endpoint.frames import session, wire
from pscp.endpoint.reading import source, tree
from pscp.endpoint.serving.frame_server import FrameServer


def test_an_answer_that_no_frame_has_room_for_is_a_failure() -> None:
    sent: list[tuple[Any, ...]] = []
    back_end: Any = None
    server = FrameServer(session.AGENT, back_end, lambda *frame: sent.append(frame))
    server.reply(7, ["x" * wire.MAX_PAYLOAD_BYTES])
    [(type_, id_, _, payload, flags)] = sent
    assert (type_, id_, flags) == (wire.REPLY, 7, wire.FAILED)
    assert b"more names than an answer has room for" in bytes(payload)


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
