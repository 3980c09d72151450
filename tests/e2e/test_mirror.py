"""--delete and --max-delete: what is deleted at the destination, what is protected, what stops it.

Not here: what dies meanwhile (../faults/test_mirror_cut_short.py), --remove-source-files
(test_moving.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import stat
import struct
from pathlib import Path

import pytest
from compare import assert_same_tree, tree_digest
from conftest import MakeServer, unavailable
from programs import mounted, small_disk
from servers.private import find_sftp_server
from tree_data import may_make_devices

from e2e.ways import Way, make

EVERY_WAY = True


# --- what is deleted


def test_the_destination_has_what_the_source_has(way: Way) -> None:
    make(way.source, "t/same", "t/sub/a", "t/sub/new", "t/empty/")
    make(way.destination, "t/same", "t/extra", "t/sub/old", "t/sub/deep/er/x", "t/gone/y", "t/z/")
    make(way.destination, "beside", "other/of/mine")
    (way.destination / "t" / "link").symlink_to(way.destination / "beside")
    (way.destination / "t" / "into").symlink_to(way.destination / "other")
    result = way.copy("t", delete=True)
    assert result.ok, result.failures
    assert result.files_deleted == 10
    assert_same_tree(way.source / "t", way.destination / "t")
    assert way.arrived >= {"beside", "other/of/mine"}


def test_a_folder_in_which_nothing_changes_is_left_alone(way: Way) -> None:
    """A folder has its time back where something went; one of other metadata gets its own."""
    make(way.source, "t/same/a", "t/same/in/b", "t/same/empty/", "t/old/c", "t/mode/d", "t/time/e")
    assert way.copy("t", archive=True, delete=True).ok
    there = way.destination / "t"
    folders = [there, *(path for path in there.rglob("*") if path.is_dir())]

    def ctimes() -> dict[Path, int]:
        return {path: path.stat().st_ctime_ns for path in folders}

    before = ctimes()
    assert way.copy("t", archive=True, delete=True).ok
    assert ctimes() == before
    make(there, "old/c2")
    (there / "mode").chmod(0o700)
    os.utime(there / "time", (1, 1))
    (there / "same" / "empty").chmod(0o1700)  # as a killed run leaves it
    before = ctimes()
    result = way.copy("t", archive=True, delete=True)
    assert (result.ok, result.files_deleted) == (True, 1)
    after = ctimes()
    changed = {str(path.relative_to(there)) for path in folders if after[path] != before[path]}
    assert changed == {"old", "mode", "time", "same/empty"}
    assert_same_tree(way.source / "t", there)


def test_a_folder_of_very_many_names(way: Way) -> None:
    (way.source / "t").mkdir()
    (way.destination / "t").mkdir()
    for number in range(2500):
        name = f"{number:05d}" + "n" * 200
        (way.source / "t" / name).touch()
        (way.destination / "t" / (name + ("" if number % 100 else "x"))).touch()
    result = way.copy("t", delete=True)
    assert (result.ok, result.files_deleted) == (True, 25)
    assert_same_tree(way.source, way.destination)


def test_a_dry_run_lists_and_counts_what_would_be_deleted(way: Way) -> None:
    make(way.source, "t/a", "t/sub/b")
    make(way.destination, "t/a", "t/sub/old", "t/gone/x/y")
    before = tree_digest(way.destination, times=True)
    ran = way.command("-rn", "--delete", names=["t"])
    assert ran.code == 0, ran.err
    lines = [line for line in ran.out.splitlines() if line.startswith("deleting")]
    assert sorted(lines[:2]) == ["deleting t/gone/x/y", "deleting t/sub/old"]
    assert lines[2:] == ["deleting t/gone/x/", "deleting t/gone/"]
    assert "it would have been 1 file, 7 B, and 4 deleted" in ran.err, ran
    assert tree_digest(way.destination, times=True) == before


def test_v_says_what_was_deleted(push: Way) -> None:
    make(push.source, "a")
    make(push.destination, "old")
    ran = push.command("-rv", "--delete", names=["."])
    assert (ran.code, ran.out.splitlines()) == (0, ["a", "deleting old"])
    assert "1 deleted" in ran.err


def gone(log: Path) -> list[str]:
    """Return what a log says of names that are no longer where they were."""
    lines = [line.partition("]: ")[2] for line in log.read_text().splitlines()]
    return sorted(line for line in lines if line.startswith(("deleted ", "removed ")))


def test_a_log_names_what_is_deleted_and_what_is_removed_at_the_source(way: Way) -> None:
    make(way.source, "t/a", "t/sub/b")
    make(way.destination, "t/old", "t/gone/x")
    log = way.source.parent / "log"
    ran = way.command("-rq", "--delete", "--log-file", str(log), names=["t"])
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    at = f"deleted {way.sent_to}{way.destination}/t"
    assert gone(log) == [f"{at}/gone/", f"{at}/gone/x", f"{at}/old"]
    log.unlink()
    ran = way.command("-rq", "--remove-source-files", "--log-file", str(log), names=["t"])
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    at = f"removed {way.sent_from}{way.source}/t"
    assert gone(log) == [f"{at}/a", f"{at}/sub/b"]


def test_between_two_far_ends(push: Way) -> None:
    make(push.source, "t/a", "t/sub/b")
    make(push.destination, "t/old", "t/gone/x")
    host, log = push.server.host, push.source.parent / "log"
    logged = ("-r", "--log-file", str(log))
    words = (*logged, "--delete", f"{host}:{push.source}/t", f"{host}:{push.destination}")
    ran = push.typed(*words)
    assert ran.code == 0, ran.err
    assert_same_tree(push.source, push.destination)
    moving = (*logged, "--remove-source-files", f"{host}:{push.source}/t/.")
    assert push.typed(*moving, f"{host}:{push.destination}/moved/").code == 0
    assert not [path for path in push.source.rglob("*") if path.is_file()]
    assert gone(log) == [
        *(f"deleted {host}:{push.destination}/t/{each}" for each in ("gone/", "gone/x", "old")),
        *(f"removed {host}:{push.source}/t/{each}" for each in ("a", "sub/b")),
    ]


# --- what is protected


def test_what_is_excluded_is_protected(way: Way) -> None:
    make(way.source, "t/a", "t/b.o", "t/skip/x")
    make(way.destination, "t/old", "t/c.o", "t/skip/y", "t/gone/keep.o", "t/gone/deep/z", "t/w/u")
    filters = (("exclude", "*.o"), ("exclude", "skip"))
    result = way.copy("t", delete=True, filters=filters)
    assert (result.ok, result.files_deleted) == (True, 5)
    files = {"t/a", "t/c.o", "t/skip/y", "t/gone/keep.o"}
    assert way.arrived == files | {"t", "t/skip", "t/gone"}


def test_what_the_copy_leaves_out_on_purpose_is_protected(way: Way) -> None:
    """What is pscp's own is in no copy, and stays where it is."""
    make(way.source, "t/a")
    part = f".x.{'0' * 16}.{'1' * 16}.pscp-part"
    make(way.destination, f"t/{part}", f"t/gone/{part}")
    result = way.copy("t", delete=True)
    assert (way.destination / "t" / part).exists()
    assert (way.destination / "t" / "gone" / part).exists()
    assert [failure.path for failure in result.failures] == ["t/gone"]


