"""docs/zfs.md is true: its blocks are run as they stand, between two pools over a real sshd; where
they say how many connections, over two.

Not here: the blocks that need today's ZFS (../openzfs). Read next: ../e2e/test_docs.py.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from e2e.test_docs import script
from e2e.ways import Ran
from e2e.world import World

from zfs.conftest import Ends, put_zfs, until_free

RUN = script.run_in("tests/zfs/test_zfs_docs.py")
BELOW = ("/a", "/a/b")
OF_ONE = ("zfs_cron", "zfs_sudo", "zfs_pipe", "zfs_syncoid")  # dataset, without those below it
EXCLUDED = ("/tmp", "/vm", "/vm/one")  # some of these, where a block excludes any


@pytest.mark.parametrize("block", RUN, ids=[block.name for block in RUN])
def test_a_block_does_what_it_says(block: Any, near_and_far: tuple[World, Ends]) -> None:
    """Each names `tank` as the sender's pool, and `vault` as the receiver's."""
    world, made = near_and_far
    names = re.search(r"(?P<from>host:)?tank/(?P<name>\w+)", block.text)
    assert names is not None
    source, dest = f"tank/{names['name']}", f"vault/{names['name']}"
    ends = Ends(made.sender, made.receiver, source, dest, not names["from"])
    if names["from"]:
        put_zfs(world, ends.receiver, ends.sender)
    try:
        more = (*BELOW, *(EXCLUDED if "exclude" in block.text else ()))
        for below in ("", *(() if block.name in OF_ONE else more)):
            ends.sender.do("create", f"{source}{below}")
            ends.write("file", below=below)
        ends.snapshot("a", "-r")
        globals().get(f"before_{block.name}", lambda ends, world: None)(ends, world)
        text = re.sub(r"-c \d+", "-c 2", block.text)
        ran = world.block(block.language, text)
        assert ran.code == 0, ran.err
        globals()[f"check_{block.name}"](ends, ran)
    finally:
        for pool in (made.sender, made.receiver):
            with contextlib.suppress(RuntimeError):
                pool.destroy("-r", source if pool is made.sender else dest)


def check_zfs_readme(ends: Ends, ran: Ran) -> None:
    for below in ("", *BELOW):
        first, taken = ends.received(below)
        assert first == "a" and taken.startswith("auto-20")


def check_zfs_cron(ends: Ends, ran: Ran) -> None:
    assert (ran.out, ran.err) == ("", "")  # or cron would send mail
    first, taken = ends.received()
    assert first == "a" and taken.startswith("nightly-20")


def check_zfs_dry_run(ends: Ends, ran: Ran) -> None:
    assert f"zfs send {ends.source}/a@a\n" in ran.out
    assert not ends.receiver.exists(ends.dest)


def check_zfs_pull(ends: Ends, ran: Ran) -> None:
    for below in ("", "/a", "/a/b", "/vm"):
        first, taken = ends.received(below)
        assert first == "a" and taken.startswith("auto-20")
    for below in ("/tmp", "/vm/one"):
        assert not ends.receiver.exists(f"{ends.dest}{below}")


def check_zfs_far(ends: Ends, ran: Ran) -> None:
    assert all(ends.received(below) == ["a"] for below in ("", *BELOW))


def check_zfs_sudo(ends: Ends, ran: Ran) -> None:
    assert ends.received() == ["a"]


def check_zfs_python(ends: Ends, ran: Ran) -> None:
    assert all(ends.received(below) == ["a"] for below in ("", *BELOW))
    assert ran.out.startswith(f"{ends.source} a full ")


def before_zfs_restore(ends: Ends, world: World) -> None:
    ends.grow("b")
    assert ends.replicate(recursive=True).ok
    for below in reversed(("", *BELOW)):
        ends.sender.do("unmount", f"{ends.source}{below}")
    until_free(ends.sender, ends.source)


def check_zfs_restore(ends: Ends, ran: Ran) -> None:
    """It is here again, and the next nightly push goes on."""
    try:
        for below in ("", *BELOW):
            assert len(ends.received(below)) == (1 if below else 2)
            of = ("get", "-H", "-o", "value", "mounted,readonly", f"{ends.source}{below}")
            assert ends.sender.do(*of).split() == ["yes", "off"]
            ends.write("more", below=below)
        assert ends.night(recursive=True).ok
        assert all(len(ends.received(below)) == (2 if below else 3) for below in ("", *BELOW))
    finally:
        ends.sender.destroy("-r", "tank/spoilt")


def before_zfs_pipe(ends: Ends, world: World) -> None:
    assert ends.replicate().ok
    ends.grow("b", "c")


def check_zfs_pipe(ends: Ends, ran: Ran) -> None:
    assert ends.received() == ["a", "b", "c"]
    back = ends.sender.guids("tank/back")
    ends.sender.destroy("-r", "tank/back")
    assert back == {"c": ends.sender.guids(ends.source)["c"]}


# What syncoid 2.1 runs for a push, word for word but for pv, mbuffer and lzop: that itself needs
# a zfs that knows `get -t`.
SYNCOID = """#!/bin/sh
set -e
ssh -S /tmp/syncoid-socket root@host echo -n
ssh -S /tmp/syncoid-socket root@host  zfs get -H name "'vault'" >/dev/null
zfs send  'tank/data'@'a' |
  ssh -S /tmp/syncoid-socket root@host '  zfs receive  -F '"'"'vault/data'"'"''
"""


def before_zfs_syncoid(ends: Ends, world: World) -> None:
    (world.programs / "syncoid").write_text(SYNCOID)
    (world.programs / "syncoid").chmod(0o755)
    pipe = world.programs / "pscp-pipe"
    pipe.write_text(pipe.read_text().replace("exec", "echo a stream >&2\nexec", 1))


def check_zfs_syncoid(ends: Ends, ran: Ran) -> None:
    assert ends.received() == ["a"] and ran.err.count("a stream") == 1
