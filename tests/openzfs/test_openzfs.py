"""Replication with today's ZFS: resume tokens, -L -e -c, raw streams, bookmarks, delegation.

Not here: what zfs-fuse does as well (../zfs). Read next: conftest.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.test_docs import script
from e2e.world import make_world, put_program
from faults.conftest import until
from zfs.conftest import Ends
from zfs.test_over_ssh import AMIDST, WINDOW, amidst

from openzfs.machine import HOST, Machine, VmPool
from pscp.options.option_fields import ReplicateFields

LARGE = 4_000_000
CUT = 2_000_000


def get(ends: Ends, name: str, *properties: str) -> list[str]:
    pool = ends.receiver if name.startswith(ends.receiver.pool) else ends.sender
    assert isinstance(pool, VmPool)
    return pool.get(name, *properties)


def token(ends: Ends) -> str:
    return get(ends, ends.dest, "receive_resume_token")[0]


def holds(ends: Ends, name: str) -> str:
    return ends.sender.do("holds", "-H", f"{ends.source}@{name}")


def cut_once(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replication that is cut, and tries only once."""
    ends.link.cut_at = CUT
    with monkeypatch.context() as patch:
        patch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
        with pytest.raises(Exception, match="cut"):
            ends.replicate()


def sends(ends: Ends) -> list[tuple[str, ...]]:
    """The commands of the streams."""
    return [argv for argv in ends.link.commands if "send" in argv and "-nvP" not in argv]


def receives(ends: Ends) -> list[tuple[str, ...]]:
    return [argv for argv in ends.link.commands if "receive" in argv]


# --- what was cut


def test_a_cut_stream_goes_on_where_it_stopped(ends: Ends) -> None:
    ends.write("large", LARGE)
    ends.grow("one", "two")
    ends.link.cut_at = CUT
    result = ends.replicate()
    assert result.ok and result.datasets[0].resumed
    assert ends.received() == ["one", "two"]
    assert any("going on where it stopped" in note for note in ends.told.notes)
    assert result.bytes < LARGE + CUT