# --- what stops it


def test_a_file_that_fails_keeps_nothing_else(way: Way) -> None:
    """6: a mirror of a living tree, in which something fails each night, lost nothing ever."""
    make(way.source, "t/a")
    (way.source / "t" / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(way.source / "t" / "socket"))
    make(way.destination, "t/dangling", "t/socket", "t/old")
    result = way.copy("t", delete=True)
    assert [each.path for each in result.failures] == ["t/dangling"]
    assert (result.files_deleted, result.files_left_out) == (1, 1)
    assert way.arrived == {"t", "t/a", "t/dangling", "t/socket"}


def test_what_is_below_a_folder_that_cannot_be_listed_stays(powerless: Way) -> None:
    make(powerless.source, "t/a", "t/closed/x")
    make(powerless.destination, "t/old", "t/closed/x", "t/closed/deep/y")
    (powerless.source / "t" / "closed").chmod(0)
    try:
        ran = powerless.command("-r", "--delete", names=["t"])
    finally:
        (powerless.source / "t" / "closed").chmod(0o755)
    assert ran.code == 1 and ran.err.count("Permission denied") == 1
    kept = {"t/closed", "t/closed/x", "t/closed/deep", "t/closed/deep/y"}
    assert powerless.arrived == {"t", "t/a", *kept}


