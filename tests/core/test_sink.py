"""The sinks of two lanes of one copy, step by step: late, damaged and refused
(endpoint/writing/sink.py).

Not here: frames (test_agent.py), which folders are synced (../unit/test_removal.py), the order
of system calls (tests/model).
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.metadata import Policy
from pscp.endpoint.reading.paths import mount_of
from pscp.endpoint.writing import fence
from pscp.endpoint.writing.sink import Copy, Sink

ENDING_S = 10.0
TOKEN, NONCE = "0" * 8, "1" * 8
FIRST, SECOND = b"a" * 1000, b"b" * 500
WHOLE = FIRST + SECOND
LARGE = tree.Entry(tree.FILE, 0, "large", len(WHOLE), 0o644, 10**18, 1, {})


def sha256(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


class Lane:
    """A lane's sink, whose outcomes are waited for."""

    def __init__(self, root: Path, number: int, is_strong: bool = False) -> None:
        copy = Copy(TOKEN, NONCE, number, [])
        self.sink = Sink(str(root), copy, Policy(False, False, 0o022), "sha256", is_strong)
        self.sink.know(1, LARGE)

    def chunk(self, offset: int, body: bytes, digest: bytes = b"") -> tuple[bool, int, Any]:
        """Whether it matched, the receipt, and the failure."""
        for begin in range(0, len(body), 300):
            self.sink.write(1, offset + begin, memoryview(body[begin : begin + 300]))
        return self.sink.complete(1, offset, len(body), digest or sha256(body))

    def whole(self) -> int:
        """Both chunks, the last one first; the receipt."""
        _, receipt, failure = self.chunk(len(FIRST), SECOND)
        assert failure is None
        assert self.chunk(0, FIRST) == (True, receipt, None)
        return receipt

    def refusal(self, receipt: int, strong: str = "") -> str:
        """The kind of the failure that finish() comes to."""
        outcome = self.finish(receipt, strong)
        assert outcome is not None
        return str(outcome["kind"])

    def finish(self, receipt: int, strong: str = "") -> failures.Data | None:
        found: queue.SimpleQueue[list[failures.Data | None]] = queue.SimpleQueue()
        self.sink.finish(LARGE, strong, receipt, found.put)
        [outcome] = found.get(timeout=ENDING_S)
        return outcome

    def pack(self, bodies: dict[str, bytes]) -> list[str]:
        """What came of each small file: "", or the kind of its failure."""
        entries = [LARGE._replace(path=name, size=len(b)) for name, b in bodies.items()]
        rows: list[object] = [[len(b), sha256(b).hex()] for b in bodies.values()]
        found: queue.SimpleQueue[list[failures.Data | None]] = queue.SimpleQueue()
        self.sink.pack(entries, rows, memoryview(b"".join(bodies.values())), found.put)
        return [each["kind"] if each else "" for each in found.get(timeout=ENDING_S)]


def checked(body: bytes) -> bytes:
    return wire.check_of(sha256(body))


MakeLane = Callable[..., Lane]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A destination that the run owns."""
    fd = os.open(tmp_path, os.O_RDONLY)
    fence.claim(fd, TOKEN, NONCE, [])
    os.close(fd)
    return tmp_path


@pytest.fixture
def make_lane(root: Path) -> Iterator[MakeLane]:
    lanes: list[Lane] = []

    def make(**fields: bool) -> Lane:
        lanes.append(Lane(root, len(lanes) + 1, **fields))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.sink.close()


def here(root: Path) -> list[str]:
    """All names but the fence's."""
    return sorted(set(os.listdir(root)) - {fence.fence_name(TOKEN).decode()})


def test_the_part_of_a_lane_that_comes_late_leaves_its_folder_the_final_times(
    root: Path, make_lane: MakeLane
) -> None:
    first, second = make_lane(), make_lane()
    assert first.finish(first.whole()) is None
    os.utime(root, ns=(1, 2))
    second.whole()
    assert len(here(root)) == 2
    assert root.stat().st_mtime_ns == 2


def part(root: Path) -> Path:
    [found] = root.glob("*.pscp-part")
    return found


def test_a_block_is_written_once_its_check_matches(root: Path, make_lane: MakeLane) -> None:
    sink = make_lane().sink
    sink.write(1, 0, memoryview(FIRST)[:300], checked(FIRST[:300]))
    [part] = root.glob("*.pscp-part")
    assert part.read_bytes() == FIRST[:300] + bytes(len(WHOLE) - 300)
    sink.write(1, 300, memoryview(FIRST)[300:600])  # without a check: held
    assert part.read_bytes() == FIRST[:300] + bytes(len(WHOLE) - 300)
    sink.write(1, 600, memoryview(FIRST)[600:], checked(FIRST))
    assert part.read_bytes() == FIRST + bytes(len(SECOND))
    assert sink.complete(1, 0, len(FIRST), sha256(FIRST))[::2] == (True, None)


