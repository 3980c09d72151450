"""Replication between real pools of two zfs-fuse, which has no resume tokens and no -L -e -c.

Not here: what only OpenZFS can do (../openzfs), and the plan by itself (../unit/test_zfs_plan.py).
Read next: conftest.py.
"""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest
from faults.conftest import until

from pscp.ground import errors
from pscp.options.option_fields import ReplicateFields
from zfs.conftest import Ends, Pool, until_free
from zfs.hostile import zfs_that

ASKING = {"get", "hold", "release"}


def test_it_brings_every_snapshot_once_and_then_what_came_since(ends: Ends) -> None:
    ends.grow("one", "two", "three")
    result = ends.replicate()
    assert result.ok and ends.received() == ["one", "two", "three"]
    [sent] = result.datasets
    assert (sent.source, sent.dest, sent.snapshot) == (ends.source, ends.dest, "three")
    assert result.bytes > 60_000
    (ends.sender.folder(ends.source) / "one").unlink()
    ends.snapshot("four")
    result = ends.replicate()
    assert result.ok and result.datasets[0].base == "@three"
    assert ends.received() == ["one", "two", "three", "four"]
    ends.compare_all()
    ends.link.commands.clear()
    result = ends.replicate()
    assert (result.ok, result.bytes, result.datasets[0].streams) == (True, 0, 0)
    assert not [argv for argv in ends.link.commands if {"send", "receive"} & set(argv)]


def test_what_is_sent_is_counted_on_the_way(push: Ends) -> None:
    """Else a job has no seconds in which bytes moved: 5.7 MB went at 110 GB/s."""
    push.grow("one")
    seen: list[int] = []
    result = push.replicate(progress=lambda now: seen.append(now.bytes_sent))
    assert result.ok and seen[-1] == result.bytes > 0


def test_a_tree_of_datasets(push: Ends) -> None:
    """Twice: zfs-fuse mounts what it receives, and a folder that is mounted on counts as modified
    (A26), so pscp-zfs unmounts each at once."""
    for below in ("/a", "/b", "/a/deep", "/scratch", "/b/scratch", "/scratch/more"):
        push.sender.do("create", f"{push.source}{below}")
        push.write("file", below=below)
    push.snapshot("one", "-r")
    result = push.replicate(recursive=True, exclude=("scratch",))
    assert result.ok and result.files == 4
    for below in ("", "/a", "/b", "/a/deep"):
        assert push.received(below) == ["one"]
    for below in ("/scratch", "/b/scratch"):
        assert not push.receiver.exists(f"{push.dest}{below}")
    push.create("/b/new")
    push.snapshot("two", "-r")
    assert push.replicate(recursive=True, exclude=("scratch",), parallel=4).ok
    for below in ("", "/a", "/b", "/a/deep"):
        assert push.received(below) == ["one", "two"]
    assert push.received("/b/new") == ["two"]


def test_many_datasets_are_asked_about_at_once(ends: Ends) -> None:
    """Far away each command costs some round trips; a stream is one, all the rest is shared."""
    for number in range(3):
        ends.sender.do("create", f"{ends.source}/{number}")
    ends.snapshot("one", "-r")
    assert ends.replicate(recursive=True).ok
    ends.snapshot("two", "-r")
    ends.link.commands.clear()
    assert ends.replicate(recursive=True, parallel=3).ok
    asked = [argv[argv.index(word) :] for argv in ends.link.commands for word in ASKING & {*argv}]
    if ends.is_push:  # each receiver without -x is asked what it took from the stream
        asked = [words for words in asked if "type,mounted" not in " ".join(words)]
    count = {word: sum(words[0] == word for words in asked) for word in ASKING}
    here_only = {"hold": 0, "release": 0, "get": 2}
    assert count == (here_only if ends.is_push else {"hold": 1, "release": 1, "get": 1})
    assert [ends.received(f"/{number}") for number in range(3)] == [["one", "two"]] * 3


def test_what_excludes_nothing_is_said(push: Ends) -> None:
    push.create("/tmp")
    push.snapshot("one", "-r")
    result = push.replicate(recursive=True, exclude=("temp", f"{push.source}/tmp"))
    assert result.ok and not push.receiver.exists(f"{push.dest}/tmp")
    told = [note for note in push.told.notes if "--exclude" in note]
    assert told == [f"--exclude temp: no dataset below {push.source} matches"]
    push.told.notes.clear()
    assert push.replicate(recursive=True, exclude=("temp",), quiet=True).ok  # each night
    assert not push.told.notes


def test_each_dataset_of_a_tree_can_be_mounted_afterwards(push: Ends) -> None:
    """P5d: zfs receive makes the folders that it mounts at, and those above them, which were in the
    parent's way.
    """
    push.create("/a", "/a/b")
    push.snapshot("one", "-r")
    assert push.replicate(recursive=True).ok
    assert not [*push.receiver.folder(push.dest).iterdir()]
    push.create("/a/b/new", "/a/b/new/deep")
    push.snapshot("two", "-r")
    assert push.replicate(recursive=True).ok
    assert not [*push.receiver.folder(push.dest).iterdir()]
    for below in ("", "/a", "/a/b", "/a/b/new"):
        push.receiver.do("mount", f"{push.dest}{below}")
    push.snapshot("three", "-r")
    assert push.replicate(recursive=True).ok
    assert [push.received(below) for below in ("", "/a")] == [["one", "two", "three"]] * 2


