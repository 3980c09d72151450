"""Of a large file of which the destination has another version only what differs is sent.

Not here: late and repeated requests (../core/test_reuse.py), what the options mean that keep the
old file (test_copy_kept.py).
"""

from __future__ import annotations

import os
import random

import pytest
from compare import assert_same_tree

from e2e.ways import Way
from pscp.endpoint.there.reuse import PIECE_BYTES
from pscp.ground.values import MIB

SIZE_BYTES = 9 * MIB + 1
OLD = random.Random("old").randbytes(SIZE_BYTES)


def overwrite(data: bytes, place: int, length: int) -> bytes:
    return data[:place] + os.urandom(length) + data[place + length :]


def put(way: Way, old: bytes, new: bytes) -> None:
    (way.destination / "image").write_bytes(old)
    (way.source / "image").write_bytes(new)


def assert_copied(way: Way) -> None:
    assert_same_tree(way.source, way.destination)  # and no part is left


@pytest.mark.needs_agent(reason="an SFTP server copies nothing by itself")
@pytest.mark.parametrize(
    ("new", "pieces"),
    [
        (overwrite(OLD, 3 * MIB + 7, 100), 1),
        (overwrite(OLD, PIECE_BYTES - 1, 2), 2),
        (OLD + b"more", 1),  # the last piece
        (OLD[: 5 * MIB + 1], 1),
        (OLD[: 5 * MIB], 0),
    ],
    ids=["a piece", "two pieces", "appended", "cut short", "cut short at a piece's end"],
)
@pytest.mark.parametrize("strong", [False, True])
def test_what_differs_is_sent(way: Way, new: bytes, pieces: int, strong: bool) -> None:
    put(way, OLD, new)
    result = way.copy("image", strong=strong)
    assert result.ok, result.failures
    assert result.bytes_sent <= pieces * PIECE_BYTES
    assert result.bytes_sent + result.bytes_resumed == len(new)
    assert_copied(way)
