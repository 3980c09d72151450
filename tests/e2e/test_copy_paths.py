"""What SOURCE and DEST stand for: globs, "~", relative paths, and sources that are not there.

Not here: where a copy lands (test_copy_placement.py), names of odd bytes (test_copy_names.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from compare import assert_same_tree

from e2e.ways import Way, below, make, run
from e2e.world import empty

EVERY_WAY = True


@pytest.fixture
def pull(way: Way) -> Way:
    make(way.source, "a.txt", "b.txt", "c.md", ".hidden.txt", "[ab].txt", "dir/x", "dim/y", "*")
    return way


@pytest.fixture
def home(far_home: Path) -> Iterator[Path]:
    empty(far_home)
    yield far_home
    empty(far_home)


# --- globs


GLOBS = {
    "*.txt": ["[ab].txt", "a.txt", "b.txt"],
    "?.txt": ["a.txt", "b.txt"],
    "[a-c].*": ["a.txt", "b.txt", "c.md"],
    "[!a].txt": ["b.txt"],
    "[ab].txt": ["[ab].txt"],  # a name that is there is meant as it is
    "[[]ab].txt": ["[ab].txt"],
    "*": ["*"],
    ".hid*": [".hidden.txt"],
    "di?/x": ["x"],
    "d*/[xy]": ["x", "y"],
    "di[mr]": ["dim", "dim/y", "dir", "dir/x"],
}
ESCAPES = {
    r"My\ File": ["My File"],
    r"\*.txt": ["*.txt"],
    r"[g]-\*": ["g-*"],
    r"b\\a": ["b\\a"],
    r"b\a": ["b\\a"],  # a name that is there is meant as it is
    r"s\ub/\[x\]/*": ["1", "2"],
    r"[s]ub\/\[x]/1": ["1"],
}


def assert_matches(pull: Way, matches: dict[str, list[str]]) -> None:
    for number, (pattern, names) in enumerate(matches.items()):
        to = pull.destination / str(number)
        to.mkdir()
        assert pull.copy(pattern, to=to.name).ok, pattern
        assert sorted(below(to)) == names, pattern


def test_globs_at_the_far_side(pull: Way) -> None:
    assert_matches(pull, GLOBS)


def test_a_backslash_escapes_at_the_far_side(pull: Way) -> None:
    """USERS J5: as scp's users type it."""
    make(pull.source, "sub/[x]/1", "sub/[x]/2", "sub/x/1")
    make(pull.source, "My File", "*.txt", "g-*", "g-x", "b\\a", "ba")
    assert_matches(pull, ESCAPES)


def test_a_name_that_hides_what_its_pattern_means_is_noted(pull: Way) -> None:
    """USERS J5: scp copies all that matches; the note says how to have that."""
    ran = pull.command("-r", names=["*", "[ab].txt", "di[r]"])
    assert ran.code == 0, ran.err
    assert sorted(pull.arrived) == ["*", "[ab].txt", "dir", "dir/x"]
    notes = [line for line in ran.err.splitlines() if "of this very name" in line]
    assert len(notes) == 2 and f"{pull.source}/*: " in notes[0], ran.err
    pattern = notes[0].rpartition(" ")[2]
    assert pull.copy(pattern).ok
    names = ["*", "[ab].txt", "a.txt", "b.txt", "c.md", "dim", "dim/y", "dir", "dir/x"]
    assert sorted(pull.arrived) == names


def test_a_glob_without_a_match_is_named(pull: Way) -> None:
    ran = pull.command(names=["no*such", "a.txt"])
    assert ran.code == 1
    assert f"{pull.source}/no*such: nothing there matches" in ran.err
    assert sorted(pull.arrived) == ["a.txt"]