def test_what_is_new_below_a_mounted_destination_is_not_mounted(push: Ends) -> None:
    """zfs-fuse could not make a folder in what is readonly, and said so with exit status 1."""
    push.create("/a")
    push.snapshot("one", "-r")
    assert push.replicate(recursive=True).ok
    for below in ("", "/a"):
        push.receiver.do("mount", f"{push.dest}{below}")
    for below in ("/a/new", "/a/new/deep"):
        push.sender.do("create", f"{push.source}{below}")
        push.write("file", below=below)
    for name in ("two", "three"):
        push.snapshot(name, "-r")
    result = push.replicate(recursive=True)
    assert result.ok and result.files == 4, result.failures
    for below in ("/a/new", "/a/new/deep"):
        assert push.received(below) == ["two", "three"]
        of = ("get", "-H", "-o", "value", "mounted,canmount", f"{push.dest}{below}")
        assert push.receiver.do(*of).split() == ["no", "noauto"]


def test_what_could_not_be_received_is_no_matter_of_mounting(push: Ends, tmp_path: Path) -> None:
    """What zfs receive says of mounting is believed only of what is there."""
    push.grow("one")
    says = "echo \"cannot mount '/a': failed to create mountpoint\" >&2; exit 1"
    script = f'[ "$1" != receive ] || {{ cat >/dev/null; {says}; }}'
    [failure] = push.replicate(
        far_zfs_command=zfs_that(tmp_path, push.receiver.zfs, script)
    ).failures
    assert failure.error == "StreamRejected" and "@one is not there" in failure.message
    [failure] = push.replicate(
        far_zfs_command=zfs_that(tmp_path, push.receiver.zfs, script), mount=True
    ).failures
    assert failure.message.startswith("cannot mount ")


def test_a_folder_with_something_in_it_stays(push: Ends) -> None:
    """It lies where a dataset is not mounted, and is not what zfs receive made."""
    push.create("/a")
    push.snapshot("one", "-r")
    assert push.replicate(recursive=True).ok
    mine = push.receiver.folder(push.dest) / "a" / "mine"
    mine.parent.mkdir()
    mine.write_text("mine")
    push.create("/a/new")
    push.snapshot("two", "-r")
    assert push.replicate(recursive=True).ok
    assert mine.read_text() == "mine" and not (mine.parent / "new").exists()
    assert [note for note in push.told.notes if "folders in its way" in note and "/a'" in note]


def test_a_folder_of_a_dataset_that_is_mounted_stays(push: Ends) -> None:
    """It came in that dataset's snapshot, where the one below is mounted at it."""
    push.create("/a")
    push.snapshot("one", "-r")
    assert push.replicate(mount=True, readonly=False).ok
    folder = push.receiver.folder(f"{push.dest}/a")
    assert folder.is_dir()
    assert push.replicate(recursive=True).ok and push.received("/a") == ["one"]
    assert folder.is_dir() and not [each for each in push.told.notes if "rmdir" in each]


def test_a_clone_arrives_as_a_clone(push: Ends) -> None:
    push.create("/base")
    push.write("large", 3_000_000, below="/base")
    push.snapshot("s", "-r")
    push.sender.do("clone", f"{push.source}/base@s", f"{push.source}/aclone")  # before its origin
    push.write("small", below="/aclone")
    push.snapshot("t", "-r")
    push.write("more", below="/aclone")
    push.snapshot("u", "-r")
    planned = push.replicate(recursive=True, dry_run=True)
    assert planned.ok and f"as a clone of {push.source}/base@s" in "\n".join(push.told.lines)
    result = push.replicate(recursive=True, parallel=3)
    assert result.ok and push.received("/aclone") == ["t", "u"]
    assert origin(push, "/aclone") == f"{push.dest}/base@s"
    [clone] = [each for each in result.datasets if each.source.endswith("/aclone")]
    assert clone.base == f"{push.source}/base@s" and clone.bytes < 1_000_000
    push.snapshot("v", "-r")
    assert push.replicate(recursive=True).ok and push.received("/aclone") == ["t", "u", "v"]
    push.sender.destroy("-r", f"{push.source}/aclone")  # or the test's end could not


def test_a_clone_of_what_is_not_there_arrives_whole_and_that_is_said(push: Ends) -> None:
    push.grow("s")
    push.sender.do("create", f"{push.source}-tree")
    push.sender.do("clone", f"{push.source}@s", f"{push.source}-tree/clone")
    base, push.source = push.source, f"{push.source}-tree"
    push.snapshot("t", "-r")
    result = push.replicate(recursive=True)
    assert result.ok and push.received("/clone") == ["t"] and origin(push, "/clone") == "-"
    assert [note for note in push.told.notes if f"a clone of {base}@s" in note and "whole" in note]
    push.sender.destroy("-r", push.source)
    push.source = base


def origin(ends: Ends, below: str) -> str:
    return ends.receiver.do("get", "-H", "-o", "value", "origin", f"{ends.dest}{below}").strip()


