"""What an earlier version's --inplace left when it was cut short: the file itself, as a part.

Its mode has the sticky bit, and the journal names its run as one that copied this very file. It is
never continued, and stays as long as it may be the only copy of the old file.

Not here: parts of this version (test_reuse.py), `pscp --clean` (../e2e/test_clean.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core.trees import Trees
from pscp.endpoint.there.reuse import PIECE_BYTES

SIZE_BYTES = 9 * PIECE_BYTES
OLD = os.urandom(SIZE_BYTES)
NEW = b"x" * PIECE_BYTES + OLD[PIECE_BYTES:-PIECE_BYTES] + b"y" * PIECE_BYTES


def as_before_journals_told(journal: Path) -> None:
    """Leave out what lines of an earlier version do not have."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    kept = [line[:7] if line[0] == "file" else line for line in lines]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in kept))


@pytest.fixture(params=["holes", "none"])
def hidden(request: pytest.FixtureRequest, trees: Trees, is_push: bool) -> Path:
    """The part that was the file itself; the source's file has a hole, or none."""
    trees.file("small", 1000)
    with (trees.source / "large").open("wb") as file:
        file.write(NEW[: 2 * PIECE_BYTES])
        file.seek((5 if request.param == "holes" else 2) * PIECE_BYTES)
        file.write(NEW[file.tell() :])
    (trees.to / "large").write_bytes(OLD)
    trees.cut_short(is_push)
    [part] = trees.to.glob(".large*.pscp-part")
    part.unlink()
    (trees.to / "large").rename(part)
    with part.open("r+b") as file:
        file.write(NEW[:PIECE_BYTES])
    part.chmod(0o1640)
    for journal in trees.new_journals():
        as_before_journals_told(journal)
    return part


def is_as_left(part: Path) -> bool:
    return part.read_bytes() == NEW[:PIECE_BYTES] + OLD[PIECE_BYTES:]


@pytest.mark.parametrize("fields", [{"archive": True}, {"strong": True}])
def test_n1_it_is_not_continued(
    trees: Trees, is_push: bool, hidden: Path, fields: dict[str, Any]
) -> None:
    """N1: in the holes of a sparse file lay the old file's bytes, with exit code 0."""
    trees.done(is_push, **fields)
    trees.assert_copied()  # and so it is gone, now that it is no more than an old version


def test_n1_nor_is_it_where_sources_are_removed(trees: Trees, is_push: bool, hidden: Path) -> None:
    """N1: the source was removed, too."""
    wanted = (trees.source / "large").read_bytes()
    trees.done(is_push, remove_source_files=True)
    assert (trees.to / "large").read_bytes() == wanted
    assert not hidden.exists() and not (trees.source / "large").exists()


@pytest.mark.parametrize("has_journal", [True, False])
def test_n1_a_run_that_is_cut_short_again_leaves_it(
    trees: Trees, is_push: bool, hidden: Path, has_journal: bool
) -> None:
    if not has_journal:
        trees.forget()
    trees.cut_short(is_push)
    assert is_as_left(hidden)
    trees.copied(is_push)


@pytest.mark.parametrize("new", [NEW[::-1], b"small"], ids=["large", "small"])
def test_n2_the_source_has_changed(trees: Trees, is_push: bool, hidden: Path, new: bytes) -> None:
    """N2 (a) and (c): what was left stayed for ever."""
    (trees.source / "large").write_bytes(new)
    trees.copied(is_push)


@pytest.mark.parametrize("fields", [{}, {"archive": True, "delete": True}])
def test_n2_the_source_is_gone(
    trees: Trees, is_push: bool, hidden: Path, fields: dict[str, Any]
) -> None:
    """N2 (b): a file of the destination existed only as a hidden part, and nobody was told."""
    (trees.source / "large").unlink()
    trees.done(is_push, **fields)
    assert is_as_left(hidden)
    [note] = [text for text in trees.bench.notes if "pscp-part" in text]
    assert "/large: a hidden .pscp-part, left by an earlier version's --inplace" in note
    assert "pscp --clean" in note


def test_n2_something_else_has_its_name(trees: Trees, is_push: bool, hidden: Path) -> None:
    """Then no file has replaced it."""
    (trees.to / "large").mkdir()
    assert [os.path.basename(each.path) for each in trees.copy(is_push).failures] == ["large"]
    assert is_as_left(hidden)
    assert any("/large: a hidden .pscp-part" in text for text in trees.bench.notes)


def test_n1_a_journal_of_an_earlier_version_tells_of_no_holes(trees: Trees, is_push: bool) -> None:
    """N1: that a run copied this very file says nothing of what is in the holes of its part."""
    with (trees.source / "large").open("wb") as file:
        file.write(NEW[: 2 * PIECE_BYTES])
        file.seek(5 * PIECE_BYTES)
        file.write(NEW[file.tell() :])
    trees.cut_short(is_push)
    [part] = trees.to.glob(".large*.pscp-part")
    with part.open("r+b") as file:
        file.seek(3 * PIECE_BYTES)
        file.write(OLD[:PIECE_BYTES])
    [journal] = trees.new_journals()
    as_before_journals_told(journal)
    trees.copied(is_push)