@pytest.mark.parametrize("mode", [0, 0o200])
def test_a_file_that_may_not_be_opened_there_stops_nothing(powerless: Way, mode: int) -> None:
    """H6: "Permission denied" of a file that is the same, and nothing was deleted any more."""
    make(powerless.source, "t/n")
    make(powerless.destination, "t/n", "t/old")
    for folder in (powerless.source, powerless.destination):
        os.utime(folder / "t" / "n", ns=(10**18, 10**18))
        (folder / "t" / "n").chmod(mode)
    ran = powerless.command("-a", "--delete", names=["t"])
    assert (ran.code, powerless.arrived) == (0, {"t", "t/n"}), ran.err
    assert (powerless.destination / "t" / "n").stat().st_mode & 0o777 == mode
    (powerless.source / "t" / "n").chmod(0o440)
    ran = powerless.command("-a", "--delete", names=["t"])
    assert ran.code == 0, ran.err
    assert (powerless.destination / "t" / "n").stat().st_mode & 0o777 == 0o440


@pytest.mark.needs_agent(reason="SFTP tells no number of names")
def test_metadata_that_cannot_be_given_stops_nothing(powerless: Way) -> None:
    make(powerless.source, "t/n")
    make(powerless.destination, "t/n", "t/old")
    for folder in (powerless.source, powerless.destination):
        os.utime(folder / "t" / "n", ns=(10**18, 10**18))
    os.link(powerless.destination / "t" / "n", powerless.destination / "yesterday")
    (powerless.destination / "t" / "n").chmod(0)
    ran = powerless.command("-a", "--delete", names=["t"])
    assert (ran.code, powerless.arrived) == (1, {"t", "t/n", "yesterday"}), ran.err
    assert "Permission denied" in ran.err
    assert (powerless.destination / "yesterday").stat().st_mode & 0o777 == 0


def test_a_source_that_is_missing(way: Way) -> None:
    make(way.source, "t/a")
    make(way.destination, "t/old", "u/old")
    for names in (["t", "u"], ["u"]):
        ran = way.command("-r", "--delete", names=names)
        assert ran.code == 1 and "nothing was deleted" in ran.err
        assert way.arrived >= {"t/old", "u/old"}


# --- another kind of thing


@pytest.mark.needs_agent(reason="SFTP makes no special files")
@pytest.mark.parametrize("words", [[], ["--backup"]])
def test_a_special_file_of_several_names_gets_another_mode(way: Way, words: list[str]) -> None:
    """H6: after cp -al, "Illegal seek", and nothing was deleted any more."""
    make(way.source, "t/")
    make(way.destination, "t/", "yesterday/")
    made = ["fifo", *(["device"] if may_make_devices() else [])]
    for name in made:
        kind = stat.S_IFIFO if name == "fifo" else stat.S_IFCHR
        os.mknod(way.source / "t" / name, kind | 0o600, os.makedev(1, 3))
        os.mknod(way.destination / "t" / name, kind | 0o600, os.makedev(1, 3))
        os.link(way.destination / "t" / name, way.destination / "yesterday" / name)
        (way.source / "t" / name).chmod(0o640)
    ran = way.command("-a", *words, names=["t"])
    assert ran.code == 0, ran.err
    for name in made:
        today = (way.destination / "t" / name).lstat()
        assert (today.st_mode & 0o777, today.st_nlink) == (0o640, 1)
        assert (way.destination / "yesterday" / name).lstat().st_mode & 0o777 == 0o600
    assert {path for path in way.arrived if path.startswith("t/")} == {f"t/{n}" for n in made}


