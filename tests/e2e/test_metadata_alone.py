"""What is the same at the destination but for its metadata: told by -n as the copy does it.

Not here: how metadata is given (test_copy_metadata.py), what else differs (test_quick_check.py).
"""

from __future__ import annotations

import dataclasses
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree
from conftest import unavailable
from tree_data import may_make_devices

import pscp
from e2e.ways import Way

EVERY_WAY = True

OLD_NS = 1_500_000_000 * 10**9
CHANGED = ["./", "a", "large", "sub/", "sub/b"]


def fill(way: Way) -> None:
    for name in ("a", "large", "same", "sub/b", "sub/same", "other/same"):
        path = way.source / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name * (60_000 if name == "large" else 1))
        path.chmod(0o644)
        os.utime(path, ns=(OLD_NS, OLD_NS))


def change_modes(folder: Path) -> None:
    for name in CHANGED:
        (folder / name).chmod(0o700 if name.endswith("/") else 0o600)


def told(way: Way, *words: str) -> tuple[list[str], str, str]:
    """Return what -avv or -anvv says of files that are changed, the closing line, and all lines."""
    ran = way.command("-avv", *words, names=["."])
    assert ran.code == 0, ran
    lines = (x for x in ran.out.splitlines() if not x.startswith(("unchanged", "skipped")))
    return sorted(lines), ran.err, ran.out


@pytest.mark.needs_agent("push", reason="SFTP makes no hard links for --link-dest")
def test_a_changed_mode_is_told_and_set_beside_link_dest(way: Way) -> None:
    check_a_changed_mode(way, "--link-dest=../yesterday")


@pytest.mark.parametrize("words", ["", "--existing", "-u", "--delete", "--checksum"])
def test_a_changed_mode_is_told_and_set(way: Way, words: str) -> None:
    check_a_changed_mode(way, words)


def check_a_changed_mode(way: Way, words: str) -> None:
    fill(way)
    more = words.split()
    (way.destination.parent / "yesterday").mkdir()
    assert way.copy(".", archive=True).ok
    change_modes(way.source)
    assert sorted(way.command("-an", *more, names=["."]).out.splitlines()) == CHANGED
    if "--link-dest" not in words and words != "--delete":
        checked = way.command("-a", "--check", *more, names=["."])
        lines = sorted(f"{name.rstrip('/')}: differs in mode" for name in CHANGED)
        assert (checked.code, sorted(checked.out.splitlines())) == (1, lines)
        assert "5 different, 3 files the same" in checked.err
    would, closing, listed = told(way, "-n", *more)
    assert would == [f"metadata  {name}" for name in CHANGED]
    assert "it would have been 0 files, 0 B, and metadata of 5 set" in closing
    did, closing, out = told(way, *more)
    assert did == would and "metadata of 5 set" in closing
    same = sorted(line for line in out.splitlines() if line.startswith("unchanged"))
    assert same == sorted(set(listed.splitlines()) - set(would)) and len(same) == 3
    assert_same_tree(way.source, way.destination, modes=True)
    assert told(way, "-n", *more)[0] == told(way, *more)[0] == []
    assert way.command("-a", "--check", names=["."]).code == 0


@pytest.mark.parametrize("words", ["", "-s", "--size-only"])
def test_a_changed_time_is_told_and_set(way: Way, words: str) -> None:
    """Nothing told of it, and the copy set it."""
    fill(way)
    more, names = words.split(), ["a", "large", "sub/b"]
    assert way.copy(".", archive=True).ok
    for name in names:
        os.utime(way.source / name, ns=(2 * OLD_NS, 2 * OLD_NS))
    checked = way.command("-a", "--check", *more, names=["."])
    lines = [] if more else [f"{name}: differs in time" for name in names]
    assert (checked.code, sorted(checked.out.splitlines())) == (int(bool(lines)), lines)
    assert sorted(way.command("-anv", *more, names=["."]).out.splitlines()) == names
    would, closing, _ = told(way, "-n", *more)
    assert would == [f"metadata  {name}" for name in names]
    assert "it would have been 0 files, 0 B, and metadata of 3 set" in closing
    did, closing, _ = told(way, *more)
    assert did == would and "metadata of 3 set" in closing
    assert {(way.destination / name).stat().st_mtime_ns for name in names} == {2 * OLD_NS}
    assert told(way, "-n", *more)[0] == told(way, *more)[0] == []


def test_what_is_skipped_or_sent_is_no_more_than_that(way: Way) -> None:
    fill(way)
    assert way.copy(".", archive=True).ok
    change_modes(way.source)
    (way.source / "a").write_text("other bytes")
    os.utime(way.destination / "sub" / "b", ns=(2 * OLD_NS, 2 * OLD_NS))
    folders = ["metadata  ./", "metadata  sub/"]
    assert told(way, "-n", "--ignore-existing")[0] == folders
    would, _, listed = told(way, "-un")
    did, _, done = told(way, "-u")
    assert would == did == ["changed   a", folders[0], "metadata  large", folders[1]]
    assert sorted(listed.splitlines()) == sorted(done.splitlines())


