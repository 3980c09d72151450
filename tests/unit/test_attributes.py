"""options/attributes.py: --chmod means what it means to rsync, which is asked; --chown,
--numeric-ids.

Read next: pscp/options/attributes.py.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import unavailable
from hypothesis import given, settings
from hypothesis import strategies as st

import pscp
from pscp.endpoint.reading import tree
from pscp.ground.errors import UsageError
from pscp.options.attributes import Attributes, Ids, changed_mode, parse_modes

MODES = (0o644, 0o600, 0o755, 0o711, 0o777, 0o4755, 0o2770, 0o1777)
UMASK = 0o027


def by_rsync(change: str) -> dict[str, int] | None:
    """The modes that rsync gives files and folders of MODES; None where it takes no such change."""
    if shutil.which("rsync") is None:
        unavailable("rsync is not installed")
    with tempfile.TemporaryDirectory() as folder:
        source, destination = Path(folder, "source"), Path(folder, "destination")
        source.mkdir()
        for mode in MODES:
            (source / f"F{mode:o}").touch()
            (source / f"D{mode:o}").mkdir()
            for kind in "FD":
                (source / f"{kind}{mode:o}").chmod(mode)
        argv = ["rsync", "-rp", f"--chmod={change}", f"{source}/", str(destination)]
        done = subprocess.run(argv, capture_output=True, umask=UMASK, check=False)
        if done.returncode == 1:  # a syntax or usage error
            return None
        found = {each.name: stat.S_IMODE(each.lstat().st_mode) for each in destination.iterdir()}
        destination.chmod(0o700)
        return found


def ours(change: str) -> dict[str, int] | None:
    try:
        changes = parse_modes(change, UMASK)
    except UsageError:
        return None
    kinds = {"F": tree.FILE, "D": tree.FOLDER}
    return {f"{k}{m:o}": changed_mode(m, kinds[k], changes) for m in MODES for k in kinds}


SPECIAL = (
    "D755,F644", "D2770,F0660", "go-w,+X", "a=rX,u+w", "a+x,a-w", "+t,Du+s", "=r", "u=,g=", "-rwx",
    "+s",
)  # fmt: skip
WRONG = ("", "rw", "u", "u+q", "9", "10000", "755,", "x=r", "Du", "u+r,,g+r", "07777", "u755")


def in_order(permissions: set[str]) -> str:
    return "".join(each for each in "rwxXst" if each in permissions)  # rsync forgets t in "+ts"


a_change = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "D", "F"]),
        st.sampled_from(["", "u", "g", "o", "ug", "go", "ugo"]),
        st.sampled_from("+-="),
        st.sets(st.sampled_from("rwxXst"), max_size=3).map(in_order),
    ),
)


@pytest.mark.parametrize("change", [*SPECIAL, *WRONG])
def test_a_mode_is_read_as_rsync_reads_it(change: str) -> None:
    assert ours(change) == by_rsync(change)


@settings(max_examples=25, deadline=None)
@given(st.lists(a_change, min_size=1, max_size=3).map(",".join))
def test_any_modes_are_read_as_rsync_reads_them(change: str) -> None:
    if os.geteuid() == 0:  # others may be kept out of what they have just made
        assert ours(change) == by_rsync(change)


def entry(kind: str = tree.FILE, **extra: Any) -> tree.Entry:
    return tree.Entry(kind, 0, "x", 0, 0o644, 0, 0, extra)


@pytest.mark.parametrize(
    ("attributes", "owner"),
    [
        (Attributes(), [1, 2, "a", "b"]),
        (Attributes(numeric=True), [1, 2, "", ""]),
        (Attributes(ids=Ids(7, None)), [7, 2, "", "b"]),
        (Attributes(ids=Ids(None, 8)), [1, 8, "a", ""]),
        (Attributes(ids=Ids(7, 8), numeric=True), [7, 8, "", ""]),
    ],
)
def test_owners(attributes: Attributes, owner: list[object]) -> None:
    for kind in (tree.FILE, tree.FOLDER, tree.LINK):
        assert attributes.change(entry(kind, o=[1, 2, "a", "b"])).extra["o"] == owner


def test_an_entry_without_an_owner_gets_only_a_whole_one() -> None:
    assert "o" not in Attributes(ids=Ids(7, None)).change(entry()).extra
    assert Attributes(ids=Ids(7, 8)).change(entry()).extra["o"] == [7, 8, "", ""]


@pytest.mark.parametrize(
    "fields",
    [
        {"chown": ":"}, {"chown": "a:b:c"}, {"chown": "4294967295"}, {"chmod": "rw"},
        {"chown": "u", "archive": False}, {"numeric_ids": True, "archive": False},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_at_once(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        pscp.Options(**{"archive": True, **fields})
