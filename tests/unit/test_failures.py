"""What went wrong: over the wire, as an error, and in the lines that tell of it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames import failures, wire
from pscp.endpoint.reading.source import Top
from pscp.ground import errors
from pscp.ground.errors import FileError, SourceChanged, SystemFailure
from pscp.progress.progress import Reporter
from pscp.transfer.pieces import answers
from pscp.transfer.terms.copy_terms import FilePlaces
from pscp.transfer.terms.results import LINES_MOST, FailureLines, as_error, hint_of

kinds = st.sampled_from(sorted(failures.KINDS))


def travelled(data: failures.Data) -> failures.Data:
    return failures.parse_failure(json.loads(wire.to_json(data)))


@given(kinds, st.text(st.characters(), max_size=300), st.text(max_size=300), st.integers(0, 200))
def test_a_failure_survives_the_wire(kind: str, path: str, message: str, number: int) -> None:
    data = failures.data(kind, path, message, number)
    # As the standard library reads its own output: a pair of surrogates is one character.
    assert travelled(data) == json.loads(json.dumps(data))


@pytest.mark.parametrize("number", [errno.EISDIR, errno.ELOOP, errno.ENOTDIR])
def test_a_file_that_is_none_by_now_has_changed(number: int) -> None:
    """Nobody can make anything of "Is a directory" of what was a file when it was listed."""
    data = failures.from_exception(OSError(number, "x"), "a/b")
    assert isinstance(as_error(data), SystemFailure)
    error = as_error(answers.of_known(data))
    assert isinstance(error, SourceChanged)
    assert error.message == "changed while it was copied"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENAMETOOLONG])
def test_an_errno_keeps_its_meaning(number: int) -> None:
    data = travelled(failures.from_exception(OSError(number, "x", "/secret"), "a/b"))
    assert data == failures.data("system", "a/b", os.strerror(number), number)
    error = as_error(data)
    assert isinstance(error, SystemFailure)
    assert (error.path, error.errno) == ("a/b", number)


def test_each_exception_has_its_kind() -> None:
    refusal = failures.Refusal(failures.UNSAFE, "its own", "no")
    assert failures.from_exception(refusal, "other") == failures.data("unsafe", "its own", "no")
    assert failures.from_exception(failures.FileChanged(), "p")["kind"] == failures.CHANGED
    assert failures.from_exception(OSError("no number"), "p")["message"] == "no number"


def test_a_bug_is_raised_and_not_reported() -> None:
    with pytest.raises(ZeroDivisionError):
        failures.from_exception(ZeroDivisionError(), "p")


@pytest.mark.parametrize("kind", sorted(failures.KINDS))
def test_each_kind_is_an_error_that_a_user_sees(kind: str) -> None:
    error = as_error(failures.data(kind, "a/b", "why"))
    assert isinstance(error, FileError)
    assert (error.path, error.message) == ("a/b", "why")


def test_places_are_those_of_what_failed() -> None:
    no = failures.data("unsafe", "p", "m")
    assert failures.places([None, no, None, no]) == [(1, no), (3, no)]


# --- the lines


TOPS = [Top("docs", "/home/docs", True), Top("", "./data/.", True), Top("a.txt", "a.txt", False)]
CHANGED = "changed while it was copied"
HINT = f"  {errors.SourceChanged.hint}"


class Said(Reporter):
    def __init__(self, is_live: bool, sums_up: bool) -> None:
        self.is_live, self.sums_up = is_live, sums_up
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def lines(
    *failed: tuple[str, int, bool], is_live: bool = False, all: bool = False, sums_up: bool = True
) -> list[str]:
    """What is said of failures: a path, an errno (0: it changed), whether at the source."""
    said = Said(is_live, sums_up)
    shown = FailureLines(said, FilePlaces("", TOPS, "host:", "/to"), all=all)
    for path, number, of_source in failed:
        if number:
            hint, why = hint_of(number, of_source), errno.errorcode[number]
            shown.add(errors.SystemFailure(path, why, number, hint), of_source)
        else:
            shown.add(errors.SourceChanged(path, CHANGED), of_source)
    shown.close()
    return said.notes


@pytest.mark.parametrize(
    ("path", "of_source", "place"),
    [
        ("docs/x/y", True, "/home/docs/x/y"),
        ("docs", True, "/home/docs"),
        ("a.txt", True, "a.txt"),
        ("other/z", True, "./data/other/z"),
        ("docs/x", False, "host:/to/docs/x"),
        ("", False, "host:/to"),
    ],
)
def test_where_a_file_is(path: str, of_source: bool, place: str) -> None:
    assert FilePlaces("", TOPS, "host:", "/to").of(path, of_source) == place
    far = FilePlaces("host:", TOPS, "", "/to").of(path, of_source)
    assert far == (f"host:{place}" if of_source else place.removeprefix("host:"))


def test_what_is_below_a_folder_is_counted() -> None:
    failed = [("new", errno.EACCES, False)] + [(f"new/{n}", errno.EACCES, False) for n in range(66)]
    one, hint = lines(*failed)
    assert one == "host:/to/new: EACCES, and 66 more below it (verbose shows each)"
    assert hint.startswith("  ls -ld")
    first, hint, last = lines(*failed, is_live=True)
    assert (first, last) == ("host:/to/new: EACCES", one)
    assert len(lines(*failed, all=True)) == 68


def test_what_root_may_not_change_is_immutable() -> None:
    assert "lsattr" in hint_of(errno.EPERM, of_source=False)
    assert "lsattr" not in hint_of(errno.EACCES, False) + hint_of(errno.EPERM, True)


def test_a_path_that_is_too_long_is_told_in_short() -> None:
    deep = "x" * 200 + "/" + "folder/" * 700 + "last"
    for all in (False, True):
        [said, *_] = lines((deep, errno.ENAMETOOLONG, True), all=all)
        assert len(said) < 400 and said.startswith("./data/xxx"), said
        assert said.endswith("folder/last (5112 characters): ENAMETOOLONG")
    assert lines(("no file's \ud800", 0, True)) == [f"./data/no file's \ud800: {CHANGED}", HINT]
    [said, *_] = lines(("y" * 4000, 0, True))
    assert said == f"./data/{'y' * 4000}: {CHANGED}"


@pytest.mark.parametrize("of_source", [True, False])
@pytest.mark.parametrize("all", [True, False])
def test_where_no_terminal_is_each_file_is_named(of_source: bool, all: bool) -> None:
    failed = [(f"new/{n}", errno.EACCES, of_source) for n in range(66)]
    first, hint, *rest = lines(*failed, sums_up=False, all=all)
    assert hint.startswith("  ls -l") and len(rest) == 65
    assert all_are_named([first, *rest], "new", 66)


def all_are_named(said: list[str], folder: str, count: int) -> bool:
    ends = [f"/{folder}/{n}: EACCES" for n in range(count)]
    return all(map(str.endswith, said, ends)) and len(said) == count


def test_folders_and_reasons_are_kept_apart() -> None:
    failed = [
        ("a/1", errno.EACCES, False), ("b/1", errno.EACCES, False), ("a/2", errno.EACCES, False),
        ("a/2", errno.ENOSPC, False), ("b/2", errno.ENOSPC, False), ("a/3", 0, True),
    ]  # fmt: skip
    said = [line for line in lines(*failed) if not line.startswith("  ")]
    assert said == [
        f"./data/a/3: {CHANGED}",
        "host:/to/a/1: EACCES, and 1 more below host:/to/a: 2",
        "host:/to/b/1: EACCES",
        "host:/to/a/2: ENOSPC, and 1 more below host:/to: b/2",
    ]


def test_a_file_or_two_more_are_named() -> None:
    failed = [(f"a/{n}", errno.EACCES, False) for n in range(3)]
    assert lines(*failed)[0] == "host:/to/a/0: EACCES, and 2 more below host:/to/a: 1, 2"
    failed.append(("a/3", errno.EACCES, False))
    assert lines(*failed)[0].endswith("EACCES, and 3 more below host:/to/a (verbose shows each)")
    failed = [(name, errno.EACCES, False) for name in ("new", "new/a", "new/b/c")]
    assert lines(*failed)[0] == "host:/to/new: EACCES, and 2 more below it: a, b/c"


@pytest.mark.parametrize("of_source", [True, False])
def test_there_are_not_too_many_lines(of_source: bool) -> None:
    failed = [(f"{n}/x", errno.EACCES, of_source) for n in range(LINES_MOST + 7)]
    said = lines(*failed)
    assert len(said) == LINES_MOST + 2  # one is the hint
    assert said[-1] == "and 7 more: EACCES (verbose shows each)"