def test_without_p_no_mode_counts(way: Way) -> None:
    fill(way)
    assert way.command("-r", names=["."]).code == 0
    change_modes(way.source)
    assert way.command("-rn", names=["."]).out == ""
    assert way.command("-r", "--check", names=["."]).code == 0


def test_a_program_is_told(push: Way) -> None:
    way = push
    fill(way)
    [source], there = way.locations(["."], "")
    assert way.copy(".", archive=True).ok
    change_modes(way.source)
    files = sorted(name for name in CHANGED if not name.endswith("/"))
    for more in ({"dry_run": True}, {"check": True}, {}):
        events: list[pscp.FileEvent] = []
        config: Any = {"config_file": way.server.ssh_config, **more}
        result = pscp.copy(
            source, there, archive=True, raises=False, on_file=events.append, **config
        )
        changed = [each for each in events if each.outcome != "unchanged"]
        if more:
            named = {each.path: each.why for each in changed}
            assert {name: named.get(name) for name in files} == dict.fromkeys(
                files, "differs in mode"
            )
        else:
            assert sorted((e.path, e.outcome) for e in changed) == [(n, "metadata") for n in files]
        is_checked = "check" in more
        assert (result.metadata_set, result.differing) == ((0, 5) if is_checked else (5, 0))
        assert result.files_unchanged == (3 if is_checked else 6)


@pytest.mark.needs_agent(reason="over SFTP a pull makes no hard links")
def test_a_file_of_several_names(way: Way) -> None:
    """It is replaced by a copy, and so its other names are made anew."""
    fill(way)
    os.link(way.source / "same", way.source / "z")
    assert way.copy(".", archive=True).ok
    (way.source / "same").chmod(0o600)
    would, did = told(way, "-n")[0], told(way)[0]
    assert would == did == ["changed   z", "metadata  same"]
    assert_same_tree(way.source, way.destination, modes=True, hard_links=True)
    assert told(way, "-n")[0] == told(way)[0] == []
    os.setxattr(way.destination / "same", "user.only there", b"1")
    os.setxattr(way.source / "a", "user.new", b"1")
    for folder in (way.source, way.destination):
        (folder / "a").chmod(0)
    would, did = told(way, "-n")[0], told(way)[0]
    assert would == did == ["changed   z", "metadata  a", "metadata  same"]
    assert attributes(way.destination / "z") == {}
    assert attributes(way.destination / "a") == {"user.new": b"1"}
    assert_same_tree(way.source, way.destination, modes=True, hard_links=True)


@pytest.mark.needs_agent(reason="over SFTP a FIFO cannot be made")
def test_a_fifo(way: Way) -> None:
    os.mkfifo(way.source / "fifo", 0o600)
    assert way.copy(".", archive=True).ok
    (way.source / "fifo").chmod(0o640)
    assert told(way, "-n")[0] == told(way)[0] == ["metadata  fifo"]
    assert told(way, "-n")[0] == []


