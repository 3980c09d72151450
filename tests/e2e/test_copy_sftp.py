"""Copies over SFTP: when it is used, how it verifies, and servers with other manners."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree, tree_digest
from conftest import MakeServer, unavailable
from servers import ParamikoServer
from servers.private import PrivateServer, find_sftp_server
from sftp_servers import MadeUpServer

import pscp
from e2e.conftest import ShellThat
from e2e.ways import Way, make
from e2e.world import ROOT
from pscp.ground.errors import NoPython, NoSftp, UsageError
from pscp.ground.values import MIB

MakeMadeUp = Callable[..., PrivateServer]


@pytest.fixture
def make_made_up() -> Iterator[MakeMadeUp]:
    with contextlib.ExitStack() as stack:

        def make(library: str = "asyncssh", fault: str = "") -> PrivateServer:
            bare = library == "paramiko"
            return stack.enter_context(
                ParamikoServer(is_bare=True) if bare else MadeUpServer(fault)
            )

        yield make


@pytest.fixture(params=["push", "pull"])
def direction(request: pytest.FixtureRequest, push: Way) -> Way:
    return dataclasses.replace(push, is_push=request.param == "push", remote="sftp")


def fill(folder: Path, large: int = 5 * MIB + 1) -> None:
    (folder / "large").write_bytes(os.urandom(large))
    (folder / "d" / "e").mkdir(parents=True)
    for number in range(40):
        (folder / "d" / f"small {number}").write_bytes(os.urandom(number * 97))
    (folder / "d" / "e" / "empty").touch()


def without_python(make: MakeServer, shell_that: ShellThat) -> PrivateServer:
    """The agent's command ends there as where no python3 is found."""
    return make(shell=shell_that('case "$2" in *python3*) exit 97 ;; esac'))


def notes_of(ran_err: str) -> list[str]:
    return [line.removeprefix("pscp: ") for line in ran_err.splitlines()]


# --- when it is used


def test_without_python_there_sftp_is_used_and_said_once(
    push: Way, make_sshd: MakeServer, shell_that: ShellThat
) -> None:
    fill(push.source)
    way = dataclasses.replace(push, server=without_python(make_sshd, shell_that), remote="auto")
    first = way.command("-r", names=["d", "large"])
    assert first.code == 0
    said = [line for line in notes_of(first.err) if "using SFTP" in line]
    assert said == ["the far end has no python3: using SFTP"]
    assert_same_tree(push.source, push.destination)
    again = way.command("-r", "-vv", names=["d", "large"])  # remembered: no agent is tried
    assert again.code == 0 and "using SFTP" not in again.err and "over SFTP" in again.err


def test_hard_links_that_are_there_count_as_unchanged(push: Way) -> None:
    """Each night they were as many files as were copied, though nothing was sent."""
    way = dataclasses.replace(push, remote="sftp")
    make(way.source, "t/a", "t/z", "t/other")
    for name in "bc":
        (way.source / "t" / name).hardlink_to(way.source / "t" / "a")
    first = way.copy("t", archive=True)
    assert (first.files, first.files_unchanged) == (5, 0)
    (way.destination / "t" / "c").unlink()
    (way.destination / "t" / "c").write_text("another's")
    again = way.copy("t", archive=True)
    assert (again.files, again.files_unchanged) == (1, 4)
    assert_same_tree(way.source, way.destination, hard_links=True)
    assert way.files == ["t/a", "t/b", "t/c", "t/other", "t/z"]


FORCED = [line for line in (ROOT / "docs" / "security.md").read_text().splitlines()
          if line.startswith("restrict")]  # fmt: skip


@pytest.mark.parametrize("line", FORCED, ids=["none", "agent", "sftp", "read-only"])
def test_the_keys_of_the_page_let_pscp_in(push: Way, make_sshd: MakeServer, line: str) -> None:
    """docs/security.md: each with what it is there for, there and back."""
    fill(push.source)
    server = make_sshd(["ForceCommand none", "Subsystem sftp internal-sftp"])  # else it has one
    authorized = server.folder / "authorized_keys"
    authorized.write_text(line.replace("ssh-ed25519 AAAA... pscp@client", authorized.read_text()))
    way = dataclasses.replace(push, server=server, remote="auto")
    ran = way.command("-r", names=["d", "large"])
    assert ("using SFTP" in ran.err) == ("internal-sftp" in line), ran
    assert ran.code == ("-R" in line), ran
    shutil.copytree(push.source, push.destination, dirs_exist_ok=True)
    pulled = push.source / "pulled"
    ran = way.typed("-r", f"{server.host}:{push.destination}/.", str(pulled))
    assert ran.code == 0, ran
    assert_same_tree(push.destination, pulled)