def test_after_a_check_that_does_not_match_nothing_of_the_chunk_is_written(
    root: Path, make_lane: MakeLane
) -> None:
    sink = make_lane().sink
    sink.write(1, 0, memoryview(FIRST)[:300], checked(FIRST[:300]))
    sink.write(1, 300, memoryview(FIRST)[300:600], checked(b"others"))
    sink.write(1, 600, memoryview(FIRST)[600:], checked(FIRST))
    assert sink.complete(1, 0, len(FIRST), sha256(FIRST)) == (False, 0, None)
    [part] = root.glob("*.pscp-part")
    assert part.read_bytes() == FIRST[:300] + bytes(len(WHOLE) - 300)
    sink.write(1, 0, memoryview(FIRST), checked(FIRST))  # it is sent once more
    assert sink.complete(1, 0, len(FIRST), sha256(FIRST))[::2] == (True, None)
    assert part.read_bytes() == FIRST + bytes(len(SECOND))


def test_a_damaged_chunk_leaves_no_trace(root: Path, make_lane: MakeLane) -> None:
    lane = make_lane()
    assert lane.chunk(0, FIRST, sha256(SECOND)) == (False, 0, None)
    assert here(root) == []
    assert lane.chunk(0, FIRST)[0]


def test_a_chunk_that_is_given_up_leaves_no_trace(root: Path, make_lane: MakeLane) -> None:
    lane = make_lane()
    lane.sink.write(1, 0, memoryview(FIRST[:300]))
    lane.sink.abandon()
    assert here(root) == []
    assert lane.finish(lane.whole()) is None
    assert (root / "large").read_bytes() == WHOLE


def test_a_chunk_is_on_the_disk_before_it_is_acknowledged_where_other_hosts_may_finish(
    root: Path, make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fsync of another host says nothing of what this one has in memory."""
    lane, synced = make_lane(), list[int]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    assert lane.chunk(0, FIRST)[0] and synced == []
    lane.sink.root.mount = mount_of(lane.sink.root.fd)
    _, receipt, failure = lane.chunk(len(FIRST), SECOND)
    assert failure is None and synced == [receipt]

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(os, "fsync", fail)
    matches, _, failure = lane.chunk(0, FIRST)
    assert not matches and failure["errno"] == errno.EIO


def test_both_lanes_may_finish(root: Path, make_lane: MakeLane) -> None:
    """The second one finds the very file under its name."""
    one, other = make_lane(), make_lane()
    receipt = one.whole()
    assert one.finish(receipt) is None
    before = (root / "large").stat()
    assert other.finish(receipt) is None
    assert (root / "large").stat() == before
    assert here(root) == ["large"]


def test_a_late_chunk_of_a_finished_file_is_refused(root: Path, make_lane: MakeLane) -> None:
    one, other = make_lane(), make_lane()
    other.chunk(0, FIRST)  # so it has the part open
    assert one.finish(one.whole()) is None
    before = (root / "large").stat()
    matches, _, failure = other.chunk(0, b"c" * len(FIRST))
    assert not matches and failure["kind"] == failures.SYSTEM
    assert (root / "large").stat() == before
    assert (root / "large").read_bytes() == WHOLE


def test_another_part_than_that_of_the_chunks_is_not_made_the_file(
    root: Path, make_lane: MakeLane
) -> None:
    one, other = make_lane(), make_lane()
    receipt = one.whole()
    part(root).rename(root / "kept")  # or the new one might get its inode number
    assert other.chunk(0, FIRST)[1] != receipt
    assert one.refusal(receipt) == failures.SYSTEM
    assert not (root / "large").exists()


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "released"])
def test_a_lane_without_permission_changes_nothing(
    root: Path, make_lane: MakeLane, is_lost: bool
) -> None:
    """It is lost, as another lane of its run has said; or the copy is over."""
    lost, other = make_lane(), make_lane()
    receipt = lost.whole()
    if is_lost:
        other.sink.revoke(1)
    else:
        other.sink.release()
    assert lost.refusal(receipt) == failures.SUPERSEDED
    assert lost.pack({"small": FIRST}) == [failures.SUPERSEDED]
    with pytest.raises(failures.Refusal):
        lost.sink.make(LARGE._replace(path="new"))
    assert here(root) == [part(root).name]
    assert (other.finish(receipt) is None) == is_lost


def test_a_lane_may_begin_when_the_copy_is_over(root: Path, make_lane: MakeLane) -> None:
    """It is given no permission, and can remove what lanes before it have left."""
    before = make_lane()
    receipt = before.whole()
    before.sink.release()
    late = make_lane()
    assert late.pack({"small": FIRST}) == [failures.SUPERSEDED]
    assert late.refusal(receipt) == failures.SUPERSEDED
    late.sink.release()
    assert late.sink.discard("large", [""])
    assert here(root) == []


def test_what_lies_on_the_disk_is_compared(root: Path, make_lane: MakeLane) -> None:
    """With -s: another file than was read at the source gets no name."""
    lane = make_lane(is_strong=True)
    receipt = lane.whole()
    assert lane.refusal(receipt, sha256(FIRST).hex()) == failures.VERIFY
    assert not (root / "large").exists()
    assert lane.finish(receipt, sha256(WHOLE).hex()) is None
    assert (root / "large").read_bytes() == WHOLE


def test_a_mistake_of_ours_while_a_file_is_made_final_is_its_failure(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in the thread that settles, unseen: the copy waited for ever for the last file."""

    def mistaken(fd: int) -> None:
        raise TypeError("a mistake of ours")

    lane = make_lane()
    receipt = lane.whole()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", mistaken)
        outcome = lane.finish(receipt)
    assert outcome is not None
    assert "a mistake of ours" in outcome["message"]