def clashes(way: Way) -> None:
    """Names that are a file at one end, and a folder, a link or a FIFO at the other."""
    make(way.source, "t/current/a", "t/x/", "t/file", "t/first", "t/kept", "t/pipe", "t/same")
    os.link(way.source / "t" / "first", way.source / "t" / "second")
    os.link(way.source / "t" / "same", way.source / "t" / "third")
    (way.source / "t" / "link").symlink_to("same")
    (way.source / "t" / "current" / "large").write_bytes(bytes(range(256)) * 1000)
    make(way.destination, "outside/z", "t/x", "t/file/deep/er/z", "t/first/z", "t/link/z", "t/same")
    make(way.destination, "t/third/z")
    make(way.destination, "t/kept/in/z.keep")
    (way.destination / "t" / "current").symlink_to("../outside")
    os.mkfifo(way.destination / "t" / "pipe")
    for name in ("first", "link"):  # as a killed run leaves a folder
        (way.destination / "t" / name).chmod(0o1700)


def test_what_is_of_another_kind_is_replaced(way: Way) -> None:
    """6: a link in place of a folder (releases/current) failed at every run, for ever."""
    clashes(way)
    ran = way.command("-an", "--delete", "--exclude", "*.keep", names=["t"])
    assert "deleting t/file/deep/er/z" in ran.out and "t/second" in ran.out.splitlines()
    result = way.copy("t", archive=True, delete=True, filters=(("exclude", "*.keep"),))
    assert {each.path: each.message for each in result.failures} == {
        "t/kept": "is a folder at the destination, which stays"
    }
    assert result.files_deleted == 11
    assert (way.destination / "outside" / "z").exists()
    (way.source / "t" / "kept").unlink()
    shutil.rmtree(way.destination / "t" / "kept")
    has_hard_links = way.is_push or way.remote == "agent"
    assert_same_tree(way.source / "t", way.destination / "t", hard_links=has_hard_links)


def test_what_is_left_out_is_not_deleted_for_a_file(way: Way) -> None:
    """The source has a file of the name that --exclude protects where a folder has it."""
    make(way.source, "t/d", "t/a")
    make(way.destination, "t/d/keep")
    result = way.copy("t", delete=True, filters=(("exclude", "d/"),))
    assert [each.path for each in result.failures] == ["t/d"]
    assert (way.destination / "t" / "d" / "keep").exists()


def test_what_is_there_stays_with_ignore_existing(way: Way) -> None:
    """The folder cannot come, so nothing below it may take the file away."""
    make(way.source, "t/d/a", "t/d/A")
    make(way.destination, "t/d")
    result = way.copy("t", delete=True, ignore_existing=True)
    hints = {each.path: each.hint for each in result.failures}
    assert hints["t/d"].startswith("without ignore_existing, delete replaces it")
    assert (way.destination / "t" / "d").read_text() == "t/d"


def test_nothing_is_made_with_existing_and_nothing_fails(way: Way) -> None:
    """It failed for want of the folder that was not made."""
    make(way.source, "tree/file")
    assert way.copy("tree", to="new", existing=True).ok
    assert not (way.destination / "new").exists()