def test_without_recursive_what_is_below_stays(push: Ends) -> None:
    push.create("/below")
    push.snapshot("one", "-r")
    push.replicate()
    assert push.receiver.exists(push.dest) and not push.receiver.exists(f"{push.dest}/below")


def test_one_that_fails_hinders_only_those_below_it(push: Ends) -> None:
    push.create("/bad", "/bad/below", "/good")
    push.snapshot("one", "-r")
    push.sender.do("destroy", f"{push.source}/bad@one")
    result = push.replicate(recursive=True)
    assert {(each.path, each.error) for each in result.failures} == {
        (f"{push.source}/bad", "NoSnapshot"), (f"{push.dest}/bad/below", "DatasetError"),
    }  # fmt: skip
    assert push.received("/good") == ["one"]


def test_a_new_dataset_without_a_snapshot_is_left_out(push: Ends) -> None:
    """P5e: but not in silence, and not one that the destination has, or that is above another."""
    push.create("/had", "/new", "/new/below", "/above", "/above/taken")
    for below in ("", "/had"):
        push.snapshot("one", below=below)
    result = push.replicate(recursive=True)
    assert result.ok and (result.files, result.files_left_out) == (2, 4)
    [note] = [each for each in push.told.notes if "left out" in each]
    assert note.startswith(f"{push.source}/above and 3 more: ")
    push.sender.do("destroy", f"{push.source}/had@one")
    push.snapshot("one", below="/above/taken")
    result = push.replicate(recursive=True)
    assert (result.files, result.files_left_out) == (1, 2)
    assert {(each.path, each.error) for each in result.failures} == {
        (f"{push.source}/had", "NoSnapshot"), (f"{push.source}/above", "NoSnapshot"),
        (f"{push.dest}/above/taken", "DatasetError"),
    }  # fmt: skip


# --- what was cut


def test_a_cut_connection_is_begun_again(ends: Ends) -> None:
    ends.grow("one", "two")
    ends.link.cut_at = 8192
    result = ends.replicate()
    assert result.ok and ends.received() == ["one", "two"]
    assert any("starts over" in note for note in ends.told.notes)


def test_a_cut_increment_goes_on_from_the_snapshots_that_are_there(push: Ends) -> None:
    push.grow("one")
    push.replicate()
    push.grow("two", "three")
    push.link.cut_at = 30_000  # in the third
    assert push.replicate().ok
    assert push.received() == ["one", "two", "three"]


def test_a_killed_sender_leaves_no_snapshot(push: Ends) -> None:
    push.write("large", 2_000_000)
    push.snapshot("one")
    push.link.kill_sender_at = 500_000
    assert push.replicate().ok  # on the second attempt
    [told] = [note for note in push.told.notes if "trying again" in note]
    assert told.startswith(f"{push.source}: zfs send did not finish")
    assert push.received() == ["one"]


def test_that_an_increment_starts_over_is_said_once(push: Ends, tmp_path: Path) -> None:
    push.grow("one")
    cut = tmp_path / "cut"
    cut.write_text("12")  # the attempts that are cut
    script = f'[ "$1" != receive ] || [ ! -s {cut} ] || {{ truncate -s -1 {cut}; kill -9 $$; }}'
    result = push.replicate(far_zfs_command=zfs_that(tmp_path, push.receiver.zfs, script))
    assert result.ok and push.received() == ["one"]
    assert sum("starts over" in note for note in push.told.notes) == 1
    assert sum("trying again" in note for note in push.told.notes) == 2


BUSY = 'echo "cannot receive incremental stream: dataset is busy" >&2; exit 1'


def test_a_busy_dataset_is_waited_for(push: Ends, tmp_path: Path) -> None:
    """P5c: a zfs receive of a run that was killed works on for a while."""
    push.grow("one")
    marker = tmp_path / "busy"
    marker.touch()
    script = f'[ "$1" != receive ] || [ ! -e {marker} ] || {{ rm {marker}; {BUSY}; }}'
    result = push.replicate(far_zfs_command=zfs_that(tmp_path, push.receiver.zfs, script))
    assert result.ok and push.received() == ["one"]
    [note] = [each for each in push.told.notes if "busy" in each]
    assert note.endswith("dataset is busy; waiting for up to 90 s")
    assert not any("starts over" in each for each in push.told.notes)


