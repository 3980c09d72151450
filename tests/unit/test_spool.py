"""Rows that are kept for the end of a copy (transfer/pieces/spool.py)."""

from __future__ import annotations

from pscp.transfer.pieces.spool import Spool


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