def test_folders_with_existing(way: Way) -> None:
    """One was made, for the question whether it takes alike names for one; and what a killed run
    had left kept the mode 1700, run after run.
    """
    make(way.source, "t/new/a", "t/new/A", "t/left/a")
    make(way.destination, "t/left/")
    (way.destination / "t" / "left").chmod(0o1700)
    assert way.copy("t", existing=True).ok
    assert way.arrived == {"t", "t/left"}
    here, there = (folder / "t" / "left" for folder in (way.source, way.destination))
    assert there.stat().st_mode == here.stat().st_mode


def test_another_name_takes_a_folders_place_with_existing(way: Way) -> None:
    """The folder went, and the name was left out, as its first name is missing there."""
    make(way.source, "t/a")
    os.link(way.source / "t" / "a", way.source / "t" / "b")
    make(way.destination, "t/b/in")
    assert way.copy("t", archive=True, delete=True, existing=True).ok
    assert way.arrived == {"t", "t/b"}
    assert (way.destination / "t" / "b").read_text() == "t/a"


def test_what_is_of_another_kind_counts_for_max_delete(way: Way) -> None:
    make(way.source, "t/file")
    make(way.destination, "t/file/one", "t/file/two")
    for most, code in ((2, 1), (3, 0)):
        ran = way.command("-r", "--delete", "--max-delete", str(most), names=["t"])
        assert ran.code == code
        assert (way.destination / "t" / "file" / "one").exists() is (code == 1)
    assert (way.destination / "t" / "file").read_text() == "t/file"


def test_the_place_of_a_source_itself_is_not_replaced(way: Way) -> None:
    """A link that was put there, so that the mirror has its place elsewhere."""
    make(way.source, "t/a")
    make(way.destination, "elsewhere/x")
    (way.destination / "t").symlink_to("elsewhere")
    result = way.copy("t", delete=True)
    assert not result.ok
    assert (way.destination / "t").is_symlink()
    assert way.arrived == {"t", "elsewhere", "elsewhere/x"}


@pytest.mark.needs_agent(reason="SFTP tells file systems apart, not mounts of the same one")
def test_a_mount_in_place_of_a_file_stays(way: Way, tmp_path: Path) -> None:
    make(way.source, "t/file")
    make(way.destination, "t/file/")
    make(tmp_path, "other/keep")
    with mounted(way.destination / "t" / "file", "--bind", tmp_path / "other"):
        [failure] = way.copy("t", delete=True).failures
        assert failure.message == "is a folder at the destination, which stays"
        assert (tmp_path / "other" / "keep").exists()


@pytest.mark.needs_agent(reason="backups take hard links")
@pytest.mark.parametrize("folder", ["../old/monday", "old"])
def test_what_is_deleted_is_kept(way: Way, folder: str) -> None:
    """7: rsync's -a --delete --backup --backup-dir=../old/DATE could not be ported."""
    clashes(way)
    before = {path: (way.destination / path).read_text() for path in way.arrived
              if (way.destination / path).is_file() and path.startswith("t/")}  # fmt: skip
    (way.destination / "t" / "same").write_text("older")
    for _ in range(2):
        result = way.copy("t/.", to="t/", archive=True, delete=True, backup=True, backup_dir=folder)
        assert result.ok, result.failures
    kept = way.destination / "t" / folder
    assert (kept / "same").read_text() == "older"
    assert (kept / "current").is_symlink()
    for path in before.keys() - {"t/same", "t/kept"}:
        assert (kept / path.removeprefix("t/")).read_text() == before[path], path
    if folder == "old":
        shutil.rmtree(kept)
    assert_same_tree(way.source / "t", way.destination / "t", hard_links=True)


@pytest.mark.needs_agent(reason="backups take hard links")
def test_a_special_file_that_is_deleted_is_kept(way: Way) -> None:
    """H9: rsync keeps it. The second time one is there already."""
    make(way.source, "t/sub/a")
    make(way.destination, "t/sub/a")
    for _ in range(2):
        os.mkfifo(way.destination / "t" / "sub" / "fifo")
        result = way.copy("t/.", to="t/", archive=True, delete=True, backup_dir="../old")
        assert (result.failures, result.files_deleted) == ((), 1)
        assert (way.destination / "old" / "sub" / "fifo").is_fifo()
        assert not (way.destination / "t" / "sub" / "fifo").exists()