@pytest.mark.needs_agent(reason="over SFTP a FIFO cannot be made")
def test_the_time_of_a_fifo_or_device_goes_along(way: Way) -> None:
    """As with rsync; --check tells of it."""
    os.mkfifo(way.source / "fifo", 0o600)
    names = ["fifo"]
    if may_make_devices():
        os.mknod(way.source / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        names.append("null")
    assert way.copy(".", archive=True).ok
    for name in names:
        os.utime(way.source / name, ns=(OLD_NS, OLD_NS))
    checked = way.command("-a", "--check", names=["."])
    told_of = {f"{name}: differs in time" for name in names}
    assert (checked.code, set(checked.out.splitlines())) == (1, told_of), checked
    assert way.copy(".", archive=True).ok
    times = {(way.destination / name).lstat().st_mtime_ns for name in names}
    assert times == {OLD_NS}
    assert way.command("-a", "--check", names=["."]).code == 0


@pytest.mark.needs_agent(reason="over SFTP -n does not know whether root serves")
def test_an_owner_that_root_gives(way: Way) -> None:
    if os.geteuid() != 0:
        unavailable("this is not root, which alone gives files away")
    fill(way)
    assert way.copy(".", archive=True).ok
    for name in ("a", "sub", "large"):
        os.chown(way.source / name, 65534, 65534)
    checked = way.command("-a", "--check", names=["."])
    assert checked.code == 1
    lines = [f"{name}: differs in owner" for name in ("a", "large", "sub")]
    assert sorted(checked.out.splitlines()) == lines
    would = told(way, "-n")[0]
    assert would == [f"metadata  {name}" for name in ("a", "large", "sub/")]
    assert told(way)[0] == would
    assert (way.destination / "sub").stat().st_uid == 65534
    assert told(way, "-n")[0] == []
    assert way.command("-rpn", names=["."]).out == ""


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_what_cannot_be_given_does_not_differ(as_other: Way, remote: str) -> None:
    way = dataclasses.replace(as_other, remote=remote)
    fill(way)
    assert way.copy(".", archive=True).ok
    assert (way.destination / "a").stat().st_uid != (way.source / "a").stat().st_uid
    for more in ((), ("--delete",), ("--checksum",)):
        assert told(way, "-n", *more)[0] == told(way, *more)[0] == []
        assert way.command("-a", "--check", names=["."]).code == 0
    (way.source / "sub").chmod(0o700)  # nor a mode that cannot be given
    os.chown(way.destination / "sub", 0, 0)
    assert told(way)[0] == told(way, "-n")[0] == []


# --- ACLs and attributes


@pytest.mark.needs_agent(reason="over SFTP attributes are not kept")
@pytest.mark.parametrize("words", ["", "--delete", "--checksum", "--link-dest=../yesterday"])
def test_attributes_that_the_source_has_no_more_go(way: Way, words: str) -> None:
    fill(way)
    more = words.split()
    (way.destination.parent / "yesterday").mkdir()
    for name in ("a", "large", "sub/b", "sub"):
        os.setxattr(way.source / name, "user.kept", b"1")
    os.setxattr(way.source / "a", ACL, acl(6))
    assert way.copy(".", archive=True).ok
    assert told(way, "-n", *more)[0] == told(way, *more)[0] == []
    before = {name: (way.destination / name).stat().st_ino for name in ("a", "large", "sub/b")}
    os.removexattr(way.source / "a", ACL)
    os.setxattr(way.source / "large", "user.kept", b"2")
    os.removexattr(way.source / "sub/b", "user.kept")
    os.setxattr(way.source / "sub", "user.kept", b"2")
    os.setxattr(way.source / "same", "user.new", b"1")
    os.setxattr(way.destination / "sub/same", "user.only there", b"1")
    os.setxattr(way.destination / "other", "user.only there", b"1")  # on a folder, so it stays
    names = ["a", "large", "same", "sub/", "sub/b", "sub/same"]
    (way.source / "a").chmod(stat.S_IMODE((way.destination / "a").stat().st_mode))
    if not more:
        checked = way.command("-a", "--check", names=["."])
        lines = sorted(f"{name.rstrip('/')}: differs in ACLs or attributes" for name in names)
        assert (checked.code, sorted(checked.out.splitlines())) == (1, lines)
    would, did = told(way, "-n", *more)[0], told(way, *more)
    assert would == did[0] == [f"metadata  {name}" for name in names]
    assert "0 B in" in did[1]
    for name in ("a", "large", "same", "sub/b", "sub/same", "sub"):
        assert attributes(way.destination / name) == attributes(way.source / name)
    assert attributes(way.destination / "other") == {"user.only there": b"1"}
    assert {name: (way.destination / name).stat().st_ino for name in before} == before
    assert told(way, "-n", *more)[0] == told(way, *more)[0] == []
    assert way.command("-a", "--check", names=["."]).code == 0


@pytest.mark.needs_agent(reason="over SFTP attributes are not kept")
def test_without_a_attributes_stay(way: Way) -> None:
    fill(way)
    assert way.command("-rp", names=["."]).code == 0
    os.setxattr(way.destination / "a", "user.only there", b"1")
    os.setxattr(way.source / "sub/b", "user.only here", b"1")
    for more in (["-n"], []):
        assert way.command("-rp", "-v", *more, names=["."]).out == ""
    assert attributes(way.destination / "a") == {"user.only there": b"1"}


def test_attributes_that_only_root_gives_do_not_differ(as_other: Way) -> None:
    fill(as_other)
    os.setxattr(as_other.source / "a", "trusted.a", b"1")
    assert as_other.copy(".", archive=True).ok
    os.setxattr(as_other.destination / "same", "trusted.b", b"1")
    assert told(as_other, "-n")[0] == told(as_other)[0] == []


ACL = "system.posix_acl_access"


def acl(bits: int) -> bytes:
    """Return an ACL by which one more user may do this (acl(5), in Linux's form)."""
    none = 0xFFFFFFFF
    rows = [(1, 6, none), (2, bits, 65534), (4, 4, none), (0x10, 6, none), (0x20, 4, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


def attributes(path: Path) -> dict[str, bytes]:
    return {n: os.getxattr(path, n) for n in os.listxattr(path) if not n.startswith("security.")}
