"""Each line of docs/coming-from.md: what it says is typed here is taken, and answered as it says.

A row has three cells: theirs, ours, the difference. "the same" in the third means that theirs,
typed to pscp, makes the options of ours; `says "..."` that it is refused in these words.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pscp.cli import copy as cli
from pscp.ground.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


class Row(NamedTuple):
    program: str
    theirs: str
    ours: str
    difference: str


def rows() -> Iterator[Row]:
    program = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            program = line.removeprefix("## ")
        elif line.startswith("| `"):
            theirs, ours, difference = line[1:-1].split("|")
            yield Row(program, theirs.strip(" `"), ours.strip(" `"), difference.strip())


ROWS = list(rows())


def parsed(text: str) -> Any:
    """The command of these words, to which a source and a destination are added if need be."""
    words = shlex.split(text)
    if not any(":" in word and not word.startswith("-") for word in words):
        words += ["src/x", "host:dst"]
    return cli.parse(words)


def plain(command: Any) -> Any:
    """The options, but for -r, which a row leaves out where it does not matter."""
    return dataclasses.replace(command.options, recursive=command.options.archive)


def test_there_is_a_table_for_each_program() -> None:
    assert {row.program for row in ROWS} == {"scp", "rsync", "rclone", "mscp"}
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.program}:{row.theirs}")
def test_it_is_as_the_page_says(row: Row) -> None:
    if row.ours != "-" and row.ours != "--help":
        ours = parsed(row.ours)
        if row.difference.startswith("the same"):
            assert plain(parsed(row.theirs)) == plain(ours)
    if said := re.search('says "(.*?)"', row.difference):
        with pytest.raises(UsageError) as refused:
            parsed(row.theirs)
        assert said[1] in f"{refused.value.message} {refused.value.hint}"