@pytest.mark.needs_agent(reason="backups take hard links")
@pytest.mark.parametrize("folder", ["../old", "old"])
def test_an_earlier_backup_in_the_way_is_named(way: Way, folder: str) -> None:
    """H9: the line named the file that was to be kept, where no link or file was in the way."""
    make(way.source, "t/")
    make(way.destination, "t/a/x", "t/b")
    kept = way.destination / "t" / folder
    make(kept, "a", "b/x")
    ran = way.command("-a", "--delete", "--backup-dir", folder, names=["t/."], to="t/")
    shown = kept.resolve() if folder == "../old" else Path(folder)
    assert ran.code == 1
    assert f"t/a/x: cannot be kept: {shown}/a, of an earlier backup, is a file or link" in ran.err
    assert f"t/b: cannot be kept: {shown}/b, of an earlier backup, is a folder" in ran.err
    assert way.arrived >= {"t/a/x", "t/b"}


@pytest.mark.needs_agent(reason="backups take hard links")
def test_a_folder_of_backups_lets_in_who_was_let_in(way: Way) -> None:
    """H9: one of mode 2770 and group 42 was the login's own group's."""
    if os.geteuid() != 0:
        unavailable("giving a folder to a group takes root's powers")
    make(way.source, "t/shared/")
    make(way.destination, "t/shared/a")
    os.chown(way.destination / "t", 12, 42)
    os.chown(way.destination / "t" / "shared", 12, 43)
    acl = struct.pack("<I" + "HHi" * 5, 2, 1, 7, -1, 2, 7, 99, 4, 0, -1, 16, 7, -1, 32, 0, -1)
    with contextlib.suppress(OSError):  # not every file system has ACLs
        os.setxattr(way.destination / "t" / "shared", "system.posix_acl_access", acl)
    os.chmod(way.destination / "t" / "shared", 0o2770)
    result = way.copy("t/.", to="t/", recursive=True, delete=True, backup_dir="old")
    assert result.ok, result.failures
    kept = way.destination / "t" / "old"
    found = [path.stat() for path in (kept, kept / "shared")]
    assert [(each.st_uid, each.st_gid) for each in found] == [(12, 42), (12, 43)]
    assert found[1].st_mode & 0o7777 == 0o2770
    assert os.listxattr(kept / "shared") == os.listxattr(way.destination / "t" / "shared")


@pytest.mark.needs_agent("push", reason="a push over SFTP keeps no backups")
@pytest.mark.parametrize("folder", ["../old", "old"])
def test_a_folder_for_backups_that_may_not_be_written_is_named(powerless: Way, folder: str) -> None:
    make(powerless.source, "t/changed")
    make(powerless.destination, "t/changed", "t/removed", "old/x", "t/old/x")
    (powerless.source / "t" / "changed").write_text("anew")
    closed = [powerless.destination / name for name in ("old", "t/old")]
    for each in closed:
        each.chmod(0o500)
    words = ("-r", "--delete", "--backup-dir", folder)
    try:
        ran = powerless.command(*words, names=["t/."], to="t/")
    finally:
        for each in closed:
            each.chmod(0o700)
    where = powerless.destination / "old" if folder == "../old" else "old"
    for name in ("changed", "removed"):
        assert f"t/{name}: cannot be kept in {where}: Permission denied" in ran.err
    assert ran.code == 1 and (powerless.destination / "t" / "removed").exists()


