"""The list of --files-from: read, checked, and sorted as a walk is, in bounded memory.

Not here: the entries of its paths (../../endpoint/there/listed_paths.py), the walk
(../walk/plan_walk.py), rows that are kept in their order (../pieces/spool.py).
"""

from __future__ import annotations

import heapq
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import paths
from pscp.endpoint.reading.paths import is_pscps_own, to_text
from pscp.endpoint.there.listed_paths import ABOVE, ALL, ALONE, Row
from pscp.ground.errors import UsageError
from pscp.options.options import Options
from pscp.transfer.pieces.plan import grouped
from pscp.transfer.pieces.spool import room_for_temporary_files

_RUN_BYTES = 4 * 1024 * 1024  # of paths that are sorted in memory: some 15 MiB with the objects
_READ_BYTES = 64 * 1024
_LINE_MOST = 1024 * 1024
_BATCH_ITEMS, _BATCH_BYTES = 2000, 256 * 1024  # in one request

# A path is kept as its components with a NUL between, so that the order of these bytes is that of a
# walk; one whose folder is copied with all below it has a NUL at its end. "/" ends each in a file.
_END = b"/"


class PathList:
    """The paths that were listed. For one thread at a time."""

    def __init__(self) -> None:
        self.refused: list[failures.Data] = []
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._file: IO[bytes] | None = None  # sorted runs, where there is more than one
        self._runs: list[tuple[int, int]] = []  # where each begins and ends

    def add(self, line: bytes, is_all: bool) -> None:
        """Add a path as listed; `is_all` says to copy a folder with all that is below it.

        A path that leads elsewhere is kept in `refused`. Raises CopyError where a temporary file
        finds no room.
        """
        parts = line.split(b"/")
        if b"" in parts or b"." in parts:
            parts = [part for part in parts if part not in (b"", b".")]
        if b"/." in line or line.startswith(b".") or b"\0" in line:  # few need be looked at
            if any(map(is_pscps_own, parts)):
                return  # as no walk finds it
            try:
                if parts:
                    paths.check(to_text(b"/".join(parts)))
            except failures.Refusal as error:
                self.refused.append(failures.from_exception(error, to_text(line)))
                return
        key = b"\0".join(parts) + (b"\0" if is_all else b"")
        self._run.append(key)
        self._run_bytes += len(key)
        if self._run_bytes >= _RUN_BYTES:
            self._spill()

    def _spill(self) -> None:
        with room_for_temporary_files():
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile()  # noqa: SIM115 - closed by close()
            begin = self._file.tell()
            self._file.writelines(key + _END for key in sorted(self._run))
            self._file.flush()
            self._runs.append((begin, self._file.tell()))
        self._run, self._run_bytes = [], 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def rows(self) -> Iterator[Row]:
        """Yield each path once, behind the folders above it."""
        last: list[bytes] = []  # the components of the path before
        covered: bytes | None = None  # a folder that is copied with all below it, ended with a NUL
        for path, is_all in _once(heapq.merge(sorted(self._run), *map(self._read, self._runs))):
            if covered is not None and (path + b"\0").startswith(covered):
                continue
            parts = path.split(b"\0") if path else []
            for count in range(1, len(parts)):
                if last[:count] != parts[:count]:
                    yield to_text(b"/".join(parts[:count])), ABOVE
            yield to_text(b"/".join(parts)), ALL if is_all else ALONE
            last = parts
            if is_all:
                covered = path + b"\0" if path else b""

    def _read(self, run: tuple[int, int]) -> Iterator[bytes]:
        assert self._file is not None
        offset, end = run
        rest = b""
        while offset < end:
            data = os.pread(self._file.fileno(), min(_READ_BYTES, end - offset), offset)
            offset += len(data)
            *keys, rest = (rest + data).split(_END)
            yield from keys

    def batches(self) -> Iterator[list[Row]]:
        """Return the rows in groups that each fit into a request."""
        return grouped(self.rows(), lambda row: 6 * len(row[0]), _BATCH_BYTES, _BATCH_ITEMS)


def _once(keys: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each path once: whether any of its keys is that of a whole folder."""
    for path, of_path in itertools.groupby(keys, lambda key: key.removesuffix(b"\0")):
        yield path, any(key.endswith(b"\0") for key in of_path)


def read_list(options: Options) -> PathList:
    """Read the file of --files-from. Raises UsageError where it cannot be read, and CopyError."""
    name = options.files_from
    assert name is not None
    listed = PathList()
    try:
        if name == "-":
            _add_all(listed, sys.stdin.buffer, options)
        else:
            with open(name, "rb") as file:
                _add_all(listed, file, options)
    except OSError as error:
        raise UsageError(f"--files-from: {name}: {error.strerror}") from None
    return listed


def _add_all(listed: PathList, file: IO[bytes], options: Options) -> None:
    """Add each line: as rsync does, but for empty ones and those that begin with # or ;."""
    end = b"\0" if options.from0 else b"\n"
    for line in _lines(file, end):
        if line and (options.from0 or not line.startswith((b"#", b";"))):
            is_folder = options.archive and line.endswith((b"/", b"/."))
            listed.add(line, options.recursive or is_folder)


def _lines(file: IO[bytes], end: bytes) -> Iterator[bytes]:
    rest = b""
    while data := file.read(_READ_BYTES):
        *lines, rest = (rest + data).split(end)
        if len(rest) > _LINE_MOST:
            raise UsageError(
                "--files-from: a line is longer than any path", "-0 says that NULs end"
            )
        if end == b"\n":
            lines = [line.removesuffix(b"\r") for line in lines]
        yield from lines
    yield rest
