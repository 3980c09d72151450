"""What is the same in a file that is at the destination is taken from it (endpoint/there/reuse.py).

Requests that come late, twice or to a lane that is lost; copies that are cut short; files that were
edited at random.

Not here: what the options mean that keep the old file (../e2e/test_copy_kept.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.link import FROM, KILL, LATE, STRETCH_BYTES, TO, TWICE, Fault, asking
from core.test_clones import have_clones
from core.trees import Trees
from pscp.endpoint.asking import answers, requests
from pscp.endpoint.frames import wire
from pscp.endpoint.frames.failures import Refusal
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.metadata import Policy
from pscp.endpoint.there import reuse
from pscp.endpoint.there.reuse import PIECE_BYTES, Reuse
from pscp.endpoint.writing import fence, sink
from pscp.transfer.walk import file_job

TOKEN, NONCE = "0" * 8, "1" * 8
PIECES = 9
SIZE_BYTES = PIECES * PIECE_BYTES
OLD = random.Random("old").randbytes(SIZE_BYTES)
NEW = b"x" * PIECE_BYTES + OLD[PIECE_BYTES:]
ENTRY = tree.Entry(tree.FILE, 0, "large", SIZE_BYTES, 0o644, 10**18, 1, {})


# --- one request of the sink


@pytest.fixture
def lanes(tmp_path: Path) -> Iterator[list[sink.Sink]]:
    """Two lanes of a run that owns the destination, where a file lies."""
    (tmp_path / "large").write_bytes(OLD)
    fd = os.open(tmp_path, os.O_RDONLY)
    fence.claim(fd, TOKEN, NONCE, [])
    os.close(fd)
    copies = (sink.Copy(TOKEN, NONCE, number, []) for number in (1, 2))
    policy = Policy(False, False, 0o022)
    found = [sink.Sink(str(tmp_path), each, policy, "sha256", False) for each in copies]
    yield found
    for each in found:
        each.close()


def asked_for(data: bytes) -> Reuse:
    """The request of a source that has this data."""
    extents = [(at, PIECE_BYTES) for at in range(0, len(data), PIECE_BYTES)]
    digests = [hashlib.sha256(data[at : at + n]).hexdigest() for at, n in extents]
    return Reuse(ENTRY, extents, digests, "sha256")


def send(lane: sink.Sink, offset: int, body: bytes) -> int:
    lane.know(1, ENTRY)
    lane.write(1, offset, memoryview(body))
    matches, receipt, failure = lane.complete(1, offset, len(body), hashlib.sha256(body).digest())
    assert (matches, failure) == (True, None)
    return receipt


def part_of(root: Path) -> bytes:
    [part] = root.glob(".large*.pscp-part")
    return part.read_bytes()


def test_what_has_the_source_s_digest_is_taken(lanes: list[sink.Sink], tmp_path: Path) -> None:
    receipt, taken = reuse.take(lanes[0], asked_for(NEW))
    assert taken == [False] + [True] * (PIECES - 1)
    assert send(lanes[1], 0, NEW[:PIECE_BYTES]) == receipt
    assert part_of(tmp_path) == NEW
    assert (tmp_path / "large").read_bytes() == OLD


@pytest.mark.parametrize("has_changed", [False, True])
def test_a_request_that_comes_late_overwrites_nothing(
    lanes: list[sink.Sink], tmp_path: Path, has_changed: bool
) -> None:
    """All was sent, and the old file may have changed meanwhile: as the hazard has it, to bytes
    that are in no version of the source.
    """
    for at in range(0, SIZE_BYTES, PIECE_BYTES):
        send(lanes[1], at, NEW[at : at + PIECE_BYTES])
    if has_changed:
        (tmp_path / "large").write_bytes(os.urandom(SIZE_BYTES))
    taken = reuse.take(lanes[0], asked_for(NEW))[1]
    assert any(taken) is not has_changed
    assert part_of(tmp_path) == NEW


def test_a_lost_lane_makes_no_part(lanes: list[sink.Sink], tmp_path: Path) -> None:
    lanes[1].revoke(1)
    with pytest.raises(Refusal):
        reuse.take(lanes[0], asked_for(NEW))
    assert not list(tmp_path.glob("*.pscp-part"))


def test_nothing_is_read_through_a_link(lanes: list[sink.Sink], tmp_path: Path) -> None:
    (tmp_path / "large").rename(tmp_path / "elsewhere")
    (tmp_path / "large").symlink_to("elsewhere")
    assert reuse.take(lanes[0], asked_for(OLD)) == (0, [False] * PIECES)


def open_inodes() -> set[int]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            found.add(os.stat(f"/proc/self/fd/{number}").st_ino)
    return found


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="needs O_PATH")
def test_the_old_file_is_freed_once_nobody_waits(lanes: list[sink.Sink], tmp_path: Path) -> None:
    """That may take a second, with the fence held and the coordinator waiting."""
    receipt = reuse.take(lanes[0], asked_for(OLD))[0]
    old, held = os.stat(tmp_path / "large").st_ino, list[bool]()
    lanes[0].finish(ENTRY, "", receipt, lambda outcome: held.append(old in open_inodes()))
    lanes[0].settler.close()
    assert os.stat(tmp_path / "large").st_ino != old
    assert (held, old in open_inodes()) == ([True], False)


@pytest.mark.parametrize(
    "extent", [(SIZE_BYTES, 1), (0, PIECE_BYTES + 1), (0, 0), (SIZE_BYTES - 1, 2)]
)
def test_extents_that_are_not_the_file_s(lanes: list[sink.Sink], extent: tuple[int, int]) -> None:
    with pytest.raises(wire.WireError):
        reuse.take(lanes[0], Reuse(ENTRY, [extent], ["00"], "sha256"))


# --- copies


def edit(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    for what, place, length in edits:
        bodies = {"zeros": bytes(length), "remove": b"", "cut": b""}
        body = bodies.get(what, random.Random(place).randbytes(length))
        end = {"insert": place, "cut": len(data)}.get(what, place + length)
        data = data[:place] + body + data[end:]
    return data


def edited(trees: Trees) -> None:
    (trees.source / "large").write_bytes(NEW)
    (trees.to / "large").write_bytes(OLD)


@pytest.mark.parametrize("do", [LATE, TWICE, KILL])
@pytest.mark.parametrize("way", [TO, FROM])
@pytest.mark.parametrize("nth", [0, 3])
def test_requests_and_answers_that_come_late_twice_or_never(
    trees: Trees, do: str, way: str, nth: int
) -> None:
    edited(trees)
    fault = Fault(0, TO, nth, do, 0, wire.ASK, asking(Reuse))
    if way == FROM:
        fault = Fault(0, FROM, nth, do, 0, wire.REPLY, "true")
    trees.copied(True, fault, connections=2)


@pytest.mark.parametrize(
    ("new", "pieces"),
    [
        (edit(OLD, [("overwrite", 3 * PIECE_BYTES + 7, 100)]), 1),
        (edit(OLD, [("overwrite", PIECE_BYTES - 1, 2)]), 2),
        (OLD + b"more", 1),  # the last piece
        (OLD[: 5 * PIECE_BYTES + 1], 1),
        (OLD[: 5 * PIECE_BYTES], 0),
    ],
    ids=["a piece", "two pieces", "appended", "cut short", "cut short at a piece's end"],
)
def test_what_differs_is_sent(trees: Trees, is_push: bool, new: bytes, pieces: int) -> None:
    (trees.to / "large").write_bytes(OLD)
    (trees.source / "large").write_bytes(new)
    result = trees.copied(is_push)
    assert result.bytes_sent <= pieces * PIECE_BYTES
    assert result.bytes_sent + result.bytes_resumed == len(new)


def test_where_nothing_is_the_same_no_more_is_compared(
    trees: Trees, is_push: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time goes over the only lane; the first answer is enough here."""
    (trees.source / "large").write_bytes(os.urandom(SIZE_BYTES))
    (trees.to / "large").write_bytes(OLD)
    asked: list[Reuse] = []

    def take(of: sink.Sink, request: Reuse) -> object:
        asked.append(request)
        return reuse.take(of, request)

    monkeypatch.setitem(answers.ANSWERS, Reuse, (answers.WRITING_SINK, take))
    monkeypatch.setattr(file_job, "_HOPELESS_BYTES", STRETCH_BYTES)
    assert trees.copied(is_push, connections=1).bytes_sent == SIZE_BYTES
    assert len(asked) == 1


