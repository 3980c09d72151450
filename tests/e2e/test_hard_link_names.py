"""Three names of one file, each with anything at the destination, and rsync as the judge.

Whatever -n and --check say is what a copy then changes.

Not here: the cases by name (test_quick_check.py).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import unavailable

from e2e.ways import COMMAND_S, PSCP, Way, run

TIME_NS = 1_500_000_000_123_456_789
# What a name has at the destination: the text, and by how much it is later than the source.
THERE = {
    "none": None, "same": ("content", 0), "older": ("old", -9), "newer": ("new", 9),
    "sized": ("CONTENT", -9), "dated": ("content", 9),
}  # fmt: skip
NAMES = ("a", "y", "z")
OPTIONS = ("", "--update", "--ignore-existing", "--existing", "--checksum")


def write(path: Path, text: str, later_s: int) -> None:
    path.write_text(text)
    time_ns = TIME_NS + later_s * 10**9
    os.utime(path, ns=(time_ns, time_ns))


def fill(source: Path, destination: Path) -> None:
    """Make a folder for each way in which three names of one file may be at the destination."""
    for states in itertools.product(THERE, repeat=len(NAMES)):
        folder = "-".join(states)
        for root in (source, destination):
            (root / folder).mkdir(parents=True)
        first, *further = (source / folder / name for name in NAMES)
        write(first, "content", 0)
        for other in further:
            os.link(first, other)
        for name, state in zip(NAMES, states, strict=True):
            if (found := THERE[state]) is not None:
                write(destination / folder / name, *found)


def seen(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.glob("*/*")}


def names_of_its_file(root: Path, folder: str) -> set[int]:
    """Return the inodes of the names that have the source's content."""
    names = [root / folder / name for name in NAMES]
    return {each.stat().st_ino for each in names if each.exists() and each.read_text() == "content"}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_name_is_left_as_rsync_does_and_as_was_said(push: Way, option: str) -> None:
    """N18, and a dry run that tells of what is not done."""
    if not shutil.which("rsync"):
        unavailable("no rsync")
    fill(push.source, push.destination)
    judged = push.destination.with_name("judged")
    shutil.copytree(push.destination, judged)
    words = [option] if option else []
    asked: list[str | Path] = ["rsync", "-aH", *words, f"{push.source}/", judged]
    subprocess.run(asked, timeout=COMMAND_S, check=True)
    before = seen(push.destination)
    listed = push.command("-an", *words, names=["."])
    checked = push.command("-a", "--check", *words, names=["."])
    assert seen(push.destination) == before
    ran = push.command("-a", *words, names=["."])
    assert (ran.code, ran.err.count("skipped") <= 1) == (0, True), ran.err
    after = seen(push.destination)
    wanted = seen(judged)
    if option == "--update":  # rsync replaces what is newer by a link to the first name
        wanted |= {name: text for name, text in before.items() if text == "new"}
    assert after == wanted
    changed = {name for name, text in after.items() if before.get(name) != text}
    dated = {name for name in after if _is_dated(name) and after[name] == before.get(name)}
    assert {line for line in listed.out.splitlines() if not line.endswith("/")} - dated == changed
    differing = {line.partition(":")[0] for line in checked.out.splitlines()}
    assert differing - dated == changed
    assert checked.code == (1 if differing else 0)
    again = push.command("-a", *words, names=["."])
    assert (again.code, seen(push.destination)) == (0, after)


def _is_dated(name: str) -> bool:
    """Return whether the name had the source's content and another time: -n and --check tell it."""
    folder, _, last = name.partition("/")
    return folder.split("-")[NAMES.index(last)] == "dated"


