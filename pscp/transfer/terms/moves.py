"""Moves of the same sources by several copies: a file leaves its source only once every
destination holds it.

Not here: what one copy has landed (../ending/moving.py), whether two destinations are one place
(twins.py), the last look and the removal (../../endpoint/there/moving.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pscp.endpoint.reading.paths import to_bytes
from pscp.endpoint.reading.source import Top
from pscp.ground.errors import CopyError, UsageError
from pscp.ground.locations import Location, as_location
from pscp.transfer.terms.twins import Twins

Place = str | os.PathLike[str] | Location


class State(NamedTuple):
    """A file of the sources in one state of it. Both are digests: there may be millions."""

    file: bytes  # tells it from all others
    state: bytes


class Moves:
    """Copies that move: one object for all of them, as `moves` of their pscp.JobTerms.

    The last copy to finish removes, at the source, each file that all of them have landed and
    verified in this program's run, or found there with the same digest; if it still is the very
    file that was copied. None is removed where two destinations are one place, or may be (over SFTP
    only what one has and the other has not tells), or where a copy fails as a whole, or its place
    is the source itself. With one destination it is as with the option remove_source_files. Sources
    are files here.

    Args:
        destinations: one or several, each as it is given to its copy.
        folder: where the files are moved instead, each with its path from its source's name on,
            and replacing nothing. It is on the sources' file system, in none of them, and is made
            where it is missing.

    Raises UsageError. Any thread may use it.
    """

    def __init__(
        self, destinations: Place | Sequence[Place], folder: str | os.PathLike[str] | None = None
    ) -> None:
        places = (
            [destinations]
            if isinstance(destinations, str | os.PathLike | Location)
            else destinations
        )
        texts = [as_location(each).text for each in places]
        self._destinations = frozenset(texts)
        if not texts or len(texts) > len(self._destinations):
            raise UsageError("moves: there is no destination, or one is named twice")
        if folder is not None and not os.fspath(folder):
            raise UsageError("moves: the folder has no name")
        self.folder = "" if folder is None else os.path.abspath(folder)
        self.twins = Twins()
        self._lock = threading.Lock()  # guards what follows
        self._finished = set[str]()  # destinations
        self._moved = 0
        # In a temporary file.
        self._landed = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._landed.execute(
            "CREATE TABLE landed (file, state, destination,"
            " PRIMARY KEY (file, state, destination)) WITHOUT ROWID"
        )
        weakref.finalize(self, self._landed.close)

    def check(self, destination: str, tops: Sequence[Top]) -> None:
        """Raise UsageError where these sources here cannot be moved so, before anything is done."""
        if destination not in self._destinations:
            raise UsageError(f"{destination} is none of the destinations of `moves`")
        self.check_apart(tops)
        if self.folder:
            self._check_disk(tops)

    def check_apart(self, tops: Sequence[Top]) -> None:
        """Raise UsageError where one of these sources is in another one, or the folder in one."""
        paths = sorted(map(_real, tops), key=lambda path: path.split(b"/"))
        for one, other in itertools.pairwise(paths):
            if (other + b"/").startswith(one.rstrip(b"/") + b"/"):
                what = f"{os.fsdecode(other)} is in another source, {os.fsdecode(one)}"
                raise UsageError(f"{what}, so it cannot be told when it has landed")
        there = _existing(self._real_folder) if self.folder else []
        is_in = {_identity(path) for path in there}
        for top in tops if self.folder else ():
            source = _real(top)
            if top.is_folder and _identity(source) in is_in:
                raise UsageError(f"{self._where(top)} is in that source")
            parent = os.path.dirname(source)
            is_there = there[0] == self._real_folder and os.path.isdir(parent)
            if top.name and is_there and os.path.samefile(parent, there[0]):
                raise UsageError(f"{self._where(top)} has it already")

    def _check_disk(self, tops: Sequence[Top]) -> None:
        """Raise UsageError where a source cannot be renamed into the folder."""
        there = _existing(self._real_folder)[0]
        if not os.path.isdir(there):
            raise UsageError(f"{os.fsdecode(there)} is no folder to move to")
        for top in tops:
            source = _real(top)  # some filesystems give files other devices
            own = source if top.is_folder else os.path.dirname(source)
            if os.stat(there).st_dev != os.stat(own).st_dev:
                what = f"{self._where(top)} is on another file system"
                raise UsageError(what, "name a folder on the same")

    @property
    def _real_folder(self) -> bytes:
        return os.path.realpath(to_bytes(self.folder))

    def _where(self, top: Top) -> str:
        return f"{self.folder}, where {top.path} is to be moved,"

    @property
    def are_several(self) -> bool:
        return len(self._destinations) > 1

    def begin(self, destination: str) -> None:
        """A copy to this destination begins, perhaps once more: nothing has landed there yet."""
        with self._lock, _room():
            self._finished.discard(destination)
            self._landed.execute("DELETE FROM landed WHERE destination = ?", (destination,))

    def finish(self, destination: str, files: Iterable[State]) -> bool:
        """Note what has landed at this destination. Return whether it was the last one."""
        with self._lock, _room():
            self._landed.execute("BEGIN")
            rows = ((*file, destination) for file in files)
            self._landed.executemany("INSERT OR IGNORE INTO landed VALUES (?, ?, ?)", rows)
            self._landed.execute("COMMIT")
            self._finished.add(destination)
            return self._finished == self._destinations

    def count_moved(self, files: int) -> None:
        """Note that so many files have been removed at the source, or renamed."""
        with self._lock:
            self._moved += files

    @property
    def moved(self) -> int:
        """How many files have been removed at the source so far, or renamed."""
        return self._moved

    def is_everywhere(self, file: State) -> bool:
        """Return whether every destination holds this file, in this state."""
        query = "SELECT count(*) FROM landed WHERE file = ? AND state = ?"
        return self._count(query, file) == len(self._destinations)

    def has_changed(self, file: State) -> bool:
        """Return whether a destination holds this file in another state."""
        return self._count("SELECT count(*) FROM landed WHERE file = ? AND state <> ?", file) > 0

    def _count(self, query: str, file: State) -> int:
        with self._lock, _room():
            number: int = self._landed.execute(query, file).fetchone()[0]
            return number


def _real(top: Top) -> bytes:
    """Return where a source is; a link to a file stays one."""
    path = to_bytes(top.path)
    if top.is_folder:
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder or b"."), name)


def _existing(folder: bytes) -> list[bytes]:
    """Return what there is of a folder and the folders above it: the innermost first."""
    above = [folder]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    return [path for path in above if os.path.lexists(path)]


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CopyError(
            f"no room for the list of what has landed: {error}",
            "set TMPDIR to a folder with more room; nothing more is removed at the source",
        ) from None
