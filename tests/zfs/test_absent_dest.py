"""Nights whose destination is out of sight: SOURCE keeps what the next increment begins with.

Not here: what --keep-last destroys else (test_fuse.py).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from pscp.ground import state
from zfs.conftest import Ends, until_free
from zfs.hostile import zfs_that


def mine(ends: Ends, below: str = "") -> list[str]:
    """The snapshots at the source."""
    return list(ends.sender.guids(f"{ends.source}{below}"))


def put_away(ends: Ends, name: str) -> None:
    """Have the destination's dataset where nobody looks for it, as in a pool that is not there."""
    until_free(ends.receiver, name)
    ends.receiver.do("rename", name, f"{name}-away")


def bring_back(ends: Ends, name: str) -> None:
    ends.receiver.do("rename", f"{name}-away", name)


def make_below(ends: Ends, *names: str) -> None:
    for name in names:
        ends.sender.do("create", f"{ends.source}/{name}")


@pytest.mark.parametrize("prune", ["source", "both"])
def test_a_parent_that_is_away_for_some_nights(
    push: Ends, prune: Literal["source", "both"]
) -> None:
    """SOURCE lost the one snapshot that both had, and no run could go on after that."""
    make_below(push, "c")
    top = push.dest
    push.receiver.do("create", "-o", "canmount=off", top)
    push.dest = f"{top}/e"
    replicate = partial(push.night, recursive=True, keep_last=1, prune=prune)
    nights = [replicate().snapshot for _ in range(2)]
    put_away(push, top)
    failed = [replicate() for _ in range(3)]
    assert all(len(each.failures) == 2 for each in failed)
    for below in ("", "/c"):
        assert mine(push, below) == [nights[1], failed[2].snapshot]
    told = [note for note in push.told.notes if "destroyed what" in note]
    assert told and not any(nights[1] in note or "deliver" in note for note in told)
    push.told.lines.clear()
    replicate(dry_run=True)
    assert not [line for line in push.told.lines if f"destroy {push.source}@{nights[1]}" in line]
    bring_back(push, top)
    last = replicate()
    assert last.ok and [each.base for each in last.datasets] == [f"@{nights[1]}"] * 2
    assert mine(push) == [last.snapshot] == mine(push, "/c")
    push.receiver.destroy("-r", top)


def test_datasets_that_took_each_others_place(push: Ends) -> None:
    """NoCommonSnapshot; once they are back it goes on."""
    make_below(push, "a", "b")
    replicate = partial(push.night, recursive=True, keep_last=1)
    assert replicate().ok
    base = replicate().snapshot
    at = f"{push.dest}/a", f"{push.dest}/b"

    def swap() -> None:
        for each in at:
            put_away(push, each)
        push.receiver.do("rename", f"{at[0]}-away", at[1])
        push.receiver.do("rename", f"{at[1]}-away", at[0])

    swap()
    for _ in range(3):
        assert {each.error for each in replicate().failures} == {"NoCommonSnapshot"}
    assert mine(push, "/a")[0] == mine(push, "/b")[0] == base
    assert len(mine(push, "/a")) == 2
    swap()
    assert replicate().ok and len(mine(push, "/a")) == len(mine(push, "/b")) == 1


@pytest.mark.parametrize("text", [None, "{"], ids=["lost", "corrupt"])
def test_without_a_record_nothing_of_before_goes(push: Ends, text: str | None) -> None:
    nights = [push.night(keep_last=3).snapshot for _ in range(2)]
    for record in (Path(state.folder()) / "zfs").glob("*.json"):
        record.unlink() if text is None else record.write_text(text)
    put_away(push, push.dest)
    push.receiver.do("create", push.dest)
    push.receiver.do("snapshot", f"{push.dest}@strange")
    failed = [push.night(keep_last=1) for _ in range(3)]
    assert all(each.failures[0].error == "NoCommonSnapshot" for each in failed)
    assert mine(push) == [*nights, failed[2].snapshot]
    push.receiver.destroy("-r", push.dest)
    bring_back(push, push.dest)
    last = push.night(keep_last=1)
    assert last.ok and mine(push) == [last.snapshot]


def test_nights_that_never_arrive_do_not_pile_up(push: Ends, tmp_path: Path) -> None:
    """What was begun to be sent counts as delivered only once it is there."""
    refuses = '[ "$1" != receive ] || { echo "cannot receive: out of space" >&2; exit 1; }'
    far = zfs_that(tmp_path, push.receiver.zfs, refuses)
    failed = [push.night(keep_last=1, far_zfs_command=far) for _ in range(3)]
    assert all(each.failures for each in failed) and mine(push) == [failed[2].snapshot]
