"""A bit of a frame's header, or of what is said, changes: a clear end, and never a wrong file.

Not here: the bytes of files (test_file_job.py, test_coordinator.py), bits anywhere
(test_schedules.py), the same over SFTP (../e2e/test_copy_sftp.py).
"""

from __future__ import annotations

import pytest

from core.link import FLIP, FROM, TO, Fault
from core.trees import Trees
from pscp.endpoint.frames import wire
from pscp.ground.errors import PscpError

HEADER_BYTES = wire.HEADER.size
# Of a header: a byte and a bit of each field; a length that is too long is waited for. All of a
# header is under one check, so what shows for each field of a block holds for other frames.
FIELDS = {"type": (0, 0), "flags": (1, 0), "length": (7, 5), "id": (15, 0), "offset": (21, 4)}
SAID = [(TO, "ASK"), (TO, "FILE"), (FROM, "REPLY"), (FROM, "ACK")]
SOURCES = [(True, TO), (False, FROM)]  # where the bytes of files go
CASES = [
    *((*end, "DATA", 0, *place) for end in SOURCES for place in FIELDS.values()),
    *((True, *said, 1, at, 1) for said in SAID for at in (HEADER_BYTES + 9, -5)),
    *((*end, "PACK", 0, HEADER_BYTES + 16, 1) for end in SOURCES),  # a name: no digest covers it
    *(
        (end, FROM, "HELLO", 0, at, 0)
        for end in (True, False)
        for at in (0, 7, HEADER_BYTES + 3, -3)
    ),
]


@pytest.mark.parametrize(("is_push", "way", "type_", "nth", "at", "bit"), CASES)
def test_a_bit_changes(
    trees: Trees, is_push: bool, way: str, type_: str, nth: int, at: int, bit: int
) -> None:
    """Either all is copied, or an error says that it is not; and what is there is right."""
    trees.usual()
    fault = Fault(0, way, nth, FLIP, 8 * at + bit, getattr(wire, type_))
    try:
        result = trees.copy(is_push, fault, connections=1)
        is_complete = result.ok
        assert is_complete or result.failures
    except PscpError as error:
        is_complete = False
        assert error.exit_code in (1, 3, 4) and str(error), error
    assert trees.arrived().keys() <= trees.files().keys()
    trees.assert_whole()
    if is_complete:
        trees.assert_copied()