@pytest.mark.parametrize("request_type", [requests.Digests, requests.Finish])
def test_a_lane_of_a_pull_is_lost(trees: Trees, request_type: type) -> None:
    edited(trees)
    fault = Fault(0, TO, 1, KILL, 0, wire.ASK, asking(request_type))
    trees.copied(False, fault, connections=2)


@pytest.mark.parametrize("has_journal", [True, False])
def test_a_copy_that_was_cut_short_goes_on(trees: Trees, is_push: bool, has_journal: bool) -> None:
    """All connections are lost once one of two chunks that differ has landed."""
    new = NEW[:-PIECE_BYTES] + b"y" * PIECE_BYTES
    (trees.source / "large").write_bytes(new)
    (trees.to / "large").write_bytes(OLD)
    trees.cut_short(is_push)
    assert (trees.to / "large").read_bytes() == OLD
    assert trees.left()
    if not has_journal:
        trees.forget()
    result = trees.copied(is_push)
    # Both may have been written, and without a journal both ends hash the part.
    assert result.bytes_sent in ([PIECE_BYTES] if has_journal else [0, PIECE_BYTES])


# --- edits

SPOT = st.integers(0, SIZE_BYTES)
LENGTH = st.sampled_from([1, 100, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES])
EDITS = st.lists(
    st.tuples(st.sampled_from(["overwrite", "insert", "remove", "zeros", "cut"]), SPOT, LENGTH),
    max_size=4,
)


def write(path: Path, data: bytes, has_holes: bool) -> None:
    """Write a file; with holes, pages of zeros are left out."""
    with path.open("wb") as file:
        for at in range(0, len(data), 4096):
            page = data[at : at + 4096]
            if not has_holes or page.strip(b"\0"):
                file.seek(at)
                file.write(page)
        file.truncate(len(data))


@settings(max_examples=25)
@given(EDITS, EDITS, *[st.booleans()] * 5)
def test_whatever_was_edited_both_copies_are_the_same(
    first: list[tuple[str, int, int]],
    second: list[tuple[str, int, int]],
    has_holes: bool,
    had_holes: bool,
    pushes: bool,
    strong: bool,
    clones: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if clones:
            have_clones(patch)
        trees = Trees(Path(folder))
        old, new = edit(OLD, first), edit(edit(OLD, first), second)
        write(trees.to / "large", old, had_holes)
        write(trees.source / "large", new, has_holes)
        trees.copied(pushes, strong=strong)
        again = trees.copy(pushes)
        assert (again.files_resumed, again.bytes_sent) == (1, 0)
