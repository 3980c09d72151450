"""Two runs of one copy at once that do not see each other's journals, and parts that are not ours.

Then destinations that can less than others: no locks, weak inode numbers, names that fold case.

Not here: a run after another (test_late_runs.py), and what comes late on such destinations
(../model/test_model.py).
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from compare import assert_same_tree

from faults.conftest import MIB, TOKEN, Ended, Way, fill, until
from faults.late import CHUNKS, FarEnds, Plan, assert_copied, in_the_middle

BIG_BYTES = 6 * MIB


def other_machine(way: Way) -> Way:
    """The same destination, another source, and nothing in common that one could lock."""
    other = dataclasses.replace(way, home=way.home / "other")
    for folder in (other.source, other.home / "state"):
        folder.mkdir(parents=True)
    other.destination.symlink_to(way.destination)
    return other


def environment(way: Way, token: str = "") -> dict[str, str]:
    own = {"XDG_STATE_HOME": str(way.home / "state")}
    return {**os.environ, **own, **({TOKEN: token} if token else {})}


def kill_in_the_middle(way: Way) -> Path:
    """Returns the part that is left."""
    running, _ = in_the_middle(way)
    running.kill()
    [part] = way.parts()
    return part


def finish(way: Way, **popen: object) -> Ended:
    return way.finish(*CHUNKS, **popen)


def assert_delivered(other: Way) -> None:
    """What lies at the destination is the other machine's, and nothing else."""
    assert_same_tree(other.source, other.destination.resolve())
    assert not other.journals


# --- A5


@pytest.mark.parametrize("in_the_midst", [False, True])
def test_a5_two_machines_of_one_name(way: Way, in_the_midst: bool) -> None:
    """The second takes the copy over, and the first fails, also in the midst of the second."""
    other = other_machine(way)
    fill(way.source / "big", BIG_BYTES)
    fill(other.source / "big", BIG_BYTES)
    first, breaking = in_the_middle(way, env=environment(way, "0123abcd"))
    if in_the_midst:
        second, second_breaking = in_the_middle(other, env=environment(other, "0123abcd"))
    else:
        finish(other, env=environment(other, "0123abcd"))
    breaking.go()
    ended = first.ended()
    assert ended.code, ended.out
    assert "its part was replaced" in ended.out or "taken over" in ended.err, ended
    if in_the_midst:
        assert not way.arrived()
        second_breaking.go()
        second.finished()
    assert_delivered(other)


@pytest.mark.usefixtures("push")
def test_a5_small_files_of_two_machines(way: Way) -> None:
    """What the first still does after the second is done changes no file."""
    other = other_machine(way)
    for each in (way, other):
        for number in range(300):
            fill(each.source / str(number), 3000 + number)
    breaking = way.breaking().rule("block", type=None, after=100_000)
    first = way.start(*CHUNKS, breaking=breaking, env=environment(way, "0123abcd"))
    until(lambda: breaking.blocked, "the first stands still")
    finish(other, env=environment(other, "0123abcd"))
    breaking.go()
    ended = first.ended()
    assert ended.code and "taken over" in ended.err, ended.err
    assert_delivered(other)


@pytest.mark.usefixtures("pull")
def test_a5_two_state_folders(way: Way) -> None:
    """They are two copies to one place: each delivers a whole file, and the last one stays."""
    other = dataclasses.replace(way, home=way.home / "other")
    (other.home / "state").mkdir(parents=True)
    for name in ("source", "destination"):
        (other.home / name).symlink_to(way.home / name)
    data = fill(way.source / "big", BIG_BYTES)
    os.chmod(way.source / "big", 0o640)
    first, breaking = in_the_middle(way, env=environment(way))
    argv = [each.replace(str(other.home), str(way.home)) for each in other.argv(*CHUNKS)]
    assert argv == way.argv(*CHUNKS)
    finish(way, env=environment(other))
    there = (way.destination / "big").stat()
    breaking.go()
    first.finished()
    assert (way.destination / "big").read_bytes() == data
    assert (way.destination / "big").stat().st_ino != there.st_ino
    assert_copied(way, modes=True)


# --- B2


