"""Has the sink make names of files that lie unchanged in other folders, instead of sending them.

This is --link-dest for what was looked up: what differs at the destination, or is not there.

Not here: whole folders at once (folder_check.py), how a file is compared and linked
(endpoint/linkdest.py), what is sent of the others (resume.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pscp.endpoint import hashes, requests, source
from pscp.endpoint.hardlinks import LinkFolders, LinkSame
from pscp.transfer.ending.ending import Ending
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import (
    MEMORY_BYTES,
    QUESTION_BYTES,
    QUESTION_ITEMS,
    Ask,
    Failure,
    Placed,
    goes_in_pack,
    grouped,
    weight_bytes,
)
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.results import Results
from pscp.transfer.walk.decide import There, is_hashed

Pair = tuple[Placed, There]
GoOn = Callable[[list[Pair]], None]


class Copy(Protocol):
    """What this needs of its copy."""

    terms: CopyTerms
    results: Results
    ending: Ending

    def linked(self, items: list[Placed], digests: list[str]) -> None: ...


class Linking:
    """Links what can be linked, and goes on with the rest. Only the queue runs it."""

    def __init__(self, copy: Copy) -> None:
        self._copy, self._terms, self._queue = copy, copy.terms, copy.terms.queue
        options = self._terms.options
        algorithm = hashes.STRONG if options.strong else self._terms.algorithm
        self._algorithm = algorithm if is_hashed(options) else ""

    def ask_for_folders(self) -> None:
        """Have it told which folders cannot be used."""

        def then(answer: object) -> None:
            for folder, problem in zip(
                self._terms.options.link_dest, answers.texts(answer), strict=True
            ):
                if problem:
                    self._note(f"--link-dest {folder}: {problem}, so nothing of it is linked")

        self._queue.add(Ask(False, LinkFolders(), then, self._bug, is_prompt=True))

    def _note(self, text: str) -> None:
        self._queue.write_later(lambda: self._terms.reporter.note(text))

    def _bug(self, failure: Failure) -> None:
        raise ValueError(failure["message"])

    def take(self, pairs: list[Pair], go_on: GoOn) -> None:
        """Link these items, and call `go_on` with those that cannot be, now or later."""
        for group in grouped(pairs, _weight_bytes, QUESTION_BYTES, QUESTION_ITEMS):
            self._ask(group, [], go_on)

    def _ask(self, group: list[Pair], digests: list[str], go_on: GoOn) -> None:
        """Have the sink link these; the digests are of each, once the source has hashed them."""

        def then(answer: object) -> None:
            linked: list[Placed] = []
            known: list[str] = []
            left: list[Pair] = []
            to_hash: list[Pair] = []
            rows = answers.items(answer)
            for pair, digest, found in zip(group, digests or [""] * len(group), rows, strict=True):
                if found is None:
                    linked.append(pair[0])
                    known.append(digest)
                    if pair[1].left:
                        self._copy.ending.add_unwanted(pair[0].entry.path, pair[1].left)
                elif self._algorithm and not digests and answers.integer(found) >= 0:
                    to_hash.append(pair)
                else:
                    left.append(pair)
            self._copy.linked(linked, known)
            go_on(left)
            for some in _groups(to_hash):
                self._hash(some, go_on)

        def failed(_: Failure) -> None:
            go_on(group)

        request = LinkSame([item.entry for item, _ in group], digests, self._algorithm)
        cost_bytes = len(group) * MEMORY_BYTES
        self._queue.add(Ask(False, request, then, failed, cost_bytes=cost_bytes))

    def _hash(self, group: list[Pair], go_on: GoOn) -> None:
        """Have the source hash these files, of which there may be the same ones."""

        def then(answer: object) -> None:
            read: list[Pair] = []
            digests: list[str] = []
            for pair, found in zip(group, answers.digests(answer), strict=True):
                if isinstance(found, dict) or not isinstance(found[0], str):
                    go_on([pair])  # to read it again fails as well, and says so
                else:
                    read.append(pair)
                    digests.append(found[0])
            if read:
                self._ask(read, digests, go_on)

        files = [(source.listed(item.known), [(0, item.entry.size)]) for item, _ in group]
        request = requests.Digests(files, self._algorithm)
        self._queue.add(Ask(True, request, then, self._bug, cost_bytes=len(group) * MEMORY_BYTES))


def _weight_bytes(pair: Pair) -> int:
    return weight_bytes(pair[0].entry) + 64  # a digest as well


def _groups(pairs: list[Pair]) -> list[list[Pair]]:
    """Group small files together, and each large one alone."""
    small = [pair for pair in pairs if goes_in_pack(pair[0].entry)]
    large = [[pair] for pair in pairs if not goes_in_pack(pair[0].entry)]
    return ([small] if small else []) + large
