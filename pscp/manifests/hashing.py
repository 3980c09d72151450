"""Reads the files of a tree: what each is, and the digests of the extents that are wanted of it.

Small files share a request, and a large one is hashed by several, by several lanes at once.

Not here: who answers (trees.py), what is made of it (making.py, comparing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from pscp.endpoint.frames import failures, hashes
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.files import Extent
from pscp.endpoint.there import lookup
from pscp.manifests.trees import Tree
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import QUESTION_BYTES, QUESTION_ITEMS, Failure, batches, grouped
from pscp.transfer.walk.decide import There, parse_lookup_row

GROUP_BYTES = 64 * 1024 * 1024  # what is hashed for one request
# What a request counts in the window of a lane, 16 MiB: so none takes more than a few of them, and
# the others get some.
_COST_BYTES = 4 * 1024 * 1024
_AHEAD = 8  # pieces of one file at once
_EXTENT_WEIGHT_BYTES = 128  # as JSON: its two numbers, and its digest in the answer


class Item(Protocol):
    """A file that is to be read."""

    path: str

    def extents(self, there: There) -> Iterable[Extent] | None:
        """Return what is to be hashed of the file, of which there is this; None for nothing."""

    def read(self, there: There, read_bytes: int) -> None:
        """Count more bytes that were hashed of the extents."""

    def done(self, there: There, digests: list[str | None], failure: Failure | None) -> None:
        """Take the digests, in the order of the extents; None for one past the file's end."""


_Piece = tuple["_Hashed", int, list[Extent]]  # with the place of the first extent


class _Hashed:
    """A file some of whose extents are being hashed. Of a size that a far end has made up, it costs
    no memory but for what is answered.
    """

    def __init__(
        self, item: Item, there: There, extents: Iterable[Extent], group_bytes: int
    ) -> None:
        self.item, self.there = item, there
        self._groups = batches(extents, group_bytes)
        self.digests: list[str | None] = []  # of the extents of which pieces were made
        self.failure: Failure | None = None
        self.pieces = 0  # that are not answered

    def next_piece(self) -> list[_Piece]:
        """Return the next piece; nothing after the last one, or a failure."""
        extents = next(self._groups, []) if self.failure is None else []
        if not extents:
            return []
        place = len(self.digests)
        self.digests += [None] * len(extents)
        self.pieces += 1
        return [(self, place, extents)]


class Hashing:
    """Hashes the files of one tree. What `then` calls runs one at a time."""

    def __init__(self, tree_: Tree, looks_again: bool = False) -> None:
        """Hash files; with `looks_again` one that changes meanwhile has failed."""
        self._tree, self._looks_again = tree_, looks_again

    def run(self, items: Iterable[Item]) -> None:
        """Read all of them. Raises what stops it as a whole."""
        for group in grouped(items, _weight_bytes, QUESTION_BYTES, QUESTION_ITEMS):
            look = lookup.Lookup([item.path for item in group])
            self._tree.put(look, self._then_hash(group), _COST_BYTES)
        self._tree.finish()

    def _then_hash(self, items: list[Item]) -> Callable[[object], None]:
        def then(answer: object) -> None:
            rows = answers.items(answer)
            begun = [
                self._begin(item, parse_lookup_row(row))
                for item, row in zip(items, rows, strict=True)
            ]
            pieces = [piece for each in begun for piece in each]
            for group in grouped(pieces, _cost_of, GROUP_BYTES, QUESTION_ITEMS):
                self._ask(group)

        return then

    def _begin(self, item: Item, there: There) -> list[_Piece]:
        extents = item.extents(there)
        if extents is None:
            item.done(there, [], None)
            return []
        # What is read back is read once for a whole file and its chunks, if one request has both.
        group_bytes = 2 * GROUP_BYTES if self._tree.reads_back else GROUP_BYTES
        hashed = _Hashed(item, there, extents, group_bytes)
        return [piece for _ in range(_AHEAD) for piece in hashed.next_piece()]

    def _ask(self, pieces: list[_Piece]) -> None:
        files = [(False, hashed.item.path, extents) for hashed, _, extents in pieces]

        def then(answer: object) -> None:
            over: list[_Hashed] = []
            more: list[_Piece] = []
            digests = answers.digests(answer, (extents for _, _, extents in pieces))
            for (hashed, place, extents), found in zip(pieces, digests, strict=True):
                if isinstance(found, dict):
                    hashed.failure = hashed.failure or found
                else:
                    hashed.digests[place : place + len(found)] = found
                    hashed.item.read(hashed.there, sum(length for _, length in extents))
                hashed.pieces -= 1
                more += hashed.next_piece()
                if not hashed.pieces:
                    over.append(hashed)
            for piece in more:
                self._ask([piece])
            self._over(over)

        self._tree.add(lookup.DigestsThere(files, hashes.STRONG), then, _COST_BYTES)

    def _over(self, over: list[_Hashed]) -> None:
        if not self._looks_again:
            for each in over:
                each.item.done(each.there, each.digests, each.failure)
            return

        def then(answer: object) -> None:
            for each, row in zip(over, answers.items(answer), strict=True):
                failure = each.failure
                if failure is None and parse_lookup_row(row)[:3] != each.there[:3]:
                    why = "changed while it was hashed"
                    failure = failures.data(failures.CHANGED, each.item.path, why)
                each.item.done(each.there, each.digests, failure)

        if over:
            look = lookup.Lookup([each.item.path for each in over])
            self._tree.add(look, then, _COST_BYTES)


def is_file(there: There) -> bool:
    return there.kind == tree.FILE


def _weight_bytes(item: Item) -> int:
    return 6 * len(item.path) + 64


def _cost_of(piece: _Piece) -> int:
    """Return what a piece counts in a request: what is hashed, and its share of the frame."""
    hashed, _, extents = piece
    weight_bytes = 6 * len(hashed.item.path) + _EXTENT_WEIGHT_BYTES * len(extents)
    return sum(length for _, length in extents) + weight_bytes * (GROUP_BYTES // QUESTION_BYTES)
