"""The journal: an append-only record of landed chunks, so that a copy can go on after any death.

Each copy has a file in $XDG_STATE_HOME/pscp (~/.local/state/pscp), named after what is copied to
where. Each line is JSON:

    ["run", nonce]                                              a run of the copy began
    ["file", number, path, size, mtime_ns, inode, algorithm, nonce, rest, ctime_ns]
                                    a file of several chunks; the run, what its part has beside them
    ["chunk", number, offset, length, digest]                   one of its chunks landed
    ["done", number]                                            the file has its final name

A last line that was cut short is ignored, and so are lines of other versions. A journal is not
believed: what it says landed is hashed again at the sink. It is deleted when the copy ends well.

Whether a part that an earlier run left is continued has one condition, decide_part_use(): it has to
be a part of this very file. The source has the size, time and inode of which the journal has
notes, and the user takes such a file for the same; or both ends hash all of the part. Nobody hashes
holes, so what lies in those has to be known: the run that made the part has written that into the
journal. No option gets by this.

Not here: the key (tokens.py), what is then asked of the sink (../walk/lookups.py), what is sent
(../walk/file_job.py).
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Extent, Identity
from pscp.ground import state, stops
from pscp.ground.errors import CopyRunning
from pscp.transfer.pieces import answers

_LOOK_S = 0.25  # after which a run that waits looks again
_NO_LINE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)


def token_of(*what: str) -> str:
    """Return 8 hex digits that name a copy: the same ones for the same command."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]


@dataclass
class FileNotes:
    """A journal's notes of one file."""

    algorithm: str
    digests: dict[Extent, str] = field(default_factory=dict)
    # Of the runs that copied this very file: what their parts have beside these.
    runs: dict[str, str] = field(default_factory=dict)
    ctime_ns: int = 0  # the source's (ctime_of()), while they did; 0: of some of them not known


# What a part has where nothing was written that was verified, as the journal has it.
ZEROS, UNKNOWN = "zeros", "unknown"


class PartUse(enum.Enum):
    """How an earlier run's part is continued."""

    ANEW = "it is discarded, and all is sent"
    COMPARED = "both ends hash it piece by piece, and what differs is sent"
    NOTED_COMPARED = "both ends hash what the journal says landed, and the rest is sent"
    AS_NOTED = "the sink hashes what the journal says landed, and the rest is sent"


def rest_of(entry: tree.Entry) -> str:
    """Return what the part of a file has besides what was verified.

    The part of a file without holes may begin as a clone of the old file (endpoint/there/reuse.py).
    """
    return ZEROS if "sparse" in entry.extra else UNKNOWN


def ctime_of(entry: tree.Entry) -> int:
    """Return when the source was changed last, whatever its mtime says; 0: not known (SFTP)."""
    ctime_ns = entry.extra.get("ct")
    return ctime_ns if type(ctime_ns) is int else 0


def decide_part_use(
    entry: tree.Entry,
    run: str,
    landed: FileNotes | None,
    *,
    is_anothers: bool,
    resume: bool,
    by_time: bool,
) -> PartUse:
    """Decide about the part that a run left of a file.

    Args:
        landed: what the journal knows of this very file; None: nothing that can be checked.
        is_anothers: the journal knows another file of this name, which the part may be of.
        resume: whether the user wants parts to be continued.
        by_time: whether a file of the same size and time is the same for the user; else the source
            may have other bytes than those whose digests the journal has.
    """
    rest = landed.runs.get(run) if landed is not None else None  # None: not of this very file
    if not resume or is_anothers:
        return PartUse.ANEW
    if "sparse" in entry.extra and rest != ZEROS:
        return PartUse.ANEW
    if rest is None:
        return PartUse.COMPARED
    assert landed is not None
    # Else it may have been written in place since, and its mtime set back.
    is_untouched = landed.ctime_ns == ctime_of(entry)
    return PartUse.AS_NOTED if by_time and is_untouched else PartUse.NOTED_COMPARED


def path_of(key: str) -> str:
    """Return the path of the journal that the key names."""
    return os.path.join(state.folder(), f"{key}.journal")