def another_link(part: Path, victim: Path) -> None:
    part.unlink()
    part.hardlink_to(victim)


def a_symlink(part: Path, victim: Path) -> None:
    part.unlink()
    part.symlink_to(victim)


def readable(part: Path, victim: Path) -> None:
    """As a file that its maker keeps open."""
    part.unlink()
    part.write_bytes(bytes(BIG_BYTES))
    part.chmod(0o666)


def another_users(part: Path, victim: Path) -> None:
    part.unlink()
    part.write_bytes(bytes(BIG_BYTES))
    part.chmod(0o600)
    os.chown(part, 65534, 65534)


def remove_link(way: Way) -> None:
    """pscp leaves what has a part's name and is no file."""
    for part in way.parts():
        assert part.is_symlink()
        part.unlink()


SWAPS = [another_link, a_symlink, readable] + [another_users] * (os.geteuid() == 0)
Swap = Callable[[Path, Path], None]


@pytest.mark.parametrize("swap", SWAPS)
def test_b2_a_part_that_somebody_else_made(way: Way, swap: Swap) -> None:
    """It is not gone on with, and not written to: the file is made anew."""
    fill(way.source / "big", BIG_BYTES)
    os.chmod(way.source / "big", 0o600)
    data = fill(way.home / "victim", BIG_BYTES)
    swap(kill_in_the_middle(way), way.home / "victim")
    finish(way)
    assert (way.home / "victim").read_bytes() == data
    remove_link(way)
    status = (way.destination / "big").stat()
    assert (status.st_uid, status.st_nlink) == (os.geteuid(), 1)
    assert_copied(way, modes=True)


@pytest.mark.parametrize("swap", [SWAPS[0], SWAPS[-1]])
def test_b2_a_part_that_is_replaced_during_the_copy(way: Way, swap: Swap) -> None:
    """The file fails, and nothing of what was put there becomes it."""
    fill(way.source / "big", BIG_BYTES)
    data = fill(way.home / "victim", BIG_BYTES)
    running, breaking = in_the_middle(way)
    [part] = way.parts()
    swap(part, way.home / "victim")
    breaking.go()
    ended = running.ended()
    assert ended.code == 1
    assert "its part was replaced" in ended.out
    assert (way.home / "victim").read_bytes() == data
    assert not way.arrived()
    remove_link(way)
    finish(way)
    assert_copied(way)


# --- A6, and what other filesystems cannot do


def test_a6_two_names_that_are_one_there(push: Way, far: FarEnds) -> None:
    """One of them is there, whole; the other is named as refused, and not reported as copied."""
    far.plan().call("names")
    large = {fill(push.source / "DATA.bin", BIG_BYTES), fill(push.source / "data.bin", 4 * MIB)}
    small = {fill(push.source / "README", 3000), fill(push.source / "readme", 2000)}
    ended = push.run(*CHUNKS)
    found = {path.name: path.read_bytes() for path in push.destination.iterdir()}
    assert sorted(found) == ["data.bin", "readme"]
    assert found["data.bin"] in large and found["readme"] in small
    assert ended.code == 1 and ended.end["files"] == 2, ended.out
    why = "the destination takes this name and another of this copy for one"
    assert [each["message"] for each in ended.end["failures"]] == [why, why]


def lacking(far: FarEnds, lack: str) -> Plan:
    """The destination's filesystem is one without locks, or with weak inode numbers."""
    plan = far.plan()
    if lack == "locks":
        here = "/destination"  # not so in /tmp, which is another filesystem then
        return plan.call("flock", contains=here, errno=errno.ENOLCK, connections=None)
    return plan.call("inodes", connections=None)


@pytest.mark.parametrize("lack", ["locks", "inodes"])
def test_a2_a_filesystem_that_lacks(push: Way, far: FarEnds, lack: str) -> None:
    """A copy to it is killed, goes on where it was, and leaves nothing."""
    lacking(far, lack)
    fill(push.source / "big", BIG_BYTES)
    fill(push.source / "small", 3000)
    kill_in_the_middle(push)
    lacking(far, lack)
    ended = finish(push)
    assert ended.end["bytes_resumed"] >= MIB
    assert_copied(push, modes=True)