def test_what_was_copied_is_the_same(push: Way) -> None:
    """Names of one file that were copied were told as to be copied again, and as different."""
    fill(push.source, push.destination)
    assert push.command("-a", names=["."]).code == 0
    for words in (["-an"], ["-an", "--remove-source-files"]):
        assert push.command(*words, names=["."]).out == "", words
    for words in (["-u"], ["--checksum"]):
        ran = push.command("-a", "--check", *words, names=["."])
        assert (ran.code, ran.out) == (0, ""), words
    assert all(
        len(names_of_its_file(push.destination, each.name)) == 1 for each in push.source.iterdir()
    )


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_name_that_was_another_files_is_not_told_as_new(push: Way, remote: str) -> None:
    write(push.source / "a", "content", 0)
    for name in NAMES[1:]:
        os.link(push.source / "a", push.source / name)
    push.destination.mkdir(exist_ok=True)
    write(push.destination / "y", "old", -9)
    ran = push.command("-a", "--itemize", "--remote", remote, names=["."])
    assert sorted(ran.out.splitlines()) == ["changed   y", "new       a", "new       z"], ran


def names_of(folder: Path, *names: str) -> None:
    """Make each a name of one small file, and a name of one large file beside it."""
    for suffix, text in (("", "content"), (" large", "content" * 50_000)):
        first, *further = (folder / f"{name}{suffix}" for name in names)
        for path in (first, *further):
            path.parent.mkdir(parents=True, exist_ok=True)
        first.write_text(text)
        for other in further:
            os.link(first, other)


@pytest.mark.parametrize("remote", ["agent", "sftp"])
def test_a_name_that_cannot_be_had_leaves_its_file_to_the_next(push: Way, remote: str) -> None:
    names_of(push.source, "a/f", "b", "y", "z")
    push.destination.mkdir(exist_ok=True)
    (push.destination / "a").write_text("in the way")
    (push.destination / "b").mkdir()
    (push.destination / "b" / "x").write_text("in the way")
    for _ in range(2):
        ran = push.command("-av", "--remote", remote, names=["."])
        assert ran.code == 1 and "another name" not in ran.err, ran.err
        assert ", 4 failed" in ran.err
        assert all(f"/{each}: " in ran.err for each in ("a", "a/f", "a/f large", "b")), ran.err
        files = [path for path in push.destination.glob("[byz]*") if path.is_file()]
        found = {path.name: path.stat().st_nlink for path in files}
        assert found == {"y": 2, "z": 2, "b large": 3, "y large": 3, "z large": 3}


def test_not_each_of_thousands_of_names_is_tried(push: Way) -> None:
    names_of(push.source, *(f"a/{number}" for number in range(40)), "z")
    push.destination.mkdir(exist_ok=True)
    (push.destination / "a").write_text("in the way")
    ran = push.command("-av", names=["."])
    assert ran.code == 1 and ", 83 failed" in ran.err, ran.err
    assert ran.err.count("is another name of a/") == 2 * (41 - 32)


def test_a_name_in_a_folder_that_may_not_be_written(as_other: Way) -> None:
    names_of(as_other.source / "t", "a/f", "a/g", "z", "zz")
    (as_other.destination / "t" / "a").mkdir(parents=True)
    os.chown(as_other.destination / "t", 65534, 65534)
    ran = as_other.command("-a", names=["t"])
    assert ran.code == 1 and ", 4 failed" in ran.err and "another name" not in ran.err, ran.err
    found = {path.name: path.stat().st_nlink for path in (as_other.destination / "t").glob("z*")}
    assert found == {"z": 2, "zz": 2, "z large": 2, "zz large": 2}


def test_where_no_name_can_be_had_each_is_told_of(push: Way) -> None:
    """In a first copy, for which the sink has not been sent what looks names up."""
    folder = push.source / "linked"
    folder.mkdir()
    (folder / "p").write_bytes(b"content")
    os.link(folder / "p", folder / "q")
    ran = run(
        [*PSCP, "-F", push.server.ssh_config, "-a", str(folder), f"{push.server.host}:/proc/"]
    )
    assert ran.code == 1 and "linked/p: " in ran.err and "linked/q: " in ran.err, ran
