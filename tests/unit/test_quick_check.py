"""The quick check: the table of what becomes of an entry, and listings that compare whole folders.

Not here: what is done about it (../e2e/test_quick_check.py).
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames import system
from pscp.endpoint.frames.wire import WireError
from pscp.endpoint.reading import rows, tree, xattrs
from pscp.endpoint.reading.rows import Listing, Rows
from pscp.endpoint.there import listings, sameness
from pscp.ground.errors import UsageError
from pscp.options.options import Options
from pscp.transfer.walk import decide, folder_check
from pscp.transfer.walk.decide import ROWS, Action, Fact, Rules, State, There

# --- the table


KINDS = (tree.FILE, tree.LINK, tree.HARDLINK, tree.FOLDER, tree.FIFO, tree.DEVICE)
FLAGS = (
    "existing", "ignore_existing", "update", "dry_run", "check", "size_only", "checksum", "strong",
    "preserve", "archive", "remove_source_files",
)  # fmt: skip
SECOND_NS = 10**9
HAS_FILE = (State.SAME, State.SIZE, State.OTHER)


def every_case() -> itertools.product[tuple[str, State, frozenset[Fact]]]:
    facts = [
        frozenset(some)
        for count in range(len(Fact) + 1)
        for some in itertools.combinations(Fact, count)
    ]
    return itertools.product(KINDS, State, facts)


def test_each_row_decides_something_and_nothing_falls_through() -> None:
    deciding = set()
    for kind, state, facts in every_case():
        fitting = [row for row in ROWS if decide._fits(row, kind, state, facts)]
        assert fitting, (kind, state, facts)
        deciding.add(ROWS.index(fitting[0]))
        assert decide._decided(kind, state, facts) is fitting[0].action
    assert deciding == set(range(len(ROWS)))


def test_what_holds_whatever_the_facts_are() -> None:
    for kind, state, facts in every_case():
        action = decide._decided(kind, state, facts)
        is_there = state is not State.NOTHING
        # N11: a hard link is never sent itself; it has no content of its own.
        if kind == tree.HARDLINK:
            assert action is not Action.SEND
            assert action is not Action.HASH or Fact.LISTS in facts  # where nothing is sent
        if Fact.IGNORE_EXISTING in facts and is_there and kind != tree.FOLDER:
            assert action is Action.SKIP
        if Fact.EXISTING in facts and not is_there:
            assert action is Action.SKIP
        is_in_the_way = state in (State.FOLDER, State.SPECIAL)
        if is_in_the_way and kind != tree.FOLDER:
            stays = Action.REPLACE if Fact.MIRRORS in facts else Action.REFUSE
            assert action in (stays, Action.SKIP)
        if kind == tree.FOLDER and is_there:
            may_replace = Fact.MIRRORS in facts and Fact.IGNORE_EXISTING not in facts
            is_sent = state in (State.FOLDER, State.UNFINISHED) or may_replace
            assert action is (Action.SEND if is_sent else Action.REFUSE)
        if Fact.NEWER in facts and kind == tree.FILE and state in HAS_FILE:
            assert action is Action.SKIP
        if action is Action.UNCHANGED:
            assert state is State.SAME


few = st.integers(0, 3)
entries = st.builds(
    lambda kind, size, mtime_s, target: tree.Entry(
        kind, 0, "x", size, 0o644, mtime_s * SECOND_NS, 1, {"to": target, "in": 0}
    ),
    st.sampled_from(KINDS), few, few, st.sampled_from(["a", "b"]),
)  # fmt: skip
theres = st.builds(
    lambda kind, size, mtime_s, left, target: There(
        kind, size, mtime_s * SECOND_NS, left, 0o644, "", target
    ),
    st.sampled_from(["", tree.FILE, tree.LINK, tree.FOLDER, "other"]), few, few,
    st.sampled_from([[], ["0123abcd"]]), st.sampled_from(["a", "b"]),
)  # fmt: skip


@st.composite
def options(draw: st.DrawFn) -> Options:
    flags = dict.fromkeys(draw(st.sets(st.sampled_from(FLAGS))), True)
    try:
        return Options(recursive=True, resume=draw(st.booleans()), **flags)  # type: ignore[arg-type]
    except UsageError:
        return Options()


@given(entries, theres, options(), st.booleans())
def test_what_the_docs_promise(
    entry: tree.Entry, there: There, given: Options, has_part: bool
) -> None:
    action = decide.decide(entry, there, Rules.of(given), has_part=has_part)
    is_file = entry.kind == tree.FILE == there.kind
    if given.remove_source_files and is_file and not given.size_only:
        assert action is not Action.UNCHANGED  # what was not read is not removed at its source
    if given.strong and is_file and not given.size_only:
        assert action is not Action.UNCHANGED
    if not given.resume and not given.dry_run and entry.kind not in (tree.FIFO, tree.DEVICE):
        assert action is not Action.UNCHANGED and action is not Action.HASH
    if given.update and is_file and there.mtime_ns > entry.mtime_ns:
        assert action is Action.SKIP
    if there.kind == "" and not given.existing:
        wanted = Action.LINK if entry.kind == tree.HARDLINK else Action.SEND
        assert action is wanted is decide.decide(entry, None, Rules.of(given))


@pytest.mark.parametrize("name", ["update", "existing", "ignore_existing", "dry_run"])
def test_a_hard_link_is_looked_up_where_an_option_asks_what_is_there(name: str) -> None:
    link = tree.Entry(tree.HARDLINK, 0, "x", 1, 0o644, 1, 1, {"in": 0, "to": "a"})
    assert decide.must_look(link, False, Options(**{name: True}))  # type: ignore[arg-type]
    assert not decide.must_look(link, True, Options(**{name: True}))  # type: ignore[arg-type]
    assert not decide.must_look(link, False, Options())


NS = 1_500_000_000_123_456_789
PLAIN = tree.Rules(True, False, False, False, ())


# --- one file


@pytest.mark.parametrize(
    ("there_ns", "is_same"),
    [
        (NS, True), (NS // 100 * 100, True), (NS // 1000 * 1000, True), (NS // 10**9 * 10**9, True),
        (NS + 1, False), (NS - 1, False), (NS // 10**9 * 10**9 + 10**9, False), (0, False),
    ],
)  # fmt: skip
def test_times_are_the_same_as_far_as_they_can_be_kept(there_ns: int, is_same: bool) -> None:
    assert sameness.is_same_time(NS, there_ns) is is_same


@pytest.mark.parametrize("unit_ns", [1, 100, 1000, 10**9])
def test_a_time_is_no_coarser_than_it_is_kept(unit_ns: int) -> None:
    for kept_ns in (1, 100, 1000, 10**9):
        is_same = sameness.is_same_time(NS, NS // kept_ns * kept_ns, unit_ns)
        assert is_same is (kept_ns in (1, unit_ns)), kept_ns


def test_a_source_of_whole_seconds_says_no_more() -> None:
    assert not sameness.is_same_time(NS // 10**9 * 10**9, NS)


FILE = tree.Entry(tree.FILE, 0, "x", 5, 0o644, NS, 1, {"o": [0, 0, "root", "root"]})
SAME = There(tree.FILE, 5, NS, [], 0o644)


def test_metadata_that_is_not_the_same() -> None:
    archive, kept = Rules.of(Options(archive=True)), Rules.of(Options(preserve=True))
    differing = decide.differing_metadata
    assert differing(FILE, SAME, archive) == ""
    other = SAME._replace(mode=0o600, mtime_ns=0)
    assert differing(FILE, other, Rules.of(Options())) == ""
    assert differing(FILE, other, kept) == decide.MODE
    assert differing(FILE, SAME._replace(mtime_ns=0), kept) == decide.TIME
    assert differing(FILE, SAME._replace(differs="owner"), archive) == decide.OWNER
    folder = FILE._replace(kind=tree.FOLDER)
    assert differing(folder, other, kept) == decide.MODE
    assert differing(folder, SAME._replace(mtime_ns=0), kept) == ""
    assert differing(folder, other._replace(differs="none"), kept) == ""
    assert differing(FILE, SAME._replace(differs="attributes"), archive) == decide.ATTRIBUTES


# --- listings

texts = st.binary(min_size=1, max_size=20).filter(lambda text: b"\0" not in text)


def test_a_listing_that_is_cut_short() -> None:
    text = Rows([b"a", b"b"], [stat.S_IFREG, stat.S_IFLNK], [1, 2], [3, 4], {1: b"t"}).pack()
    for at in range(len(text)):
        with pytest.raises(WireError):
            rows.unpack(text[:at])


@pytest.mark.parametrize(
        "value",
    [
        None, ["x", 1, True, None, ""], ["x", -1, True, None, "", ""],
        ["x", "1", True, None, "", ""], [1, 1, True, 0, "", ""], ["x", 1, True, None, 5, ""],
        ["x", 1, True, None, "", 5],
    ],
)  # fmt: skip
def test_an_extra_that_is_no_listing(value: object) -> None:
    with pytest.raises(WireError):
        listings.listing(value)


def test_a_folder_with_more_names_than_a_listing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "NAMES_MOST", 3)
    for name in "abefhi":
        (tmp_path / name).touch()
    for name in ("c", "d", "g"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    walk = listings.ListingWalk([("top", os.fsencode(tmp_path))], PLAIN)
    entries = list(walk.entries())
    found = [
        (entry.path, listed.after, listed.up_to, rows.unpack(listed.text).names, listed.is_whole)
        for entry in entries
        for listed in [listings.listing(entry.extra["list"])]
    ]
    assert found == [
        ("top", "", "b", [b"a", b"b"], False),
        ("top/b/", "b", "e", [b"c", b"d", b"e"], False),  # it cannot end with a folder
        ("top/c", "", "", [b"x"], True),
        ("top/d", "", "", [b"x"], True),
        ("top/e/", "e", "h", [b"f", b"g", b"h"], False),
        ("top/g", "", "", [b"x"], True),
        ("top/h/", "h", "", [b"i"], False),
    ]
    for number, last in enumerate(entries):  # another lane goes on after any of them
        assert list(walk.entries((0, last.path))) == entries[number + 1 :]


def test_a_folder_with_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stretch of names can end with one of them, so the others get entries of their own."""
    monkeypatch.setattr(listings, "NAMES_MOST", 3)
    for name in "abcde":
        (tmp_path / name).mkdir()
    walk = listings.ListingWalk([("top", os.fsencode(tmp_path))], PLAIN)
    first, *rest = walk.entries()
    assert listings.listing(first.extra["list"]).up_to == "c"
    assert [entry.path for entry in rest] == ["top/a", "top/b", "top/c", "top/d", "top/e"]