def test_the_next_run_goes_on_where_one_was_cut(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.grow("one")
    ends.replicate()
    ends.write("large", LARGE)
    ends.grow("two", "three")
    cut_once(ends, monkeypatch)
    assert token(ends) != "-" and "pscp:" in holds(ends, "three")
    assert ends.replicate(dry_run=True, snapshot_name="four-{time}", keep_last=1).ok
    assert ends.told.lines[-1].endswith("what is sent and destroyed after that is known then")
    result = ends.replicate()
    assert result.ok and result.datasets[0].resumed and result.bytes < LARGE
    assert ends.received() == ["one", "two", "three"]
    assert [holds(ends, name) for name in ("one", "two", "three")] == ["", "", ""]


def test_a_cut_stream_whose_snapshot_is_gone_starts_over(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.grow("one")
    ends.replicate()
    ends.write("large", LARGE)
    ends.snapshot("two")
    cut_once(ends, monkeypatch)
    tag = holds(ends, "two").split("\t")[1]
    for name in ("one", "two"):
        ends.sender.do("release", tag, f"{ends.source}@{name}")
    ends.sender.do("destroy", f"{ends.source}@two")
    ends.snapshot("three")
    result = ends.replicate()
    assert result.ok and any("thrown away" in note for note in ends.told.notes)
    assert ends.received() == ["one", "three"]


def test_a_cut_receive_of_something_else_is_left_alone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token names a dataset of the sender: a receiver could ask for any."""
    other = ends.source
    ends.write("large", LARGE)
    ends.snapshot("one")
    cut_once(ends, monkeypatch)
    before = token(ends)
    ends.source = f"{other}-mine"
    ends.sender.do("create", ends.source)
    ends.grow("one")
    ends.link.commands.clear()
    [failure] = ends.replicate().failures
    assert failure.error == "ResumeRefused" and "receive -A" in failure.hint
    assert token(ends) == before and not receives(ends)


def test_a_killed_sender_is_gone_on_with(ends: Ends) -> None:
    ends.write("large", LARGE)
    ends.snapshot("one")
    ends.link.kill_sender_at = CUT
    result = ends.replicate()
    assert result.ok and result.datasets[0].resumed and ends.received() == ["one"]


def test_an_interrupted_run_over_ssh_is_gone_on_with(ends: Ends, machine: Machine) -> None:
    """Over pscp's own connections: Ctrl-C, then the same command again."""
    ends.host = HOST
    ends.over_ssh = {
        "config_file": machine.ssh_config, "connections": 2, "batch": True,
        "far_zfs_command": None,
    }  # fmt: skip
    size = 3 * AMIDST + WINDOW  # all of it is not on its way when it is interrupted
    ends.write("large", size)
    ends.grow("one", "two")

    def interrupt() -> None:
        until(lambda: ends.receiver.exists(ends.dest))  # what was sent may not be taken up yet
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ends.replicate(**amidst(interrupt))
    until(lambda: token(ends) != "-")
    result = ends.replicate()
    assert result.ok and result.datasets[0].resumed and result.bytes < size
    assert ends.received() == ["one", "two"]


# --- what the streams are


def test_large_blocks_embedded_data_and_compression_stay_as_they_are(ends: Ends) -> None:
    ends.sender.do("set", "recordsize=1M", "compression=lz4", ends.source)
    ends.sender.machine.run(  # type: ignore[attr-defined]
        f"yes pscp | head -c 20000000 > /{ends.source}/words; echo tiny > /{ends.source}/tiny"
    )
    ends.grow("one")
    result = ends.replicate()
    assert result.ok and result.bytes < 5_000_000
    assert {"-L", "-e", "-c"} <= set(sends(ends)[0])
    assert ends.received() == ["one"]
    ends.grow("two")
    assert ends.replicate().ok and ends.received() == ["one", "two"]


def test_what_the_receiving_pool_does_not_know_is_left_out(ends: Ends, machine: Machine) -> None:
    machine.run(
        "truncate -s 100M /root/old.img && zpool create -d -o feature@bookmarks=enabled "
        "-m /old old /root/old.img"
    )
    try:
        ends.dest = "old/t"
        ends.grow("one")
        assert ends.replicate().ok and ends.received() == ["one"]
        assert not {"-L", "-e", "-c"} & set(sends(ends)[0])
    finally:
        machine.run("zpool destroy old; rm /root/old.img")


def test_raw_streams_of_an_encrypted_dataset(ends: Ends, machine: Machine) -> None:
    machine.run("echo passphrase > /root/key")
    ends.source += "/secret"
    key = ("-o", "keyformat=passphrase", "-o", "keylocation=file:///root/key")
    ends.sender.do("create", "-o", "encryption=on", *key, ends.source)
    ends.grow("one", "two")
    assert ends.replicate(raw=True).ok
    ends.grow("three")
    assert ends.replicate(raw=True).ok
    assert "-w" in sends(ends)[0]
    encryption, status = get(ends, ends.dest, "encryption", "keystatus")
    assert encryption != "off" and status == "unavailable"
    machine.run(f"zfs load-key -L file:///root/key {ends.dest}")
    assert ends.received() == ["one", "two", "three"]


def test_a_bookmark_stands_in_for_a_snapshot(ends: Ends) -> None:
    ends.grow("one")
    ends.replicate()
    ends.sender.do("bookmark", f"{ends.source}@one", f"{ends.source}#one")
    ends.sender.do("destroy", f"{ends.source}@one")
    ends.grow("two", "three")
    result = ends.replicate()
    assert result.ok and result.datasets[0].base == "#one"
    assert list(ends.receiver.guids(ends.dest)) == ["one", "two", "three"]
    assert ends.receiver.contents(f"{ends.dest}@three") == ends.sender.contents(
        f"{ends.source}@three"
    )


def test_bookmarks_that_are_asked_for_begin_the_next_increment(ends: Ends) -> None:
    """One stays at a time, of the newest snapshot that both ends have."""
    ends.grow("one", "two")
    assert ends.replicate(bookmark=True).ok
    ends.grow("three")
    assert ends.replicate(bookmark=True).ok and ends.replicate(bookmark=True).ok
    [name] = ends.sender.do("list", "-H", "-o", "name", "-t", "bookmark", ends.source).split()
    assert name.startswith(f"{ends.source}#pscp-")
    for snapshot in ends.sender.guids(ends.source):
        ends.sender.do("destroy", f"{ends.source}@{snapshot}")
    ends.grow("four", "five")
    result = ends.replicate(bookmark=True)
    assert result.ok and result.datasets[0].base == f"#{name.partition('#')[2]}"
    assert list(ends.receiver.guids(ends.dest)) == ["one", "two", "three", "four", "five"]
    assert ends.receiver.contents(f"{ends.dest}@five") == ends.sender.contents(
        f"{ends.source}@five"
    )


def test_a_clone_that_is_cut_is_gone_on_with_as_a_clone(ends: Ends) -> None:
    ends.sender.do("create", f"{ends.source}/base")
    ends.write("large", LARGE, below="/base")
    ends.snapshot("s", "-r")
    assert ends.replicate(recursive=True).ok
    ends.sender.do("clone", f"{ends.source}/base@s", f"{ends.source}/clone")
    ends.write("more", LARGE, below="/clone")
    ends.snapshot("t", "-r")
    ends.link.cut_at = CUT
    result = ends.replicate(recursive=True, parallel=1)
    assert result.ok and any(each.resumed for each in result.datasets)
    assert ends.received("/clone") == ["t"] and result.bytes < 2 * LARGE
    assert get(ends, f"{ends.dest}/clone", "origin") == [f"{ends.dest}/base@s"]


# --- what the receiver does


def test_looking_at_a_backup_does_not_break_the_next_night(ends: Ends, machine: Machine) -> None:
    """A26: also where the first receive was cut."""
    ends.sender.do("create", f"{ends.source}/below")
    ends.write("large", LARGE)
    ends.snapshot("one", "-r")
    ends.link.cut_at = CUT
    assert ends.replicate(recursive=True, mount=True).ok
    assert get(ends, ends.dest, "readonly") == get(ends, f"{ends.dest}/below", "readonly") == ["on"]
    machine.run(f"ls -lR /{ends.dest} >/dev/null; ! touch /{ends.dest}/mine 2>/dev/null")
    ends.snapshot("two", "-r")
    assert ends.replicate(recursive=True).ok
    assert ends.received() == ends.received("/below") == ["one", "two"]


def test_a_night_that_fails_keeps_what_its_cut_stream_goes_on_with(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pscp.zfs.dataset_job.ATTEMPTS", 1)
    nights = [ends.night(keep_last=1)]
    assert nights[0].ok
    for number in (1, 2):
        ends.write(f"large{number}", LARGE)
        ends.link.kill_sender_at = CUT
        nights.append(ends.night(keep_last=1))
        assert nights[number].failures and token(ends) != "-"
    kept = list(ends.sender.guids(ends.source))
    assert kept == [each.snapshot for each in nights]
    result = ends.night(keep_last=1)
    assert result.ok and result.datasets[0].resumed
    assert list(ends.sender.guids(ends.source)) == [result.snapshot]


def test_properties_set_and_left(ends: Ends) -> None:
    ends.sender.do("set", "compression=gzip", "atime=off", ends.source)
    ends.grow("one")
    chosen: ReplicateFields = {
        "properties": True, "set_properties": ("readonly=on", "pscp.test:words=a"),
        "leave_properties": ("compression",),
    }  # fmt: skip
    assert ends.replicate(**chosen).ok
    ends.grow("two")
    assert ends.replicate(**chosen).ok and ends.received() == ["one", "two"]
    found = get(ends, ends.dest, "readonly", "pscp.test:words", "atime", "compression", "mounted")
    assert found[:3] == ["on", "a", "off"] and found[3] != "gzip" and found[4] == "no"


def test_it_is_mounted_when_asked(ends: Ends) -> None:
    ends.grow("one")
    assert ends.replicate(mount=True).ok
    assert get(ends, ends.dest, "mounted") == ["yes"]


def test_changes_at_the_destination_are_kept(ends: Ends, machine: Machine) -> None:
    ends.grow("one")
    ends.replicate(mount=True, readonly=False)
    machine.run(f"echo mine > /{ends.dest}/precious")
    ends.receiver.do("snapshot", f"{ends.dest}@mine")
    ends.grow("two")
    [failure] = ends.replicate().failures
    assert failure.error == "Diverged" and ends.receiver.exists(f"{ends.dest}@mine")
    ends.receiver.do("destroy", f"{ends.dest}@mine")
    for dry_run in (True, False):
        [failure] = ends.replicate(dry_run=dry_run).failures
        assert failure.error == "Diverged"
    assert machine.run(f"cat /{ends.dest}/precious") == "mine\n"
    assert ends.replicate(force_rollback=True, dry_run=True).ok
    assert ends.replicate(force_rollback=True).ok and ends.received() == ["one", "two"]


def test_a_parent_that_is_not_there(ends: Ends) -> None:
    ends.grow("one")
    for dest, lacks in ((f"{ends.dest}/below", ends.dest), ("nopool/a", "nopool")):
        ends.dest = dest
        for dry_run in (True, False):
            [failure] = ends.replicate(dry_run=dry_run).failures
            assert failure.error == "NoSuchDataset" and failure.message.endswith(f" {lacks}")
    assert not receives(ends)


def test_a_destination_without_snapshots_is_busy_only_where_it_is_being_made(ends: Ends) -> None:
    ends.write("large", LARGE)
    ends.grow("one")
    for volume in ((), ("-V", "8M")):
        ends.receiver.do("create", *volume, ends.dest)
        assert [each.error for each in ends.replicate().failures] == ["DestinationExists"]
        ends.receiver.destroy(ends.dest)
    send = [*ends.sender.zfs, "send", f"{ends.source}@one"]
    stream = subprocess.run(send, stdout=subprocess.PIPE, check=True).stdout
    receive = subprocess.Popen([*ends.receiver.zfs, "receive", ends.dest], stdin=subprocess.PIPE)
    assert receive.stdin is not None
    with receive, receive.stdin as stdin:
        stdin.write(stream[:CUT])
        stdin.flush()
        until(lambda: ends.receiver.exists(ends.dest))
        assert [each.error for each in ends.replicate(retry_for_s=1).failures] == ["DatasetBusy"]
    assert ends.replicate().ok and ends.received() == ["one"]


def test_a_tree_is_taken_at_one_moment_without_what_is_excluded(ends: Ends) -> None:
    for below in ("/a", "/a/b", "/tmp"):
        ends.sender.do("create", f"{ends.source}{below}")
        ends.write("file", below=below)
    chosen: ReplicateFields = {
        "recursive": True, "exclude": ("tmp",), "parallel": 4, "keep_last": 2, "prune": "both",
    }  # fmt: skip
    nights = [ends.night(**chosen) for _ in range(3)]
    assert all(each.ok for each in nights)
    left = [each.snapshot for each in nights[1:]]
    for below in ("", "/a", "/a/b"):
        assert ends.received(below) == left
        assert list(ends.sender.guids(f"{ends.source}{below}")) == left
    assert not ends.sender.guids(f"{ends.source}/tmp")


def test_a_quota_is_no_space(ends: Ends) -> None:
    ends.receiver.do("create", "-o", "quota=2M", ends.dest)
    ends.dest += "/small"
    ends.write("large", LARGE)
    ends.snapshot("one")
    [failure] = ends.replicate().failures
    assert failure.error == "NoSpace"


# --- sizes


def test_sizes_are_foreseen(ends: Ends) -> None:
    ends.write("large", LARGE)
    ends.snapshot("one")
    planned = ends.replicate(dry_run=True)
    assert 0.9 * LARGE < planned.bytes < 1.2 * LARGE and not ends.receiver.exists(ends.dest)
    assert any(line.endswith(" MB") and "zfs send" in line for line in ends.told.lines)
    more = ends.replicate(dry_run=True, snapshot_name="two")
    assert (more.bytes, more.unknown_sizes) == (planned.bytes, 1)
    seen: list[tuple[int, bool]] = []
    result = ends.replicate(progress=lambda now: seen.append((now.bytes_total, now.plan_complete)))
    assert result.ok and seen[-1][1] and abs(seen[-1][0] - result.bytes) < 0.2 * LARGE


# --- who may


def test_delegation(ends: Ends, machine: Machine) -> None:
    """What the hint of ZfsDenied names is enough, on both sides."""
    machine.run("id bob >/dev/null 2>&1 || useradd -m bob")
    ends.receiver.do("create", "-o", "mountpoint=none", ends.dest)
    ends.dest += "/copy"
    ends.grow("one")
    ends.sender.user = ends.receiver.user = "bob"  # type: ignore[attr-defined]
    [failure] = ends.replicate().failures
    assert failure.error == "ZfsDenied" and "zfs allow" in failure.hint
    ends.told.notes.clear()
    source, dest = failure.hint.split("and zfs allow")
    parent = ends.dest.rpartition("/")[0]
    sender_may = source.partition("USER ")[2].split()[0]
    receiver_may = dest.partition("USER ")[2].split()[0]
    ends.sender.do("allow", "bob", sender_may, ends.source)
    ends.receiver.do("allow", "bob", receiver_may, parent)
    for _ in range(2):
        result = ends.night(keep_last=1, prune="both")
        assert result.ok, result.failures
    assert ends.received() == ["one", result.snapshot]
    assert get(ends, ends.dest, "readonly") == ["on"]
    assert [n for n in ends.told.notes if "without a hold" in n or "not readonly" in n] == []


# --- what docs/zfs.md shows, and zfs-fuse cannot do

RUN = script.run_in("tests/openzfs/test_openzfs.py")


@pytest.mark.parametrize("block", RUN, ids=[block.name for block in RUN])
def test_a_block_does_what_it_says(
    block: Any, pools: tuple[VmPool, VmPool], machine: Machine, tmp_path: Path
) -> None:
    """As it stands; both ends are pools of this machine."""
    one, two = pools
    far_home = tmp_path / "home"
    far_home.mkdir()
    with make_world(tmp_path, far_home, machine) as world:
        put_program(world.programs / "zfs", one.zfs)
        globals()[f"before_{block.name}"](machine)
        ran = world.block(block.language, block.text)
        assert ran.code == 0, ran.err
        globals()[f"check_{block.name}"](one, two)


def before_openzfs_raw(machine: Machine) -> None:
    machine.run(
        "echo passphrase > /root/key; zfs create -o encryption=on -o keyformat=passphrase "
        "-o keylocation=file:///root/key tank/secret; zfs snapshot tank/secret@a"
    )


def check_openzfs_raw(one: VmPool, two: VmPool) -> None:
    assert two.guids("vault/secret") == one.guids("tank/secret") != {}
    assert two.get("vault/secret", "keystatus", "readonly") == ["unavailable", "on"]


def before_openzfs_restore(machine: Machine) -> None:
    machine.run(
        "for each in tank/data vault/data; do zfs destroy -r $each 2>/dev/null; done; "  # earlier
        "zfs create tank/data; echo whole >/tank/data/report; zfs snapshot tank/data@a; "
        "zfs send tank/data@a | zfs receive -u -o readonly=on vault/data"
    )


def check_openzfs_restore(one: VmPool, two: VmPool) -> None:
    assert two.get("vault/data", "mounted", "written") == ["yes", "0"]


def before_openzfs_allow(machine: Machine) -> None:
    machine.run("zfs create tank/data; zfs snapshot tank/data@a")


def check_openzfs_allow(one: VmPool, two: VmPool) -> None:
    """That is enough for a replication, also for one that prunes."""
    ends = Ends(one, two, "tank/data", "vault/data")
    one.user = two.user = "backup"
    try:
        for _ in range(2):
            result = ends.night(keep_last=1, prune="both")
            assert result.ok, result.failures
    finally:
        one.user = two.user = "root"
    assert ends.received() == ["a", result.snapshot]
    assert not [note for note in ends.told.notes if "without a hold" in note]
