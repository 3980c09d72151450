"""A third run of a copy, and runs whose DEST or source became something else in between.

Not here: what comes late (test_late_runs.py), runs at once (test_two_runs.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compare import assert_same_tree
from core.link import asking

from faults.conftest import MIB, Way, fill, until
from faults.late import CHUNKS, FarEnds, assert_copied
from pscp.endpoint.asking import requests
from pscp.endpoint.frames import wire

EVERY_WAY = True
pytestmark = pytest.mark.needs_ssh(reason="test_direct_plane.py breaks direct lanes")

SPARSE_BYTES = 24 * MIB


def write_sparse(path: Path, offset: int, data_bytes: int) -> None:
    """A new file of SPARSE_BYTES, with random bytes in one place and holes elsewhere."""
    with open(path.with_name("other"), "wb") as file:
        file.truncate(SPARSE_BYTES)
        file.seek(offset)
        file.write(os.urandom(data_bytes))
    path.with_name("other").replace(path)


@pytest.mark.needs_agent(reason="the far end here holds an agent's frames")
@pytest.mark.needs_openssh(reason="the same")
@pytest.mark.parametrize("keeps_journal", [True, False])
def test_holes_hold_nothing_of_an_earlier_source(
    push: Way, far: FarEnds, keeps_journal: bool
) -> None:
    """The second run was cut off before it could discard the part that the first one left."""
    write_sparse(push.source / "big", 0, 16 * MIB)
    breaking = push.breaking().rule("block", after=8 * MIB)
    first = push.start(*CHUNKS, breaking=breaking)
    until(lambda: push.journaled_bytes() >= 4 * MIB, "something has landed")
    first.kill()
    [part] = push.parts()
    assert part.stat().st_blocks
    if not keeps_journal:
        [journal] = push.journals
        journal.unlink()
    write_sparse(push.source / "big", 16 * MIB, 2 * MIB)
    late = far.plan().hold(wire.ASK, contains=asking(requests.Discard))
    second = push.start(*CHUNKS)
    late.until_held()
    second.kill()
    far.plan()
    push.finish(*CHUNKS)
    late.come()
    assert_copied(push)


def cut_off(way: Way) -> None:
    """A run that has claimed the copy of "big", has made something, and was killed."""
    fill(way.source / "big", 6 * MIB)
    running, _ = way.standing_still(name="big", after=2 * MIB)
    until(lambda: way.journaled_bytes() >= MIB, "something has landed")
    running.kill()


@pytest.mark.usefixtures("push")
def test_a_link_that_leads_elsewhere_now_is_followed(way: Way) -> None:
    """As where DEST is the link to the current release."""
    for name in ("1", "2"):
        (way.home / name).mkdir()
    way.destination.rmdir()
    way.destination.symlink_to(way.home / "1")
    cut_off(way)
    way.destination.unlink()
    way.destination.symlink_to(way.home / "2")
    way.finish(*CHUNKS, name="big")
    assert (way.home / "2" / "big").read_bytes() == (way.source / "big").read_bytes()
    assert not (way.home / "1" / "big").exists()


@pytest.mark.usefixtures("pull")
def test_a_folder_that_was_made_for_the_file_takes_it(way: Way) -> None:
    """Who sees that DEST was missing makes it, and runs the command again."""
    way.destination.rmdir()
    cut_off(way)
    way.destination.mkdir()
    way.finish(*CHUNKS, name="big")
    assert_same_tree(way.source, way.destination)


@pytest.mark.usefixtures("push")
def test_a_lost_fence_costs_nothing(way: Way) -> None:
    """As after a power cut, which may take its content: the copy goes on, and no part is left."""
    cut_off(way)
    for path in way.destination.glob(".*.pscp-run"):
        os.truncate(path, 0)
    ended = way.finish(*CHUNKS, name="big")
    assert ended.end["bytes_resumed"]
    assert not way.parts()
    assert_copied(way)
