"""The lines that tell of failures: where, in whole paths, and how many stand for how many."""

from __future__ import annotations

import errno

import pytest

from pscp.endpoint.reading.source import Top
from pscp.ground import errors
from pscp.progress.progress import Silent
from pscp.transfer.terms.copy_terms import FilePlaces
from pscp.transfer.terms.results import LINES_MOST, FailureLines, hint_of

TOPS = [Top("docs", "/home/docs", True), Top("", "./data/.", True), Top("a.txt", "a.txt", False)]
CHANGED = "changed while it was copied"


class Said(Silent):
    def __init__(self, is_live: bool) -> None:
        self.is_live = is_live
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def lines(*failed: tuple[str, int, bool], is_live: bool = False, all: bool = False) -> list[str]:
    """What is said of failures: a path, an errno (0: it changed), whether at the source."""
    said = Said(is_live)
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
    assert one == "host:/to/new: EACCES, and 66 more below it"
    assert hint.startswith("  ls -ld")
    first, hint, last = lines(*failed, is_live=True)
    assert (first, last) == ("host:/to/new: EACCES", one)
    assert len(lines(*failed, all=True)) == 68


def test_folders_and_reasons_are_kept_apart() -> None:
    failed = [
        ("a/1", errno.EACCES, False), ("b/1", errno.EACCES, False), ("a/2", errno.EACCES, False),
        ("a/2", errno.ENOSPC, False), ("b/2", errno.ENOSPC, False), ("a/3", 0, True),
    ]  # fmt: skip
    said = [line for line in lines(*failed) if not line.startswith("  ")]
    assert said == [
        f"./data/a/3: {CHANGED}",
        "host:/to/a/1: EACCES, and 1 more below host:/to/a",
        "host:/to/b/1: EACCES",
        "host:/to/a/2: ENOSPC, and 1 more below host:/to",
    ]


@pytest.mark.parametrize("of_source", [True, False])
def test_there_are_not_too_many_lines(of_source: bool) -> None:
    failed = [(f"{n}/x", errno.EACCES, of_source) for n in range(LINES_MOST + 7)]
    said = lines(*failed)
    assert len(said) == LINES_MOST + 2  # one is the hint
    assert said[-1] == "and 7 more: EACCES (-v shows each)"