class Journal:
    """The journal of one copy, locked against a second run of it. One thread at a time uses it."""

    def __init__(self, key: str | None, keep: bool = True) -> None:
        """Open the journal that the key names; without a key nothing is read or written.

        With `keep` False what landed earlier is forgotten. Raises CopyRunning, and OSError where no
        journal can be kept.
        """
        self._path = path_of(str(key))
        self._number = 0
        self._under_way: set[int] = set()  # files that have neither landed nor failed
        self._found: dict[str, tuple[Identity, FileNotes]] = {}
        self.runs: list[str] = []  # by their nonces
        self._fd = self._locked() if key is not None else None
        if self._fd is None:
            return
        try:
            self._read(self._fd)
            if not keep:
                self._found.clear()
                self._begin_anew(self._fd)
        except BaseException:
            os.close(self._fd)
            raise

    def _locked(self) -> int:
        """Return the journal's descriptor, locked. Raises CopyRunning, OSError."""
        state.make_folder(os.path.dirname(self._path))
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):  # a FIFO would be read for ever
                    raise OSError(errno.EINVAL, "what has its name is no regular file")
                if os.path.samestat(status, os.stat(self._path)):
                    return fd
            except FileNotFoundError:  # the run before has just deleted it
                pass
            except BlockingIOError:
                os.close(fd)
                who = state.holder(self._path)
                raise CopyRunning(f"the same copy is already running{who}") from None
            except OSError:
                os.close(fd)
                raise
            os.close(fd)

    def _read(self, fd: int) -> None:
        by_number: dict[int, tuple[str, Identity, FileNotes]] = {}
        raw = b"\n"
        with open(self._path, "rb") as lines:
            for raw in lines:
                with contextlib.suppress(*_NO_LINE):
                    self._take(json.loads(raw), by_number)
        if not raw.endswith(b"\n"):  # or the next line would be lost with the one cut short
            with contextlib.suppress(OSError):
                os.write(fd, b"\n")
        for path, known, landed in by_number.values():
            before = self._found.get(path)
            if before and before[0] == known and before[1].algorithm == landed.algorithm:
                landed.digests = {**before[1].digests, **landed.digests}
                landed.runs = {**landed.runs, **before[1].runs}
                if landed.ctime_ns != before[1].ctime_ns:
                    landed.ctime_ns = 0
            self._found[path] = known, landed

    def _take(self, line: object, by_number: dict[int, tuple[str, Identity, FileNotes]]) -> None:
        """Learn what one line says. Raises one of _NO_LINE for a line of another shape."""
        kind, first, *rest = answers.items(line)
        if kind == "run":
            self.runs.append(answers.text(first))
            return
        number = _number(first)
        self._number = max(self._number, number % (1 << 62))  # a damaged one leaves room above it
        if kind == "file":
            path, size, mtime_ns, inode, algorithm, *part = rest  # an earlier version has no part
            landed = FileNotes(answers.text(algorithm))
            if part:
                landed.runs[answers.text(part[0])] = answers.text(part[1])
                landed.ctime_ns = answers.integer(part[2]) if part[2:] else 0
            identity = Identity(
                answers.integer(size), answers.integer(mtime_ns), answers.integer(inode)
            )
            by_number[number] = (answers.text(path), identity, landed)
        elif kind == "chunk":
            offset, length, digest = rest
            by_number[number][2].digests[_number(offset), _number(length)] = answers.text(digest)
        elif kind == "done":
            del by_number[number]

    def landed(self, path: str, identity: Identity) -> FileNotes | None:
        """Return what landed of this very file earlier; None when nothing is known of it."""
        known, landed = self._found.pop(path, (None, None))
        if landed is None or known != identity:
            return None
        landed.digests = dict(_inside(identity.size, sorted(landed.digests.items())))
        return landed

    def knows_another(self, path: str, identity: Identity) -> bool:
        """Return whether another file of this name was under way. Call it before landed()."""
        known = self._found.get(path, (identity, None))[0]
        return known != identity

    def unwanted(self) -> list[str]:
        """Return the files that were under way earlier and were not asked for by landed()."""
        return list(self._found)

    def run(self, nonce: str) -> None:
        self.runs.append(nonce)
        self._write("run", nonce)

    def file(
        self, path: str, identity: Identity, algorithm: str, rest: str, ctime_ns: int = 0
    ) -> int:
        """Note that the copy of a file begins; return its number.

        `rest` is what its part has beside the chunks that land (rest_of()).
        """
        self._number += 1
        self._under_way.add(self._number)
        run = self.runs[-1] if self.runs else ""
        self._write("file", self._number, path, *identity, algorithm, run, rest, ctime_ns)
        return self._number

    def chunk(self, number: int, offset: int, length: int, digest: str) -> None:
        self._write("chunk", number, offset, length, digest)

    def done(self, number: int) -> None:
        self._under_way.discard(number)
        self._write("done", number)

    def _write(self, *line: object) -> None:
        """Write a line at once: a killed process loses none that was written.

        Not fsynced: after a power cut the lines that are lost cost reading, not sending.
        """
        if self._fd is None:
            return
        with contextlib.suppress(OSError):  # a full disk is no reason to end the copy
            os.write(self._fd, json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")

    def _begin_anew(self, fd: int) -> None:
        """Write the journal anew, with only what a copy without files under way has to know."""
        os.ftruncate(fd, 0)
        for nonce in self.runs[-1:]:
            self._write("run", nonce)

    def close(self, complete: bool) -> None:
        """Delete the journal when the copy is complete; keep it otherwise."""
        if self._fd is None:
            return
        # A disk that fails is no reason for the copy to: what is left is checked before it is used.
        with contextlib.suppress(OSError):
            if complete or not os.fstat(self._fd).st_size:
                os.unlink(self._path)
            elif not (self._under_way or self._found):  # else it would grow with each run
                self._begin_anew(self._fd)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # a process forked meanwhile has it open, too
        os.close(self._fd)


def _number(value: object) -> int:
    """Return a file's number, an offset or a length. Raises ValueError for one out of bounds."""
    number = answers.integer(value)
    if not 0 <= number < 1 << 63:
        raise ValueError("a number out of bounds")
    return number


def _inside(size_bytes: int, found: list[tuple[Extent, str]]) -> Iterator[tuple[Extent, str]]:
    """Yield those of ascending extents that are inside the file and overlap none before them."""
    end = 0
    for (offset, length), digest in found:
        if offset >= end and 0 < length <= size_bytes - offset:
            yield (offset, length), digest
            end = offset + length


def open_when_free(key: str, keep: bool, wait_s: float, note: Callable[[str], object]) -> Journal:
    """Return the journal; wait for so long at most while another run has it, and note that.

    Raises as Journal() does, and the error by which the call is to end.
    """
    end_s, is_told = time.monotonic() + wait_s, False
    while True:
        try:
            return Journal(key, keep)
        except CopyRunning as error:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise
            if not is_told:
                note(f"{error.message}; waiting for it")
            is_told = True
        stops.pause(min(left_s, _LOOK_S))
