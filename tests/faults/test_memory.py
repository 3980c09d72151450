"""The coordinator's memory stays below 120 MiB, whatever there is to copy; eight lanes send it.

It is the same whatever carries the lanes, so this is asked over ssh with the agent. A far end that
means harm is in test_hostile.py. PSCP_MEMORY_FILES=200000 takes some minutes, and 2 GB in TMPDIR.
"""

from __future__ import annotations

import os

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, PEAK, Ended, Way, fill

LIMIT_KIB = 120 * 1024
FILES = int(os.environ.get("PSCP_MEMORY_FILES", 3_000))


def run(way: Way, *words: str, lanes: int = 8) -> tuple[Ended, int]:
    """What came of a copy, and the peak of its memory in KiB."""
    path = way.home / "peak"
    ended = way.run("-c", str(lanes), *words, env={**os.environ, PEAK: str(path)})
    return ended, int(path.read_text())


def fill_with_tiny_files(way: Way, count: int) -> None:
    for folder in range(count // 100):
        path = way.source / f"folder-{folder:04}"
        path.mkdir()
        for number in range(100):
            (path / f"a file with a name of some length {number:03}").write_bytes(b"%d" % number)


def test_very_many_tiny_files(way: Way) -> None:
    """The second run finds them all there, and asks about each; the third compares folders."""
    fill_with_tiny_files(way, FILES)
    runs = ((), "files", 8), (("-s",), "files_resumed", 1), ((), "files_unchanged", 1)
    for words, count, lanes in runs:
        ended, kib = run(way, "-p", *words, lanes=lanes)
        assert ended.code == 0, ended.err
        assert ended.end[count] == FILES
        assert kib < LIMIT_KIB
    assert_same_tree(way.source, way.destination)


def test_very_many_files_that_cannot_be_copied(push: Way) -> None:
    """Of a pull: EndlessFailures in test_hostile.py."""
    for number in range(max(FILES, 12_000)):  # a result has room for some 10,000
        (push.source / f"a dangling link with a name of some length {number}").symlink_to("nothing")
    ended, kib = run(push, lanes=1)
    assert ended.code == 1
    assert len(ended.end["failures"]) >= 10_000
    assert kib < LIMIT_KIB


@pytest.mark.parametrize("words", [(), ("-b", "1M", "--chunk-size", "64M")], ids=["usual", "large"])
def test_a_large_file(way: Way, words: tuple[str, ...]) -> None:
    """In blocks and chunks of the usual size, and in large ones."""
    fill(way.source / "large", 96 * MIB)  # with what the program is by itself, more than the limit
    ended, kib = run(way, *words)
    assert ended.code == 0, ended.err
    assert kib < LIMIT_KIB
    assert_same_tree(way.source, way.destination)
