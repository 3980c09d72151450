"""pscp.endpoint.asking.entries, and names of sources: what a far end sends, field by field.

Not here: the same through a whole pull (../faults/test_hostile.py), which names are asked for
(test_plan.py).
"""

from __future__ import annotations

import pytest

from pscp.endpoint.asking import entries
from pscp.endpoint.frames import wire
from pscp.endpoint.reading import tree
from pscp.ground.errors import ProtocolError
from pscp.transfer import negotiation

FILE = tree.Entry(tree.FILE, 0, "tree/e", 5, 0o644, 0, 1, {})


@pytest.mark.parametrize(
    "changed",
    [
        {"size": -1}, {"size": 1 << 70}, {"size": 1e5}, {"size": "5"}, {"size": True},
        {"mode": -1}, {"mode": 0o100777}, {"mtime_ns": 1 << 94}, {"extra": []}, {"path": 5},
        {"top": "0"}, {"kind": "pipe"}, {"kind": None}, {"kind": tree.FOLDER}, {"kind": tree.LINK},
        {"extra": {"x": 5}}, {"extra": {"x": [1]}}, {"extra": {"x": {"user.a": 5}}},
    ],
    ids=str,
)  # fmt: skip
def test_an_entry_with_a_field_of_another_shape(changed: dict[str, object]) -> None:
    fields = {**FILE._asdict(), **changed}
    with pytest.raises(wire.WireError):
        entries.entry(list(fields.values()))


@pytest.mark.parametrize("value", [["file", 0, "tree/e"], [], None, 5, "file"], ids=str)
def test_what_is_no_entry(value: object) -> None:
    with pytest.raises(wire.WireError):
        entries.entry(value)


@pytest.mark.parametrize("extra", [{"to": "a\0b"}, {"to": "\ud800"}, {"to": ""}], ids=ascii)
def test_a_link_that_can_lead_nowhere(extra: dict[str, object]) -> None:
    link = FILE._replace(kind=tree.LINK, size=0, extra=extra)
    with pytest.raises(wire.WireError):
        entries.check_sizes([link], [[0, ""]], 0)


@pytest.mark.parametrize("text", ["", "c 1", "c 1:2:3", "c 1:999999999", "x 1:3", "b -1:3"])
def test_what_is_no_device(text: str) -> None:
    device = FILE._replace(kind=tree.DEVICE, size=0, extra={"to": text})
    with pytest.raises(wire.WireError, match="a device without numbers"):
        entries.check_sizes([device], [[0, ""]], 0)


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (5, 5), (None, 5), ([6, ""], 5), ([-1, ""], 5), ([5, ""], 4), ([5, ""], 6),
        ({"kind": "system", "path": "x", "message": "y", "errno": 5}, 5),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_its_entry_or_its_bytes(row: object, count: int) -> None:
    with pytest.raises(wire.WireError):
        entries.check_sizes([FILE], [row], count)


@pytest.mark.parametrize("name", [5, None, "a\0b", "\ud800", ".", "..", "a/b", "/etc/passwd"])
def test_what_is_no_name_of_a_source(name: object) -> None:
    with pytest.raises(ProtocolError, match="what is no name"):
        negotiation._checked_name(name)