def test_globs_are_the_shells_business_on_this_side(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    (way.source / "a.txt").write_text("a")
    monkeypatch.chdir(way.destination)
    if way.is_push:
        [failure] = way.copy("*.txt").failures
        assert failure.path.endswith("*.txt")
    else:
        (way.destination / "[x]").mkdir()
        (way.destination / "x").mkdir()
        assert way.copy("a.txt", to="[x]").ok
        assert sorted(way.arrived) == ["[x]", "[x]/a.txt", "x"]


# --- the home folder


def test_push_to_the_far_home(pull: Way, home: Path) -> None:
    assert pull.session is not None
    for to in ("~/new", "new", "~/folder/../new", "./new", "", "~", "~/", "."):
        empty(home)
        (home / "folder").mkdir()
        assert pull.session.copy(f"{pull.source}/a.txt", f"{pull.server.host}:{to}").ok
        name = "new" if "new" in to else "a.txt"
        assert below(home) == {"folder", name} and (home / name).read_text() == "a.txt", to


def test_pull_from_the_far_home(pull: Way, home: Path) -> None:
    (home / "in home").write_text("of home")
    assert pull.session is not None
    for name in ("~/in home", "in home", "~/in*", "in*"):
        assert pull.session.copy(f"{pull.server.host}:{name}", str(pull.destination)).ok
        assert pull.arrived == {"in home"}, name
        (pull.destination / "in home").unlink()
    for name in ("", ".", "~", "~/."):
        new = pull.destination / f"new{len(pull.arrived)}"
        assert pull.session.copy(f"{pull.server.host}:{name}", str(new), recursive=True).ok
        assert_same_tree(home, new)


def test_a_url_counts_from_the_home_too(pull: Way, home: Path) -> None:
    (home / "a b").write_text("of home")
    url = f"ssh://{pull.server.host}"
    ran = pull.typed(f"{url}/a%20b", f"{url}/{pull.source}/a.txt", str(pull.destination))
    assert ran.code == 0, ran.err
    assert sorted(pull.arrived) == ["a b", "a.txt"]


def test_a_tilde_of_this_side_is_a_name(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell expands it; one that pscp sees was quoted."""
    host = way.server.host
    assert way.session is not None
    if way.is_push:
        (way.source / "~").write_text("a file")
        monkeypatch.chdir(way.source)
        assert way.session.copy("~", f"{host}:{way.destination}").ok
    else:
        (way.source / "x").write_text("a file")
        monkeypatch.chdir(way.destination)
        assert way.session.copy(f"{host}:{way.source}/x", "~").ok
    assert (way.destination / "~").read_text() == "a file"


def test_relative_paths_of_this_side(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    (way.source / "folder").mkdir()
    (way.source / "folder" / "x").write_text("x")
    monkeypatch.chdir((way.source if way.is_push else way.destination).parent)
    host = way.server.host
    assert way.session is not None
    if way.is_push:
        ends = ("./source/../source/.", f"{host}:{way.destination}")
    else:
        ends = (f"{host}:{way.source}/.", "destination")
    assert way.session.copy(*ends, recursive=True).ok
    assert_same_tree(way.source, way.destination)


def test_a_current_folder_that_was_removed(way: Way, tmp_path: Path) -> None:
    """As that of a shell whose folder another one has replaced. It was a traceback."""
    (gone := tmp_path / "gone").mkdir()
    words = [".", f"{way.server.host}:x/"] if way.is_push else [f"{way.server.host}:x", "."]
    removed = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone)]
    python, *argv = way.argv("-a", *words)
    ran = run([*removed, python, "-P", *argv])  # as the command, which imports nothing from it
    assert (ran.code, ran.err.count("\n")) == (1, 2)
    assert ran.err.startswith("pscp: the current folder was removed")


def test_a_source_here_is_told_without_what_leads_back(
    push: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rsync does; where a link leads elsewhere, the shorter path would name another file."""
    for name in ("etc", "var/log", "var/other"):
        (push.source / name).mkdir(parents=True)
        (push.source / name / "dangling").symlink_to("nowhere")
    (push.source / "link").symlink_to("var/log")
    monkeypatch.chdir(push.source)
    sources = ["etc/../var//log", "./etc/../etc/.", "etc/../gone", "link/../other"]
    ran = run(push.argv("-r", *sources, f"{push.server.host}:{push.destination}/"))
    said = {line.split(": ")[1] for line in ran.err.splitlines() if line.startswith("pscp: ")}
    told = {"var/log/dangling", "etc/dangling", "gone", "link/../other/dangling"}
    assert told <= said and not any(each.startswith("etc/..") for each in said), ran.err


# --- what is not there


def test_a_source_that_is_missing_is_named_and_the_rest_copied(pull: Way) -> None:
    """USERS A3, at either end."""
    ran = pull.command("-r", names=["a.txt", "gone", "dir", "b.txt"])
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count(f"{pull.source}/gone: no such file or folder\n") == 1
    assert len(ran.err.splitlines()) == 2 and ran.err.splitlines()[-1].endswith("1 failed")
    assert sorted(pull.arrived) == ["a.txt", "b.txt", "dir", "dir/x"]


def test_no_source_at_all(pull: Way) -> None:
    result = pull.copy("gone", "gone too")
    assert [(each.path, each.error) for each in result.failures] == [
        (os.path.join(pull.source, name), "FileError") for name in ("gone", "gone too")
    ]
    assert result.files == 0
    ran = pull.command("-q", names=["gone"], to="new/")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"pscp: {pull.sent_from}{pull.source}/gone: no such file or folder\n"
    assert sorted(pull.arrived) == []


def test_where_no_source_is_here_nobody_is_contacted(push: Way) -> None:
    logins = push.server.log.count("Accepted publickey")
    ran = push.command(names=["gone", "gone/too"])
    assert (ran.code, len(ran.err.splitlines())) == (1, 3)
    assert push.server.log.count("Accepted publickey") == logins


# --- what a copy leaves beside its files while it runs

OWN = (
    ".big.iso.0123456789abcdef.pscp-part",
    ".big.iso.9f86d081884c7d65.0123456789abcdef.pscp-part",
    ".01234567.pscp-run",
)


@pytest.fixture
def with_parts(way: Way) -> Way:
    for folder in ("tree", "tree/below"):
        for name in (*OWN, "part.pscp-part", ".pscp-part.txt", "file"):
            make(way.source / folder, name)
    return way


@pytest.mark.parametrize("name", ["tree", "tree/."])
def test_a_part_is_no_part_of_a_tree(with_parts: Way, name: str) -> None:
    """USERS A14: what another copy left there, or writes there now, is not copied on."""
    result = with_parts.copy(name, to="new")
    assert result.ok and result.files == 6
    for folder in ("new", "new/below"):
        names = {path.name for path in (with_parts.destination / folder).iterdir()}
        assert names - {"below"} == {"part.pscp-part", ".pscp-part.txt", "file"}


def test_a_pattern_means_no_part(with_parts: Way) -> None:
    if with_parts.is_push:  # the shell's pattern; pscp is given each name
        assert with_parts.copy(*(f"tree/{name}" for name in OWN)).files == len(OWN)
        return
    assert with_parts.copy("tree/.*").ok
    assert sorted(with_parts.arrived) == [".pscp-part.txt"]


def test_a_part_can_be_rescued_by_its_name(with_parts: Way) -> None:
    for name in OWN:
        assert with_parts.copy(f"tree/{name}", to="rescued").ok
        assert (with_parts.destination / "rescued").read_text() == name


def test_a_far_source_that_cannot_be_reached_says_why(pull: Way) -> None:
    """USERS A5: it is not said to be missing, except by SFTP, which has no word for it."""
    (pull.source / "file").write_text("no folder")
    ran = pull.command(names=["file/x"])
    assert ran.code == 1
    why = "no such file or folder" if pull.remote == "sftp" else "Not a directory"
    assert f"pscp: {pull.sent_from}{pull.source}/file/x: {why}\n" in ran.err
