"""transfer/pieces: extents against a set of bytes, packs, where entries land, names, spools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import files, source, tree
from pscp.endpoint.reading.files import Extent
from pscp.transfer.pieces import plan
from pscp.transfer.pieces.spool import Spool

LAST = 400


def bytes_of(extents: Iterable[Extent]) -> list[int]:
    return [byte for offset, length in extents for byte in range(offset, offset + length)]


@st.composite
def ascending(draw: st.DrawFn) -> list[Extent]:
    """Extents in order that do not overlap; some touch."""
    edges = sorted(draw(st.sets(st.integers(0, LAST), max_size=20)))
    keep = draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    pairs = zip(edges, edges[1:], keep[1:], strict=False)
    return [(a, b - a) for a, b, is_kept in pairs if is_kept]


# --- extents


@given(ascending(), st.integers(1, 60))
def test_cut_keeps_every_byte_in_order_in_small_pieces(extents: list[Extent], most: int) -> None:
    pieces = list(plan.cut(extents, most))
    assert bytes_of(pieces) == bytes_of(extents)
    assert all(0 < length <= most for _, length in pieces)
    assert len(pieces) == sum(-(-length // most) for _, length in extents)  # and no more of them


@given(st.lists(st.tuples(st.integers(0, LAST), st.integers(1, 80))), ascending())
def test_subtract_leaves_the_bytes_that_did_not_land(
    landed: list[Extent], extents: list[Extent]
) -> None:
    """Landed extents overlap in a journal where the chunk size was changed between two runs."""
    gone = set(bytes_of(landed))
    left = list(plan.subtract(extents, sorted(landed)))
    assert bytes_of(left) == [byte for byte in bytes_of(extents) if byte not in gone]
    assert all(length > 0 for _, length in left)


def test_a_file_of_any_size_costs_the_same() -> None:
    whole = [(0, 2**62)]
    pieces = plan.cut(plan.subtract(whole, [(0, 4096)]), 4096)
    assert [next(pieces), next(pieces)] == [(4096, 4096), (8192, 4096)]


@given(ascending(), st.integers(1, 100))
def test_batches_keep_every_extent_in_order(extents: list[Extent], most: int) -> None:
    groups = list(plan.batches(extents, most))
    assert [extent for group in groups for extent in group] == extents
    for group in groups:
        assert group and sum(length for _, length in group[:-1]) < most
    for group in groups[:-1]:
        assert sum(length for _, length in group) >= most


# --- packs


def entry(kind: str = tree.FILE, path: str = "a", size: int = 0, **extra: Any) -> tree.Entry:
    return tree.Entry(kind, 0, path, size, 0o644, 1, 2, extra)


def placed(one: tree.Entry) -> plan.PlannedEntry:
    return plan.PlannedEntry(one, one)


def nothing(pack: plan.Pack, failed: list[Any]) -> None:
    raise AssertionError("nobody said that the pack is done")


@given(st.lists(st.integers(0, files.PACK_FILE_BYTES), max_size=200))
def test_a_pack_builder_loses_nothing_and_keeps_packs_small(sizes: list[int]) -> None:
    builder = plan.PackBuilder(nothing)
    items = [placed(entry(path=str(n), size=size)) for n, size in enumerate(sizes)]
    found = [builder.flush() for item in items if builder.add(item)]
    packs = [pack for pack in found if pack is not None]
    full = len(packs)
    packs += [pack for pack in [builder.flush()] if pack is not None]
    assert [item for pack in packs for item in pack.items] == items
    assert builder.flush() is None
    for place, pack in enumerate(packs):
        assert 0 < len(pack.items) <= plan.PACK_FILES
        pack_bytes = sum(item.entry.size + plan.weight_bytes(item.entry) for item in pack.items)
        last = pack.items[-1].entry
        limit = plan.PACK_BYTES + last.size + plan.weight_bytes(last)
        assert pack_bytes < limit
        if place < full:
            assert len(pack.items) == plan.PACK_FILES or pack_bytes >= plan.PACK_BYTES


def test_only_files_have_rows_of_the_source() -> None:
    kinds = [tree.FOLDER, tree.FILE, tree.LINK, tree.FILE]
    pack = plan.Pack([placed(entry(kind, str(n))) for n, kind in enumerate(kinds)], nothing)
    assert [known.path for known in pack.files] == ["1", "3"]
    pack.take_rows([[5, "aa"], [6, "bb"]])
    assert pack.rows == [[0, ""], [5, "aa"], [0, ""], [6, "bb"]]
    for rows in ([[5, "aa"]], [[5, "aa"]] * 3):
        with pytest.raises(ValueError, match="other files than"):
            pack.take_rows(rows)


# --- where entries land

TOPS = [
    source.Top("dir", "/from/dir", True),
    source.Top("", "/from/other/.", True),
    source.Top("file", "/from/file", False),
]
PLACEMENT = plan.Placement(TOPS, ["renamed", "", "file"])


def land(top: int, path: str, **extra: Any) -> str:
    kind = tree.HARDLINK if "to" in extra else tree.FILE
    return PLACEMENT.place(entry(kind, path, **extra)._replace(top=top)).entry.path


@pytest.mark.parametrize(
    ("top", "path"),
    [
        (0, ""), (0, "dir/"), (0, "dirt"), (0, "other/x"), (0, "dir/../x"), (0, "dir//x"),
        (0, "/dir"), (0, "dir/x\0"), (0, ".."), (1, "/etc/passwd"), (1, "../x"), (1, "a/./b"),
        (1, "x/"), (2, "../file"), (3, "x"),
    ],
)  # fmt: skip
def test_an_entry_outside_of_its_source_is_refused(top: int, path: str) -> None:
    with pytest.raises((ValueError, LookupError, failures.Refusal)):
        land(top, path)


@given(st.sampled_from([0, 1, 2]), st.text("adir./\0~\udc80", max_size=12) | st.text())
def test_no_path_leads_out_of_the_destination(top: int, path: str) -> None:
    try:
        lands = land(top, path)
    except (ValueError, failures.Refusal):
        return
    parts = lands.split("/") if lands else []
    assert not {"", ".", ".."} & set(parts) and "\0" not in lands
    assert top == 1 or parts[0] == PLACEMENT._names[top]


@pytest.mark.parametrize(
    ("top", "to"),
    [(0, "../../etc/passwd"), (0, "dir/../../x"), (0, "/etc/passwd"), (1, "../x"), (0, 5),
     (0, None), ("0", "dir/a"), (7, "dir/a"), (None, "dir/a")],
)  # fmt: skip
def test_a_hard_link_out_of_the_destination_is_refused(top: Any, to: Any) -> None:
    with pytest.raises((ValueError, LookupError, failures.Refusal)):
        land(0, "dir/b", to=to, **{"in": top})


# --- rows that are kept for the end of a copy


def test_rows_come_back_in_their_order_and_backwards() -> None:
    spool = Spool()
    for row in (["a", 1], ["b", {"c": [2]}]):
        spool.add(row)
    assert list(spool.take()) == [["a", 1], ["b", {"c": [2]}]]
    assert list(spool.take(backwards=True)) == [["b", {"c": [2]}], ["a", 1]]
    spool.close()


def test_what_comes_after_the_end_makes_no_file() -> None:
    """A copy that failed still writes what it was about to; nobody would close the file."""
    spool = Spool()
    spool.close()
    spool.add(["late"])
    assert not len(spool)
    assert spool._file is None
