"""Ends that are hostile, with today's ZFS: resume tokens (B3), properties in a stream (B4).

Not here: what zfs-fuse can show (../zfs/test_hostile_source.py). Read next: ../zfs/hostile.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import pytest
from zfs.conftest import Ends
from zfs.hostile import (
    SENDS_PROPERTIES,
    check_that_only_its_own_is_pruned,
    forged,
    shows_token,
    zfs_that,
)

from openzfs.machine import Machine
from openzfs.test_openzfs import LARGE, cut_once, get, sends, token
from pscp.options.option_fields import ReplicateFields


def cut_secret(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token at the destination, which once was to get the dataset that is now called so."""
    ends.write("large", LARGE)
    ends.snapshot("one")
    cut_once(ends, monkeypatch)
    secret = f"{ends.source}-secret"
    ends.sender.do("rename", ends.source, secret)
    ends.link.commands.clear()
    return secret


def check_refused(ends: Ends, secret: str, **chosen: Unpack[ReplicateFields]) -> None:
    """Nothing was sent, the message names both, and what was cut is left as it is."""
    before = token(ends)
    [failure] = ends.replicate(**chosen).failures
    assert not sends(ends)
    assert failure.error == "ResumeRefused"
    assert f"{secret}@one" in failure.message and f"with {ends.source}:" in failure.message
    assert token(ends) == before and not ends.receiver.exists(f"{ends.dest}@one")


def test_b3_a_token_whose_name_is_another_datasets_now(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zfs send -t finds the snapshot by its GUID, wherever in the pool it is."""
    secret = cut_secret(ends, monkeypatch)
    ends.sender.do("create", ends.source)
    ends.grow("one")
    check_refused(ends, secret)


def test_b3_a_token_that_the_receiver_made(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its name is that of the source, its GUID that of another dataset."""
    named = ends.source
    secret = cut_secret(ends, monkeypatch)
    ends.source = f"{named[:-1]}x"  # as long
    ends.sender.do("create", ends.source)
    ends.grow("one")
    false = forged(token(ends), f"{named}@one", f"{ends.source}@one")
    liar = zfs_that(tmp_path, ends.receiver.zfs, shows_token(false))
    check_refused(ends, secret, far_zfs_command=liar)


def test_b3_an_increments_token(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.grow("zero")
    ends.replicate()
    secret = cut_secret(ends, monkeypatch)
    ends.sender.do("create", ends.source)
    ends.grow("one")
    check_refused(ends, secret)


def test_a_source_that_was_renamed_is_gone_on_with(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GUIDs tell that it is the same, though the token has the old name."""
    ends.source = cut_secret(ends, monkeypatch)
    result = ends.replicate()
    assert result.ok and result.datasets[0].resumed and ends.received() == ["one"]


def test_b4_only_what_this_replication_delivered_is_pruned(ends: Ends, tmp_path: Path) -> None:
    ends.is_push = False
    hostile = zfs_that(tmp_path, ends.sender.zfs, SENDS_PROPERTIES)
    check_that_only_its_own_is_pruned(ends, hostile)


@pytest.mark.parametrize("kind", ["filesystem", "volume"])
def test_b4_where_a_dataset_is_seen_is_not_taken_from_the_stream(
    ends: Ends, machine: Machine, tmp_path: Path, kind: str
) -> None:
    ends.is_push = False
    hostile = zfs_that(tmp_path, ends.sender.zfs, SENDS_PROPERTIES)
    if kind == "volume":
        ends.source += "/volume"
        ends.sender.do("create", "-V", "8M", ends.source)
    else:
        ends.sender.do("set", "mountpoint=/root/evil", "canmount=noauto", ends.source)
    ends.sender.do("set", "compression=gzip", ends.source)
    for name in ("one", "two"):
        ends.snapshot(name)
        assert ends.replicate(far_zfs_command=hostile).ok
    assert list(ends.receiver.guids(ends.dest)) == ["one", "two"]
    assert get(ends, ends.dest, "compression") == ["gzip"]
    if kind == "filesystem":
        assert get(ends, ends.dest, "mountpoint", "canmount", "mounted") == [
            f"/{ends.dest}", "on", "no",
        ]  # fmt: skip
    else:
        assert not [note for note in ends.told.notes if "does not apply" in note]


def test_b4_a_mountpoint_is_kept_when_it_is_asked_for(ends: Ends) -> None:
    ends.sender.do("set", "mountpoint=/root/there", "canmount=noauto", ends.source)
    ends.snapshot("one")
    assert ends.replicate(properties=True, keep_mountpoints=True).ok
    assert get(ends, ends.dest, "mountpoint", "canmount") == ["/root/there", "noauto"]
