"""Modes, times, links, owners and attributes: what -p and -a keep, and what holds without them.

Not here: contents (test_copy_contents.py), what may not be read (test_copy_failures.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree, rsync_finds, tree_digest
from conftest import unavailable
from programs import mounted, small_disk
from tree_data import may_make_devices

from e2e.conftest import SshdThat
from e2e.ways import VERIFY, Way, files_of, make, run

EVERY_WAY = True

OLD_NS = 1_000_000_000_123_456_789  # 2001; not a whole number of microseconds
MODES = (0o644, 0o600, 0o666, 0o777, 0o755, 0o444, 0o400, 0o000, 0o4755, 0o2755, 0o6711, 0o1777)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make_modes(folder: Path, sizes: tuple[int, ...] = (3, 200_000)) -> None:
    """Files and folders of every mode; a file of the second size does not go in a pack."""
    for mode in MODES:
        for size in sizes:
            path = folder / f"{mode:o}-{size}"
            path.write_bytes(b"x" * size)
            path.chmod(mode)
        inner = folder / f"{mode:o}"
        inner.mkdir()
        (inner / "x").write_text("x")
        inner.chmod(mode)


@pytest.fixture
def careful(way: Way, sshd_that: SshdThat) -> Way:
    return dataclasses.replace(way, server=sshd_that("umask 027"), session=None, umask=0o027)


@pytest.mark.parametrize("options", [["-r"], ["-r", "-p"]], ids=["umask", "-p"])
def test_modes_are_kept_with_p_and_else_follow_the_umask(careful: Way, options: list[str]) -> None:
    make_modes(careful.source)
    ran = careful.command(*options, names=["."])
    assert ran.code == 0, ran.err
    assert_same_tree(careful.source, careful.destination, modes="-p" in options)
    for path in careful.source.rglob("*") if "-p" not in options else ():
        there = careful.destination / path.relative_to(careful.source)
        assert mode_of(there) == mode_of(path) & 0o777 & ~0o027, path


def test_a_replaced_file_keeps_its_mode_without_p(way: Way) -> None:
    for name, size in (("small", 3), ("large", 200_000)):
        (way.source / name).write_bytes(b"x" * size)
        (way.source / name).chmod(0o755)
        (way.destination / name).write_text("of before")
        (way.destination / name).chmod(0o4640)
    (way.destination / "folder").mkdir(mode=0o711)
    (way.source / "folder").mkdir(mode=0o755)
    assert way.copy("small", "large", "folder").ok
    assert_same_tree(way.source, way.destination)
    # setuid goes: it was meant for the content of before.
    assert [mode_of(way.destination / name) for name in ("small", "large")] == [0o640] * 2
    assert mode_of(way.destination / "folder") == 0o711
    assert way.copy("small", "large", "folder", preserve=True).bytes_sent == 0
    assert_same_tree(way.source, way.destination, modes=True)


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_new_folder_has_the_setgid_bit_of_the_one_that_it_is_in(push: Way, remote: str) -> None:
    """As mkdir(2) gives it; with -p it has its source's mode."""
    way = dataclasses.replace(push, remote=remote)
    (way.source / "new" / "inner").mkdir(parents=True)
    (way.source / "new" / "inner" / "file").write_text("x")
    way.destination.chmod(0o2775)
    probe = way.destination / "probe"
    probe.mkdir()
    lent = mode_of(probe) & stat.S_ISGID  # none where folders have their folder's group anyway
    probe.rmdir()
    for options, mode in ((["-r"], 0o755 | lent), (["-a"], 0o755)):
        assert way.command(*options, names=["new"]).code == 0
        for name in ("new", "new/inner"):
            assert mode_of(way.destination / name) == mode, (options, name)


# --- times


def make_old_tree(folder: Path) -> list[str]:
    names = ["sub", "sub/deeper", "small", "sub/large", "sub/deeper/empty"]
    (folder / "sub" / "deeper").mkdir(parents=True)
    for name, size in zip(names[2:], (3, 200_000, 0), strict=True):
        (folder / name).write_bytes(b"x" * size)
    for number, name in enumerate(reversed(names)):
        os.utime(folder / name, ns=(OLD_NS - number, OLD_NS + number))
    return names


def mtime_ns(path: Path) -> int:
    return path.lstat().st_mtime_ns


