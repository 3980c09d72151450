"""The source of a transfer test (-t): real names and sizes, and made-up data.

Sent with BeginSource where it is needed. Not here: the sink that writes nothing
(../writing/null_sink.py).
"""

import itertools
import os
from typing import Iterator, List

from ..frames import system
from . import files, source, tree


class _MadeUp:
    """A file that is not read: its blocks are what the buffer holds."""

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
    """The transfer test's source: real names and sizes, but data that no disk was read for."""

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

    def _open_file(self, value: tree.Entry) -> _MadeUp:
        return _MadeUp(value.size)

    def _whole(self, value: tree.Entry) -> bytes:
        return bytes(value.size)
