"""What the options of a copy do to it: filters, --update, dry run, -t, -s, -b, -c, -l, -C.

Not here: -r, -p and -a (test_copy_metadata.py), what is shown (test_copy_words.py), ssh's
options (test_copy_ssh.py).
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from compare import assert_same_tree, tree_digest

import pscp
from e2e.ways import Way
from pscp.ground.values import MIB
from pscp.progress.progress import Counters

EVERY_WAY = True

OLD_NS, NEW_NS = 1_000_000_000 * 10**9, 1_500_000_000 * 10**9


def make(folder: Path, names: tuple[str, ...], mtime_ns: int = OLD_NS) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} of {folder.name}")
        os.utime(path, ns=(mtime_ns, mtime_ns))


def write_random(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(size).randbytes(size))


# --- what is copied


def test_filters_typed(push: Way, tmp_path: Path) -> None:
    """The first that matches decides, in the order of the command line."""
    make(push.source / "t", ("a.c", "a.o", "b.o", "c.o"))
    (tmp_path / "list").write_text("# as rsync's\n*.o\n")
    words = ("--include=a.o", "--exclude-from", str(tmp_path / "list"), "--include=b.o")
    assert push.command("-r", *words, names=["t"]).code == 0
    assert push.files == ["t/a.c", "t/a.o"]


def test_filters_of_a_program(push: Way) -> None:
    """What is included stands first, then what is excluded, then the filters of the options."""
    make(push.source / "t", ("a.c", "a.o", "b.o", "c.tmp"))
    sources, destination = push.locations(["t"], "")
    chosen = pscp.Options(
        recursive=True, connections=1, config_file=push.server.ssh_config,
        filters=(("exclude", "*.c"), ("include", "b.o")),
    )  # fmt: skip
    words: dict[str, Any] = {"include": ["a.o"], "exclude": "*.o"}
    assert pscp.copy(sources, destination, options=chosen, **words).ok
    assert push.files == ["t/a.o", "t/c.tmp"]
    with pscp.Session(push.server.host, chosen) as session:
        assert session.copy(sources, destination + "/again", include=("a.c",)).ok
    assert [name for name in push.files if name.startswith("again")] == [
        "again/a.c", "again/a.o", "again/b.o", "again/c.tmp",
    ]  # fmt: skip
    for wrong in ("", ["a", ""], 1, [b"x"], b"x", None):
        with pytest.raises(pscp.UsageError):
            pscp.copy(sources, destination, options=chosen, exclude=wrong)  # type: ignore[arg-type]


def test_sizes_and_ages(way: Way) -> None:
    """What is left out is no failure, is not counted, and stays as it is there."""
    now_s = time.time()
    for name, size, age_s in (
        ("small", 9, 5000), ("least", 10, 5000), ("most", MIB, 5000), ("large", MIB + 1, 5000),
        ("new", 10, 0), ("old", 10, 10**6), ("empty", 0, 5000),
    ):  # fmt: skip
        write_random(way.source / "t" / name, size)
        os.utime(way.source / "t" / name, (now_s - age_s,) * 2)
    make(way.destination, ("old",))
    (way.source / "t" / "folder").mkdir()
    result = way.copy("t/.", min_size_bytes=10, max_size_bytes=MIB, min_age_s=1000, max_age_s=9000)
    assert (result.ok, result.files, result.files_skipped) == (True, 2, 0)
    assert way.files == ["least", "most", "old"]
    assert (way.destination / "old").read_text() == "old of destination"
    assert (way.destination / "folder").is_dir()


@pytest.mark.parametrize("words", ["-r", "-a --checksum", "-a --no-resume", "-rps", "-a"])
def test_update(way: Way, words: str) -> None:
    """What has its source's time was skipped, whatever was in it, but where times decide."""
    make(way.source, ("new", "older", "newer"), OLD_NS + 1)
    make(way.source, ("same", "same time, other size"), OLD_NS)
    make(way.destination, ("older",), OLD_NS - 10**9)
    make(way.destination, ("newer",), NEW_NS)
    make(way.destination, ("same", "same time, other size"), OLD_NS)
    (way.destination / "same").write_text("same of SOURCE")  # as large
    os.utime(way.destination / "same", ns=(OLD_NS, OLD_NS))
    (way.source / "same").chmod(0o600)
    changed = {"new", "older", "same time, other size"} | ({"same"} if words != "-a" else set())
    listed = way.command(*words.split(), "-u", "-n", names=["."])
    assert set(listed.out.splitlines()) == changed | {"same"}
    checked = way.command(*words.split(), "-u", "--check", names=["."])
    told = {line.partition(":")[0] for line in checked.out.splitlines()}
    assert (checked.code, told) == (1, changed | {"same"})
    ran = way.command(*words.split(), "-u", names=["."])
    assert (ran.code, ran.err.count("1 skipped")) == (0, 1), ran.err
    wanted = {name: f"{name} of source" for name in changed}
    if words == "-a":
        wanted["same"] = "same of SOURCE"
    wanted["newer"] = "newer of destination"
    assert {name: (way.destination / name).read_text() for name in way.files} == wanted
    keeps_mode = words != "-r"
    assert ((way.destination / "same").stat().st_mode & 0o777 == 0o600) == keeps_mode