@pytest.mark.parametrize(
    ("path", "after", "folder"),
    [("a/b/c/", "c", "a/b"), ("c/", "c", ""), ("a/c", "c", None), ("a/c/", "d", None),
     ("/c/", "c", None), ("a/", "a/", None), ("/", "x", None)],
)  # fmt: skip
def test_the_folder_of_a_stretch(path: str, after: str, folder: str | None) -> None:
    if folder is not None:
        assert folder_check.whole_folder(path, after) == folder
    else:
        with pytest.raises(WireError):
            folder_check.whole_folder(path, after)


def test_a_time_that_no_listing_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "odd").touch()
    real = os.stat

    def stat_of(path: bytes, **how: Any) -> Any:
        odd = {name: getattr(real(path, **how), name) for name in ("st_mode", "st_size")}
        far = 1 << 63 if path.endswith(b"odd") else 0
        return SimpleNamespace(**odd, st_mtime_ns=far)

    walk = listings.ListingWalk([("top", os.fsencode(tmp_path))], PLAIN)
    entry = tree.Entry(tree.FOLDER, 0, "top", 0, 0o755, 0, 1, {})
    names = [b"odd", b"old"]
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat_of)
        folder = listings._Folder(entry, None, os.fsencode(tmp_path))
        assert walk._stretch(folder, names, "") == (None, names, "", [])