def test_in_a_chroot(direction: Way, make_sshd: MakeServer, chroot: Path) -> None:
    """As a server for uploads is set up (sshd_config(5), ChrootDirectory): no program is there."""
    inside = chroot / "files"
    inside.mkdir()
    lines = ["ForceCommand internal-sftp", "Subsystem sftp internal-sftp"]
    server = make_sshd([*lines, f"ChrootDirectory {chroot}"])
    if direction.is_push:
        source, there = direction.source, inside
        ends = f"{source}/.", f"{server.host}:/files"
    else:
        source, there = inside, direction.destination
        ends = f"{server.host}:/files/.", str(there)
    fill(source)
    result = pscp.copy(*ends, config_file=server.ssh_config, batch=True, recursive=True)
    assert result.ok and result.verified
    assert_same_tree(source, there)


@pytest.fixture
def chroot() -> Iterator[Path]:
    """Where sshd takes it: root owns all of the path, and nobody else can write there."""
    if os.getuid() != 0:
        unavailable("root")
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_where_there_is_no_sftp_either(
    push: Way, make_embedded: MakeServer, shell_that: ShellThat
) -> None:
    (push.source / "x").write_text("x")
    way = dataclasses.replace(push, server=without_python(make_embedded, shell_that), remote="sftp")
    with pytest.raises(NoSftp):
        way.copy("x")
    with pytest.raises(NoPython):
        way.copy("x", remote="auto")


def test_what_needs_the_agent_is_refused(push: Way) -> None:
    (push.source / "x").write_text("x")
    with pytest.raises(UsageError, match="needs the agent"):
        push.copy("x", remote="sftp", transfer_test=True)
    with pytest.raises(UsageError, match=r"^link_dest needs the agent"):
        push.copy("x", remote="sftp", link_dest=("../y",))
    with (
        pscp.Session(
            push.server.host, config_file=push.server.ssh_config, remote="sftp"
        ) as session,
        pytest.raises(UsageError, match="needs the agent"),
    ):
        session.run(["true"])


# --- how it verifies


@pytest.mark.parametrize("verify", ["read-back", "none"])
def test_each_way_to_verify(direction: Way, verify: Any) -> None:
    fill(direction.source)
    result = direction.copy("d", "large", verify=verify)
    assert result.ok
    assert_same_tree(direction.source, direction.destination)
    assert result.verified is (verify != "none")
    assert bool(result.chunks_verified) is (verify != "none")


def test_what_was_not_verified_is_said_so(direction: Way) -> None:
    fill(direction.source)
    plain = direction.command("-r", "--verify", "none", "--stats", names=["d", "large"])
    assert plain.code == 0 and "not verified" in plain.err
    assert " chunks verified" not in plain.err
    as_json = direction.command(
        "-r", "--verify", "none", "--progress", "json", names=["large"], to="again"
    )
    end = json.loads(as_json.out.splitlines()[-1])
    assert (end["verified"], end["chunks_verified"]) == (False, 0)


def test_a_damaged_write_is_found_and_sent_again(push: Way, make_made_up: MakeMadeUp) -> None:
    fill(push.source)
    way = dataclasses.replace(push, server=make_made_up(fault="damages once"), remote="sftp")
    result = way.copy("large")
    assert result.ok and result.chunks_resent == 1
    assert (push.source / "large").read_bytes() == (push.destination / "large").read_bytes()


@pytest.mark.parametrize("name", ["large", "d/small 39"])
def test_what_is_damaged_always_gets_no_name(
    push: Way, make_made_up: MakeMadeUp, name: str
) -> None:
    fill(push.source)
    way = dataclasses.replace(push, server=make_made_up(fault="damages"), remote="sftp")
    result = way.copy(name)
    assert [failure.error for failure in result.failures] == ["VerifyError"]
    assert list(push.destination.iterdir()) == []


# --- other servers


@pytest.mark.parametrize("fault", ["", "single"])
def test_a_server_of_another_maker(direction: Way, make_made_up: MakeMadeUp, fault: str) -> None:
    """Also one that opens a file once at a time."""
    fill(direction.source, large=20 * MIB)
    way = dataclasses.replace(direction, server=make_made_up(fault=fault))
    result = way.copy("d", "large", connections=2)
    assert result.ok and result.verified
    assert_same_tree(direction.source, direction.destination)
    again = way.copy("d", "large")
    assert again.ok and (fault or again.bytes_sent == 0)


def test_where_nothing_may_be_renamed_what_is_there_stays(push: Way, make_sshd: MakeServer) -> None:
    fill(push.source)
    shutil.copytree(push.source, push.destination, dirs_exist_ok=True)
    (push.destination / "large").write_text("old")
    (push.destination / "d" / "small 3").write_text("old")
    program = find_sftp_server() or unavailable("sftp-server is not installed")
    server = make_sshd([f"Subsystem sftp {program} -P posix-rename,rename"])
    before = tree_digest(push.destination)
    way = dataclasses.replace(push, server=server, remote="sftp")
    ran = way.command("-r", names=["d", "large"])
    assert ran.code == 1
    # Two that fail at one time share a line.
    assert "Permission denied" in ran.err and ran.err.endswith(", 2 failed\n"), ran.err
    assert tree_digest(push.destination) == before


