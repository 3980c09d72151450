"""A journal that says what is not so, or cannot be used any more: it costs reading, never the copy.

Not here: what the journal's reader takes (../unit/test_journal.py).
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, Way
from faults.test_signals import standing_still
from pscp.endpoint.frames import hashes

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")


def cut_short(way: Way) -> None:
    """A copy of which a third has landed."""
    running = standing_still(way)
    running.send(signal.SIGTERM)
    assert running.ended().code == 143


def change_journal(way: Way, change: Callable[[list[Any]], None]) -> None:
    [path] = way.journals
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_wrong_number_is_not_believed(way: Way) -> None:
    """D6: it failed the file as one that had changed, or sent the agent to its end."""
    cut_short(way)

    def change(line: list[Any]) -> None:
        if line[0] == "chunk":
            line[2] = 1 << 64

    change_journal(way, change)
    way.finish()
    assert_same_tree(way.source, way.destination)


@pytest.mark.usefixtures("push")
def test_a_digest_that_the_far_end_has_not(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6: its python has no xxhash any more, say. Then both ends hash what they have."""
    cut_short(way)
    landed_bytes = way.journaled_bytes()
    monkeypatch.setitem(hashes.ALGORITHMS, "ours", hashlib.md5)

    def change(line: list[Any]) -> None:
        if line[0] == "file":
            line[6] = "ours"

    change_journal(way, change)
    result = way.copy(chunk_bytes=MIB)  # as those that have landed
    assert result.ok, result.failures
    assert result.bytes_resumed >= landed_bytes
    assert_same_tree(way.source, way.destination)
