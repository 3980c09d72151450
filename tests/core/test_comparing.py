"""Large files that may be the same are hashed at both ends, several stretches at once.

Answers that come late, twice or never; files that differ in none, one or several stretches of those
in flight.

Not here: what is hashed at all (../unit/test_decide.py), what is taken of a file that differs
(test_reuse.py).
"""

from __future__ import annotations

import os
import random

import pytest

from core.link import CHUNK_BYTES, FROM, KILL, LATE, STRETCH_BYTES, TO, TWICE, Fault, asking
from core.trees import Trees
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire
from pscp.endpoint.there import lookup

STRETCHES = 9  # one goes alone, then two, four, and the rest
SIZE_BYTES = STRETCHES * STRETCH_BYTES
NEW = random.Random("new").randbytes(SIZE_BYTES)


def differing_in(*stretches: int) -> bytes:
    """Return what differs from NEW in the last chunk of these stretches."""
    old = bytearray(NEW)
    for number in stretches:
        old[(number + 1) * STRETCH_BYTES - 1] ^= 1
    return bytes(old)


def there_is(trees: Trees, old: bytes) -> None:
    (trees.source / "large").write_bytes(NEW)
    (trees.to / "large").write_bytes(old)
    os.utime(trees.to / "large", (0, 0))


@pytest.mark.parametrize("options", [{}, {"preserve": True}, {"strong": True}])
def test_what_is_the_same_is_not_sent(
    trees: Trees, is_push: bool, options: dict[str, bool]
) -> None:
    there_is(trees, NEW)
    result = trees.copied(is_push, **options)
    assert (result.files_resumed, result.bytes_sent) == (1, 0)
    assert (result.files, result.bytes_resumed) == (0, SIZE_BYTES)


@pytest.mark.parametrize("stretches", [(0,), (1, 2), (3, 4, 6), (STRETCHES - 1,), (2, 8)])
def test_what_differs_is_copied_once(
    trees: Trees, is_push: bool, stretches: tuple[int, ...]
) -> None:
    there_is(trees, differing_in(*stretches))
    result = trees.copied(is_push)
    assert (result.files, result.files_resumed) == (1, 0)
    assert result.bytes_sent == len(stretches) * CHUNK_BYTES
    assert result.bytes_sent + result.bytes_resumed == SIZE_BYTES


@pytest.mark.parametrize("do", [LATE, TWICE, KILL])
@pytest.mark.parametrize("way", [TO, FROM])
@pytest.mark.parametrize("nth", [0, 2])
@pytest.mark.parametrize("is_same", [True, False])
def test_answers_that_come_late_twice_or_never(
    trees: Trees, is_push: bool, do: str, way: str, nth: int, is_same: bool
) -> None:
    there_is(trees, NEW if is_same else differing_in(2, 5))
    kind = lookup.DigestsThere if is_push else requests.Digests
    fault = Fault(0, TO, nth, do, 0, wire.ASK, asking(kind))
    if way == FROM:
        fault = Fault(0, FROM, nth, do, 0, wire.REPLY, '[["')
    result = trees.copied(is_push, fault)
    assert (result.files, result.files_resumed) == (int(not is_same), int(is_same))