@pytest.mark.needs_agent(reason="SFTP keeps times of 1970 to 2106")
@pytest.mark.parametrize("when_s", [-2_100_000_000, 15_000_000_000], ids=["1903", "2445"])
def test_times_that_a_broken_clock_has_left_are_kept(way: Way, when_s: int) -> None:
    """In nanoseconds those after the year 2262 are more than 64 bits hold."""
    names = make_old_tree(way.source)
    for name in names:
        os.utime(way.source / name, (when_s, when_s))
    assert way.copy("small", "sub", archive=True).ok
    for name in names:
        assert mtime_ns(way.destination / name) == mtime_ns(way.source / name), name
        assert (way.destination / name).lstat().st_atime_ns <= when_s * 10**9, name
    assert way.copy("small", "sub", archive=True).files_unchanged == 3


def test_times_that_sftp_cannot_tell_are_told(push: Way) -> None:
    way = dataclasses.replace(push, remote="sftp", session=None)
    names = make_old_tree(way.source)
    os.utime(way.source / names[2], (-1, -1))
    os.utime(way.source / names[3], (1 << 32, 1 << 32))
    ran = way.command("-a", names=["small", "sub"])
    assert ran.code == 0 and "pscp: the times of 2 entries are before 1970 or after" in ran.err, ran
    assert mtime_ns(way.destination / names[2]) == 0
    assert mtime_ns(way.destination / names[3]) == ((1 << 32) - 1) * 10**9
    os.utime(way.source / names[3], (1, 1))
    os.utime(way.source / names[2], (1, 1))
    assert "the times" not in way.command("-a", names=["small", "sub"]).err


@pytest.mark.needs_agent(reason="SFTP keeps times in whole seconds")
def test_a_second_run_with_p_mends_what_is_there(way: Way) -> None:
    names = make_old_tree(way.source)
    assert way.copy("small", "sub").ok
    assert_same_tree(way.source, way.destination)
    assert all(mtime_ns(way.destination / name) >= mtime_ns(way.source) for name in names)
    for name in names[2:]:
        (way.source / name).chmod(0o4751)
    (way.source / "sub").chmod(0o701)
    result = way.copy("small", "sub", preserve=True)
    assert (result.ok, result.bytes_sent, result.files_resumed) == (True, 0, 3)
    assert_same_tree(way.source, way.destination, modes=True)
    for name in names:
        assert mtime_ns(way.destination / name) == mtime_ns(way.source / name), name


# --- links


def make_links(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "file").write_text("a file")
    (folder / "large").write_bytes(b"x" * 300_000)
    (folder / "to file").symlink_to("file")
    (folder / "to sub").symlink_to("sub")
    for name in ("file", "large"):
        os.link(folder / name, folder / f"{name} 2")
        os.link(folder / name, folder / "sub" / f"{name} 3")
    (folder / "sub" / "up").symlink_to("../large")


