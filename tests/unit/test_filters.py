"""options/filters.py: what patterns match, by the table in docs/filters.md and by the real rsync.

Read next: docs/filters.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import unavailable
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.options import filters
from pscp.options.filters import Filter

DOCS = Path(__file__).parents[2] / "docs" / "filters.md"
ROW = re.compile(r"\| `(.+)` \| `(.+)` \| (yes|no) \|")
TABLE = [ROW.fullmatch(line) for line in DOCS.read_text("utf-8").splitlines()]
MORE = (
    ("*.o", "src/a.o.txt", False), ("sub/", "src/sub/a.o", True),
    ("/sub/a.o", "src/sub/a.o", False), ("//sub", "src/sub/a.o", False),
    ("src/*/a.o", "src/sub/a.o", True), ("src/**/a.o", "src/sub/deep/a.o", True),
    ("**/sub/**", "src/sub/a.o", True), ("sub/*", "src/sub", False),
    ("sub/***", "src/sub/deep/a.o", True), ("?.c", "src/a.c", True), ("[^a]*.o", "src/a.o", False),
    ("[[:digit:]]*", "src/7z", True), ("star\\*", "src/star*", True),
    ("star\\*", "src/stars", False), ("back\\slash", "src/back\\slash", True),
)  # fmt: skip
ROWS = [*((row[1], row[2], row[3] == "yes") for row in TABLE if row), *MORE]
RULES = tree.Rules(recursive=True, follow=True, preserve=False, archive=False, filters=())
NAMES = (
    "a", "b", "ab", "abab", "a.b", "[a]", "*", "\\a", "a\nb", "\u00e9", "\udcff", "^", "-", "A",
)  # fmt: skip
PATHS = (
    *NAMES, *(f"{above}/{name}" for above in ("c", "ac", "src") for name in NAMES), "d/a/b",
    "d/a/c/a", "d/b/a", "d/src/a/ab", "d/\\a/*/a", "d/a.b/a/b/c", "d/acb/cc",
)  # fmt: skip
ODD = (
    "[a/]b", "a[b/]", "a[/]b", "**[/]a", "a?b", "c?a", "a*b", "*b*", "a**b", "**ab", "**/a",
    "/**/a", "/**a", "c**", "c/**", "c***", "***", "/***", "c/***/", "/c/***", "**/***", "c\\/***",
    "\\***", "[]-a]*", "[a-]", "[-a]*", "[a-c-e]", "[a-ce]*", "[[:punct:]-]*", "[[:alpha:]]",
    "[[:alpha:]-z]", "[[:x:]]", "[[:]", "[!", "[a", "a[", "a*\\", "\\a", "[\\\\]a", "[a-\\c]*",
    "[c-a]", "[^^]", "[!!]", "*[!a-b]", "[\\]]", "?", "??", "?\u00a9", "\udcff", "[\u00e9]?",
    "*\n*", "a\n?", "/", "//", "a//", "c//a", "//c", "c/", "/c/", "src/a", "/src/a", "a/b", "*/a",
    "/*/a", "*/*/a", "**a**b**", "a*b*b", "**a*b", "d/**/a/**", "d/**/a/***", ".", "./a", "..",
)  # fmt: skip


def make(folder: Path, paths: list[str]) -> None:
    """A file for each path, but where another one is a folder, or needs one."""
    for path in paths:
        full = to_bytes(os.path.join(folder, path))
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "xb"):
                pass
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue


def walked(source: Path, name: str, given: list[Filter]) -> list[str]:
    """What pscp copies with these options, `name` of the source "" for its contents."""
    regexes = filters.regexes(filters.expanded(given, lambda kind, file: ()))
    walk = tree.Walk([(name, os.fsencode(source))], RULES._replace(filters=regexes))
    return sorted(entry.path for entry in walk.entries() if entry.path)


def by_rsync(rsync: str, source: Path, name: str, given: list[Filter]) -> list[str]:
    """What the real rsync copies."""
    words = [b"--%s=%s" % (kind.encode(), to_bytes(pattern)) for kind, pattern in given]
    there = source.name if name else source.name + "/."
    argv: list[str | bytes] = [rsync, "-nr8", "--out-format=%n", *words, "--", there, "to"]
    done = subprocess.run(argv, cwd=source.parent, capture_output=True, check=True)
    lines = [
        re.sub(rb"\\#(\d{3})", lambda code: bytes([int(code[1], 8)]), line)
        for line in done.stdout.splitlines()
    ]
    return sorted(to_text(line.rstrip(b"/")) for line in lines if line != b"./")


@pytest.fixture(scope="module")
def rsync() -> str:
    return shutil.which("rsync") or unavailable("rsync is not installed")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose names and patterns have characters in common."""
    folder = tmp_path_factory.mktemp("filters") / "src"
    make(folder, list(PATHS))
    return folder


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:2]) for row in ROWS])
def test_the_table_in_the_docs(row: tuple[str, str, bool], rsync: str, tmp_path: Path) -> None:
    pattern, path, is_left_out = row
    if path.endswith("sub"):
        (tmp_path / path).mkdir(parents=True)
    make(tmp_path, [path])
    given = [("exclude", pattern)]
    source = tmp_path / "src"
    assert (path not in walked(source, "src", given)) is is_left_out
    assert walked(source, "src", given) == by_rsync(rsync, source, "src", given)


