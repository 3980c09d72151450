"""Bits that change between the two ends: found, sent again, counted; or a clear end, never a wrong
file.

SSH itself ends a connection whose bytes were changed on the network, so what is damaged here is
what faulty memory damages: the bytes between ssh and the programs at its ends.

Not here: each field of each header (../core/test_damage.py), connections that die
(test_lanes_lost.py), a far end that lies (test_hostile.py).
"""

from __future__ import annotations

import pytest
from compare import assert_same_tree, tree_digest

import pscp
from faults.conftest import MIB, Breaking, Way, fill, until
from pscp.endpoint import wire
from pscp.errors import PscpError
from pscp.processes import descendants

EVERY_WAY = True

BIG_BYTES = 3 * MIB + 5
SMALL = {f"small/{number}": 20_000 + number for number in range(12)}
HEADER_BYTES = wire.HEADER.size
FIELDS = {  # of a header: a byte and a bit of each; a length that is too long is waited for
    "type": (0, 0), "flags": (1, 0), "length": (7, 5), "id": (15, 0), "offset": (21, 4),
}  # fmt: skip


def fill_all(way: Way) -> None:
    fill(way.source / "big", BIG_BYTES)
    for name, size in SMALL.items():
        fill(way.source / name, size)


@pytest.mark.parametrize("type_", [wire.DATA, wire.PACK], ids=["chunk", "pack"])
def test_a_bit_changes_once(way: Way, type_: int) -> None:
    fill_all(way)
    breaking = way.breaking().rule("flip", type=type_, bit=3)
    result = way.copy(breaking=breaking, chunk_bytes=MIB)
    assert result.ok, result.failures
    assert_same_tree(way.source, way.destination)
    assert result.chunks_resent == 1
    assert result.bytes_sent > result.bytes == BIG_BYTES + sum(SMALL.values())


def test_it_is_told_in_the_summary(way: Way) -> None:
    fill_all(way)
    breaking = way.breaking().rule("flip", after=MIB)
    ended = way.run("--progress", "none", "--stats", breaking=breaking)
    assert ended.code == 0, ended.err
    assert "chunks resent" in ended.err
    ended = way.run("--no-resume", "--progress", "plain", breaking=way.breaking().rule("flip"))
    assert "1 resent" in ended.err


def test_bits_change_always(way: Way) -> None:
    """The file fails, nothing is left of it, and the others are copied."""
    fill_all(way)
    breaking = way.breaking().rule("flip", always=True)
    ended = way.run(breaking=breaking)
    assert ended.code == 1
    assert "big: arrived damaged twice" in ended.out
    assert set(way.arrived()) == set(SMALL)
    assert way.arrived_bytes() == sum(SMALL.values())
    assert not way.parts()
    [failure] = ended.end["failures"]
    assert (failure["path"], failure["error"]) == ("big", "VerifyError")


def test_bits_of_small_files_change_always(way: Way) -> None:
    fill_all(way)
    breaking = way.breaking().rule("flip", type=wire.PACK, always=True)
    ended = way.run(breaking=breaking)
    assert ended.code == 1
    failed = {failure["path"]: failure["error"] for failure in ended.end["failures"]}
    assert failed and set(failed.values()) == {"VerifyError"}
    assert set(way.arrived()) == {"big", *SMALL} - set(failed)
    assert way.arrived_bytes() and not way.parts()


def test_the_one_digest_changes(way: Way) -> None:
    """The bytes are good and only their digest is not: sent again all the same."""
    fill(way.source / "big", BIG_BYTES)
    breaking = way.breaking().rule("flip", type=wire.DIGEST)
    result = way.copy(breaking=breaking)
    assert result.ok and result.chunks_resent == 1
    assert_same_tree(way.source, way.destination)


def assert_no_wrong_file(way: Way, breaking: Breaking) -> None:
    """Either all is copied, or an error says that it is not; and what is there is right."""
    try:
        result = way.copy(breaking=breaking, chunk_bytes=MIB)
        complete = result.ok
    except PscpError as error:
        complete = False
        assert error.exit_code in (1, 3, 4) and str(error), error
    until(lambda: not descendants(way.server.pid), "agents of lost connections end")
    arrived = tree_digest(way.destination)
    wanted = tree_digest(way.source)
    wrong = {
        name: facts
        for name, facts in arrived.items()
        if facts != wanted.get(name) and not name.endswith((b".pscp-part", b".pscp-run"))
    }
    assert not wrong
    assert not complete or arrived == wanted


@pytest.mark.parametrize(
    ("name", "field"), [("DATA", "length"), ("DIGEST", "id"), ("PACK", "type")]
)
@pytest.mark.timeout(40)
def test_a_bit_of_a_header_of_the_source(
    way: Way, quick_retries: None, name: str, field: str
) -> None:
    fill_all(way)
    at, bit = FIELDS[field]
    breaking = way.breaking().rule("flip", type=getattr(wire, name), at=at, bit=bit)
    assert_no_wrong_file(way, breaking)


@pytest.mark.parametrize(("name", "field"), [("to ASK", "length"), ("from ACK", "offset")])
@pytest.mark.timeout(40)
def test_a_bit_of_another_header_of_a_push(
    push: Way, quick_retries: None, name: str, field: str
) -> None:
    assert_no_wrong_file(push, another_header(push, name, field))


@pytest.mark.parametrize(("name", "field"), [("to GET", "length"), ("from REPLY", "flags")])
@pytest.mark.timeout(40)
def test_a_bit_of_another_header_of_a_pull(
    pull: Way, quick_retries: None, name: str, field: str
) -> None:
    assert_no_wrong_file(pull, another_header(pull, name, field))


def another_header(way: Way, name: str, field: str) -> Breaking:
    fill_all(way)
    at, bit = FIELDS[field]
    direction, kind = name.split()
    # The second of its kind: the first questions come before there are lanes.
    type_ = getattr(wire, kind)
    return way.breaking().rule("flip", way=direction, type=type_, at=at, bit=bit, after=1)


@pytest.mark.parametrize(("name", "at"), [("to ASK", HEADER_BYTES + 9), ("from ACK", -5)])
@pytest.mark.timeout(40)
def test_a_bit_of_what_is_said(push: Way, quick_retries: None, name: str, at: int) -> None:
    fill_all(push)
    direction, kind = name.split()
    breaking = push.breaking().rule(
        "flip", way=direction, type=getattr(wire, kind), at=at, bit=1, after=1
    )
    assert_no_wrong_file(push, breaking)


def test_a_name_changes(way: Way, quick_retries: None) -> None:
    """In a pack's list of names, which no digest of a file covers."""
    fill_all(way)
    breaking = way.breaking().rule("flip", type=wire.PACK, at=HEADER_BYTES + 4 + 12, bit=1)
    assert_no_wrong_file(way, breaking)


def test_the_hello_changes(push: Way) -> None:
    fill_all(push)
    breaking = push.breaking().rule("flip", way="from", type=wire.HELLO, at=7)
    assert_no_wrong_file(push, breaking)


def test_a_copy_over_several_connections_goes_on(way: Way, quick_retries: None) -> None:
    """One connection is given up; what it had in flight goes over the others."""
    fill(way.source / "big", 12 * MIB)
    breaking = way.breaking().rule("flip", at=0, bit=7, after=2 * MIB)
    result: pscp.Result = way.copy(
        breaking=breaking, connections=3, limit_kbit_s=12 * 8 * 1024, chunk_bytes=MIB
    )
    assert result.ok and result.connections_lost == 1
    assert_same_tree(way.source, way.destination)
