"""What a far end may call what was asked for, and which entries it may send."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import source, tree
from pscp.options.options import Options
from pscp.transfer.pieces.asked_for import SourceRules, expected_top


@pytest.mark.parametrize(
    ("pattern", "name", "is_expected"),
    [
        ("dir/file", "file", True),
        ("dir/file", "other", False),
        ("dir/", "dir", True),
        ("dir/*.txt", "a.txt", True),
        ("dir/*.txt", ".bashrc", False),
        ("[ab]", "a", True),
        ("[ab]", "[ab]", True),  # a name that exists is taken literally
        ("*", "anything", True),
        ("*", "a/b", False),
        ("*", ".bashrc", False),  # as a shell and glob(3) have it
        ("?bashrc", ".bashrc", False),
        ("[.]bashrc", ".bashrc", False),
        (".b*", ".bashrc", True),
        ("*", "", False),  # what "." is called: the contents of a folder
        ("*/", "dir", True),
        ("*/.", "", True),
        ("", "", True),
        ("", "home", False),
        (".", "", True),
        (".", "x", False),
        ("dir/..", "x", False),
        ("..", "x/y", False),
        ("~", "user", True),  # how a home is called only the far end knows
        ("~/", "user", True),
        ("~", ".ssh", False),
        ("~", "", False),
        ("~user", "a/b", False),
        ("dir/~x", "x", False),
        ("~/x", "x", True),
        ("~/x", "user", False),
        ("FILE", "file", False),
        (r"a\ b", "a b", True),
        (r"a\ b", r"a\ b", True),
        (r"a\ b", "ab", False),
        (r"\*", "*", True),
        (r"\*", "x", False),
        (r"dir\/x*", "xy", True),
    ],
)
def test_which_names_are_expected(pattern: str, name: str, is_expected: bool) -> None:
    assert expected_top(pattern, source.Top(name, "/x", True)) is is_expected


@given(st.text("ab*?[]/~.", max_size=8), st.text("ab./", max_size=6))
def test_a_name_that_is_expected_is_the_last_of_the_pattern(pattern: str, name: str) -> None:
    is_expected = expected_top(pattern, source.Top(name, "/x", True))
    wanted = pattern.rstrip("/").split("/")[-1]
    if wanted in ("", ".", ".."):
        assert is_expected is (name == "")
    elif not pattern.startswith("~"):
        is_shown = name[:1] != "." or wanted[:1] == "."
        is_match = name == wanted or (is_shown and fnmatch.fnmatchcase(name, wanted))
        assert is_expected is (is_match and "/" not in name and name != "")
    assert not is_expected or "/" not in name


@pytest.mark.parametrize("pattern", [".", "", "dir/.", "~", "~user", "~/"])
def test_b6_what_nobody_named_is_a_folder(pattern: str) -> None:
    for name in ("", "user", "x"):
        assert not expected_top(pattern, source.Top(name, "/x", False))


FOLDER = source.Top("top", "/top", True)
CONTENTS = source.Top("", "/top/.", True)
FILE = source.Top("top", "/top", False)


@pytest.mark.parametrize(
    ("top", "kind", "path", "is_asked"),
    [
        (FILE, tree.FILE, "top", True),
        (FILE, tree.FILE, "top/x", False),
        (FILE, tree.FILE, "other", False),
        (FILE, tree.FOLDER, "top", False),
        (FOLDER, tree.FOLDER, "top", False),
        (FOLDER, tree.FILE, "top", False),
        (FOLDER, tree.FILE, "top/x", False),
        (CONTENTS, tree.FILE, "x", False),
        (CONTENTS, tree.FILE, "", False),
        (CONTENTS, tree.FOLDER, "", False),
    ],
)
def test_b6_what_is_asked_for_without_r(
    top: source.Top, kind: str, path: str, is_asked: bool
) -> None:
    assert passes(SourceRules([top], Options(), True), kind, path) is is_asked


@pytest.mark.parametrize(
    ("top", "kind", "path", "is_asked"),
    [
        (FOLDER, tree.FOLDER, "top", True),
        (FOLDER, tree.FILE, "top", False),
        (FOLDER, tree.LINK, "top", True),  # with -a a link to a folder is a link
        (CONTENTS, tree.FILE, "x", True),
        (FOLDER, tree.FILE, "top/x", True),
        (FOLDER, tree.FILE, "top/.x.01234567.pscp-part", False),
        (FOLDER, tree.FILE, "top/.01234567.pscp-run", False),
        (FOLDER, tree.FILE, "top/.ssh", False),
        (FOLDER, tree.FOLDER, "top/a/.ssh", False),
        (FOLDER, tree.FILE, "top/a/.ssh/keys", False),
        (FOLDER, tree.LINK, "top/.ssh/keys", False),
        (FOLDER, tree.HARDLINK, "top/.ssh/keys", False),
        (FOLDER, tree.FILE, "top/.sshx/keys", True),
        (CONTENTS, tree.FILE, ".ssh/keys", False),
        (FOLDER, tree.FILE, "top/build", True),
        (FOLDER, tree.FILE, "top/build/x", False),
        (FOLDER, tree.FILE, "top/build/kept", False),  # what is left out is not entered
        (FOLDER, tree.FILE, "top/x/kept.o", True),
        (FOLDER, tree.FILE, "top/x/y.o", False),
    ],
)
def test_b6_filters_hold_at_this_end_too(
    top: source.Top, kind: str, path: str, is_asked: bool
) -> None:
    filters = [("include", "kept*"), ("exclude", ".ssh"), ("exclude", "build/"), ("exclude", "*.o")]
    options = Options(archive=True, filters=tuple(filters))
    for before in ("", "top/a/x", ".sshx/x", "top/build", path):
        asked = SourceRules([top], options, True)
        if before:
            passes(asked, tree.FILE, before)
        assert passes(asked, kind, path) is is_asked
    is_pull = False  # on a push the walk at this end has seen to it
    assert passes(SourceRules([FOLDER], options, is_pull), tree.FILE, "top/x.o")


def passes(asked: SourceRules, kind: str, path: str) -> bool:
    try:
        asked.check(tree.Entry(kind, 0, path, 0, 0, 0, 0, {}))
        return True
    except ValueError:
        return False
