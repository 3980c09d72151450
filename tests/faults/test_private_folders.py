"""Folders are nobody else's while a copy fills them, and have their source's mode in the end.

Finding B1: what lies in a folder that only its owner may enter was open to everybody while it was
copied, and stayed so when the copy was cut off.

Not here: modes of a copy that nothing disturbs (../e2e/test_copy_metadata.py).
"""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, Running, Way, fill, until

EVERY_WAY = True

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes"),
]

FILES, FILE_BYTES = 100, 300_000  # of chunks, and more than the walk may be ahead of the lanes
ONE_LANE = ("-c", "1")
MODES = {"tree": 0o755, "tree/secret": 0o700, "tree/secret/below": 0o755, "tree/team": 0o750}


def fill_tree(folder: Path) -> None:
    for number in range(FILES):
        below = ("secret", "secret/below", "team")[number % 3]
        fill(folder / "tree" / below / f"{number}", FILE_BYTES)
    fill(folder / "tree" / "secret" / "small", 1000)
    for name, mode in MODES.items():
        (folder / name).chmod(mode)


def modes_of(folder: Path) -> dict[str, int]:
    """Of all folders below this one."""
    found = (path for path in folder.rglob("*") if path.is_dir())
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in found}


def assert_private(way: Way) -> None:
    """Nobody but the owner may look into any folder."""
    found = modes_of(way.destination)
    assert found
    assert not {name: oct(mode) for name, mode in found.items() if mode & 0o077}


def standing_still(way: Way) -> Running:
    """A copy that waits in its middle, for good."""
    running, _ = way.standing_still("--progress", "none", name="tree", after=8 * MIB)
    try:
        until(lambda: modes_of(way.destination), "something has landed")
        assert_private(way)
    except BaseException:
        running.kill()
        raise
    return running


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL], ids=lambda kind: kind.name)
def test_b1_folders_are_private_until_the_copy_is_complete(way: Way, kind: signal.Signals) -> None:
    fill_tree(way.source)
    running = standing_still(way)
    running.send(kind)
    running.ended()
    assert_private(way)
    way.finish(*ONE_LANE, name="tree")
    assert_same_tree(way.source, way.destination)
    assert modes_of(way.destination) == MODES


@pytest.mark.usefixtures("push")
def test_b1_a_lost_journal_leaves_no_folder_unfinished(way: Way) -> None:
    fill_tree(way.source)
    standing_still(way).kill()
    way.forget()
    way.finish(*ONE_LANE, "--no-resume", name="tree")
    assert modes_of(way.destination) == MODES


@pytest.mark.usefixtures("pull")
def test_b1_folders_that_were_there_before_keep_their_mode(way: Way) -> None:
    """Also those that only their owner may enter, though a cut copy leaves such ones behind."""
    fill_tree(way.source)
    for name in MODES:
        (way.destination / name).mkdir()
        (way.destination / name).chmod(0o700)
    way.finish(*ONE_LANE, name="tree")
    assert modes_of(way.destination) == dict.fromkeys(MODES, 0o700)