def test_rsync_has_the_same_odd_cases(source: Path, rsync: str) -> None:
    for pattern in ODD:
        rules = [("exclude", pattern)]
        assert walked(source, "", rules) == by_rsync(rsync, source, "", rules), pattern


def blurred(character: str) -> st.SearchStrategy[str]:
    """A piece of a pattern that may match the character."""
    same = [character] * 12
    if character == "/":
        return st.sampled_from([*same, "**", "/**/", "/*/", "[/]", "//"])
    wild = ["?", "*", "**", f"[{character}]", "[!x]", "[a-c]", "[^a]", "[[:alpha:]]"]
    wild.append("\\" + character)
    return st.sampled_from([*same, *wild])


begins = st.sampled_from(["", "", "", "/", "**", "**/", "src/", "/src/"])
ends = st.sampled_from(["", "", "", "", "/", "*", "**", "/**", "/***", "***"])
middles = st.sampled_from(PATHS).flatmap(lambda path: st.tuples(*map(blurred, path)).map("".join))
patterns = st.tuples(begins, middles, ends).map("".join)
rules = st.lists(st.tuples(st.sampled_from(["exclude", "include"]), patterns), max_size=2)
lasts = patterns.map(lambda pattern: ("exclude", pattern))


@given(rules, lasts, st.sampled_from(["src", ""]))
def test_rsync_copies_the_same_files(
    source: Path, rsync: str, given: list[Filter], last: Filter, name: str
) -> None:
    given = [*given, last]
    assert walked(source, name, given) == by_rsync(rsync, source, name, given)


def test_what_a_file_of_patterns_may_hold() -> None:
    files = {"list": ["a", "- b", "+ c", "-d", " e "], "later": ["x", "!", "y"]}
    given = [("exclude", "0"), ("include-from", "list"), ("exclude", "+ f")]

    def lines_of(kind: str, file: str) -> list[str]:
        assert kind.endswith("-from")
        return files[file]

    assert filters.expanded(given, lines_of) == [
        ("exclude", "0"), ("include", "a"), ("exclude", "b"), ("include", "c"), ("include", "-d"),
        ("include", " e "), ("include", "f"),
    ]  # fmt: skip
    given.append(("exclude-from", "later"))
    assert filters.expanded(given, lines_of) == [("exclude", "y")]


@pytest.mark.parametrize(
    ("pattern", "path", "end"),
    [
        ("*a" * 40 + "b", "a" * 255, "b"),
        ("**a" * 40 + "b", "a/" * 500 + "a", "b"),
        ("a/**/" * 20 + "b", "a/" * 500 + "a", "/b"),
    ],
)
def test_no_pattern_takes_for_ever(pattern: str, path: str, end: str) -> None:
    """An expression that tried every place for every star would take longer than anyone waits."""
    rules = tree.compiled(filters.regexes([("exclude", pattern)]))
    assert not tree.is_excluded(rules, path, False)
    assert tree.is_excluded(rules, path + end, False)
