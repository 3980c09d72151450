"""Replication between real pools of two zfs-fuse, which has no resume tokens and no -L -e -c.

Not here: what only OpenZFS can do (../openzfs), and the plan by itself (../unit/test_zfs_plan.py).
Read next: conftest.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pscp import errors
from pscp.option_fields import ReplicateFields
from zfs.conftest import Ends


def test_a_full_replication_brings_every_snapshot(ends: Ends) -> None:
    ends.grow("one", "two", "three")
    result = ends.replicate()
    assert result.ok and ends.received() == ["one", "two", "three"]
    [sent] = result.datasets
    assert (sent.source, sent.dest, sent.snapshot) == (ends.source, ends.dest, "three")
    assert result.bytes > 60_000


def test_an_increment_brings_what_came_since(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.grow("two", "three")
    (ends.sender.folder(ends.source) / "one").unlink()
    ends.snapshot("four")
    result = ends.replicate()
    assert result.ok and result.datasets[0].base == "@one"
    assert ends.received() == ["one", "two", "three", "four"]


def test_the_newest_alone(push: Ends) -> None:
    push.grow("one", "two")
    push.replicate(all_between=False)
    assert push.received() == ["two"]
    push.grow("three", "four")
    push.replicate(all_between=False)
    assert push.received() == ["two", "four"]


def test_nothing_is_sent_twice(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.link.commands.clear()
    result = ends.replicate()
    assert (result.ok, result.bytes, result.datasets[0].streams) == (True, 0, 0)
    assert not [argv for argv in ends.link.commands if {"send", "receive"} & set(argv)]


def test_a_tree_of_datasets(ends: Ends) -> None:
    """Twice: zfs-fuse mounts what it receives, and a folder that is mounted on counts as modified
    (A26), so pscp-zfs unmounts each at once."""
    for below in ("/a", "/b", "/a/deep", "/scratch", "/b/scratch", "/scratch/more"):
        ends.sender.do("create", f"{ends.source}{below}")
        ends.write("file", below=below)
    ends.snapshot("one", "-r")
    result = ends.replicate(recursive=True, exclude=("scratch",))
    assert result.ok and result.files == 4
    for below in ("", "/a", "/b", "/a/deep"):
        assert ends.received(below) == ["one"]
    for below in ("/scratch", "/b/scratch"):
        assert not ends.receiver.exists(f"{ends.dest}{below}")
    ends.sender.do("create", f"{ends.source}/b/new")
    ends.snapshot("two", "-r")
    assert ends.replicate(recursive=True, exclude=("scratch",), parallel=4).ok
    for below in ("", "/a", "/b", "/a/deep"):
        assert ends.received(below) == ["one", "two"]
    assert ends.received("/b/new") == ["two"]


def test_without_recursive_what_is_below_stays(push: Ends) -> None:
    push.sender.do("create", f"{push.source}/below")
    push.snapshot("one", "-r")
    push.replicate()
    assert push.receiver.exists(push.dest) and not push.receiver.exists(f"{push.dest}/below")


def test_one_that_fails_hinders_only_those_below_it(push: Ends) -> None:
    for below in ("/bad", "/bad/below", "/good"):
        push.sender.do("create", f"{push.source}{below}")
    push.snapshot("one", "-r")
    push.sender.do("destroy", f"{push.source}/bad@one")
    result = push.replicate(recursive=True)
    assert {(each.path, each.error) for each in result.failures} == {
        (f"{push.source}/bad", "NoSnapshot"), (f"{push.dest}/bad/below", "DatasetError"),
    }  # fmt: skip
    assert push.received("/good") == ["one"]


# --- what was cut


def test_a_cut_connection_is_begun_again(ends: Ends) -> None:
    ends.grow("one", "two")
    ends.link.cut_at = 8192
    result = ends.replicate()
    assert result.ok and ends.received() == ["one", "two"]
    assert any("starts over" in note for note in ends.told.notes)


def test_a_cut_increment_goes_on_from_the_snapshots_that_are_there(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.grow("two", "three")
    ends.link.cut_at = 30_000  # in the third
    assert ends.replicate().ok
    assert ends.received() == ["one", "two", "three"]


def test_a_killed_sender_leaves_no_snapshot(ends: Ends) -> None:
    ends.write("large", 2_000_000)
    ends.snapshot("one")
    ends.link.kill_sender_at = 500_000
    assert ends.replicate().ok  # on the second attempt
    assert any("trying again" in note for note in ends.told.notes)
    assert ends.received() == ["one"]


def test_a_sender_that_is_always_killed_is_reported(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
    ends.write("large", 2_000_000)
    ends.snapshot("one")
    ends.link.kill_sender_at = 500_000
    [failure] = ends.replicate().failures
    assert (failure.error, failure.path) == ("StreamCut", ends.source)
    assert "signal 9" in failure.message
    assert not ends.receiver.exists(f"{ends.dest}@one")
    ends.sender.do("destroy", f"{ends.source}@one")  # no hold was left


# --- what must not be lost


def test_a_destination_that_was_written_to_is_kept(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate(mount=True)
    precious = ends.receiver.folder(ends.dest) / "precious"
    precious.write_text("mine")
    ends.grow("two")
    [failure] = ends.replicate().failures
    assert failure.error == "Diverged" and "--force-rollback" in failure.hint
    assert precious.read_text() == "mine"
    assert ends.replicate(force_rollback=True).ok
    assert ends.received() == ["one", "two"] and not precious.exists()


def test_a_destination_with_snapshots_of_its_own_is_kept(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.receiver.do("snapshot", f"{ends.dest}@mine")
    ends.grow("two")
    [failure] = ends.replicate().failures
    assert failure.error == "Diverged" and "@mine" in failure.message
    assert ends.receiver.exists(f"{ends.dest}@mine")
    assert ends.replicate(force_rollback=True).ok
    assert ends.received() == ["one", "two"]


def test_a_destination_without_a_common_snapshot_is_kept_even_when_forced(push: Ends) -> None:
    push.grow("one")
    push.receiver.do("create", push.dest)
    push.receiver.do("snapshot", f"{push.dest}@one")  # the same name, another GUID
    for forced in (False, True):
        [failure] = push.replicate(force_rollback=forced).failures
        assert failure.error == "NoCommonSnapshot"
        assert push.receiver.exists(f"{push.dest}@one")


def test_a_destination_without_snapshots_is_kept(push: Ends) -> None:
    push.grow("one")
    push.receiver.do("create", push.dest)
    precious = push.receiver.folder(push.dest) / "precious"
    precious.write_text("mine")
    [failure] = push.replicate().failures
    assert failure.error == "DestinationExists" and precious.exists()
    assert push.replicate(force_rollback=True).ok
    assert push.received() == ["one"]


def test_a_renamed_snapshot_is_still_the_same(push: Ends) -> None:
    push.grow("one")
    push.replicate()
    push.sender.do("rename", f"{push.source}@one", f"{push.source}@first")
    push.grow("two")
    result = push.replicate()
    assert result.ok and result.datasets[0].base == "@first"
    assert list(push.receiver.guids(push.dest)) == ["one", "two"]


def test_a_receiver_that_only_says_it_received_is_not_believed(push: Ends, tmp_path: Path) -> None:
    """No real zfs does that: receive swallows the stream and ends well."""
    push.grow("one")
    liar = tmp_path / "zfs"
    real = shlex.join(push.receiver.zfs)
    liar.write_text(f'#!/bin/sh\n[ "$1" != receive ] || exec cat >/dev/null\nexec {real} "$@"\n')
    liar.chmod(0o755)
    [failure] = push.replicate(far_zfs_command=str(liar)).failures
    assert failure.error == "StreamRejected" and "@one is not there" in failure.message


# --- snapshots of its own


def test_it_takes_a_snapshot_and_prunes_its_own_alone(ends: Ends) -> None:
    ends.grow("mine")
    for number in range(4):
        result = ends.replicate(snapshot_name=f"auto-{number}", keep_last=2, prune="both")
        assert result.ok and result.snapshot == f"auto-{number}"
    assert list(ends.sender.guids(ends.source)) == ["mine", "auto-2", "auto-3"]
    assert ends.received() == ["mine", "auto-2", "auto-3"]


def test_what_another_replication_took_is_not_pruned(push: Ends) -> None:
    push.replicate(snapshot_name="one", keep_last=1)
    other = f"{push.dest}-other"
    push.dest = other
    push.replicate(snapshot_name="two", keep_last=1)
    push.replicate(snapshot_name="three", keep_last=1)
    assert list(push.sender.guids(push.source)) == ["one", "three"]


def test_a_snapshot_that_is_held_is_not_pruned(push: Ends) -> None:
    push.replicate(snapshot_name="one", keep_last=1)
    push.sender.do("hold", "keep", f"{push.source}@one")
    result = push.replicate(snapshot_name="two", keep_last=1)
    assert result.ok and list(push.sender.guids(push.source)) == ["one", "two"]
    assert any("not pruned" in note for note in push.told.notes)
    push.sender.do("release", "keep", f"{push.source}@one")


def test_a_tree_is_taken_at_one_moment_without_what_is_excluded(push: Ends) -> None:
    for below in ("/a", "/tmp"):
        push.sender.do("create", f"{push.source}{below}")
    assert push.replicate(recursive=True, exclude=("tmp",), snapshot_name="now").ok
    assert push.received("/a") == ["now"]
    assert not push.sender.exists(f"{push.source}/tmp@now")


# --- holds


def holds(ends: Ends, name: str) -> int:
    return int(ends.sender.do("get", "-Hp", "-o", "value", "userrefs", f"{ends.source}@{name}"))


def test_what_is_being_sent_is_held_and_then_let_go(ends: Ends) -> None:
    ends.grow("one", "two")
    during: list[int] = []
    ends.link.before_stream = lambda: during.append(holds(ends, "one"))
    assert ends.replicate().ok
    assert during == [1]
    assert [holds(ends, name) for name in ("one", "two")] == [0, 0]


def test_a_hold_that_a_dead_run_left_is_released(push: Ends) -> None:
    push.grow("one")

    def die() -> None:
        raise KeyboardInterrupt

    push.link.before_stream = die
    with pytest.raises(KeyboardInterrupt):
        push.replicate()
    assert holds(push, "one") == 1
    push.sender.do("hold", "mine", f"{push.source}@one")
    assert push.replicate().ok
    assert holds(push, "one") == 1  # somebody else's
    push.sender.do("release", "mine", f"{push.source}@one")


# --- refusals, each of its own


def test_a_source_that_is_not_there(push: Ends) -> None:
    push.source = "tank/nothing"
    with pytest.raises(errors.NoSuchDataset, match="no such dataset"):
        push.replicate()


def test_a_parent_that_is_not_there(push: Ends) -> None:
    push.grow("one")
    push.dest = "vault/no/such"
    [failure] = push.replicate().failures
    assert failure.error == "NoSuchDataset"


def test_no_snapshot(push: Ends) -> None:
    [failure] = push.replicate().failures
    assert failure.error == "NoSnapshot" and "--snapshot-name" in failure.hint


def test_a_snapshot_of_that_name(push: Ends) -> None:
    push.grow("one")
    with pytest.raises(errors.SnapshotExists, match="already exists"):
        push.replicate(snapshot_name="one")


def test_no_zfs(push: Ends) -> None:
    with pytest.raises(errors.NoZfs, match="here: /no/such/zfs is of no use"):
        push.replicate(zfs_command="/no/such/zfs")
    with pytest.raises(errors.NoZfs, match="host: echo hello is of no use"):
        push.replicate(far_zfs_command="echo hello")


def test_no_space(push: Ends) -> None:
    push.receiver.do("create", "-o", "quota=1M", push.dest)
    push.dest += "/small"
    push.write("large", 3_000_000)
    push.snapshot("one")
    [failure] = push.replicate().failures
    assert failure.error == "NoSpace"


@pytest.mark.parametrize(
    "chosen", [{"raw": True}, {"set_properties": ("atime=off",)}, {"leave_properties": ("atime",)}]
)
def test_what_zfs_fuse_does_not_know_is_refused_before_anything_is_sent(
    push: Ends, chosen: ReplicateFields
) -> None:
    push.grow("one")
    with pytest.raises(errors.NoZfs):
        push.replicate(**chosen)
    assert not push.receiver.exists(push.dest)


def test_properties_go_with_it(push: Ends) -> None:
    push.sender.do("set", "compression=gzip", push.source)
    push.sender.do("set", "pscp.test:color=blue", push.source)
    push.grow("one")
    assert push.replicate(properties=True).ok
    for name, value in (("compression", "gzip"), ("pscp.test:color", "blue")):
        assert push.receiver.do("get", "-H", "-o", "value", name, push.dest).strip() == value


# --- beside the work


def test_a_dry_run_shows_the_commands_and_changes_nothing(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.grow("two")
    result = ends.replicate(dry_run=True, snapshot_name="three")
    text = "\n".join(ends.told.lines)
    assert f"send -I {ends.source}@one {ends.source}@two" in text
    assert f"receive {ends.dest}" in text and "@three would be taken first" in text
    sends = "here" if ends.is_push else "host"
    assert f"\n  {sends}: nsenter" in text
    assert result.ok and list(ends.receiver.guids(ends.dest)) == ["one"]
    assert list(ends.sender.guids(ends.source)) == ["one", "two"]


def test_only_one_at_a_time(push: Ends) -> None:
    push.grow("one")
    refused: list[bool] = []

    def again() -> None:
        with pytest.raises(errors.CopyRunning):
            push.replicate()
        refused.append(True)

    push.link.before_stream = again
    assert push.replicate().ok and refused == [True]
