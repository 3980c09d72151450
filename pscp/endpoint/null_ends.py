"""The two ends of a transfer test (-t): made-up data, and a sink that verifies and writes nothing.

Not here: what they do as every source and sink does (source.py, sink.py).
"""

import collections
import itertools
import os
from typing import Any, Iterator, List, Optional

from . import failures, files, hashes, sink, source, system, tree, wire
from .session import Arriving


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

    def __init__(self, *args: Any) -> None:
        source.Source.__init__(self, *args)
        pattern = os.urandom(4096)  # does not compress within a packet
        self._room[:] = bytes(itertools.islice(itertools.cycle(pattern), len(self._room)))

    def _opened(self, value: tree.Entry) -> Any:
        return _MadeUp(value.size)

    def _whole(self, value: tree.Entry) -> bytes:
        return bytes(value.size)


class NullSink(sink.Sink):
    """The transfer test's sink: verifies what comes, writes nothing."""

    def __init__(self, algorithm: str) -> None:  # no root, no parts: nothing of Sink's is made
        self._algorithm, self._strong = algorithm, False
        self._known = {}
        self._open = collections.OrderedDict()
        self._arriving = Arriving()
        self._hasher = hashes.new(algorithm)

    def write(self, id_: int, offset: int, block: memoryview) -> None:
        if self._arriving.block(id_, offset, len(block), self._entry(id_).size):
            self._hasher = hashes.new(self._algorithm)
        self._hasher.update(block)

    def complete(
        self, id_: int, offset: int, length: int, digest: bytes
    ) -> "tuple[bool, int, Optional[failures.Data]]":
        self._arriving.complete(id_, offset, length)
        return self._hasher.digest() == digest, wire.SOME_PART, None

    def make(self, value: tree.Entry) -> int:
        return wire.SOME_PART

    def finish(self, value: tree.Entry, strong: str, receipt: int, done: sink.Done) -> None:
        done([None])

    def _make_part(self, value: tree.Entry, digest: str, body: memoryview) -> Any:
        hasher = hashes.new(self._algorithm)
        hasher.update(body)
        if hasher.digest().hex() != digest:
            raise failures.Refusal(failures.DAMAGED, value.path, "arrived damaged")
        return None

    def _make_folder(self, value: tree.Entry) -> None:
        pass

    def _make_link(self, value: tree.Entry) -> None:
        pass

    def make_names_durable(self, made: List[tree.Entry]) -> None:
        pass

    def hard_link(self, value: tree.Entry) -> None:
        pass

    def finish_folder(self, value: tree.Entry) -> None:
        pass

    def discard(self, path: str, nonces: List[str]) -> bool:
        return True

    def release(self) -> None:
        pass

    def revoke(self, lane: int) -> None:
        pass

    def close(self) -> None:
        pass