def test_check_file_is_used_where_it_is_offered(push: Way, make_made_up: MakeMadeUp) -> None:
    (push.source / "x").write_bytes(os.urandom(5000))
    way = dataclasses.replace(push, server=make_made_up("paramiko"), remote="sftp")
    ran = way.command("-vv", names=["x"])
    assert ran.code == 0 and "check-file" in ran.err


@pytest.mark.parametrize("there", ["nothing", "a folder"])
def test_a_write_that_another_lane_has_overtaken_changes_no_time(
    push: Way, make_made_up: MakeMadeUp, there: str
) -> None:
    path = push.source / "d" / "large"
    path.parent.mkdir()
    path.write_bytes(os.urandom(12 * MIB))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    fields: dict[str, Any] = {"archive": True, "remove_source_files": True}
    if there == "a folder":  # which a mirror deletes before the file can come
        (push.destination / "d" / "large" / "old").mkdir(parents=True)
        fields = {"archive": True, "delete": True}
    way = dataclasses.replace(push, server=make_made_up(fault="late"), remote="sftp")
    assert way.copy("d", connections=3, **fields).ok
    assert (push.destination / "d" / "large").stat().st_mtime == 1_000_000_000
    assert path.exists() is (there == "a folder")


def test_what_is_nothing_but_zeros_becomes_a_hole_on_a_pull(direction: Way) -> None:
    path = direction.source / "sparse"
    with open(path, "wb") as file:
        for offset in (0, 9 * MIB):
            file.seek(offset)
            file.write(os.urandom(MIB))
        file.truncate(32 * MIB)
    assert direction.copy("sparse").ok
    there = direction.destination / "sparse"
    assert there.read_bytes() == path.read_bytes()
    assert 2 * MIB <= there.stat().st_blocks * 512 < 6 * MIB


# --- the lanes' programs


