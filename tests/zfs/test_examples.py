"""The examples of replication, run as they stand, between two pools over a real sshd.

Not here: the other examples (../e2e/test_examples.py). Read next: examples/replicate_dataset.py.
"""

from __future__ import annotations

import time

from e2e.world import World

from zfs.conftest import Ends, put_zfs


def test_replicate_dataset(near_and_far: tuple[World, Ends]) -> None:
    world, ends = near_and_far
    names: list[str] = []
    for night in range(2):
        ends.write(f"file{night}")
        while names and time.strftime("%H:%M:%SZ", time.gmtime()) in names[-1]:
            time.sleep(0.01)  # the snapshot's name has the second: a night is at least that long
        ran = world.example("replicate_dataset.py", ends.source, f"host:{ends.dest}")
        assert (ran.code, ran.out, ran.err) == (0, "", "")  # or cron would send mail
        names = ends.received()
        assert len(names) == night + 1 and names[-1].startswith("daily-20")
    ends.receiver.do("snapshot", f"{ends.dest}@mine")
    ends.grow("two")
    ran = world.example("replicate_dataset.py", ends.source, f"host:{ends.dest}")
    assert ran.code == 1 and "@mine" in ran.err and "force_rollback" in ran.err


def test_recursive_pull_every_night(near_and_far: tuple[World, Ends]) -> None:
    """Of one dataset: with others mounted in it, zfs-fuse counts the destination as changed."""
    world, ends = near_and_far
    put_zfs(world, ends.receiver, ends.sender)
    for night in range(2):
        ends.write(f"file{night}")
        ends.snapshot(f"night{night}", "-r")
        ran = world.example("recursive_pull.py", f"host:{ends.source}", ends.dest)
        assert ran.code == 0, ran.err
        assert ends.received() == [f"night{n}" for n in range(night + 1)]
        assert not ends.receiver.exists(f"{ends.dest}/{ends.source.rpartition('/')[2]}")


def test_recursive_pull(near_and_far: tuple[World, Ends]) -> None:
    world, ends = near_and_far
    put_zfs(world, ends.receiver, ends.sender)
    for below in ("/a", "/tmp"):
        ends.sender.do("create", f"{ends.source}{below}")
    ends.write("file")
    ends.snapshot("one", "-r")
    ran = world.example("recursive_pull.py", f"host:{ends.source}", ends.dest, "tmp")
    assert ran.code == 0, ran.err
    assert [line.partition(",")[0] for line in ran.out.splitlines()] == [
        f"{ends.dest}@one: in full", f"{ends.dest}/a@one: in full",
    ]  # fmt: skip
    assert ends.received() == ["one"] and ends.received("/a") == ["one"]
    assert not ends.receiver.exists(f"{ends.dest}/tmp")