def test_a_dataset_that_stays_busy_fails_after_the_time_for_retries(
    push: Ends, tmp_path: Path
) -> None:
    push.grow("one")
    script = f'[ "$1" != receive ] || {{ {BUSY}; }}'
    busy = zfs_that(tmp_path, push.receiver.zfs, script)
    for retry_for_s, is_advised in ((1, False), (None, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pscp.zfs.dataset_job.BUSY_S", 0)
            [failure] = push.replicate(far_zfs_command=busy, retry_for_s=retry_for_s).failures
        assert failure.error == "DatasetBusy" and failure.retry
        assert ("retry_for" in failure.hint) == is_advised
    assert sum("waiting for up to 1 s" in note for note in push.told.notes) == 1


def test_a_zfs_receive_that_a_killed_run_left_is_waited_for(
    push: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told to use --force-rollback on what is gone in a minute."""
    push.write("large", 2_000_000)
    push.snapshot("one")
    send = subprocess.run(
        [*push.sender.zfs, "send", f"{push.source}@one"], stdout=subprocess.PIPE, check=True
    )
    receive = subprocess.Popen([*push.receiver.zfs, "receive", push.dest], stdin=subprocess.PIPE)
    assert receive.stdin is not None
    with receive, receive.stdin as stdin:
        stdin.write(send.stdout[:1_000_000])
        stdin.flush()
        until(lambda: push.receiver.exists(push.dest))
        [failure] = push.replicate(dry_run=True).failures
        assert failure.error == "DatasetBusy"

        def end_it(text: str) -> None:
            if "waiting for up to" in text:
                stdin.close()

        monkeypatch.setattr(push.told, "note", end_it)
        assert push.replicate().ok and stdin.closed
    assert push.received() == ["one"]


def test_a_sender_that_is_always_killed_is_reported(
    push: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
    push.write("large", 2_000_000)
    push.snapshot("one")
    push.link.kill_sender_at = 500_000
    [failure] = push.replicate().failures
    assert (failure.error, failure.path) == ("StreamCut", push.source)
    assert "signal 9" in failure.message
    assert not push.receiver.exists(f"{push.dest}@one")
    push.sender.do("destroy", f"{push.source}@one")  # no hold was left


# --- what must not be lost


def test_looking_at_a_backup_does_not_break_the_next_night(push: Ends) -> None:
    """A26: mounted, read and, as one tries, written to."""
    push.create("/below")
    push.snapshot("one", "-r")
    assert push.replicate(recursive=True).ok
    assert readonly(push) == "on local" and readonly(push, "/below").startswith("on inherited")
    push.receiver.do("mount", f"{push.dest}/below")
    with pytest.raises(OSError, match="Read-only"):
        (push.receiver.folder(f"{push.dest}/below") / "mine").write_text("mine")
    push.snapshot("two", "-r")
    assert push.replicate(recursive=True).ok
    assert push.received() == push.received("/below") == ["one", "two"]


def test_readonly_is_not_changed_where_the_user_says_so_or_has_a_dataset(push: Ends) -> None:
    push.grow("one")
    assert push.replicate(readonly=False).ok and readonly(push).startswith("off")
    push.grow("two")
    assert push.replicate().ok and readonly(push).startswith("off")  # it was there


def readonly(ends: Ends, below: str = "") -> str:
    words = ("get", "-H", "-o", "value,source", "readonly", f"{ends.dest}{below}")
    return ends.receiver.do(*words).strip().replace("\t", " ")


def test_a_destination_that_was_written_to_is_kept(push: Ends) -> None:
    push.grow("one")
    push.replicate(mount=True, readonly=False)
    precious = push.receiver.folder(push.dest) / "precious"
    precious.write_text("mine")
    push.grow("two")
    [failure] = push.replicate().failures
    assert failure.error == "Diverged" and "force_rollback" in failure.hint
    assert precious.read_text() == "mine"
    assert push.replicate(force_rollback=True).ok
    assert push.received() == ["one", "two"] and not precious.exists()


def test_a_destination_with_snapshots_of_its_own_is_kept(push: Ends) -> None:
    push.grow("one")
    push.replicate()
    push.receiver.do("snapshot", f"{push.dest}@mine")
    push.grow("two")
    [failure] = push.replicate().failures
    assert failure.error == "Diverged" and "@mine" in failure.message
    assert push.receiver.exists(f"{push.dest}@mine")
    assert push.replicate(force_rollback=True).ok
    assert push.received() == ["one", "two"]


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
    liar = zfs_that(tmp_path, push.receiver.zfs, '[ "$1" != receive ] || exec cat >/dev/null')
    [failure] = push.replicate(far_zfs_command=liar).failures
    assert failure.error == "StreamRejected" and "@one is not there" in failure.message


# --- snapshots of its own


def test_it_takes_a_snapshot_and_prunes_its_own_alone(push: Ends) -> None:
    push.grow("mine")
    results = [push.night(keep_last=2, prune="both") for _ in range(4)]
    assert all(each.ok for each in results)
    left = ["mine", results[2].snapshot, results[3].snapshot]
    assert list(push.sender.guids(push.source)) == push.received() == left


def test_what_is_kept_of_one_name_does_not_count_for_another(push: Ends) -> None:
    """Weekly snapshots and one before an upgrade went with those of each hour, at both ends."""
    weekly = [push.night("weekly", keep_last=30, prune="both").snapshot for _ in range(3)]
    assert push.replicate(snapshot_name="before-upgrade", keep_last=1, prune="both").ok
    push.night("hourly", keep_last=2, prune="both", dry_run=True)
    hourly = [push.night("hourly", keep_last=2, prune="both").snapshot for _ in range(4)]
    push.told.lines.clear()
    assert push.night("hourly", keep_last=2, prune="both", dry_run=True).ok
    gone = [line for line in push.told.lines if " destroy " in line]
    assert len(gone) == 2 and all(hourly[2] in line for line in gone)
    left = [*weekly, "before-upgrade", *hourly[-2:]]
    assert list(push.sender.guids(push.source)) == push.received() == left
    last = push.night("weekly", keep_last=2, prune="both").snapshot
    left = [weekly[2], "before-upgrade", *hourly[-2:], last]
    assert list(push.sender.guids(push.source)) == push.received() == left


def test_a_name_that_is_taken_in_the_same_second_is_that_of_the_next(push: Ends) -> None:
    """Two destinations of a job begin at once, and each replication takes a snapshot."""
    first, second = push.night().snapshot, "night-2001-09-09T01:46:41Z"
    other = Ends(push.sender, push.receiver, push.source, f"{push.dest}-other")
    for dry_run in (True, False):  # which is a second later
        other.seconds = iter([1_000_000_000])
        result = other.night(dry_run=dry_run)
        assert result.ok and first == "night-2001-09-09T01:46:40Z"
    assert other.told.lines[0] == f"{push.source}@{second} would be taken first"
    assert other.received() == [first, second] and result.snapshot == second
    push.receiver.destroy("-r", other.dest)


def test_a_name_that_is_taken_meanwhile_is_that_of_the_next_second(
    push: Ends, tmp_path: Path
) -> None:
    """It was not there when the snapshots were listed."""
    push.create("/a", "/tmp")
    taken = f"{push.source}@night-2001-09-09T01:46:40Z"
    script = f'[ "$1" != snapshot ] || zfs snapshot -r {taken} 2>/dev/null'
    near = zfs_that(tmp_path, push.sender.zfs, script)
    result = push.night(zfs_command=near, recursive=True)
    assert result.ok and result.snapshot == "night-2001-09-09T01:46:41Z"
    push.seconds = iter([1_000_000_000])
    result = push.night(zfs_command=near, recursive=True, exclude=("tmp",))
    assert result.ok and result.snapshot == "night-2001-09-09T01:46:42Z"


def test_the_snapshots_of_nights_that_failed_are_pruned_as_others(push: Ends) -> None:
    """A27: but not the one that both ends have, with which the next increment begins."""
    first = [push.night(keep_last=3).snapshot for _ in range(2)]
    push.receiver.do("snapshot", f"{push.dest}@mine")
    failed = [push.night(keep_last=2) for _ in range(4)]
    assert all(each.failures for each in failed)
    night = [each.snapshot for each in failed]
    assert list(push.sender.guids(push.source)) == [first[1], *night[2:]]
    told = [note for note in push.told.notes if "--keep-last 2 destroyed" in note]
    assert len(told) == 2 and not any(first[0] in note for note in told)  # it was delivered
    push.receiver.do("destroy", f"{push.dest}@mine")
    last = push.night(keep_last=2)
    assert last.ok and list(push.sender.guids(push.source)) == [night[3], last.snapshot]
    assert list(push.receiver.guids(push.dest))[-1] == last.snapshot


def test_what_another_replication_took_is_not_pruned(push: Ends) -> None:
    first = push.night(keep_last=1).snapshot
    push.dest = f"{push.dest}-other"
    push.night(keep_last=1)
    last = push.night(keep_last=1).snapshot
    assert list(push.sender.guids(push.source)) == [first, last]


def test_what_another_replication_leaves_behind_is_told(push: Ends) -> None:
    """Without a word DEST got one snapshot of the other's for each night."""
    other = Ends(push.sender, push.receiver, push.source, f"{push.dest}-other")
    push.grow("mine")
    for _ in range(4):
        assert push.night("tob", keep_last=2, prune="both").ok
        last = other.night("toc", keep_last=2, prune="both", all_between=False)
        assert last.ok
    push.sender.do("destroy", f"{push.source}@mine")
    assert push.replicate(dry_run=True, snapshot_name="tob-{time}", keep_last=2, prune="dest").ok
    names = [name.partition("-")[0] for name in push.receiver.guids(push.dest)]
    assert sorted(names) == ["mine", "tob", "tob", "toc", "toc", "toc"]
    assert [name[:3] for name in other.receiver.guids(other.dest)] == ["toc"] * 2
    told = [note for note in push.told.notes if "of another replication" in note]
    assert [note.partition(": ")[2][:11] for note in told] == ["1 snapshot ", "2 snapshots"]
    assert f"{push.dest}@toc-" in told[0] and "--newest-only" in told[0]
    push.told.notes.clear()
    for verbose in (
        False,
        False,
        True,
    ):  # A4: nothing comes any more, and each night it was told that it does
        assert push.night("tob", keep_last=2, prune="both", verbose=verbose).ok
    told = [note for note in push.told.notes if "of another replication" in note]
    assert [note.partition("): ")[2] for note in told[1:]] == ["zfs destroy removes these"]
    assert not [note for note in other.told.notes if "of another replication" in note]
    push.receiver.destroy("-r", other.dest)


def test_the_newest_alone_is_the_one_that_the_run_took(push: Ends, tmp_path: Path) -> None:
    """Two destinations of a job begin at once: each took the other's, which --prune then left."""
    other = Ends(push.sender, push.receiver, push.source, f"{push.dest}-other")
    other.seconds = iter(range(1_100_000_000, 1_100_000_009))
    took: list[str] = []

    def other_night() -> None:
        took.append(other.night(all_between=False, keep_last=2, prune="both").snapshot)

    mine = []
    for night in range(4):
        theirs = f"{push.source}@theirs-{night}"  # between the run's own and its look at them
        near = zfs_that(
            tmp_path,
            push.sender.zfs,
            f'[ "$1" != snapshot ] || {{ zfs "$@"; zfs snapshot {theirs}; exit; }}',
        )
        push.link.before_stream = other_night
        push.link.cut_at = 4096 if night else None  # after which it looks again
        push.write(f"file-{night}")
        result = push.night(all_between=False, keep_last=2, prune="both", zfs_command=near)
        assert result.ok
        mine.append(result.snapshot)
    assert push.received() == mine[-2:]
    assert other.received() == took[-2:]
    push.receiver.destroy("-r", other.dest)


def test_a_dataset_that_was_renamed_is_pruned_as_before(push: Ends) -> None:
    """Its snapshots came to DEST once more, and were taken for those of another replication."""
    push.create("/old")
    push.sender.do("unmount", f"{push.source}/old")
    until_free(push.sender, f"{push.source}/old")
    replicate = partial(push.night, recursive=True, keep_last=2, prune="both")
    assert all(replicate().ok for _ in range(2))
    push.sender.do("rename", f"{push.source}/old", f"{push.source}/new")
    nights = [replicate().snapshot for _ in range(3)]
    assert push.received("/new") == nights[-2:]
    assert not [note for note in push.told.notes if "of another replication" in note]


def test_a_dataset_that_was_renamed_need_not_be_sent_whole(push: Ends) -> None:
    """A1: it was, without a word."""
    push.create("/old", "/old/a", "/old/a/b")
    assert push.night(recursive=True).ok
    for below in ("/old/a/b", "/old/a", "/old"):
        push.sender.do("unmount", f"{push.source}{below}")
    old, new = f"{push.dest}/old", f"{push.dest}/new"
    until_free(push.sender, f"{push.source}/old")
    push.sender.do("rename", f"{push.source}/old", f"{push.source}/new")
    push.told.notes.clear()
    assert push.night(recursive=True, dry_run=True).ok
    told = [note for note in push.told.notes if "zfs rename" in note]
    assert len(told) == 1 and told[0].startswith(f"{new}: sent whole, though {old} has snapshots")
    assert f"zfs rename {old} {new} there saves that" in told[0]
    until_free(push.receiver, old)
    push.receiver.do("rename", old, new)
    push.told.notes.clear()
    result = push.night(recursive=True)
    assert result.ok and all(each.base for each in result.datasets)
    assert push.told.notes == []


def test_a_snapshot_that_someone_needs_is_not_pruned(push: Ends) -> None:
    """Each healthy night of a cron line said that it is busy, or to destroy its clones too."""
    held, cloned = (push.night(keep_last=2).snapshot for _ in range(2))
    clone = f"{push.source}-clone"
    push.sender.do("hold", "keep", f"{push.source}@{held}")
    push.sender.do("clone", f"{push.source}@{cloned}", clone)
    push.told.notes.clear()
    assert push.night(keep_last=1, quiet=True).ok and push.told.notes == []
    result = push.night(keep_last=1)
    left = [held, cloned, result.snapshot]
    assert result.ok and list(push.sender.guids(push.source)) == left
    assert push.told.notes == [
        f"{push.source}@{held}: held (zfs holds), so it stays",
        f"{push.source}@{cloned}: a clone needs it, so it stays",
    ]
    push.sender.do("release", "keep", f"{push.source}@{held}")
    push.sender.destroy(clone)


def test_a_clone_is_in_the_way_of_a_rollback_and_a_copy_is_not(push: Ends) -> None:
    """H1: the hint was to make a clone first, -n saw none, and zfs then refused."""
    push.grow("one")
    assert push.replicate().ok
    clone, kept = f"{push.dest}-clone", f"{push.dest}-kept"
    push.receiver.do("snapshot", f"{push.dest}@mine")
    push.receiver.do("clone", f"{push.dest}@mine", clone)
    push.grow("two")
    for dry_run in (True, False):
        [failure] = push.replicate(force_rollback=True, dry_run=dry_run).failures
        assert failure.error == "StreamRejected" and clone in failure.message
        assert "destroys no clone: zfs send" in failure.hint
    assert not [line for line in push.told.lines if "rollback" in line]
    send, receive = (shlex.join(push.receiver.zfs) + word for word in (" send ", " receive "))
    subprocess.run(f"{send}{push.dest}@mine | {receive}{kept}", shell=True, check=True)
    push.receiver.destroy(clone)
    assert push.replicate(force_rollback=True, dry_run=True).ok
    assert push.replicate(force_rollback=True).ok and push.received() == ["one", "two"]
    assert list(push.receiver.guids(kept)) == ["mine"]
    push.receiver.destroy("-r", kept)


def test_a_dry_run_marks_what_a_clone_needs(push: Ends) -> None:
    """A3: it was to be destroyed, as if nothing needed it."""
    took = [push.night(keep_last=3).snapshot for _ in range(3)]
    clone = f"{push.source}-clone"
    push.sender.do("clone", f"{push.source}@{took[0]}", clone)
    push.told.lines.clear()
    assert push.night(keep_last=2, dry_run=True).ok
    lines = [line.partition(" destroy ")[2] for line in push.told.lines if " destroy " in line]
    first, second = (f"{push.source}@{name}" for name in took[:2])
    assert lines == [f"{first}  # unless a clone needs it then", second]
    push.sender.destroy(clone)


def test_a_tree_is_taken_at_one_moment_without_what_is_excluded(push: Ends) -> None:
    push.create("/a", "/tmp")
    assert push.replicate(recursive=True, exclude=("tmp",), snapshot_name="now").ok
    assert push.received("/a") == ["now"]
    assert not push.sender.exists(f"{push.source}/tmp@now")


@pytest.mark.parametrize("fails", [False, True], ids=["sent", "diverged"])
def test_a_dry_run_names_what_would_be_pruned(push: Ends, fails: bool) -> None:
    """P5a: at both ends, and that is what is destroyed then; at the source also where it fails."""
    taken = []
    for number in range(3):
        taken.append(push.night().snapshot)
        push.grow(f"mine-{number}")
    if fails:
        push.receiver.do("snapshot", f"{push.dest}@theirs")
    before = {ends.pool: ends.guids(name) for ends, name in both(push)}
    replicate = partial(push.night, keep_last=2, prune="both")
    planned = replicate(dry_run=True)
    assert {ends.pool: ends.guids(name) for ends, name in both(push)} == before
    assert planned.ok != fails and planned.unknown_sizes == (not fails)
    lines = "\n".join(push.told.lines)
    named = set(re.findall(r"zfs destroy (\S+)$", lines, re.MULTILINE))
    assert replicate().ok != fails
    gone = {
        f"{name}@{each}"
        for ends, name in both(push)
        for each in before[ends.pool].keys() - ends.guids(name).keys()
    }
    places = [push.source] if fails else [push.source, push.dest]
    assert named == gone == {f"{name}@{each}" for name in places for each in taken[:2]}


def both(ends: Ends) -> list[tuple[Pool, str]]:
    return [(ends.sender, ends.source), (ends.receiver, ends.dest)]


# --- holds


def holds(ends: Ends, name: str) -> int:
    return int(ends.sender.do("get", "-Hp", "-o", "value", "userrefs", f"{ends.source}@{name}"))


def test_what_is_being_sent_is_held_and_then_let_go(push: Ends) -> None:
    push.grow("one", "two")
    during: list[int] = []
    push.link.before_stream = lambda: during.append(holds(push, "one"))
    assert push.replicate().ok
    assert during == [1]
    assert [holds(push, name) for name in ("one", "two")] == [0, 0]


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


def test_what_a_killed_zfs_send_holds_can_be_released(push: Ends) -> None:
    """As docs/zfs.md says: zfs-fuse keeps it, and Debian's has no working `zfs holds`."""
    push.snapshot("one")
    push.write("large", 5_000_000)
    push.snapshot("two")
    words = [*push.sender.zfs, "send", "-I", "@one", f"{push.source}@two"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as send:
        assert send.stdout is not None and send.stdout.read(100_000)
        send.kill()
    with pytest.raises(RuntimeError, match="busy"):
        push.sender.do("destroy", f"{push.source}@one")
    push.sender.do("release", f".send-{send.pid}-0", f"{push.source}@one")
    push.sender.do("destroy", f"{push.source}@one")


# --- refusals, each of its own


def test_a_source_that_is_not_there(push: Ends) -> None:
    push.source = "tank/nothing"
    with pytest.raises(errors.NoSuchDataset, match="no such dataset") as caught:
        push.replicate()
    assert "zpool import" in caught.value.hint and "parent" not in caught.value.hint


def test_a_parent_that_is_not_there(push: Ends) -> None:
    """A dry run went well where nothing could be received."""
    for below in ("below", "other"):
        push.sender.do("create", f"{push.source}/{below}")
    push.snapshot("one", "-r")
    pool = "pool nopool"
    places = {"vault/no/such": "dataset vault/no", "nopool/no/such": pool, "nopool": pool}
    for (dest, lacks), dry_run in itertools.product(places.items(), (True, False)):
        push.dest = dest
        push.link.commands.clear()
        push.told.notes.clear()
        failures = push.replicate(recursive=True, dry_run=dry_run).failures
        assert ("zpool import" in failures[0].hint) == lacks.startswith("pool")
        told = f"{dest}/below and 1 more: what they lie below was not replicated"
        assert push.told.notes[-1] == told and sum("below" in note for note in push.told.notes) == 1
        assert [(each.path, each.error, each.message) for each in failures] == [
            (dest, "NoSuchDataset", f"host: there is no {lacks}"),
            (f"{dest}/below", "DatasetError", "its parent was not replicated"),
            (f"{dest}/other", "DatasetError", "its parent was not replicated"),
        ]
        assert not [argv for argv in push.link.commands if "receive" in argv]


@pytest.mark.parametrize("end", ["source", "dest"])
def test_what_is_denied_has_the_option_of_that_end_in_its_hint(
    ends: Ends, tmp_path: Path, end: str
) -> None:
    ends.grow("one")
    pool, does = (ends.sender, "send") if end == "source" else (ends.receiver, "receive")
    denied = f'[ "$1" != {does} ] || {{ echo "cannot {does}: permission denied" >&2; exit 1; }}'
    is_far = (end == "dest") == ends.is_push
    command = zfs_that(tmp_path, pool.zfs, denied)
    chosen: ReplicateFields = {"far_zfs_command": command} if is_far else {"zfs_command": command}
    [failure] = ends.replicate(**chosen).failures
    assert failure.error == "ZfsDenied"
    assert f' {"far_" if is_far else ""}zfs_command="sudo zfs"' in failure.hint


def test_no_zfs(push: Ends) -> None:
    with pytest.raises(errors.NoZfs, match="here: /no/such/zfs is of no use") as caught:
        push.replicate(zfs_command="/no/such/zfs")
    assert caught.value.hint.endswith("where it is: zfs_command")
    with pytest.raises(errors.NoZfs, match="host: echo hello is of no use") as caught:
        push.replicate(far_zfs_command="echo hello")
    assert caught.value.hint.endswith("where it is: far_zfs_command")


def test_no_space(push: Ends) -> None:
    push.receiver.do("create", "-o", "quota=1M", push.dest)
    push.dest += "/small"
    push.write("large", 3_000_000)
    push.snapshot("one")
    [failure] = push.replicate().failures
    assert failure.error == "NoSpace"


def test_what_zfs_fuse_does_not_know_is_refused_before_anything_is_sent(push: Ends) -> None:
    push.grow("one")
    refused: tuple[ReplicateFields, ...] = (
        {"raw": True}, {"set_properties": ("atime=off",)}, {"leave_properties": ("atime",)},
        {"bookmark": True}, {"properties": True}, {"properties": True, "mount": True},
        {"properties": True, "keep_mountpoints": True},
    )  # fmt: skip
    for chosen in refused:
        with pytest.raises(errors.NoZfs):
            push.replicate(**chosen)
        assert not push.receiver.exists(push.dest), chosen


def test_properties_go_with_it_where_all_of_them_may(push: Ends) -> None:
    push.sender.do("set", "compression=gzip", push.source)
    push.sender.do("set", "pscp.test:color=blue", push.source)
    push.grow("one")
    assert push.replicate(properties=True, mount=True, keep_mountpoints=True).ok
    for name, value in (("compression", "gzip"), ("pscp.test:color", "blue")):
        assert push.receiver.do("get", "-H", "-o", "value", name, push.dest).strip() == value


# --- beside the work


def test_a_dry_run_shows_the_commands_and_changes_nothing(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.grow("two")
    result = ends.replicate(dry_run=True, snapshot_name="three")
    text = "\n".join(ends.told.lines)
    assert f"send -I {ends.source}@one {ends.source}@three" in text
    assert f"receive {ends.dest}" in text and "@three would be taken first" in text
    sends = "here" if ends.is_push else "host"
    assert f"\n  {sends}: nsenter" in text
    assert result.ok and list(ends.receiver.guids(ends.dest)) == ["one"]
    assert list(ends.sender.guids(ends.source)) == ["one", "two"]


def test_a_dry_run_plans_with_the_snapshot_that_it_would_take(push: Ends) -> None:
    """A25: the first thing that is typed, where there is no snapshot yet."""
    push.create("/below")
    result = push.replicate(recursive=True, dry_run=True, snapshot_name="first")
    text = "\n".join(push.told.lines)
    assert result.ok and not push.told.notes[1:]  # the first is of what zfs-fuse mounts
    for below in ("", "/below"):
        assert f"zfs send {push.source}{below}@first" in text
        assert f"zfs receive {push.dest}{below}\n" in f"{text}\n"
    assert text.count(f"zfs set readonly=on {push.dest}") == 1
    assert not push.sender.guids(push.source)
    push.snapshot("first")
    with pytest.raises(errors.SnapshotExists):
        push.replicate(dry_run=True, snapshot_name="first")


def test_a_dry_run_tells_of_a_destination_that_was_changed(push: Ends, tmp_path: Path) -> None:
    """As the real run does; only zfs-fuse does not know `written`, so here it is told of it."""
    push.create("/below")
    push.snapshot("one", "-r")
    assert push.replicate(recursive=True).ok

    def far(written: int) -> str:
        row = f"{push.dest}\\t{written}\\n{push.dest}/below\\t0\\n"
        script = f'[ "$1 $5" != "get written" ] || {{ printf "{row}"; exit; }}'
        return zfs_that(tmp_path, push.receiver.zfs, script)

    def dry(written: int, force_rollback: bool = False) -> list[tuple[str, str, str]]:
        far_zfs = far(written)
        result = push.replicate(
            recursive=True, dry_run=True, far_zfs_command=far_zfs, force_rollback=force_rollback
        )
        return [(each.path, each.error, each.message) for each in result.failures]

    assert not dry(14336)  # there is nothing to send
    push.snapshot("two", "-r")
    assert not dry(0) and not dry(14336, force_rollback=True)
    said = "it was changed since @one: 14.3 kB written"
    assert dry(14336) == [(push.dest, "Diverged", said)]


def test_only_one_at_a_time(push: Ends) -> None:
    push.grow("one")
    refused: list[bool] = []

    def again() -> None:
        with pytest.raises(errors.CopyRunning):
            push.replicate()
        same = Ends(push.sender, push.receiver, push.source, push.dest)
        refused.append(same.replicate(dry_run=True).ok)  # which changes nothing

    push.link.before_stream = again
    assert push.replicate().ok and refused == [True]
