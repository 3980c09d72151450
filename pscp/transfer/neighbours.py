"""Copies to several destinations, one of which would undo another: its mirror would delete what
that one has brought, or its backups would replace it.

By names that is told before anything is contacted (../ground/locations.py). A host may have several
names, and a folder links to it: so each copy that has reached its place compares it with those that
the others have reached, before it changes anything.

Not here: whether two destinations of a move are one place (terms/twins.py).
"""

from __future__ import annotations

import posixpath
import threading
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

from pscp.endpoint.asking import requests
from pscp.ground.contexts import holding
from pscp.ground.errors import DestinationError
from pscp.ground.locations import Reach, backups_beside, may_undo, what_undoes
from pscp.options.options import Options
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import ignored
from pscp.transfer.pieces.plan import Ask
from pscp.transfer.terms.copy_terms import CopyTerms

_here: ContextVar[Neighbours | None] = ContextVar("neighbours", default=None)


class _Place(NamedTuple):
    """Where a copy goes, by the real paths of the machine there."""

    disk: str  # tells the file system of the root from all of all machines
    inode: str
    root: str
    reach: Reach


class Neighbours:
    """The places that the copies to several destinations have reached. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._places: dict[str, _Place] = {}

    def here(self) -> AbstractContextManager[None]:
        """Have the copies that this thread makes in the block be some of these."""
        return holding(_here, self)

    def check(self, terms: CopyTerms) -> None:
        """Note where a copy goes. Raises DestinationError where it, or another, would undo what the
        other one does. For the main thread of the copy, before anything is sent.

        Over SFTP, and where no Linux is there, nothing tells what machine it is.
        """
        from pscp.endpoint.there import moving  # here: few copies need it

        told: list[str] = []

        def learn(answer: object) -> None:
            told.append(answers.text(answers.items(answer)[0]))

        terms.queue.put(Ask(False, moving.Destination(""), learn, ignored))
        terms.queue.wait_for(terms.queue.is_idle)
        disk, _, inode = "".join(told).rpartition(" ")
        if not disk:
            return
        root = terms.target.root
        folders = tuple(posixpath.join(root, name).rstrip("/") for name in terms.target.names)
        backups = backups_beside(root, terms.options.backup_dir)
        place = _Place(disk, inode, root, Reach(terms.to.text, folders, backups))
        why, hint = self._add(place, mirrors=terms.options.delete)
        if why:
            terms.queue.put(Ask(False, requests.Release(), ignored, ignored, is_prompt=True))
            terms.queue.wait_for(terms.queue.is_idle)
            raise DestinationError(why, hint)

    def _add(self, place: _Place, *, mirrors: bool) -> tuple[str, str]:
        """Add a place, unless a copy there and one to another would undo each other. Return why."""
        with self._lock:
            for other in self._places.values():
                if other.reach.text == place.reach.text or not _may_meet(place, other):
                    continue
                for pair in ((place.reach, other.reach), (other.reach, place.reach)):
                    why, hint = what_undoes(*pair, mirrors=mirrors)
                    if why:
                        return why, hint
            self._places[place.reach.text] = place
            return "", ""


def _may_meet(one: _Place, other: _Place) -> bool:
    """Return whether paths of these two are of one machine, and they are not one place.

    A path that leads to two folders is of two containers of one machine.
    """
    is_one_path = one.root == other.root
    is_one = is_one_path and one.reach.folders == other.reach.folders
    return one.disk == other.disk and not is_one and not (is_one_path and one.inode != other.inode)


def neighbours_of(options: Options) -> Neighbours | None:
    """Return those of a copy that this thread makes, if one of them could undo another."""
    may = may_undo(mirrors=options.delete, backup_dir=options.backup_dir)
    return _here.get() if may and not (options.dry_run or options.transfer_test) else None
