"""The lines that tell a user which files failed: where, why, and once for each reason what to do.

What the destination refuses for one reason below one folder is one line with a count, and so is
what goes beyond LINES_MOST lines for one reason: nobody reads 200,000 of them in a mail.

Not here: which files failed (results.py), how a line gets to the user (progress/progress.py).
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pscp.endpoint import source, tree
from pscp.ground import errors
from pscp.progress.progress import Reporter

LINES_MOST = 20  # for one reason

# These are about a whole file system, not about a folder of it.
_OF_ALL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS])
_ROOM = "make room there, then run the same command again: what has landed is not sent again"
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "it is mounted read-only there",
}
_NOT_READABLE = "ls -l there shows who may read it; --exclude leaves it out"
_NOT_WRITABLE = "ls -ld there shows who may write in its folder; USER@HOST logs in as another user"


def hint_of(number: int, of_source: bool) -> str:
    """Return what to do about an errno at one end, or ""."""
    if number in (errno.EACCES, errno.EPERM):
        return _NOT_READABLE if of_source else _NOT_WRITABLE
    return _HINTS.get(number, "")


class FilePlaces:
    """Says where a file is that is reported by its path in the manifest, or below the root."""

    def __init__(self, froms: str, tops: Sequence[source.Top], to: str, root: str) -> None:
        """`froms` stands before a source's path, as "host:", and `to` before the destination's.

        `root` is the folder at the destination.
        """
        self._froms, self._to, self._root = froms, to, root
        self._listed = tops
        self._tops = {top.name: top.path for top in tops}

    def of(self, path: str, of_source: bool) -> str:
        """Return `host:/whole/path`, or a path here."""
        if of_source:
            return f"{self._froms}{self._of_source(path)}"
        return f"{self._to}{_joined(self._root, path)}"

    def of_entry(self, known: tree.Entry) -> str:
        """Return the place of an entry as its source knows it."""
        if not 0 <= known.top < len(self._listed):
            return self.of(known.path, of_source=True)
        top = self._listed[known.top]
        return f"{self._froms}{_joined(top.path, known.path[len(top.name) :].strip('/'))}"

    def _of_source(self, path: str) -> str:
        for name in (*_folders(path, itself=True), ""):
            if name in self._tops:
                return _joined(self._tops[name], path[len(name) :].lstrip("/"))
        return path


class _Reason(NamedTuple):
    """Why files failed; those with an equal one are shown together."""

    of_source: bool
    is_system: bool  # an operating system said no
    errno: int
    message: str

    @property
    def has_folder(self) -> bool:
        """Whether it is the folder's rather than the file's."""
        return self.is_system and not self.of_source


@dataclass
class _Line:
    """A line, and how many failures it stands for beside the first."""

    place: str
    error: errors.FileError
    folder: str  # as it is shown
    more: int = 0
    is_below: bool = True  # all others are below the first one, a folder

    @property
    def text(self) -> str:
        where = "it" if self.is_below else self.folder
        rest = f", and {self.more} more below {where}" if self.more else ""
        return f"{self.place}: {self.error.message}{rest}"


class FailureLines:
    """Shows the failures of one copy. Only what the queue runs calls it."""

    def __init__(self, reporter: Reporter, places: FilePlaces, *, all: bool = False) -> None:
        """With `all` each failure has a line of its own."""
        self._note, self._is_live = reporter.note, reporter.is_live
        self._places, self._all = places, all
        self._lines: dict[_Reason, dict[str, _Line]] = {}  # by folder, or file
        self._beyond: Counter[_Reason] = Counter()  # those that have no line
        self._hinted: set[str] = set()

    def add(self, error: errors.FileError, of_source: bool, place: str = "") -> None:
        """Show a failure now, or count it for a line that close() shows.

        `place` is where the file is, unless its path says so.
        """
        place = place or self._places.of(error.path, of_source)
        if self._all:
            self._show(f"{place}: {error.message}", error)
            return
        is_system = isinstance(error, errors.SystemFailure)
        number = error.errno if isinstance(error, errors.SystemFailure) else 0
        reason = _Reason(of_source, is_system, number, error.message)
        lines = self._lines.setdefault(reason, {})
        if reason.has_folder and (line := _line_above(lines, error.path)) is not None:
            line.more += 1
            line.is_below = line.is_below and place.startswith(line.place + "/")
        elif len(lines) >= LINES_MOST:
            self._beyond[reason] += 1
        else:
            folder = "" if number in _OF_ALL else error.path.rpartition("/")[0]
            line = _Line(place, error, self._places.of(folder, of_source))
            lines[folder if reason.has_folder else error.path] = line
            if self._is_live or not reason.has_folder:
                self._show(line.text, error)

    def close(self) -> None:
        """Show what was only counted so far."""
        for reason, lines in self._lines.items():
            for line in lines.values() if reason.has_folder else ():
                if line.more or not self._is_live:
                    self._show(line.text, line.error)
            if beyond := self._beyond[reason]:
                self._note(f"and {beyond} more: {reason.message} (-v shows each)")
        self._lines.clear()

    def _show(self, text: str, error: errors.FileError) -> None:
        self._note(text)
        if error.hint and error.hint not in self._hinted:
            self._hinted.add(error.hint)
            self._note(f"  {error.hint}")


def _line_above(lines: dict[str, _Line], path: str) -> _Line | None:
    for folder in _folders(path):
        if folder in lines:
            return lines[folder]
    return None


def _folders(path: str, *, itself: bool = False) -> Iterator[str]:
    """Yield the folders above a path, the nearest first, up to ""."""
    if itself:
        yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def _joined(folder: str, path: str) -> str:
    folder = folder.removesuffix("/.") if folder != "/." else "/"
    if not path or not folder:
        return folder or path
    return path if folder == "." else f"{folder.rstrip('/')}/{path}"