def test_a_dry_run_lists_and_writes_nothing(way: Way) -> None:
    make(way.source, ("t/new", "t/sub/changed", "t/same"))
    make(way.destination, ("t/sub/changed",))
    (way.destination / "t" / "same").write_text("t/same of source")
    write_random(way.source / "t" / "large", MIB)
    before = tree_digest(way.destination, modes=True, times=True)
    ran = way.command("-r", "-p", "-n", names=["t"])
    assert ran.code == 0, ran.err
    assert set(ran.out.splitlines()) == {"t/new", "t/sub/changed", "t/large", "t/same"}
    assert "nothing was copied (dry run); it would have been 3 files" in ran.err
    told = way.command("-r", "-p", "-n", "-vv", names=["t"]).out.splitlines()
    found = {tuple(line.split()) for line in told}
    copied = {("new", "t/new"), ("changed", "t/sub/changed"), ("new", "t/large")}
    assert found == copied | {("metadata", "t/same")}  # which has another time
    assert tree_digest(way.destination, modes=True, times=True) == before


def test_a_dry_run_of_something_new(push: Way) -> None:
    make(push.source, ("t/sub/x",))
    os.link(push.source / "t" / "sub" / "x", push.source / "t" / "sub" / "y")
    ran = push.command("-an", names=["t"], to="new")
    assert (ran.code, ran.out.splitlines()) == (0, ["new/", "new/sub/", "new/sub/x", "new/sub/y"])
    assert list(push.destination.iterdir()) == []
    assert push.copy("t", to="new", archive=True).ok
    assert push.command("-an", names=["t/."], to="new").out == ""


# --- how it is checked


@pytest.mark.needs_agent(reason="-t needs the agent")
def test_a_transfer_test_reads_and_writes_nothing(powerless: Way) -> None:
    sizes = {"small": 1000, "large": MIB + 1, "sub/x": 3}
    for name, size in sizes.items():
        write_random(powerless.source / name, size)
        (powerless.source / name).chmod(0)
    powerless.destination.chmod(0o500)
    ran = powerless.command("-r", "--transfer-test", "--stats", names=["."])
    assert ran.code == 0, ran.err
    assert ran.err.startswith("transfer test: nothing was read or written; ")
    stats = dict(line.rsplit(None, 1) for line in ran.err.splitlines()[1:])
    assert int(stats["bytes sent"]) == sum(sizes.values())
    assert int(stats["files copied"]) == 3
    assert list(powerless.destination.iterdir()) == []


def test_a_strong_check_gives_the_digests(way: Way) -> None:
    sizes = {"empty": 0, "small": 1000, "t/large": 3 * MIB + 1}
    for name, size in sizes.items():
        write_random(way.source / name, size)
    for expected_bytes in (sum(sizes.values()), 0):  # a second run has them too
        result = way.copy("empty", "small", "t", strong=True, chunk_bytes=MIB)
        assert (result.ok, result.bytes_sent) == (True, expected_bytes)
        assert result.digests == {
            name: hashlib.sha256((way.destination / name).read_bytes()).hexdigest()
            for name in sizes
        }
    assert_same_tree(way.source, way.destination)
    assert way.copy("small").digests == {}


# --- how it is sent


@pytest.fixture
def mixed(way: Way) -> Way:
    for name, size in (("large", 5 * MIB + 1), ("t/medium", 400_000), ("t/small", 9)):
        write_random(way.source / name, size)
    return way


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "2", "-C"],
        ["-c", "auto", "-4", "--cipher", "aes256-ctr"],
        ["-c", "20", "--chunk-size", "64k", "-b", "64k"],
        ["-l", "400000"],
        ["-s", "-b", "4k", "--chunk-size", "1M"],
    ],
    ids=" ".join,
)
def test_however_it_is_sent_it_arrives(mixed: Way, words: list[str]) -> None:
    ran = mixed.command("-r", *words, names=["large", "t"])
    assert ran.code == 0, ran.err
    assert_same_tree(mixed.source, mixed.destination)


@pytest.mark.needs_agent(reason="-t needs the agent")
@pytest.mark.needs_ssh(reason="direct lanes are not logged in")
def test_as_many_connections_as_asked_for(way: Way) -> None:
    """While there is work: a tebibyte of it, which is interrupted once all are there."""
    with open(way.source / "x", "wb") as endless:
        endless.truncate(1 << 40)
    logins = way.server.log.count("Accepted publickey")
    seen: list[int] = []

    def interrupt(now: Counters) -> None:
        seen.append(now.lanes_alive)
        if now.lanes_alive == 3 and seen.count(3) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    once = way.own
    with pytest.raises(KeyboardInterrupt):
        once.copy("x", connections=3, transfer_test=True, progress=interrupt)
    assert max(seen) == 3
    assert way.server.log.count("Accepted publickey") == logins + 3
