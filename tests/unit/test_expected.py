"""transfer/lanes/lane_traffic.py: what a lane's two threads do to the chunks that are awaited.

Not here: the frames of those chunks (../e2e, ../faults).
"""

from __future__ import annotations

from typing import Any, cast

from pscp.transfer.lanes.lane_traffic import ExpectedChunks
from pscp.transfer.pieces.plan import Chunk


class Job:
    """A file whose number is asked for just while the lane's other thread takes a chunk."""

    def __init__(self, expected: ExpectedChunks, number: int) -> None:
        self._expected, self._number = expected, number

    @property
    def number(self) -> int:
        if self._expected.first() is not None:
            self._expected.take_first()
        return self._number


def expecting(count: int) -> tuple[ExpectedChunks, list[Chunk]]:
    expected = ExpectedChunks()
    chunks = [Chunk(cast(Any, Job(expected, number)), 0, 1) for number in range(count)]
    for number, chunk in enumerate(chunks):
        expected.add(number, chunk)
    return expected, chunks


def test_a_chunk_may_be_taken_while_the_files_are_listed() -> None:
    """It was "deque mutated during iteration", which stopped the whole copy."""
    expected, _ = expecting(5)
    assert expected.job_numbers() == set(range(5))
    assert expected.first() is None


def test_chunks_are_awaited_in_the_order_of_their_requests() -> None:
    expected, chunks = expecting(3)
    expected.remove(1, chunks[1])
    assert expected.first() == (0, chunks[0])
    expected.take_first()
    assert expected.first() == (2, chunks[2])
