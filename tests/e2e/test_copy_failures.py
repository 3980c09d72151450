"""What cannot be copied is named, with its reason; the rest is copied, and the exit code is 1.

Not here: sources that are not there at all (test_copy_paths.py), connections (test_copy_ssh.py).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree

import pscp
from e2e.terminal import terminal
from e2e.ways import COMMAND_S, Ran, Way
from pscp.ground.values import MIB

EVERY_WAY = True


def write(path: Path, size: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def named(way: Way, ran: Ran) -> dict[str, str]:
    """What stderr says of each path, "pscp: WHERE/PATH: what happened"; WHERE has the end in it."""
    ends = f"{way.sent_from}{way.source}/", f"{way.sent_to}{way.destination}/"
    found = {}
    for line in ran.err.splitlines():
        where = next((end for end in ends if line.startswith(f"pscp: {end}")), None)
        if where is not None:
            path, why = line.removeprefix(f"pscp: {where}").split(": ", 1)
            found[path] = why
    return found


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="there is no /proc here")
@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_of_size_0_with_content_is_refused(way: Way, is_there: bool) -> None:
    """USERS A43: it was "0 bytes, verified"; also where an empty file of its name is there."""
    (way.source / "of proc").symlink_to("/proc/version")
    (way.source / "empty").touch()
    if is_there:
        (way.destination / "of proc").touch()
    [failure] = way.copy("of proc", "empty").failures
    assert (failure.path, failure.error) == ("of proc", "UnsupportedFile")
    assert failure.message == "its size is 0, but it has content"
    assert way.files == ["empty", *["of proc"] * is_there]


def test_what_may_not_be_read(powerless: Way) -> None:
    for name in ("a", "secret", "closed/inner", "half closed/x", "z", "large", "large secret"):
        write(powerless.source / name, 200_000 if "large" in name else 3)
    write(powerless.source / "kept" / "secret")
    for name in ("secret", "large secret", "closed", "kept/secret"):
        (powerless.source / name).chmod(0)
    (powerless.source / "half closed").chmod(0o600)  # its names can be read, and no more
    ran = powerless.command("-r", names=["."])
    (powerless.source / "half closed").chmod(0o700)
    assert ran.code == 1
    # sftp-server leaves out of a listing what it may not look at, so there the folder is named.
    is_listed = powerless.is_push or powerless.remote == "agent"
    half = "half closed/x" if is_listed else "half closed"
    assert named(powerless, ran) == {
        name: "Permission denied"
        for name in ("secret", "large secret", "closed", "kept/secret", half)
    }
    assert powerless.files == ["a", "large", "z"]
    assert ran.err.splitlines()[-1].endswith(", 5 failed")


def test_other_names_of_what_may_not_be_read_have_one_line(powerless: Way) -> None:
    for name in ("a", "d/c"):
        write(powerless.source / name)
        (powerless.source / name).chmod(0)
    for number in range(5):
        os.link(powerless.source / "a", powerless.source / f"b{number}")
    os.link(powerless.source / "d" / "c", powerless.source / "d" / "e")
    is_told_of_links = powerless.remote == "agent" or powerless.is_push  # as SFTP is not
    ran = powerless.command("-a", names=["."])
    assert ran.code == 1 and ran.err.splitlines()[-1].endswith(", 8 failed"), ran.err
    said = [line.partition(f"{powerless.source}/")[2] for line in ran.err.splitlines()]
    denied = [line for line in said if "Permission denied" in line]
    if is_told_of_links:
        assert denied == ["a: Permission denied", "d/c: Permission denied"]
        for name, first in [("d/e", "d/c"), *((f"b{n}", "a") for n in range(5))]:
            assert f"{name}: is another name of {first}, which was not copied" in said
    else:
        assert len(denied) == 8
    each = powerless.command("-av", names=["."])
    assert each.code == 1 and each.err.count("another name of") == (6 if is_told_of_links else 0)


def test_a_terminal_that_was_stopped_does_not_stop_the_copy(push: Way) -> None:
    """Nobody reads what is said, more of it than a pipe holds, until all has arrived."""
    count, long = 600, "x" * 200
    for number in range(count):
        (push.source / f"a-{long}-{number}").symlink_to("nowhere")
    write(push.source / "z" / "last", 5 * MIB)
    sources, destination = push.locations(["."], "")
    argv = push.argv("-r", "-v", *sources, destination)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        try:
            deadline_s = time.monotonic() + COMMAND_S
            while push.files != ["z/last"] and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert push.files == ["z/last"]
            _, said = running.communicate(timeout=COMMAND_S)
        finally:
            running.kill()
    assert running.returncode == 1
    assert len(named(push, Ran(1, "", os.fsdecode(said)))) == count


def test_a_top_that_may_not_be_read(powerless: Way) -> None:
    write(powerless.source / "secret")
    write(powerless.source / "closed" / "x")
    write(powerless.source / "good")
    (powerless.source / "secret").chmod(0)
    (powerless.source / "closed").chmod(0)
    ran = powerless.command("-r", names=["secret", "closed", "good"])
    assert ran.code == 1
    assert named(powerless, ran) == {"secret": "Permission denied", "closed": "Permission denied"}
    assert powerless.files == ["good"]


def test_where_nothing_may_be_written(powerless: Way) -> None:
    for name in ("closed/small", "closed/large", "open/x", "closed/sub/x"):
        write(powerless.source / "t" / name, 200_000 if "large" in name else 3)
    (powerless.destination / "t" / "closed").mkdir(parents=True, mode=0o500)
    (powerless.destination / "t" / "closed").chmod(0o500)
    ran = powerless.command("-r", "-v", names=["t"])
    assert ran.code == 1
    names = ("t/closed/small", "t/closed/large", "t/closed/sub", "t/closed/sub/x")
    assert named(powerless, ran) == dict.fromkeys(names, "Permission denied")
    assert ran.err.splitlines()[-1].endswith(", 4 failed")
    assert powerless.files == ["t/open/x"]
    ran = powerless.command("-rq", names=["t"])
    assert named(powerless, ran) == dict.fromkeys(names, "Permission denied")
    assert ran.err.count("USER@HOST logs in as another user") == 1
    folder = f"{powerless.sent_to}{powerless.destination}/t/closed"
    log = powerless.source / "log"
    sources, to = powerless.locations(["t"], "")
    with terminal(*powerless.argv("-r", "--log-file", str(log), *sources, to)) as typed:
        assert typed.end() == 1
        assert f"Permission denied, and 3 more below {folder} (-v shows each)" in typed.shown
    logged = log.read_text()
    assert [logged.count(f"{name}: Permission denied\n") for name in names] == [1] * 4
    assert "more below" not in logged


def test_a_destination_that_may_not_be_written(powerless: Way) -> None:
    write(powerless.source / "x")
    powerless.destination.chmod(0o500)
    ran = powerless.command(names=["x"])
    assert (ran.code, named(powerless, ran)["x"]) == (1, "Permission denied")
    assert powerless.files == []


def make_odd_tree(folder: Path) -> None:
    for name in ("a", "sub/b", "z"):
        write(folder / name)
    (folder / "dangling").symlink_to("nowhere\x1b")
    (folder / "sub" / "loop").symlink_to("..")
    (folder / "self").symlink_to("self")
    os.mkfifo(folder / "fifo")
    (folder / "to fifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(folder / "socket"))


def failures_of(result: pscp.Result) -> dict[str, str]:
    assert len({each.path for each in result.failures}) == len(result.failures)
    return {each.path: each.message for each in result.failures}


def test_dangling_links_loops_and_special_files(way: Way) -> None:
    make_odd_tree(way.source)
    result = way.copy(".")
    said = failures_of(result)
    assert result.files_left_out == 3  # the FIFO, the link to it, and the socket
    assert said["dangling"] == "is a dangling link (to nowhere\x1b)"
    assert said["sub/loop"] == "a loop of links"
    is_told = way.is_push or way.remote == "agent"  # why it cannot be followed
    assert said["self"].startswith("is a link that cannot be followed") is is_told
    assert len(said) == 3
    assert way.files == ["a", "sub/b", "z"]


def test_with_a_links_are_no_problem(way: Way) -> None:
    make_odd_tree(way.source)
    result = way.copy(".", archive=True)
    assert result.ok
    has_fifos = not (way.is_push and way.remote == "sftp")
    assert (way.destination / "fifo").is_fifo() is has_fifos
    assert result.files_left_out == (1 if has_fifos else 2)
    for name in ("fifo", "socket") if not has_fifos else ("socket",):
        (way.source / name).unlink()
    assert_same_tree(way.source, way.destination)
    again = way.copy(".", archive=True)
    assert (again.ok, again.files) == (True, 0)


def test_a_top_of_that_kind(way: Way) -> None:
    make_odd_tree(way.source)
    kinds = ["dangling", "fifo", "socket"]
    result = way.copy(*kinds, "a", recursive=False)
    assert (sorted(failures_of(result)), result.files) == (kinds, 1)
    for each in result.failures:
        assert (each.error, "with exclude" in each.hint) == ("UnsupportedFile", True)
    assert way.files == ["a"]


def test_a_name_too_long_for_the_destination(way: Way) -> None:
    for size in (3, 200_000):
        write(way.source / "x", size)
        result = way.copy("x", to="n" * 256)
        assert failures_of(result) == {"n" * 256: "File name too long"}
        assert way.files == []


@pytest.fixture
def deep(way: Way) -> Iterator[Way]:
    """A source with a path beyond PATH_MAX in it."""
    fd = os.open(way.source, os.O_RDONLY)
    for depth in range(24):
        os.close(os.open(f"file {depth}", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    yield way
    shutil.rmtree(way.source)
    shutil.rmtree(way.destination)


@pytest.mark.needs_agent("pull", reason="sftp-server lists no names whose path is too long for it")
def test_a_path_too_long_for_the_system(deep: Way) -> None:
    result = deep.copy(".")
    assert {each.message for each in result.failures} == {"File name too long"}
    assert len(names_below(deep.source)) == 24
    assert names_below(deep.destination) == [f"file {n}" for n in range(result.files)]
    assert result.files >= 15


def names_below(folder: Path) -> list[str]:
    walk = os.fwalk(folder)  # by descriptors, so that no path is too long for it
    return [name for _, _, names, _ in walk for name in names]


def test_too_few_descriptors(push: Way) -> None:
    """U4: a traceback, and lanes that nobody ended."""
    for number in range(300):
        folder = push.source / str(number % 40)
        folder.mkdir(exist_ok=True)
        (folder / str(number)).write_bytes(bytes(number * 1000))
    few = dataclasses.replace(push, prefix=("prlimit", "--nofile=24:24"))
    ran = few.command("-a", names=["."])
    assert ran.code != 0 and "Too many open files" in ran.err and "Traceback" not in ran.err


def test_a_call_raises_where_a_file_failed(push: Way) -> None:
    """12: a copy of which every file failed raised nothing."""
    write(push.source / "good")
    (push.source / "gone").symlink_to("nowhere")
    there = f"{push.server.host}:{push.destination}/"
    with pytest.raises(pscp.FilesFailed, match="dangling link") as raised:
        pscp.copy(push.source, there, recursive=True, config_file=push.server.ssh_config)
    assert raised.value.result.files == 1 and not raised.value.retry
    assert [each.path for each in raised.value.result.failures] == ["source/gone"]


def test_failures_for_which_there_is_no_room_are_counted(
    push: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closing line of 39,257 failures said 24,456."""
    from pscp.cli.closing import summary
    from pscp.progress.progress import checked
    from pscp.transfer.terms import results

    monkeypatch.setattr(results, "_FAILURES_BYTES", 1)
    for name in ("a", "b", "c"):
        (push.source / name).symlink_to("nowhere")
    result = push.copy(".")
    assert (len(result.failures), result.failures_unlisted) == (1, 2)
    assert "3 failed" in summary(result)
    with pytest.raises(pscp.FilesFailed, match="and 2 more"):
        checked(result)