@pytest.mark.parametrize("is_alone", [True, False], ids=["own folder", "shared folder"])
def test_attributes_are_looked_at_from_within_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """Only in a thread that has a working folder of its own, and keeps it."""
    if not is_alone:
        monkeypatch.setattr(system, "libc_function", lambda name: None)
    for name in "ab":
        (tmp_path / name).touch()
    os.setxattr(tmp_path / "b", "user.kept", b"1")
    fd = os.open(tmp_path, os.O_RDONLY)
    found: list[object] = []

    def look() -> None:
        here, before = os.getcwd(), b"/none/" if is_alone else os.fsencode(tmp_path) + b"/"
        found.append(xattrs.in_folder(fd, before, [b"a", b"b"], False))
        with pytest.raises(FileNotFoundError):
            xattrs.in_folder(fd, before, [b"c"], False)
        assert os.getcwd() == here
        found.append(xattrs.with_some(fd, [b"a", b"b"]))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    os.close(fd)
    assert found == [[[], ["user.kept"]], [1]]


def test_the_main_thread_of_a_program_keeps_its_working_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert xattrs.in_folder(-1, os.path.join(os.fsencode(tmp_path), b""), [b"a"], False) == [[]]


# --- what an end answers about them


def test_a_place_that_a_listing_has_not() -> None:
    text = Rows([b"a", b"f"], [stat.S_IFREG, stat.S_IFDIR], [1, 0], [3, 0], {}).pack()
    of_folder = Listing(text, 1, True, None, "")
    assert folder_check.differing(of_folder, [False, [0], [], True]) == (["a"], False, [], True)
    assert folder_check.differing(of_folder, None) == (["a"], False, [], True)
    assert folder_check.differing(of_folder, [False, [], [0], False]) == ([], False, ["a"], False)
    for linked in ([-1], [2], [None], 1):
        with pytest.raises(ValueError, match=r"place|integer|list"):
            folder_check.differing(of_folder, [False, [], linked, False])
    with pytest.raises(ValueError, match="linked"):
        folder_check.differing(of_folder, [False, [0], [0], False])
    for places in ([2], [-1], ["0"]):
        with pytest.raises(ValueError, match=r"place|integer"):
            folder_check.differing(of_folder, [False, places, [], False])


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.lists(texts, max_size=5))),
    st.integers(1, 30),
)
def test_no_name_is_lost_between_requests(
    found: list[tuple[int, str, list[bytes]]], count: int
) -> None:
    groups = [(top, path, [name.hex() for name in names]) for top, path, names in found]
    flat = [(top, path, name) for top, path, names in groups for name in names]
    asked = [group for request in folder_check.requests_of(groups) for group in request]
    assert [(top, path, name) for top, path, names in asked for name in names] == flat
    left = folder_check.behind(asked, count)
    assert [(top, path, name) for top, path, names in left for name in names] == flat[count:]
