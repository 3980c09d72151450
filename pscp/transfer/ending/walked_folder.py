"""The names of a folder that a mirror's walk is in, by which it is asked what else DEST has there.

Not here: what asks, and deletes (mirror.py).
"""

from __future__ import annotations

import json
from typing import Any

from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes
from pscp.endpoint.reading.rows import Listing
from pscp.transfer.pieces.plan import PlannedEntry

_PIECE_BYTES = 640 * 1024  # of a folder's names in one request, of which a frame holds 1 MiB

# A piece of a folder's names, as a row of a spool: the number of the source, the folder at DEST,
# its inode at the source (None: the source has no such folder), the names between which these are,
# and these.
Piece = list[Any]


class WalkedFolder:
    """A folder that the walk is in. What its listing has, need not be kept of it."""

    def __init__(self, item: PlannedEntry, of_folder: Listing | None) -> None:
        self.known, self.path = item.known, item.entry.path
        self.last = ""  # the last name that came
        self.go_on(of_folder)

    def go_on(self, of_folder: Listing | None) -> None:
        """Keep names from here on, but none that this listing has."""
        self.is_listed = of_folder is not None and not of_folder.up_to  # to the folder's last name
        self.low = of_folder.up_to if of_folder is not None else ""  # where the piece begins
        self.names: list[str] = []
        self._names_bytes = 0

    def holds(self, entry: tree.Entry) -> bool:
        above = self.known.path
        return entry.top == self.known.top and (not above or entry.path.startswith(above + "/"))

    def add(self, name: str) -> Piece | None:
        """Keep a name. Return the piece of those before it where a request has no room for more."""
        full = self.piece(self.last) if self._names_bytes >= _PIECE_BYTES else None
        if full is not None:
            self.go_on(None)
            self.low = self.last
        self.names.append(name)
        self._names_bytes += len(json.dumps(name)) + 2
        self.last = name
        return full

    def ends_before(self, further: Listing) -> bool:
        """Return whether no name came so far that is behind where a further listing begins."""
        came = max(to_bytes(self.low), to_bytes(self.last))
        return not self.is_listed and came <= to_bytes(further.after)

    def lists(self, name: str) -> bool:
        """Return whether the folder's listing has this name."""
        return self.is_listed or (self.low != "" and to_bytes(name) <= to_bytes(self.low))

    def piece(self, high: str) -> Piece:
        return [self.known.top, self.path, self.known.inode, self.low, high, self.names]
