"""Keeps any number of rows for the end of a copy: many of them in a temporary file.

Not here: what the rows are (../ending/ending.py, ../ending/mirror.py, ../ending/moving.py), a list
that is sorted (../terms/path_list.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import IO, Any

from pscp.ground.errors import CopyError
from pscp.transfer.pieces.plan import grouped

_MEMORY_BYTES = 4 * 1024 * 1024  # some 30,000 entries; more go to a temporary file
_GROUP_BYTES = 400 * 1024  # of rows in one request: less than half of what a frame may hold
_GROUP_ROWS = 500


class Spool:
    """Rows of JSON values, in the order in which they came. One thread at a time may use it.

    Its methods raise CopyError where the folder for temporary files has no more room.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None  # made when it is needed: many copies have one file
        self._begins = array("Q")
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, row: Iterable[Any]) -> None:
        """Add a row; once it is closed, which ends a copy that failed, nothing."""
        if self._is_closed:
            return
        with room_for_temporary_files():
            if self._file is None:
                from tempfile import SpooledTemporaryFile

                self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - close() does
            self._begins.append(self._file.tell())
            self._file.write(json.dumps(row).encode("ascii") + b"\n")

    def take(self, backwards: bool = False) -> Iterator[list[Any]]:
        for begin in reversed(self._begins) if backwards else iter(self._begins):
            assert self._file is not None
            with room_for_temporary_files():  # what was added last is written now
                self._file.seek(begin)
                line = self._file.readline()
            yield json.loads(line)

    def close(self) -> None:
        self._is_closed = True
        if self._file is not None:
            with contextlib.suppress(OSError):  # no room, but nobody needs the rest any more
                self._file.close()


def grouped_rows(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    """Group rows so that each group fits into a request."""
    return grouped(rows, lambda row: len(json.dumps(row)) + 2, _GROUP_BYTES, _GROUP_ROWS)


@contextlib.contextmanager
def room_for_temporary_files() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = sys.modules.get("tempfile")  # no import: that may be what has failed
        folder = (found and found.tempdir) or os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - only told
        raise CopyError(
            f"{folder}: no room for the lists of a copy: {error.strerror}",
            "set TMPDIR to a folder with more room",
        ) from None