@pytest.mark.needs_agent(reason="backups take hard links")
@pytest.mark.parametrize(("mode", "kept_mode"), [(0o2770, 0o700), (0o775, 0o755), (0o705, 0o700)])
def test_a_group_that_cannot_be_given_lets_in_nobody_else(
    powerless: Way, mode: int, kept_mode: int
) -> None:
    if os.geteuid() != 0:
        unavailable("giving a folder to a group takes root's powers")
    make(powerless.source, "t/shared/")
    make(powerless.destination, "t/shared/a")
    os.chown(powerless.destination / "t" / "shared", -1, 43)
    os.chmod(powerless.destination / "t" / "shared", mode)
    ran = powerless.command("-r", "--delete", "--backup-dir=../old", names=["t/."], to="t/")
    assert ran.code == 0, ran.err
    kept = powerless.destination / "old" / "shared"
    assert (kept / "a").exists()
    assert kept.stat().st_mode & 0o777 == kept_mode


@pytest.mark.needs_agent(reason="backups take hard links")
@pytest.mark.parametrize(
    ("folder", "why"),
    [("../t", "is DEST, in it or above"), ("../t/in", "is DEST, in it or above"),
     ("../../there", "is DEST, in it or above"), ("/proc/b", "is on another file system")],
)  # fmt: skip
def test_a_folder_that_can_have_no_backups(push: Way, folder: str, why: str) -> None:
    make(push.source, "t/a")
    make(push.destination, "there/t/old")
    words = ("-a", "--delete", "--backup", "--backup-dir", folder)
    ran = push.command(*words, names=["t/."], to="there/t/")
    assert (ran.code, why in ran.err) == (1, True), ran.err
    assert push.arrived == {"there", "there/t", "there/t/old"}


def test_max_delete(way: Way) -> None:
    make(way.source, "t/a")
    make(way.destination, "t/old", "t/gone/x", "t/gone/y")
    too_much = ("-r", "--delete", "--max-delete", "3")
    said = "nothing was deleted: 4 files and folders would be, more than --max-delete 3"
    ran = way.command("-n", *too_much, names=["t"])
    listed = {line for line in ran.out.splitlines() if line.startswith("deleting")}
    gone = ("old", "gone/x", "gone/y", "gone/")
    assert (ran.code, listed) == (1, {f"deleting t/{name}" for name in gone})
    assert said in ran.err
    assert "--dry-run" not in ran.err and "deleted," not in ran.err.splitlines()[-1], ran
    ran = way.command(*too_much, names=["t"])
    assert (ran.code, said in ran.err) == (1, True)
    assert "--dry-run lists them; a larger --max-delete" in ran.err
    assert way.arrived >= {"t/a", "t/old", "t/gone/x", "t/gone/y"}
    assert way.command("-r", "--delete", "--max-delete", "4", names=["t"]).code == 0
    assert way.arrived == {"t", "t/a"}


def test_a_check_tells_what_is_too_much(way: Way) -> None:
    make(way.source, "t/a", "t/file")
    make(way.destination, "t/a", "t/file/in the way")
    os.utime(way.source / "t" / "a", (1, 1))
    os.utime(way.destination / "t" / "a", (1, 1))
    ran = way.command("-a", "--check", "--delete", names=["t"])
    told = {"t/file: is something else there", "t/file/in the way: is not in the source"}
    assert (ran.code, told <= set(ran.out.splitlines())) == (1, True), ran
    (way.destination / "t" / "file" / "in the way").unlink()
    (way.destination / "t" / "file").rmdir()
    assert way.copy("t", archive=True).ok
    assert way.command("-a", "--check", "--delete", names=["t"]).code == 0
    make(way.destination, "t/old", "t/gone/x")
    ran = way.command("-a", "--check", "--delete", "--max-delete", "0", names=["t"])
    told = {f"{path}: is not in the source" for path in ("t/old", "t/gone", "t/gone/x")}
    differing = {line for line in ran.out.splitlines() if not line.startswith("t: ")}
    assert (ran.code, differing) == (1, told), ran
    assert f"{len(told)} different" in ran.err
    assert way.arrived >= {"t/old", "t/gone/x"}


