"""A bit of a frame's header, or of what is said, changes: a clear end, and never a wrong file.

Not here: the bytes of files (test_file_job.py, test_coordinator.py), bits anywhere
(test_schedules.py), the same over a real connection (../faults/test_damage.py).
"""

from __future__ import annotations

import pytest

from core.link import FLIP, FROM, TO, Fault
from core.trees import Trees
from pscp.endpoint.frames import wire
from pscp.ground.errors import PscpError

HEADER_BYTES = wire.HEADER.size
FIELDS = {  # of a header: a byte and a bit of each; a length that is too long is waited for
    "type": (0, 0), "flags": (1, 0), "length": (7, 5), "id": (15, 0), "offset": (21, 4),
}  # fmt: skip


def assert_no_wrong_file(
    trees: Trees, is_push: bool, way: str, type_: int, nth: int, at: int, bit: int
) -> None:
    """Either all is copied, or an error says that it is not; and what is there is right."""
    trees.usual()
    try:
        result = trees.copy(is_push, Fault(0, way, nth, FLIP, 8 * at + bit, type_), connections=1)
        is_complete = result.ok
        assert is_complete or result.failures
    except PscpError as error:
        is_complete = False
        assert error.exit_code in (1, 3, 4) and str(error), error
    assert trees.arrived().keys() <= trees.files().keys()
    trees.assert_whole()
    if is_complete:
        trees.assert_copied()


@pytest.mark.parametrize("field", FIELDS)
def test_a_header_of_a_block(trees: Trees, is_push: bool, field: str) -> None:
    assert_no_wrong_file(trees, is_push, TO if is_push else FROM, wire.DATA, 0, *FIELDS[field])


@pytest.mark.parametrize("field", ["type", "length"])
@pytest.mark.parametrize(
    ("is_push", "way", "type_", "nth"),
    [
        (True, TO, "DIGEST", 0), (True, TO, "PACK", 0), (True, TO, "ASK", 1), (True, TO, "FILE", 1),
        (True, FROM, "ACK", 1), (False, FROM, "DIGEST", 0), (False, FROM, "PACK", 0),
        (False, TO, "GET", 1), (False, FROM, "REPLY", 1),
    ],
)  # fmt: skip
def test_another_header(
    trees: Trees, is_push: bool, way: str, type_: str, nth: int, field: str
) -> None:
    """All of a header is under one check, so what shows for each field of a block holds here."""
    assert_no_wrong_file(trees, is_push, way, getattr(wire, type_), nth, *FIELDS[field])


@pytest.mark.parametrize("at", [HEADER_BYTES + 9, -5])
@pytest.mark.parametrize("type_", ["ASK", "FILE", "REPLY", "ACK"])
def test_what_is_said(trees: Trees, type_: str, at: int) -> None:
    way = TO if type_ in ("ASK", "FILE") else FROM
    assert_no_wrong_file(trees, True, way, getattr(wire, type_), 1, at, 1)


def test_a_name_in_a_pack(trees: Trees, is_push: bool) -> None:
    """No digest of a file covers the list of names."""
    way = TO if is_push else FROM
    assert_no_wrong_file(trees, is_push, way, wire.PACK, 0, HEADER_BYTES + 4 + 12, 1)


@pytest.mark.parametrize("at", [0, 7, HEADER_BYTES + 3, -3])
def test_the_hello(trees: Trees, is_push: bool, at: int) -> None:
    assert_no_wrong_file(trees, is_push, FROM, wire.HELLO, 0, at, 0)
