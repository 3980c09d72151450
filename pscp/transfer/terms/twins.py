"""Destinations of one move that may be names of one place: then one copy is there, and not two.

With the agent a copy learns what tells its place from all others. Over SFTP nothing does, so a copy
that begins looks in its own place for what is in that of another: its fence, as long as that copy
runs, and then some files that have landed there. What is looked for and is not there tells two
places apart; a fence that is there tells that they are one.

Not here: the looks (../ending/moving.py), what all destinations hold (moves.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import NamedTuple

from pscp.endpoint.reading.source import Top


class ShownFile(NamedTuple):
    """A file that a copy has landed, or found there: its source, and its path below that."""

    top: Top
    path: str


class Shown(NamedTuple):
    """What shows where a copy goes: its fence in the root, and once the fence goes, some files."""

    fence: str  # its name; "" where there is none any more
    names: tuple[str, ...]  # of the sources below the root, folded
    landed: tuple[ShownFile, ...] = ()


class Twins:
    """What is known of where the destinations of a move are. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._places: dict[str, str] = {}  # what tells each from all others; "": not known
        self._shown: dict[str, Shown] = {}
        self._seen: dict[tuple[str, str], Shown] = {}  # who has looked for whose, and for what
        self._apart = set[frozenset[str]]()
        self._same = set[frozenset[str]]()

    def show(self, destination: str, shown: Shown) -> None:
        """Have copies to other destinations look for this, which is there until hide()."""
        with self._lock:
            self._shown[destination] = shown

    def hide(self, destination: str, landed: Iterable[ShownFile] = ()) -> None:
        """Have nobody look for this copy's fence any more, but for files that have landed."""
        with self._lock:
            shown = self._shown.get(destination)
            if shown is None or not shown.fence:
                return
            del self._shown[destination]
            if files := tuple(landed):
                self._shown[destination] = Shown("", shown.names, files)

    def at(self, destination: str, place: str) -> None:
        """Note what tells where a destination is, however it is called; "": not known."""
        with self._lock:
            self._places[destination] = place

    def unseen(self, destination: str) -> list[tuple[str, Shown]]:
        """Return what is shown of other destinations, and was not looked for in this one."""
        with self._lock:
            return [
                (other, shown)
                for other, shown in self._shown.items()
                if other != destination and self._seen.get((destination, other)) is not shown
            ]

    def saw(
        self,
        destination: str,
        names: Iterable[str],
        other: str,
        shown: Shown,
        is_there: bool | None,
    ) -> None:
        """Note what came of a look for another's in this one.

        Args:
            names: as those of Shown.
            is_there: whether all of it is; None: it could not be looked for.
        """
        pair, own = frozenset([destination, other]), tuple(names)
        with self._lock:
            if self._shown.get(other) is not shown:
                return  # it was there when the look began, and may have gone before that came
            self._seen[destination, other] = shown
            if is_there is None:
                return
            if shown.fence and is_there and own == shown.names:
                self._same.add(pair)
            elif shown.fence and is_there:
                self._apart |= set() if {*own} & {*shown.names} else {pair}
            elif not is_there and (not shown.fence or own == shown.names):
                self._apart.add(pair)

    def why_not_several(self) -> str:
        """Return why a file that all destinations hold may be there only once; "" if it is not."""
        with self._lock:
            pairs = [*itertools.combinations(self._places, 2)]
            for one, other in pairs:
                place = self._places[one]
                is_one = frozenset([one, other]) in self._same
                if is_one or (place and place == self._places[other]):
                    return f"{one} and {other} are names of one place: name it once"
            for one, other in pairs:
                are_known = self._places[one] and self._places[other]
                if not are_known and frozenset([one, other]) not in self._apart:
                    return (
                        f"it cannot be told whether {one} and {other} are one place; "
                        "--remote agent tells, or copies that run at the same time"
                    )
        return ""
