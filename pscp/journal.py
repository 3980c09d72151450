"""The journal: an append-only record of landed chunks, so that a copy can go on after any death.

One file a copy, in $XDG_STATE_HOME/pscp (~/.local/state/pscp), named after what is copied to
where. One line of JSON each:

    ["file", number, path, size, mtime_ns, inode, algorithm]    a file of several chunks
    ["chunk", number, offset, length, digest]                   one of its chunks landed
    ["done", number]                                            the file has its final name

A last line that was cut short is ignored. Nothing is believed: what a journal says landed is
hashed again at the sink. It is deleted when the copy ends well.

Not here: what is done with a landed chunk (coordinator.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pscp import state
from pscp.endpoint.files import Extent, Identity
from pscp.errors import CopyError, CopyRunning

_NO_LINE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)


def state_folder() -> Path:
    """Where journals are, by the XDG base directory specification."""
    return Path(state.folder())


def token_of(*what: str) -> str:
    """8 hex digits that tell one copy from another: the same for the same command."""
    text = json.dumps(what)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Landed:
    """What a journal knows of one file."""

    algorithm: str
    digests: dict[Extent, str] = field(default_factory=dict)


class Journal:
    """Open for one copy; locked against a second run of the same. Not thread-safe."""

    def __init__(self, key: str, keep: bool = True) -> None:
        """`keep` False starts afresh. Raises CopyRunning, CopyError (no place for it)."""
        self._path = state_folder() / f"{key}.journal"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = self._locked()
        except OSError as error:
            raise CopyError(
                f"cannot keep a journal in {self._path.parent}: {error.strerror}",
                "set XDG_STATE_HOME to a folder that can be written",
            ) from None
        self._number = 0
        self._found: dict[str, tuple[Identity, Landed]] = {}
        try:
            if keep:
                self._read()
            else:
                os.ftruncate(self._fd, 0)
        except BaseException:
            os.close(self._fd)
            raise

    def _locked(self) -> int:
        """The journal's descriptor, locked. Raises CopyRunning, OSError."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            except FileNotFoundError:  # the run before has just deleted it
                pass
            except BlockingIOError:
                os.close(fd)
                raise CopyRunning("the same copy is already running") from None
            os.close(fd)

    def _read(self) -> None:
        by_number: dict[int, tuple[str, Identity, Landed]] = {}
        raw = b"\n"
        with open(self._path, "rb") as lines:
            for raw in lines:
                with contextlib.suppress(*_NO_LINE):
                    self._take(json.loads(raw), by_number)
        if not raw.endswith(b"\n"):  # or the next line would be lost with the one cut short
            os.write(self._fd, b"\n")
        for path, known, landed in by_number.values():
            before = self._found.get(path)
            if before and before[0] == known and before[1].algorithm == landed.algorithm:
                landed.digests = {**before[1].digests, **landed.digests}
            self._found[path] = known, landed

    def _take(self, line: Any, by_number: dict[int, tuple[str, Identity, Landed]]) -> None:
        kind, number, *rest = line
        self._number = max(self._number, int(number))
        if kind == "file":
            path, size, mtime_ns, inode, algorithm = rest
            by_number[number] = (str(path), Identity(size, mtime_ns, inode), Landed(algorithm))
        elif kind == "chunk":
            offset, length, digest = rest
            by_number[number][2].digests[int(offset), int(length)] = str(digest)
        elif kind == "done":
            del by_number[number]

    def landed(self, path: str, identity: Identity) -> Landed | None:
        """What landed of this file earlier; None when nothing is known of this very file."""
        known, landed = self._found.pop(path, (None, None))
        if landed is None or known != identity:
            return None
        landed.digests = dict(_without_overlaps(sorted(landed.digests.items())))
        return landed

    def knows_another(self, path: str, identity: Identity) -> bool:
        """Was another file of this name under way? To be asked before landed()."""
        known = self._found.get(path, (identity, None))[0]
        return known != identity

    def file(self, path: str, identity: Identity, algorithm: str) -> int:
        """Begin a file; returns its number."""
        self._number += 1
        self._write("file", self._number, path, *identity, algorithm)
        return self._number

    def chunk(self, number: int, offset: int, length: int, digest: str) -> None:
        self._write("chunk", number, offset, length, digest)

    def done(self, number: int) -> None:
        self._write("done", number)

    def _write(self, *line: Any) -> None:
        """One write a line: a killed process loses no line that was written.

        Not fsynced: after a power cut the lines that are lost cost reading, not sending.
        """
        with contextlib.suppress(OSError):  # no space for it: no reason to end the copy
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")

    def close(self, complete: bool) -> None:
        """Forget the journal when the copy is complete; keep it otherwise."""
        if complete or os.fstat(self._fd).st_size == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        os.close(self._fd)


class NoJournal:
    """For what copies nothing: knows nothing, keeps nothing."""

    def landed(self, path: str, identity: Identity) -> Landed | None:
        return None

    def knows_another(self, path: str, identity: Identity) -> bool:
        return False

    def file(self, path: str, identity: Identity, algorithm: str) -> int:
        return 0

    def chunk(self, number: int, offset: int, length: int, digest: str) -> None:
        pass

    def done(self, number: int) -> None:
        pass

    def close(self, complete: bool) -> None:
        pass


AnyJournal = Journal | NoJournal


def _without_overlaps(found: list[tuple[Extent, str]]) -> Iterator[tuple[Extent, str]]:
    """Of extents in ascending order, those that begin behind the end of the one before."""
    end = 0
    for extent, digest in found:
        if extent[0] >= end:
            yield extent, digest
            end = sum(extent)
