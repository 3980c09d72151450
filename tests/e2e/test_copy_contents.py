"""Every byte arrives, whatever the size; holes stay holes, and a sparse file costs its data.

Not here: modes, times and links (test_copy_metadata.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from compare import allocated_bytes, assert_same_tree

from e2e.ways import Way
from pscp.endpoint.reading import files
from pscp.endpoint.reading.files import PACK_FILE_BYTES
from pscp.ground.values import KIB, MIB

EVERY_WAY = True

SLACK_BYTES = 256 * KIB  # what a file system may allocate around data: blocks, its own records


def write_random(path: Path, size: int) -> None:
    path.write_bytes(random.Random(size).randbytes(size))


def write_at(path: Path, size: int, offsets: Iterable[int], length: int) -> None:
    """A sparse file with `length` random bytes at each offset."""
    with open(path, "wb") as file:
        file.truncate(size)
        for offset in offsets:
            file.seek(offset)
            file.write(random.Random(offset).randbytes(length))


@pytest.mark.parametrize(
    ("block", "chunk"),
    [(4 * KIB, 4 * KIB), (64 * KIB, 200_000), (100_000, MIB), (256 * KIB, 4 * MIB)],
)
def test_sizes_around_every_boundary(way: Way, block: int, chunk: int) -> None:
    boundaries = (block, chunk, 2 * chunk, PACK_FILE_BYTES, 2 * PACK_FILE_BYTES)
    sizes = {0, 1, 2, 4095, 4096, 3 * chunk + 4321}
    sizes |= {boundary + step for boundary in boundaries for step in (-1, 0, 1)}
    for size in sizes:
        write_random(way.source / str(size), size)
    result = way.copy(".", block_bytes=block, chunk_bytes=chunk)
    assert result.ok
    assert_same_tree(way.source, way.destination)
    assert (result.files, result.bytes, result.bytes_sent) == (len(sizes), sum(sizes), sum(sizes))
    in_packs = [size for size in sizes if size <= PACK_FILE_BYTES]
    in_chunks = [-(-size // chunk) for size in sizes if size > PACK_FILE_BYTES]
    # The last chunks of a copy are smaller, so there may be more of them.
    assert result.chunks_verified >= len(in_packs) + sum(in_chunks)


# --- holes


@pytest.mark.needs_agent("pull", reason="SFTP does not tell where holes are")
def test_holes_stay_holes(way: Way) -> None:
    data: dict[str, tuple[int, Iterable[int]]] = {
        "in the middle": (32 * MIB, [4 * MIB]), "at the begin": (32 * MIB, [0]),
        "at the end": (32 * MIB, [32 * MIB - 64 * KIB]), "none": (32 * MIB + 1, []),
        "in many places": (40 * MIB, range(0, 40 * MIB, 2 * MIB)),
    }  # fmt: skip
    for name, (size, offsets) in data.items():
        write_at(way.source / name, size, offsets, 64 * KIB)
    result = way.copy(".")
    assert result.ok
    assert_same_tree(way.source, way.destination)
    most = {name: allocated_bytes(way.source / name) + SLACK_BYTES for name in data}
    for name in data:
        assert allocated_bytes(way.destination / name) <= most[name], name
    assert result.bytes_sent <= sum(most.values())


def test_a_hole_replaces_data_of_before(way: Way) -> None:
    write_random(way.destination / "x", 8 * MIB)
    write_at(way.source / "x", 8 * MIB, [2 * MIB], MIB)
    assert way.copy("x").ok
    assert_same_tree(way.source, way.destination)


@pytest.mark.parametrize("o_tmpfile", [0, os.O_DIRECTORY | os.O_EXCL])
def test_small_files_where_none_can_be_without_a_name(
    way: Way, monkeypatch: pytest.MonkeyPatch, o_tmpfile: int
) -> None:
    """On systems that do not know O_TMPFILE, and file systems that refuse it (EISDIR)."""
    monkeypatch.setattr(files, "_NO_NAME", o_tmpfile)
    for name in ("a", "b"):
        write_random(way.source / name, 5000)
    (way.destination / "b").write_text("older")
    assert way.copy(".").ok
    assert_same_tree(way.source, way.destination)