def test_a_part_and_the_fence_and_no_process_are_left_of_one_that_is_killed(direction: Way) -> None:
    (direction.source / "large").write_bytes(os.urandom(64 * MIB))
    script = (
        "import os, signal, sys, pscp\n"
        "def now(c):\n"
        "    if c.bytes_done > 8_000_000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "pscp.copy(sys.argv[1], sys.argv[2], config_file=sys.argv[3], batch=True, connections=2,\n"
        "          remote='sftp', progress=now, limit_kbit_s=400_000)\n"
    )
    sources, to = direction.locations(["large"], "")
    argv = [sys.executable, "-c", script, sources[0], to, direction.server.ssh_config]
    assert subprocess.run(argv, check=False, timeout=200).returncode == -9
    [fence, part] = sorted(os.listdir(direction.destination), key=len)
    assert fence.endswith(".pscp-run")
    assert part.startswith(".large.") and part.endswith(".pscp-part")
    # The same command, as the library sees it, goes on.
    result = direction.copy("large", connections=2)
    assert result.ok and result.bytes_resumed > 0
    assert os.listdir(direction.destination) == ["large"]


def test_times_are_kept_in_whole_seconds_and_it_is_said(direction: Way) -> None:
    fill(direction.source)
    (direction.source / "d" / "e").chmod(0o2751)
    for name in ("large", "d/small 3", "d/e", "d"):
        os.utime(direction.source / name, ns=(5_000_000_009, 7_123_456_789))
    ran = direction.command("-rp", names=["d", "large"])
    assert ran.code == 0
    assert "over SFTP times are kept in whole seconds" in notes_of(ran.err)
    for name in ("large", "d/small 3", "d/e", "d"):
        assert os.stat(direction.destination / name).st_mtime_ns == 7_000_000_000, name
    assert (direction.destination / "d" / "e").stat().st_mode & 0o7777 == 0o2751


def test_a_folder_below_very_many(direction: Way) -> None:
    """Each was looked at within the look at the next; Python takes a thousand calls."""
    below = direction.source / "t" / "/".join("d" * 300)
    below.mkdir(parents=True)
    (below / "x").write_text("x")
    assert direction.copy("t", archive=True, remote="sftp").ok
    assert_same_tree(direction.source, direction.destination, modes=True)


def test_u8_two_names_that_are_one_there(push: Way, make_made_up: MakeMadeUp) -> None:
    """As on Windows' servers. With --remove-source-files the second was nowhere any more."""
    (push.source / "d").mkdir()
    for name in ("A", "a", "d/B", "d/b"):
        (push.source / name).write_text(name)
    way = dataclasses.replace(push, remote="sftp", server=make_made_up(fault="folds"))
    ran = way.command("-a", "--remove-source-files", names=["."])
    assert ran.code == 1 and ran.err.count("takes this name and another of this copy for one") == 2
    left = {path.read_text() for path in push.source.rglob("*") if path.is_file()}
    there = {path.read_text() for path in push.destination.rglob("*") if path.is_file()}
    assert (left, there) == ({"a", "d/b"}, {"A", "d/B"})


@pytest.mark.parametrize("words", [(), ("--delete",), ("--delete", "--checksum")])
def test_two_folders_that_are_one_there(
    push: Way, make_made_up: MakeMadeUp, words: tuple[str, ...]
) -> None:
    """A mirror deleted what the first one had brought; where that was unchanged, nothing was said
    of the second one, whose files came nowhere.
    """
    for name in ("D/first", "D/both", "d/both", "d/second"):
        (push.source / name).parent.mkdir(exist_ok=True)
        (push.source / name).write_text(name)
    way = dataclasses.replace(push, remote="sftp", server=make_made_up(fault="folds"))
    for _ in range(2):  # the second one finds D unchanged
        ran = way.command("-a", *words, names=["."])
        assert ran.code == 1 and "/d: the destination takes this name and another" in ran.err
        there = {path.read_text() for path in push.destination.rglob("*") if path.is_file()}
        assert there == {"D/first", "D/both"}


def test_a_file_whose_name_an_unchanged_folder_has_there(
    push: Way, make_made_up: MakeMadeUp
) -> None:
    """A mirror deleted the folder for it."""
    (push.source / "D").mkdir()
    (push.source / "D" / "first").write_text("of D")
    way = dataclasses.replace(push, remote="sftp", server=make_made_up(fault="folds"))
    assert way.command("-a", "--delete", names=["."]).code == 0
    (push.source / "d").write_text("d")
    ran = way.command("-a", "--delete", names=["."])
    assert ran.code == 1 and "/d: the destination takes this name and another" in ran.err
    assert (push.destination / "d" / "first").read_text() == "of D"


def test_an_unchanged_file_gets_its_owner(push: Way) -> None:
    """T8."""
    if os.getuid() != 0:
        unavailable("giving a file away takes root's powers")
    (push.source / "a").write_text("a")
    shutil.copy2(push.source / "a", push.destination / "a")
    way = dataclasses.replace(push, remote="sftp")
    assert way.command("-a", "--chown", "54321:54322", names=["a"]).code == 0
    status = (push.destination / "a").stat()
    assert (status.st_uid, status.st_gid) == (54321, 54322)


def test_after_it_the_agent_finds_a_change_of_the_same_second(push: Way) -> None:
    """It stayed for good, and --check found nothing: the times there were as SFTP keeps them."""
    make(push.source, "t/changed", "t/same")
    names = [push.source / "t" / name for name in ("changed", "same")]
    second_ns = 1_700_000_000 * 10**9
    for path in names:
        os.utime(path, ns=(0, second_ns + 300_000_000))
    dataclasses.replace(push, remote="sftp").copy("t", archive=True)
    names[0].write_bytes(names[0].read_bytes()[::-1])
    os.utime(names[0], ns=(0, second_ns + 800_000_000))
    checked = push.command("--check", "-a", names=["t"])
    assert checked.code == 1 and "t/changed" in checked.out + checked.err
    push.copy("t", archive=True)
    assert_same_tree(push.source / "t", push.destination / "t", times=True)
    assert push.copy("t", archive=True).files_unchanged == 2


def test_a_pull_takes_a_time_of_the_same_second_for_the_same(push: Way) -> None:
    """As of a copy made with an agent: over SFTP nobody can know the source's fraction."""
    (push.source / "same").write_text("same")
    os.utime(push.source / "same", ns=(5, 7_123_456_789))
    shutil.copy2(push.source / "same", push.destination / "same")
    way = dataclasses.replace(push, is_push=False, remote="sftp")
    assert way.command("-a", "--check", names=["same"]).code == 0
    os.utime(push.source / "same", ns=(5, 8_123_456_789))
    assert way.command("-a", "--check", names=["same"]).code == 1


def test_what_changes_while_it_is_read_is_not_delivered(
    push: Way, make_made_up: MakeMadeUp
) -> None:
    (push.source / "large").write_bytes(os.urandom(32 * MIB))
    way = dataclasses.replace(push, is_push=False, remote="sftp")

    def change(counters: pscp.Counters) -> None:
        if counters.bytes_done:
            with open(push.source / "large", "ab") as file:
                file.write(b"more")

    result = way.copy("large", progress=change, limit_kbit_s=400_000)
    assert [failure.error for failure in result.failures] == ["SourceChanged"]
    assert list(push.destination.iterdir()) == []