@pytest.mark.needs_agent(reason="SFTP knows no hard links of a source, and whole seconds")
def test_links_stay_links_with_a(way: Way) -> None:
    make_links(way.source)
    for name, target in (("dangling", "nowhere"), ("loop", "."), ("abroad", "/etc/hostname")):
        (way.source / name).symlink_to(target)
    (way.source / "not text").symlink_to(os.fsdecode(b"\xff\n x"))
    os.utime(way.source / "loop", ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    result = way.copy(".", archive=True)
    assert (result.ok, result.files) == (True, 13)
    assert_same_tree(way.source, way.destination, modes=True, times=True, hard_links=True)
    assert mtime_ns(way.destination / "loop") == OLD_NS
    assert result.bytes_sent == 6 + 300_000  # the bytes of a file with several names go once


def test_links_are_followed_with_a_and_copy_links(way: Way) -> None:
    make_links(way.source)
    for name in ("file", "sub"):
        os.utime(way.source / name, (OLD_NS // 10**9, OLD_NS // 10**9))
    has_agent = way.remote == "agent"
    wanted = set_attributes(way.source / "file") if has_agent else {}
    for names in (["to file", "to sub"], ["."]):
        assert way.copy(*names, archive=True, copy_links=True).ok
        assert (way.destination / "to sub" / "file 3").read_text() == "a file"
        assert attributes(way.destination / "to file") == wanted  # rsync -L misses these
    assert rsync_finds(way.source, way.destination, "-aLH" if has_agent else "-aL") == ""
    assert not any(path.is_symlink() for path in way.destination.rglob("*"))


@pytest.fixture
def with_mount(way: Way) -> Iterator[Way]:
    """A source with a file system of its own at sub/mount."""
    place = way.source / "sub" / "mount"
    place.mkdir(parents=True)
    with small_disk(place, "size=64k"):
        make(way.source, "sub/mount/below/file", "sub/file")
        os.utime(place, ns=(OLD_NS, OLD_NS))
        yield way


@pytest.mark.needs_agent("pull", reason="SFTP tells no device")
def test_a_mount_is_not_entered_with_one_file_system(with_mount: Way) -> None:
    way = with_mount
    assert way.copy(".", archive=True, one_file_system=True).ok
    assert rsync_finds(way.source, way.destination, "-ax") == ""
    assert way.arrived == {"sub", "sub/file", "sub/mount"}
    assert way.copy("sub/mount", archive=True, one_file_system=True).ok  # where the copy begins
    assert (way.destination / "mount" / "below" / "file").exists()


def test_one_file_system_over_sftp_is_refused_where_it_cannot_be_told(push: Way) -> None:
    (push.source / "file").touch()
    pull = dataclasses.replace(push, is_push=False, remote="sftp")
    ran = pull.command("-rx", names=["."])
    assert (ran.code, list(pull.destination.iterdir())) == (1, [])
    assert "one file system is not told from another" in ran.err
    assert dataclasses.replace(push, remote="sftp").command("-rx", names=["."]).code == 0


@pytest.mark.needs_agent(reason="SFTP has no attributes, as it says when a copy begins")
def test_attributes_that_the_file_system_cannot_have_are_told(way: Way) -> None:
    make(way.source, "a", "b", "c", "in/d")
    for name in ("a", "b"):
        os.setxattr(way.source / name, "user.kept", b"x")
    for name in ("b", "in"):
        set_acl(way.source / name)
    said = (
        "left out, as the destination's file system has none: "
        "ACLs of 2 files and folders, user.* attributes of 2 files and folders"
    )
    with mounted(way.destination, "-t", "ramfs", "none"):
        for _ in range(2):
            ran = way.command("-a", names=["."])
            assert (ran.code, said in ran.err) == (0, True), ran
        assert "left out" not in way.command("-aq", names=["."]).err
        moved = way.command("-aq", "--remove-source-files", names=["in", "a"])  # so they are lost
        assert (moved.code, moved.err.count("left out, as")) == (0, 1), moved
    make(way.source, "a", "in/d")
    set_acl(way.source / "in")
    assert "left out" not in way.command("-a", names=["."]).err


def test_a_top_that_is_a_link(way: Way) -> None:
    make_links(way.source)
    assert way.copy("to file", "to sub", archive=True).ok
    assert [os.readlink(way.destination / name) for name in ("to file", "to sub")] == [
        "file", "sub",
    ]  # fmt: skip


# --- attributes and owners


def set_attributes(path: Path) -> dict[str, bytes]:
    wanted = {"user.plain": b"text", "user.bytes": b"\xff\0\n", "user.empty": b""}
    try:
        for name, value in wanted.items():
            os.setxattr(path, name, value)
    except (AttributeError, OSError) as error:
        unavailable(f"no extended attributes in {path.parent}: {error}")
    return wanted


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.mark.needs_agent(reason="SFTP has no extended attributes")
def test_attributes_are_kept_with_a_and_only_then(way: Way) -> None:
    (way.source / "sub").mkdir()
    for name, size in (("small", 3), ("sub/large", 200_000)):
        (way.source / name).write_bytes(b"x" * size)
    names = ("small", "sub", "sub/large")
    wanted = [set_attributes(way.source / name) for name in names]
    assert way.copy("small", "sub", preserve=True).ok
    assert [attributes(way.destination / name) for name in names] == [{}, {}, {}]
    assert way.copy("small", "sub", archive=True).bytes_sent == 0
    assert [attributes(way.destination / name) for name in names] == wanted
    (way.destination / "new").mkdir()
    assert way.copy("small", "sub", to="new", archive=True).ok
    assert [attributes(way.destination / "new" / name) for name in names] == wanted


@pytest.mark.needs_agent(reason="SFTP has no attributes")
def test_what_is_read_only_gets_attributes_too(powerless: Way) -> None:
    """The system lets only those set or remove one who may write."""
    (powerless.source / "sub").mkdir()
    (powerless.source / "sub" / "file").write_text("x")
    names = ("sub", "sub/file")
    for name in names:
        (powerless.source / name).chmod(0o555)
    assert powerless.copy("sub", archive=True).files == 1
    wanted = []
    for name in names:
        (powerless.source / name).chmod(0o755)
        wanted.append(set_attributes(powerless.source / name))
        (powerless.source / name).chmod(0o555)
    ran = powerless.command("-a", names=["sub"])
    assert ran.code == 0, ran.err
    assert [attributes(powerless.destination / name) for name in names] == wanted
    assert [mode_of(powerless.destination / name) for name in names] == [0o555] * 2
    for name in wanted[1]:
        os.removexattr(powerless.source / names[1], name)
    assert powerless.command("-a", names=["sub"]).code == 0
    assert attributes(powerless.destination / names[1]) == {}
    assert mode_of(powerless.destination / names[1]) == 0o555


def test_attributes_that_may_not_be_given_are_told(push: Way, sshd_that: SshdThat) -> None:
    (push.source / "file").write_text("x")
    try:
        os.setxattr(push.source / "file", "trusted.of", b"root")
    except OSError as error:
        unavailable(f"no attributes for root alone: {error}")
    server = sshd_that('exec setpriv --bounding-set=-sys_admin /bin/sh "$@"')
    [failure] = dataclasses.replace(push, server=server).copy("file", archive=True).failures
    assert failure.message == "Operation not permitted"


def set_acl(path: Path, which: str = "access") -> None:
    """Let another user read and write, whatever the mode says of others (acl(5))."""
    rights = ((1, 7, -1), (2, 7, 12345), (4, 5, -1), (0x10, 7, -1), (0x20, 5, -1))
    entries = [struct.pack("<HHi", *each) for each in rights]
    try:
        os.setxattr(path, f"system.posix_acl_{which}", struct.pack("<I", 2) + b"".join(entries))
    except (AttributeError, OSError) as error:
        unavailable(f"no ACLs in {path.parent}: {error}")


@pytest.mark.needs_agent(reason="SFTP has no attributes")
def test_a_default_acl_gives_nobody_more_with_a(way: Way) -> None:
    """What is new in such a folder has the mode and the ACL of its source, that is none."""
    (way.source / "sub").mkdir()
    for name, size in (("small", 3), ("sub/large", 200_000)):
        (way.source / name).write_bytes(b"x" * size)
        (way.source / name).chmod(0o640)
    set_acl(way.destination, "default")
    assert way.copy("small", "sub", archive=True).ok
    for name in ("small", "sub", "sub/large"):
        assert attributes(way.destination / name) == {}
    assert_same_tree(way.source / "sub", way.destination / "sub", modes=True)


@pytest.mark.needs_agent(reason="SFTP has no attributes")
def test_chmod_holds_for_a_file_with_an_acl(way: Way) -> None:
    for name, size in (("small", 3), ("large", 200_000)):
        (way.source / name).write_bytes(b"x" * size)
        set_acl(way.source / name)
    assert way.copy("small", "large", archive=True, chmod="go-rwx").ok
    for name in ("small", "large"):
        assert mode_of(way.destination / name) == 0o700
        assert "system.posix_acl_access" in attributes(way.destination / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owners_are_kept_with_a_and_only_then(way: Way) -> None:
    (way.source / "sub").mkdir()
    (way.source / "sub" / "file").write_text("x")
    (way.source / "sub" / "link").symlink_to("file")
    names = ("sub", "sub/file", "sub/link")
    for number, name in enumerate(names):
        os.chown(way.source / name, 54321 + number, 65000 + number, follow_symlinks=False)
    (way.source / "sub" / "file").chmod(0o4755)  # which a chown after it would take away

    def owners(folder: Path) -> list[tuple[int, int]]:
        found = [(folder / name).lstat() for name in names]
        return [(status.st_uid, status.st_gid) for status in found]

    assert way.copy("sub/.", to="p", preserve=True).ok
    assert (way.destination / "p" / "file").stat().st_uid == os.geteuid()
    assert way.copy("sub", archive=True).ok
    assert owners(way.destination) == owners(way.source)
    assert mode_of(way.destination / "sub" / "file") == 0o4755


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_folder_of_another_user_keeps_its_time_and_mode(
    push: Way, sshd_that: SshdThat, other_disk: Path, remote: str
) -> None:
    """In a tree that a group shares only its owner and root may give it others: no failure."""
    if os.geteuid() != 0:
        unavailable("this is not root, which alone gives files away")
    become = "setpriv --reuid=65534 --regid=12345 --clear-groups"
    server = sshd_that(f'exec {become} /bin/sh "$@"')
    way = dataclasses.replace(push, server=server, destination=other_disk, remote=remote)
    os.chown(other_disk, 65534, 12345)
    names = ("shared", "shared/inner", "shared/new")
    for name in names[:2]:
        (way.destination / name).mkdir()
        os.chown(way.destination / name, 12346, 12345)
        (way.destination / name).chmod(0o2775)
    (way.source / "shared" / "inner").mkdir(parents=True)
    (way.source / "shared" / "new").mkdir()
    (way.source / "shared" / "new" / "file").write_text("x")
    for name in names:
        os.utime(way.source / name, (OLD_NS // 10**9, OLD_NS // 10**9))
    ran = way.command("-a", "--progress", "none", names=["shared"])
    said = "pscp: 2 folders belong to another user and keep their times and modes\n"
    assert (ran.code, said in ran.err) == (0, True), ran.err
    assert [mode_of(way.destination / name) for name in names] == [0o2775, 0o2775, 0o755]
    assert mtime_ns(way.destination / "shared/inner") != mtime_ns(way.source / "shared/inner")
    assert mtime_ns(way.destination / "shared/new") == mtime_ns(way.source / "shared/new")
    checked = way.command("-a", "--check", names=["shared"])
    assert checked.code == 0, checked
    assert way.command("-aq", names=["shared"]).err == ""


# --- devices


@pytest.fixture
def devices(way: Way) -> Way:
    """A source with two devices that no driver has, so that opening one fails."""
    if not may_make_devices():
        unavailable("this is not root, or a container that makes no devices")
    (way.source / "sub").mkdir()
    for name, kind in (("sub/c", stat.S_IFCHR), ("sub/b", stat.S_IFBLK)):
        os.mknod(way.source / name, kind, os.makedev(240, 1023))
        os.chown(way.source / name, 54321, 65000)
        os.chmod(way.source / name, 0o2660)
        os.utime(way.source / name, ns=(OLD_NS, OLD_NS))
    os.utime(way.source / "sub", ns=(OLD_NS, OLD_NS))
    return way


def facts(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    owner = status.st_uid, status.st_gid
    return status.st_mode, status.st_rdev, *owner, status.st_mtime_ns


@pytest.mark.needs_agent(reason="SFTP tells and makes no device")
def test_root_makes_devices_with_a(devices: Way) -> None:
    here, there = (folder / "sub" / "c" for folder in (devices.source, devices.destination))
    assert devices.copy(".", recursive=True).files_left_out == 2
    first = devices.copy(".", archive=True)
    assert (first.ok, first.files, first.files_left_out) == (True, 2, 0)
    assert_same_tree(devices.source, devices.destination, modes=True, times=True)
    assert facts(there) == facts(here) and there.is_char_device()
    assert facts(there.with_name("b")) == facts(here.with_name("b"))
    assert devices.copy(".", archive=True).files == 0
    here.chmod(0o600)
    there.touch()
    assert devices.copy(".", archive=True).files == 0
    assert facts(there) == facts(here)


@pytest.mark.needs_agent(reason="SFTP has no attributes")
def test_what_is_not_opened_keeps_its_attributes_as_well(way: Way) -> None:
    """A device, a FIFO and a link; a label of the kernel's is the destination's own."""
    if not may_make_devices():
        unavailable("this is not root, or a container that makes no devices")
    here, there = (folder / "sub" for folder in (way.source, way.destination))
    here.mkdir()
    os.mknod(here / "device", stat.S_IFCHR | 0o640, os.makedev(240, 1023))
    os.mkfifo(here / "fifo", 0o640)
    (here / "link").symlink_to("nowhere")
    (here / "file").touch()
    names = ("device", "fifo", "link", "file")

    def found(folder: Path) -> list[dict[str, bytes]]:
        return [
            {each: os.getxattr(path, each, follow_symlinks=False)
             for each in os.listxattr(path, follow_symlinks=False)}
            for path in map(folder.joinpath, names)
        ]  # fmt: skip

    try:
        for name in names:
            os.setxattr(here / name, "trusted.of", name.encode(), follow_symlinks=False)
            os.setxattr(here / name, "security.NTACL", b"1", follow_symlinks=False)
    except OSError as error:
        unavailable(f"no attributes for root alone: {error}")
    set_acl(here / "device")
    wanted = found(here)
    with contextlib.suppress(OSError):
        os.setxattr(here / "file", "security.SMACK64", b"label")
    assert way.copy("sub", archive=True).ok
    assert found(there) == wanted
    assert_same_tree(here, there, modes=True, times=True)
    for name in names[:3]:  # given again, where they are others by now
        os.setxattr(there / name, "trusted.of", b"x", follow_symlinks=False)
    again = way.copy("sub", archive=True)
    assert (again.ok, again.files, found(there)) == (True, 1, wanted)  # a link is made anew
    inodes = [(there / name).lstat().st_ino for name in names]
    assert way.copy("sub", archive=True).files == 0
    assert [(there / name).lstat().st_ino for name in names] == inodes
    assert way.command("-a", "--check", names=["sub"]).code == 0


@pytest.mark.needs_agent(reason="SFTP tells and makes no device")
def test_another_device_is_replaced_by_a_mirror_alone(devices: Way) -> None:
    here, there = (folder / "sub" / "c" for folder in (devices.source, devices.destination))
    there.parent.mkdir()
    os.mknod(there, stat.S_IFCHR, os.makedev(240, 1))
    [failure] = devices.copy(".", archive=True).failures
    assert failure.message == "is a special file at the destination"
    assert devices.copy(".", archive=True, delete=True).ok and facts(there) == facts(here)
    assert devices.copy(".", archive=True, remove_source_files=True).ok
    assert devices.arrived == {"sub", "sub/b", "sub/c"} and not list(here.parent.iterdir())


@pytest.mark.parametrize(
    ("become", "said"),
    [
        ("--reuid=65534 --clear-groups", "left out: a device, which root makes with -a (-v shows"),
        ("--bounding-set=-mknod --inh-caps=-mknod", "Operation not permitted"),
    ],
    ids=["nobody", "container"],
)
def test_who_may_not_make_devices(
    push: Way, sshd_that: SshdThat, other_disk: Path, become: str, said: str
) -> None:
    """Root that may not make them is told so, as by rsync."""
    if not may_make_devices():
        unavailable("this is not root, or a container that makes no devices")
    for name in "bc":
        os.mknod(push.source / name, stat.S_IFCHR, os.makedev(240, 1023))
    os.chown(other_disk, 65534, -1)
    server = sshd_that(f'exec setpriv {become} /bin/sh "$@"')
    way = dataclasses.replace(push, server=server, destination=other_disk)
    ran = way.command("-a", names=["."])
    assert said in ran.err and ran.code == ("left out" not in said)
    assert way.arrived == set()


@pytest.mark.parametrize("mode", [0o000, 0o555, 0o600])
def test_closed_folders_are_opened_up_and_closed_again(as_other: Way, mode: int) -> None:
    """As with rsync. What is in them is seen, so that what is the same is not sent again."""
    here, there = as_other.source / "t" / "shut", as_other.destination / "t" / "shut"
    make(as_other.source, "t/shut/a", "t/shut/in/b", "t/shut/old", "t/shut/gone/c", "t/other")

    def shut() -> None:
        for folder in (here / "in", here / "gone", here):
            if folder.exists():
                folder.chmod(mode)

    shut()
    assert as_other.copy("t", archive=True).ok
    assert as_other.copy("t", archive=True, delete=True).files == 0
    make(here, "new", "in/deep/new", "in/large")
    (here / "in" / "large").write_bytes(bytes(300_000))
    (here / "a").write_text("changed")
    os.link(here / "new", here / "in" / "linked")
    os.link(as_other.source / "t" / "other", here / "other")
    (here / "old").unlink()
    shutil.rmtree(here / "gone")
    shut()
    as_other.copy("t", archive=True, dry_run=True)
    assert stat.S_IMODE(there.stat().st_mode) == mode
    made = as_other.copy("t", archive=True, delete=True, backup=True, backup_dir="kept")
    assert (made.ok, made.files, made.files_unchanged) == (True, 6, 2), made
    assert_same_tree(
        as_other.source / "t", as_other.destination / "t", modes=True, times=True, hard_links=True
    )
    assert files_of(as_other.destination / "kept") == {
        f"t/shut/{name}" for name in ("a", "old", "gone/c")
    }
    there.chmod(0o700)  # as a killed run leaves it
    assert as_other.copy("t", archive=True).files == 0
    assert stat.S_IMODE(there.stat().st_mode) == mode
    dated = as_other.copy("t", to="2/", archive=True, link_dest=["../t"])
    assert dated.ok and stat.S_IMODE(there.stat().st_mode) == mode


@pytest.mark.parametrize("lanes", [1, 3])
def test_no_finished_folder_is_opened_up_again(as_other: Way, lanes: int) -> None:
    """Of more folders than an end keeps open, at several depths."""
    tree = as_other.source / "t"
    modes = {"c": 0o000, "c/p": 0o111, "c/p/q/r": 0o200, "e70/in": 0o300, "z": 0o2000}
    make(tree, *(f"e{n}/in/f" for n in range(150)), "c/p/q/r/s/f", "c/p/g", "z/e/", "z/h")

    def shut() -> None:
        for name in sorted(modes, reverse=True):
            (tree / name).chmod(modes[name])

    def copied() -> None:
        shut()
        made = as_other.own.copy("t", archive=True, delete=True, connections=lanes)
        assert made.ok, made
        assert_same_tree(tree, as_other.destination / "t", modes=True, times=True)

    copied()
    copied()
    make(tree, "c/p/q/r/new", *(f"c/p/many/{n}/f" for n in range(60)), "z/e/new")
    (tree / "z" / "h").unlink()
    copied()
    shutil.rmtree(tree / "c" / "p" / "q")
    del modes["c/p/q/r"]
    copied()


def test_only_our_own_folders_are_opened_up_and_only_for_a_while(as_other: Way) -> None:
    make(as_other.source, "t/ro/a")
    (as_other.source / "t" / "ro").chmod(0o555)
    assert as_other.copy("t", archive=True).ok
    make(as_other.source, "t/ro/new")
    folder = as_other.destination / "t" / "ro"
    assert [each.path for each in as_other.copy("t").failures] == ["t/ro/new"]  # without -p
    os.chown(folder, 0, 0)
    assert "t/ro/new" in [each.path for each in as_other.copy("t", archive=True).failures]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o555
    assert not (folder / "new").exists()


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_what_cannot_be_looked_at_is_not_taken_for_absent(as_other: Way, remote: str) -> None:
    make(as_other.source, "t/a", "t/closed/b", "t/closed/sub/c")
    shutil.copytree(as_other.source / "t", as_other.destination / "t")
    os.chown(as_other.destination / "t", 65534, 65534)
    (as_other.destination / "t" / "closed").chmod(0o700)
    way, before = dataclasses.replace(as_other, remote=remote), tree_digest(as_other.destination)
    for words in ("--check", "-n", "--existing", "--ignore-existing", "-u --delete"):
        ran = way.command("-rv", *words.split(), names=["t"])
        for path in ("t/closed/b", "t/closed/sub/c"):
            assert f"{path}: could not be looked at: Permission denied" in ran.err, ran
        assert ran.code == 1 and "is not there" not in ran.out + ran.err
        assert tree_digest(way.destination) == before


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_destination_that_cannot_be_looked_at(as_other: Way, remote: str) -> None:
    make(as_other.source, "t/a")
    make(as_other.destination, "closed/t/a")
    (as_other.destination / "closed").chmod(0o700)
    way = dataclasses.replace(as_other, remote=remote)
    for to in ("closed", "closed/", "closed/t/", "closed/new/"):
        ran = way.command("-r", "--check", names=["t"], to=to)
        assert ran.code == 1 and "Permission denied" in ran.err, (to, ran)
        assert "is not there" not in ran.out + ran.err


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_an_equal_file_of_another_user_keeps_its_metadata(as_other: Way, remote: str) -> None:
    """And fails, as with rsync: its time cannot be given."""
    make(as_other.source, "t/a")
    make(as_other.destination, "t/a")
    os.utime(as_other.source / "t" / "a", (OLD_NS // 10**9, OLD_NS // 10**9))
    way = dataclasses.replace(as_other, remote=remote)
    ran = way.command("-a", names=["t"])
    why = "t/a: is there already, but its time and mode could not be set: "
    assert ran.code == 1 and why in ran.err and "its owner there can set them" in ran.err, ran
    assert "write in its folder" not in ran.err


def test_what_sftp_cannot_make_is_told(push: Way) -> None:
    os.mkfifo(push.source / "fifo")
    if has_devices := may_make_devices():
        os.mknod(push.source / "device", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    ran = dataclasses.replace(push, remote="sftp").command("-av", names=["."])
    for what in ("FIFO", "device") if has_devices else ("FIFO",):
        assert f"left out: a {what}, which SFTP cannot make" in ran.err


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_what_a_manifest_has_that_cannot_be_looked_at(
    as_other: Way, remote: str, tmp_path: Path
) -> None:
    make(as_other.source, "t/a", "t/closed/b")
    (as_other.source / "t" / "closed" / "link").symlink_to("b")
    manifest = str(tmp_path / "manifest")
    made = as_other.command("-a", "--manifest", manifest, names=["t"])
    assert made.code == 0, made
    os.chown(as_other.destination / "t" / "closed", 0, 0)
    (as_other.destination / "t" / "closed").chmod(0o700)
    fixed = [*VERIFY, "-F", as_other.server.ssh_config, "-B", "--remote", remote, manifest]
    ran = run([*fixed, as_other.locations([], "")[1]])
    why = "could not be looked at: Permission denied"
    told = [f"t/closed/b: {why}", f"t/closed/link: {why}"]
    assert sorted(ran.out.splitlines()) == told and ran.code == 1, ran
    ran = run([*fixed, as_other.locations([], "t/closed/in")[1]])
    assert "closed/in: Permission denied" in ran.err and ran.code == 1, ran


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_links_owner_does_not_differ_where_it_cannot_be_given(as_other: Way, remote: str) -> None:
    way = dataclasses.replace(as_other, remote=remote)
    (way.source / "link").symlink_to("nowhere")
    os.utime(way.source / "link", ns=(OLD_NS, OLD_NS), follow_symlinks=False)
    os.chown(way.source, 65534, 65534)
    assert way.copy(".", archive=True).files == 1
    assert way.copy(".", archive=True, delete=True).files == 0
    checked = way.command("-a", "--check", "--checksum", names=["."])
    assert (checked.code, "link" in checked.out) == (0, False), checked
    os.utime(way.source / "link", ns=(0, 0), follow_symlinks=False)
    checked = way.command("-a", "--check", names=["."])
    assert (checked.code, "link: differs in time" in checked.out) == (1, True), checked


def test_a_links_owner_differs_where_root_gives_it(push: Way) -> None:
    if os.geteuid() != 0:
        unavailable("this is not root, which alone makes links of others")
    (push.source / "link").symlink_to("nowhere")
    assert push.copy(".", archive=True).files == 1
    os.chown(push.source / "link", 65534, 65534, follow_symlinks=False)
    assert "link: differs in owner" in push.command("-a", "--check", names=["."]).out
    assert push.copy(".", archive=True).files == 1
    assert (push.destination / "link").lstat().st_uid == 65534
    assert push.copy(".", archive=True).files == 0


# --- folders that are closed to their owner's writing


@pytest.mark.parametrize("option", ["-r", "-a"])
def test_read_only_folders(powerless: Way, option: str) -> None:
    inner = powerless.source / "folder" / "inner"
    inner.mkdir(parents=True)
    (inner / "small").write_text("x")
    (inner / "large").write_bytes(b"x" * 200_000)
    folders = [inner, powerless.source / "folder"]
    for folder in folders:
        folder.chmod(0o500)
    for _ in range(2):
        ran = powerless.command(option, names=["folder"])
        assert ran.code == 0, ran.err
        assert_same_tree(powerless.source, powerless.destination, modes=True)