@pytest.mark.parametrize("token", ["0123abcd", "89abcdef"])
def test_a_folder_that_goes_has_a_part_in_it(
    way: Way, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """N16: exit 1 at every run, and no word of what to do. This copy's own parts go."""
    monkeypatch.setattr("pscp.transfer.copy.token_of_request", lambda request: "0123abcd")
    is_own = token == "0123abcd"
    make(way.source, "t/a")
    make(way.destination, "t/sub/")
    key = f"{token}{'1' * 8}"
    part = way.destination / "t" / "sub" / f".x.{'0' * 16}.{key}.pscp-part"
    part.touch()
    result = way.copy("t", delete=True)
    assert (result.ok, part.exists()) == (is_own, not is_own)
    if not is_own:
        [failure] = result.failures
        assert failure.path == "t/sub" and "pscp.clean()" in failure.message


@pytest.mark.needs_agent(reason="SFTP tells file systems apart, not mounts of the same one")
def test_a_folder_that_is_mounted_there_keeps_what_is_in_it(way: Way, tmp_path: Path) -> None:
    """T1: of the same file system, so that its device tells nothing."""
    make(way.source, "t/a")
    make(way.destination, "t/x/y/", "t/x/z")
    make(tmp_path, "other/keep")
    with mounted(way.destination / "t" / "x" / "y", "--bind", tmp_path / "other"):
        for with_x in (False, True):
            result = way.copy("t", delete=True, one_file_system=with_x)
            assert result.failures == ()
            assert (tmp_path / "other" / "keep").exists()
    assert way.arrived == {"t", "t/a", "t/x", "t/x/y"}


def test_with_x_nothing_is_deleted_below_a_mount_point(way: Way) -> None:
    """W2: not where the source has a folder of that name either; a source's own name may be one."""
    if way.remote == "sftp" and not way.is_push:
        make(way.source, "t/a")
        assert "needs python3 there" in way.command("-ax", names=["t"]).err
        return
    make(way.source, "t/mnt/", "t/in/mnt/sub/a", "t/b")
    make(way.destination, "t/")
    with small_disk(way.destination / "t", "size=1m"):
        make(way.destination, "t/mnt/", "t/in/mnt/", "t/gone")
        with (
            small_disk(way.destination / "t" / "mnt", "size=1m"),
            small_disk(way.destination / "t" / "in" / "mnt", "size=1m"),
        ):
            make(way.destination, "t/mnt/z", "t/in/mnt/sub/y", "t/in/mnt/x/y", "t/in/w")
            told = way.command("-ax", "--delete", names=["t"])
            kept = {"t/mnt/z", "t/in/mnt/sub/y", "t/in/mnt/x/y", "t/in/mnt/sub/a", "t/b"}
            assert (told.code, set(way.files)) == (0, kept), told
            noted = "pscp: t/{}mnt: is a mount point, and nothing in it is deleted"
            assert [line for line in told.err.splitlines() if "mount" in line] == [
                noted.format("in/"), noted.format("")
            ]  # fmt: skip
            assert way.copy("t", archive=True, delete=True).ok  # as with rsync
            assert set(way.files) == {"t/in/mnt/sub/a", "t/b"}


def test_x_of_a_mirror_needs_a_server_that_tells_file_systems_apart(
    push: Way, make_sshd: MakeServer
) -> None:
    make(push.source, "t/a")
    make(push.destination, "t/z")
    program = find_sftp_server() or unavailable("sftp-server is not installed")
    server = make_sshd([f"Subsystem sftp {program} -P statvfs"])
    way = dataclasses.replace(push, server=server, remote="sftp")
    ran = way.command("-ax", "--delete", names=["t"])
    assert ran.code == 1 and "without statvfs@openssh.com no mount point is known" in ran.err, ran
    assert way.files == ["t/a", "t/z"]
