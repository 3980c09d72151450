"""Keeps entries for the end of a copy: folders, to be finished, and hard links, to be made.

Not here: what is done with them (coordinator.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Iterator
from typing import IO

from pscp.endpoint import tree
from pscp.errors import CopyError

_MEMORY_BYTES = 4 * 1024 * 1024  # some 30,000 entries; more go to a temporary file


class Spool:
    """Entries kept for the end of the copy: any number of them, so many are kept on disk.

    Its methods raise CopyError where the folder for temporary files takes them no longer.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None  # made when it is needed: many a copy is of one file
        self._begins = array("Q")

    def add(self, entry: tree.Entry) -> None:
        if self._file is None:
            from tempfile import SpooledTemporaryFile

            self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        assert self._file is not None
        with _room_for_temporary_files():
            self._begins.append(self._file.tell())
            self._file.write(json.dumps(entry).encode("ascii") + b"\n")

    def take(self, backwards: bool) -> Iterator[tree.Entry]:
        for begin in reversed(self._begins) if backwards else iter(self._begins):
            assert self._file is not None
            with _room_for_temporary_files():  # what was added last is written now
                self._file.seek(begin)
                line = self._file.readline()
            yield tree.Entry(*json.loads(line))

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # no space for what nobody needs any more
                self._file.close()


@contextlib.contextmanager
def _room_for_temporary_files() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        import tempfile

        folder = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise CopyError(
            f"{folder}: no room for the list of folders and hard links: {error.strerror}",
            "set TMPDIR to a folder with more room",
        ) from None
