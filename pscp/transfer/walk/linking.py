"""Has the sink make names of files that lie unchanged in other folders, instead of sending them.

This is --link-dest for what was looked up: what differs at the destination, or is not there.

Not here: whole folders at once (folder_check.py), how a file is compared and linked
(endpoint/there/linkdest.py), what is sent of the others (lookups.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import hashes
from pscp.endpoint.reading import source
from pscp.endpoint.there.hardlinks import LinkFolders, LinkSame
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import unexpected
from pscp.transfer.pieces.plan import (
    MEMORY_BYTES,
    QUESTION_BYTES,
    QUESTION_ITEMS,
    Ask,
    Failure,
    PlannedEntry,
    grouped,
    small_together,
    weight_bytes,
)
from pscp.transfer.walk.decide import There, is_hashed
from pscp.transfer.walk.items import Items

Pair = tuple[PlannedEntry, There]
GoOn = Callable[[list[Pair]], None]


class Linking:
    """Links what can be linked, and goes on with the rest. Only the queue runs it."""

    def __init__(self, items: Items) -> None:
        self._items, self._terms, self._queue = items, items.terms, items.terms.queue
        options = self._terms.options
        algorithm = hashes.STRONG if options.strong else self._terms.algorithm
        self._algorithm = algorithm if is_hashed(options) else ""
        self._queue.add(Ask(False, LinkFolders(), self._folders, unexpected, is_prompt=True))

    def _folders(self, answer: object) -> None:
        """Tell which folders cannot be used."""
        folders = self._terms.options.link_dest
        for folder, problem in zip(folders, answers.texts(answer), strict=True):
            if problem:
                text = f"--link-dest {folder}: {problem}, so nothing of it is linked"
                self._queue.write_later(partial(self._terms.reporter.note, text))

    def take(self, pairs: list[Pair], go_on: GoOn) -> None:
        """Link these items, and call `go_on` with those that cannot be, now or later."""

        def weigh(pair: Pair) -> int:
            return weight_bytes(pair[0].entry) + 64  # a digest as well

        for group in grouped(pairs, weigh, QUESTION_BYTES, QUESTION_ITEMS):
            self._ask(group, [], go_on)

    def _ask(self, group: list[Pair], digests: list[str], go_on: GoOn) -> None:
        """Have the sink link these; the digests are of each, once the source has hashed them."""

        def then(answer: object) -> None:
            linked: list[PlannedEntry] = []
            known: list[str] = []
            left: list[Pair] = []
            to_hash: list[Pair] = []
            rows = answers.items(answer)
            for pair, digest, found in zip(group, digests or [""] * len(group), rows, strict=True):
                if found is None:
                    linked.append(pair[0])
                    known.append(digest)
                    if pair[1].left:
                        self._items.ending.add_unwanted(pair[0].entry.path, pair[1].left)
                elif self._algorithm and not digests and answers.integer(found) >= 0:
                    to_hash.append(pair)
                else:
                    left.append(pair)
            self._items.linked(linked, known)
            go_on(left)
            for some in small_together(to_hash, lambda pair: pair[0].entry):
                self._hash(some, go_on)

        def failed(_: Failure) -> None:
            go_on(group)

        request = LinkSame([item.entry for item, _ in group], digests, self._algorithm)
        cost_bytes = len(group) * MEMORY_BYTES
        self._queue.add(Ask(False, request, then, failed, cost_bytes=cost_bytes))

    def _hash(self, group: list[Pair], go_on: GoOn) -> None:
        files = [(source.listed(item.known), [(0, item.entry.size)]) for item, _ in group]

        def then(answer: object) -> None:
            read: list[Pair] = []
            digests: list[str] = []
            answered = answers.digests(answer, (extents for _, extents in files))
            for pair, found in zip(group, answered, strict=True):
                if isinstance(found, dict) or not isinstance(found[0], str):
                    go_on([pair])  # to read it again fails as well, and says so
                elif not self._terms.job.is_expected(pair[0].entry.path, found[0]):
                    go_on([pair])  # to copy it fails
                else:
                    read.append(pair)
                    digests.append(found[0])
            if read:
                self._ask(read, digests, go_on)

        request = requests.Digests(files, self._algorithm)
        self._queue.add(Ask(True, request, then, unexpected, cost_bytes=len(group) * MEMORY_BYTES))
