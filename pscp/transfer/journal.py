"""The journal: an append-only record of landed chunks, so that a copy can go on after any death.

One file a copy, in $XDG_STATE_HOME/pscp (~/.local/state/pscp), named after what is copied to
where. One line of JSON each:

    ["run", nonce]                                              a run of the copy began
    ["to", root, names, names there]                            what its destination means
    ["file", number, path, size, mtime_ns, inode, algorithm]    a file of several chunks
    ["chunk", number, offset, length, digest]                   one of its chunks landed
    ["done", number]                                            the file has its final name

A last line that was cut short is ignored. Nothing is believed: what a journal says landed is
hashed again at the sink. It is deleted when the copy ends well.

Not here: what is done with a landed chunk (coordinator.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pscp import state
from pscp.endpoint.files import Extent, Identity
from pscp.errors import CopyRunning

_NO_LINE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)


def token_of(*what: str) -> str:
    """8 hex digits that tell one copy from another: the same for the same command."""
    text = json.dumps(what)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Landed:
    """What a journal knows of one file."""

    algorithm: str
    digests: dict[Extent, str] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)  # that copied this very file, whose parts are of it


class Journal:
    """Open for one copy; locked against a second run of the same. One thread at a time."""

    def __init__(self, key: str, keep: bool = True) -> None:
        """`keep` False forgets what has landed. Raises CopyRunning, and OSError where it cannot be
        kept.
        """
        self._path = os.path.join(state.folder(), f"{key}.journal")
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._fd = self._locked()
        self._number = 0
        self._under_way: set[int] = set()  # files that have neither landed nor failed
        self._found: dict[str, tuple[Identity, Landed]] = {}
        self.runs: list[str] = []  # by their nonces
        self._to: tuple[str, list[str], list[str]] | None = None
        try:
            self._read()
            if not keep:
                self._found.clear()
                self._begin_anew()
        except BaseException:
            os.close(self._fd)
            raise

    def _locked(self) -> int:
        """The journal's descriptor, locked. Raises CopyRunning, OSError."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):  # reading a FIFO would never end
                    raise OSError(errno.EINVAL, "what has its name is no regular file")
                if os.path.samestat(status, os.stat(self._path)):
                    return fd
            except FileNotFoundError:  # the run before has just deleted it
                pass
            except BlockingIOError:
                os.close(fd)
                raise CopyRunning("the same copy is already running") from None
            except OSError:
                os.close(fd)
                raise
            os.close(fd)

    def _read(self) -> None:
        by_number: dict[int, tuple[str, Identity, Landed]] = {}
        raw = b"\n"
        with open(self._path, "rb") as lines:
            for raw in lines:
                with contextlib.suppress(*_NO_LINE):
                    self._take(json.loads(raw), by_number)
        if not raw.endswith(b"\n"):  # or the next line would be lost with the one cut short
            with contextlib.suppress(OSError):
                os.write(self._fd, b"\n")
        for path, known, landed in by_number.values():
            before = self._found.get(path)
            if before and before[0] == known and before[1].algorithm == landed.algorithm:
                landed.digests = {**before[1].digests, **landed.digests}
                landed.runs |= before[1].runs
            self._found[path] = known, landed

    def _take(self, line: Any, by_number: dict[int, tuple[str, Identity, Landed]]) -> None:
        """Learn what one line says. Raises what is in _NO_LINE for one that says nothing."""
        kind, number, *rest = line
        if kind in ("run", "to"):
            self._take_run(kind, number, rest)
            return
        _check_numbers(number)
        self._number = max(self._number, number)
        if kind == "file":
            path, size, mtime_ns, inode, algorithm = rest
            _check_texts(path, algorithm)
            landed = Landed(algorithm, runs=set(self.runs[-1:]))
            by_number[number] = (path, Identity(size, mtime_ns, inode), landed)
        elif kind == "chunk":
            offset, length, digest = rest
            _check_numbers(offset, length)
            _check_texts(digest)
            by_number[number][2].digests[offset, length] = digest
        elif kind == "done":
            del by_number[number]

    def _take_run(self, kind: str, first: Any, rest: list[Any]) -> None:
        if kind == "run":
            _check_texts(first)
            self.runs.append(first)
            return
        names, there = map(list, rest)
        _check_texts(first, *names, *there)
        self._to = first, names, there

    def landed(self, path: str, identity: Identity) -> Landed | None:
        """What landed of this file earlier; None when nothing is known of this very file."""
        known, landed = self._found.pop(path, (None, None))
        if landed is None or known != identity:
            return None
        landed.digests = dict(_inside(identity.size, sorted(landed.digests.items())))
        return landed

    def knows_another(self, path: str, identity: Identity) -> bool:
        """Was another file of this name under way? To be asked before landed()."""
        known = self._found.get(path, (identity, None))[0]
        return known != identity

    def unwanted(self) -> list[str]:
        """Files that were under way earlier, and that nobody has asked for since."""
        return list(self._found)

    def run(self, nonce: str) -> None:
        """A run of the copy begins."""
        self.runs.append(nonce)
        self._write("run", nonce)

    def again(self, names: list[str]) -> tuple[str, list[str]] | None:
        """The root, and the names there, where these sources landed when the copy first began."""
        if self._to is None or self._to[1] != names or len(self._to[2]) != len(names):
            return None
        return self._to[0], self._to[2]

    def to(self, root: str, names: list[str], there: list[str]) -> None:
        """What DEST means, until the copy is complete: after a power cut too, where the copy is
        about to make what will give it another meaning.
        """
        if self._to != (root, names, there):
            self._to = root, names, there
            self._write("to", root, names, there)
            if names != there:
                self._sync()

    def _sync(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
            folder_fd = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(folder_fd)
            finally:
                os.close(folder_fd)

    def file(self, path: str, identity: Identity, algorithm: str) -> int:
        """Begin a file; returns its number."""
        self._number += 1
        self._under_way.add(self._number)
        self._write("file", self._number, path, *identity, algorithm)
        return self._number

    def chunk(self, number: int, offset: int, length: int, digest: str) -> None:
        self._write("chunk", number, offset, length, digest)

    def done(self, number: int) -> None:
        self._under_way.discard(number)
        self._write("done", number)

    def _write(self, *line: Any) -> None:
        """One write a line: a killed process loses no line that was written.

        Not fsynced: after a power cut the lines that are lost cost reading, not sending.
        """
        with contextlib.suppress(OSError):  # no space for it: no reason to end the copy
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")

    def _begin_anew(self) -> None:
        """Keep only what a copy without any file under way has to know."""
        os.ftruncate(self._fd, 0)
        for nonce in self.runs[-1:]:
            self._write("run", nonce)
        if self._to is not None:
            self._write("to", *self._to)

    def close(self, complete: bool) -> None:
        """Forget the journal when the copy is complete; keep it otherwise."""
        size = os.fstat(self._fd).st_size
        if complete or not size:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        elif not (self._under_way or self._found):  # or it would grow, night after night
            self._begin_anew()
        os.close(self._fd)


class NoJournal:
    """For what copies nothing, or has no place for a journal: knows nothing, keeps nothing."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def unwanted(self) -> list[str]:
        return []

    def run(self, nonce: str) -> None:
        pass

    def again(self, names: list[str]) -> tuple[str, list[str]] | None:
        return None

    def to(self, root: str, names: list[str], there: list[str]) -> None:
        pass

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


def _check_numbers(*values: Any) -> None:
    """Raise ValueError for what is no number of a line, an offset or a length."""
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
        raise ValueError("a number out of bounds")


def _check_texts(*values: Any) -> None:
    if not all(type(value) is str for value in values):
        raise ValueError("no text")


def _inside(size: int, found: list[tuple[Extent, str]]) -> Iterator[tuple[Extent, str]]:
    """Of extents in ascending order, those inside the file that overlap none before them."""
    end = 0
    for (offset, length), digest in found:
        if offset >= end and 0 < length <= size - offset:
            yield (offset, length), digest
            end = offset + length
