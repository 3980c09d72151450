"""Ends of a replication that do what they were not asked: a zfs with a script before it.

Not here: the tests. Read next: test_hostile_source.py.
"""

from __future__ import annotations

import shlex
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from zfs.conftest import Ends

# Properties go into every stream, whether or not the receiver asked for them.
SENDS_PROPERTIES = '[ "$1" != send ] || { shift; set -- send -p "$@"; }'


def zfs_that(folder: Path, zfs: Sequence[str], script: str) -> str:
    """The command of a zfs before which this is run; "$@" is what zfs was to do."""
    program = folder / "zfs"
    program.write_text(f'#!/bin/sh\nzfs() {{ {shlex.join(zfs)} "$@"; }}\n{script}\nzfs "$@"\n')
    program.chmod(0o755)
    return str(program)


def shows_token(token: str) -> str:
    """A script of a receiver whose destination seems to have this resume token."""
    change = f"sed 's/\\(receive_resume_token.\\)[^\\t]*/\\1{token}/'"
    return f'[ "$1" != get ] || {{ zfs "$@" | {change}; exit; }}'


def forged(token: str, old: str, new: str) -> str:
    """The resume token with another text of the same length (dsl_dataset.c: a version, a Fletcher-4
    checksum of the packed contents, the length of the contents, and those, packed by zlib)."""
    version, _, length, packed = token.split("-")
    contents = zlib.decompress(bytes.fromhex(packed))
    assert len(old) == len(new) and contents.count(old.encode()) == 1
    data = zlib.compress(contents.replace(old.encode(), new.encode()))
    words = struct.unpack_from(f"<{len(data) // 4}I", data)
    return f"{version}-{sum(words):x}-{length}-{data.hex()}"


def check_that_only_its_own_is_pruned(ends: Ends, far_zfs: str) -> None:
    """A source that marks everything, in every way, has nothing pruned here that is not recorded.

    The user's own snapshots are at both ends; after the first run the source marks them.
    """
    ends.grow("weekly-0", "weekly-1")
    ends.replicate(far_zfs_command=far_zfs)
    for number in range(2):
        result = ends.night(keep_last=1, prune="dest", far_zfs_command=far_zfs)
        assert result.ok, result.failures
        if number == 0:
            taken = f"{ends.source}@{result.snapshot}"
            mark = ends.sender.do("get", "-H", "-o", "value", "pscp:job", taken).strip()
            ends.grow("hourly")
            for name in ("", "@weekly-0", "@weekly-1", "@hourly"):
                ends.sender.do("set", f"pscp:job={mark}", f"{ends.source}{name}")
    left = ["weekly-0", "weekly-1", "hourly", result.snapshot]
    assert list(ends.receiver.guids(ends.dest)) == left
