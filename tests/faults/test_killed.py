"""kill -9 of the client in the middle of a copy, then the same command.

Not here: signals that it can answer (test_signals.py), lost connections (test_lanes_lost.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compare import allocated_bytes, assert_same_tree

from faults.conftest import MIB, Running, Way, fill, until

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

CHUNKS = ("--chunk-size", "1M")
TWO = (*CHUNKS, "-c", "2")


def killed_in_the_middle(way: Way, landed_bytes: int) -> None:
    """Runs the copy until so much has landed and both connections stand still; then kills it."""
    breaking = way.breaking().rule("block", connections=None, type=None, after=landed_bytes // 2)
    slowly = ("-l", str(16 * 8 * 1024)) if way.remote == "sftp" else ()  # its second lane is late
    running: Running = way.start(*TWO, *slowly, breaking=breaking)
    until(lambda: breaking.blocked == 2, "both connections stand still")
    until(lambda: landed(way) >= landed_bytes * 0.9 - 3 * MIB, "enough has landed")
    running.kill()


def landed(way: Way) -> int:
    return way.journaled_bytes() + sum(p.stat().st_size for p in way.arrived().values())


def test_a_tree_of_small_and_large_files(way: Way) -> None:
    """24 MiB: large files, and before and behind them small ones."""
    sizes = [(f"a/{n}", 40_000) for n in range(100)] + [(f"z/{n}", 10_000) for n in range(100)]
    sizes += [("m/large-1", 11 * MIB), ("n/large-2", 8 * MIB)]
    for name, size in sizes:
        fill(way.source / name, size)
    total_bytes = sum(size for _, size in sizes)
    killed_in_the_middle(way, 14 * MIB)
    assert way.parts()
    landed_bytes = way.arrived_bytes() + way.journaled_bytes()
    assert 0 < landed_bytes < total_bytes
    ended = way.finish(*CHUNKS)
    assert_same_tree(way.source, way.destination)
    sent_again = ended.end["bytes_sent"] - (total_bytes - landed_bytes)
    assert sent_again <= landed_bytes / 10
    assert ended.end["bytes_resumed"] >= landed_bytes * 0.9
    assert ended.end["bytes_sent"] + ended.end["bytes_resumed"] == total_bytes
    assert not way.parts() and not way.journals


@pytest.mark.needs_agent("pull", reason="SFTP does not tell where holes are")
def test_a_sparse_file(way: Way) -> None:
    path: Path = way.source / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 34)
        for place in range(8):
            file.seek(place << 30)
            file.write(os.urandom(3 * MIB))
    if allocated_bytes(path) > 30 * MIB:
        pytest.skip("no holes in files here")
    killed_in_the_middle(way, 14 * MIB)
    landed_bytes = way.journaled_bytes()
    ended = way.finish(*CHUNKS)
    assert ended.end["bytes_sent"] <= 24 * MIB - 0.9 * landed_bytes
    with open(path, "rb") as left, open(way.destination / "sparse", "rb") as right:
        for place in range(8):
            assert os.pread(left.fileno(), 4 * MIB, place << 30) == os.pread(
                right.fileno(), 4 * MIB, place << 30
            )
    assert (way.destination / "sparse").stat().st_size == 1 << 34
    assert allocated_bytes(way.destination / "sparse") < 40 * MIB


@pytest.mark.parametrize("change", ["other bytes", "shorter"])
def test_the_source_changed_between_the_runs(way: Way, change: str) -> None:
    fill(way.source / "big", 24 * MIB)
    killed_in_the_middle(way, 12 * MIB)
    size = {"other bytes": 24, "shorter": 7}[change] * MIB
    fill(way.source / "big", size)
    way.finish(*CHUNKS)
    assert_same_tree(way.source, way.destination)
    assert not way.parts() and not way.journals
