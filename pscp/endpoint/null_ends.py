"""The two ends of a transfer test (-t): made-up data, and a sink that verifies and writes nothing.

What this sink does with frames, every sink does; sink.py has the one that writes.

Not here: what every source does (source.py).
Read next: sink.py.
"""

import itertools
import os
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple

from . import entries, failures, files, hashes, source, system, tree, wire
from .session import Arriving

if TYPE_CHECKING:
    from . import commit

Done = Callable[[List[Optional[failures.Data]]], None]


class _MadeUp:
    """A file that is not read: its blocks are whatever is in the room."""

    def __init__(self, size: int) -> None:
        self._size = size

    def blocks(self, offset: int, length: int, room: memoryview) -> Iterator[system.Block]:
        for left in range(length, 0, -len(room)):
            yield system.Block(room[: min(left, len(room))], -1, 0)

    def extents(self, offset: int, most: int) -> List[files.Extent]:
        return [(offset, self._size - offset)] if offset < self._size else []

    def close(self) -> None:
        pass


class MadeUpSource(source.Source):
    """The transfer test's source: real names and sizes, made-up data, no disk read."""

    def __init__(
        self,
        tops: List[source.Top],
        rules: tree.Rules,
        algorithm: str,
        block_bytes: int,
        strong: bool,
    ) -> None:
        super().__init__(tops, rules, algorithm, block_bytes, strong)
        pattern = os.urandom(4096)  # does not compress within a packet
        self._room[:] = bytes(itertools.islice(itertools.cycle(pattern), len(self._room)))

    def _opened(self, value: tree.Entry) -> _MadeUp:
        return _MadeUp(value.size)

    def _whole(self, value: tree.Entry) -> bytes:
        return bytes(value.size)


class NullSink:
    """The transfer test's sink: verifies what comes, writes nothing."""

    place: Optional[wire.Place] = None  # a block is read where it is, and looked at there

    def __init__(self, algorithm: str, strong: bool) -> None:
        self._algorithm, self._strong = algorithm, strong
        self._known: Dict[int, tree.Entry] = {}
        self._arriving = Arriving()
        self._hasher = hashes.new(algorithm)

    # --- large files, by chunks

    def know(self, id_: int, value: tree.Entry) -> None:
        """From now on `id_` is this file."""
        self._known[id_] = value

    def forget(self, id_: int) -> None:
        """Have `id_` be no file any more."""
        self._known.pop(id_, None)

    def _entry(self, id_: int) -> tree.Entry:
        if id_ not in self._known:
            raise wire.WireError("bytes for a file that was not announced")
        return self._known[id_]

    def write(self, id_: int, offset: int, block: memoryview, check: bytes = b"") -> None:
        """Take a block of the chunk that is arriving, with its check, if it has one."""
        if self._arriving.block(id_, offset, len(block), self._entry(id_).size):
            self._hasher = hashes.new(self._algorithm)
        self._hasher.update(block)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> Tuple[bool, int, Optional[failures.Data]]:
        """Take a chunk's digest: does it match; the receipt; what went wrong."""
        self._arriving.complete(id_, offset, length)
        return self._hasher.digest() == digest, wire.SOME_PART, None

    def abandon(self) -> None:
        """The source could not read the rest of the chunk that is arriving."""
        self._arriving.abandon()

    def make(self, value: tree.Entry) -> int:
        """Make the part of a file that has no chunk, being one hole; returns its receipt."""
        return wire.SOME_PART

    def finish(self, value: tree.Entry, strong: str, receipt: int, done: Done) -> None:
        """All chunks landed in the part with this receipt: make it the file, soon."""
        done([None])

    # --- small files, folders and links, by packs

    def pack(
        self, listed: List[tree.Entry], rows: List[object], bodies: memoryview, done: Done
    ) -> None:
        """Take a pack. `done` gets, per entry, None or its failure; it may come later."""
        outcome: List[Optional[failures.Data]] = [None] * len(listed)
        parts: Dict[int, commit.Part] = {}  # by their places, in this order
        offset = 0
        checked = entries.check_sizes(listed, rows, len(bodies))
        for place, (value, row) in enumerate(zip(listed, checked)):
            if not isinstance(row, str):
                outcome[place] = row
                continue
            body = bodies[offset : offset + value.size]
            offset += len(body)
            try:
                part = self._small(value, row, body)
            except (OSError, failures.Refusal) as error:
                outcome[place] = failures.from_exception(error, value.path)
                continue
            if part is not None:
                parts[place] = part

        def settled(found: List[Optional[failures.Data]]) -> None:
            for place, failure in zip(parts, found):
                outcome[place] = failure
            done(outcome)

        self.make_names_durable([each for each in listed if each.kind == tree.LINK])
        self._settle(list(parts.values()), settled)

    def _small(self, value: tree.Entry, digest: str, body: memoryview) -> "Optional[commit.Part]":
        if value.kind == tree.FOLDER:
            self._make_folder(value)
        elif value.kind == tree.LINK:
            self._make_link(value)
        else:
            hasher = hashes.new(hashes.STRONG if self._strong else self._algorithm)
            hasher.update(body)
            if hasher.digest().hex() != digest:
                raise failures.Refusal(failures.DAMAGED, value.path, "arrived damaged")
            return self._make_part(value, digest, body)
        return None

    def _make_part(
        self, value: tree.Entry, digest: str, body: memoryview
    ) -> "Optional[commit.Part]":
        return None

    def _make_folder(self, value: tree.Entry) -> None:
        pass

    def _make_link(self, value: tree.Entry) -> None:
        pass

    def _settle(self, parts: "List[commit.Part]", done: Done) -> None:
        done([])

    def make_names_durable(self, made: List[tree.Entry]) -> None:
        """Sync the folder of each of these folders and links, once."""

    # --- after all files

    def hard_link(self, value: tree.Entry) -> None:
        """Make the file another name of one that was copied."""

    def finish_folder(self, value: tree.Entry) -> None:
        """Everything in the folder has landed: give it its metadata."""

    def discard(self, path: str, nonces: List[str]) -> bool:
        """Remove the parts of the file that these runs left, "" being this one.

        False where one of them is still there.
        """
        return True

    def revoke(self, lane: int) -> None:
        """A lane of this run was lost: nothing that it still has on its way is done."""

    def release(self) -> None:
        """The copy is complete: no run owns it any more, and late bytes find no way in."""

    def close(self) -> None:
        """Close what is open, once all that was requested is done."""
