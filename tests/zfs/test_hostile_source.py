"""A pull from a source that puts properties into its streams, with zfs-fuse.

zfs-fuse mounts what it receives and knows no `receive -u` and no `receive -x`.

Not here: the same with today's ZFS (../openzfs/test_hostile.py). Read next: hostile.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pscp.ground import errors, state
from zfs.conftest import Ends, make_ends
from zfs.fuse import POOL_FOLDER, Daemon
from zfs.hostile import SENDS_PROPERTIES, check_that_only_its_own_is_pruned, zfs_that


@pytest.fixture
def pull(daemons: tuple[Daemon, Daemon]) -> Iterator[Ends]:
    yield from make_ends(daemons, False)


@pytest.fixture
def hostile(pull: Ends, tmp_path: Path) -> str:
    return zfs_that(tmp_path, pull.sender.zfs, SENDS_PROPERTIES)


def properties(ends: Ends, *names: str) -> list[tuple[str, str]]:
    """The value and the source of each, at the destination."""
    text = ends.receiver.do("get", "-H", "-o", "value,source", ",".join(names), ends.dest)
    return [(value, source) for value, source in (row.split("\t") for row in text.splitlines())]


def test_b4_only_what_this_replication_delivered_is_pruned(pull: Ends, hostile: str) -> None:
    check_that_only_its_own_is_pruned(pull, hostile)


def test_b4_a_mountpoint_in_the_stream_does_not_stay(pull: Ends, hostile: str) -> None:
    pull.grow("one")
    evil = f"{POOL_FOLDER}/evil-{pull.dest.replace('/', '-')}"
    pull.sender.do("set", f"mountpoint={evil}", pull.source)
    pull.sender.do("set", "compression=gzip", pull.source)
    assert pull.replicate(far_zfs_command=hostile).ok
    where, can, mounted, packed = properties(
        pull, "mountpoint", "canmount", "mounted", "compression"
    )
    assert where == (f"{POOL_FOLDER}/{pull.dest}", "inherited from vault")
    assert (can[0], mounted[0], packed) == ("noauto", "no", ("gzip", "received"))
    assert any("this zfs mounts what it receives" in note for note in pull.told.notes)
    pull.snapshot("two")
    assert pull.replicate(far_zfs_command=hostile).ok
    assert properties(pull, "mountpoint")[0] == where


def test_b4_a_mountpoint_is_kept_when_it_is_asked_for(pull: Ends) -> None:
    pull.grow("one")
    at = f"{POOL_FOLDER}/at-{pull.dest.replace('/', '-')}"
    pull.sender.do("set", f"mountpoint={at}", pull.source)
    assert pull.replicate(properties=True, mount=True, keep_mountpoints=True).ok
    assert properties(pull, "mountpoint") == [(at, "received")]


def test_b4_without_its_record_nothing_that_came_before_is_pruned(pull: Ends) -> None:
    old = [pull.night(keep_last=1, prune="dest").snapshot for _ in range(2)][1]
    assert list(pull.receiver.guids(pull.dest)) == [old]
    for record in (Path(state.folder()) / "zfs").glob("*.json"):
        record.unlink()
    new = [pull.night(keep_last=1, prune="dest").snapshot for _ in range(3)]
    assert list(pull.receiver.guids(pull.dest)) == [old, new[2]]
    told = [note for note in pull.told.notes if "not in its record" in note]
    assert len(told) == 3 and "1 snapshot" in told[0] and f"{pull.dest}@{old}" in told[0]
    assert "zfs destroy" in told[0]
    told = pull.told.notes[:]
    assert pull.night(keep_last=1, prune="dest", quiet=True).ok and pull.told.notes == told


def test_b4_a_snapshot_of_the_users_is_not_taken_for_ours_by_its_name(pull: Ends) -> None:
    pull.grow("first")
    assert pull.replicate().ok
    pull.grow("mine")
    with pytest.raises(errors.SnapshotExists):
        pull.replicate(snapshot_name="mine")
    new = [pull.night(keep_last=1, prune="dest").snapshot for _ in range(2)]
    assert list(pull.receiver.guids(pull.dest)) == ["first", "mine", new[1]]


def test_b4_what_a_failed_run_took_is_pruned_when_another_has_delivered_it(pull: Ends) -> None:
    assert pull.night(keep_last=1, prune="dest").ok
    pull.receiver.do("snapshot", f"{pull.dest}@mine")
    assert pull.night(keep_last=1, prune="dest").failures
    pull.receiver.do("destroy", f"{pull.dest}@mine")
    last = pull.night(keep_last=1, prune="dest")
    assert last.ok and list(pull.receiver.guids(pull.dest)) == [last.snapshot]


def test_b4_a_record_that_cannot_be_written_is_told(
    pull: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert pull.replicate(snapshot_name="one", keep_last=1, prune="dest").ok
    assert any("cannot be written" in note for note in pull.told.notes)
    assert pull.received() == ["one"]
