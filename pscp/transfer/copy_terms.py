"""What one copy is about: nothing of it changes once its first entry is planned.

Not here: what is done about it (coordinator.py), what its lanes share (lane_context.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pscp.options import Options
from pscp.progress import Counters, Reporter
from pscp.transfer.journal import Journal
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.work_queue import WorkQueue


@dataclass(frozen=True)
class CopyTerms:
    """The parts of a copy, and what was settled with its ends. Any thread may use it."""

    options: Options
    counters: Counters
    reporter: Reporter
    journal: Journal  # written by whose turn it is (later_writes.py)
    context: LaneContext
    algorithm: str  # the digest of the copy
    algorithms: Collection[str]  # the digests that both ends have
    chunk_bytes: int
    earlier: Sequence[str] = ()  # runs that may have left parts
    folds: bool = False  # names at the destination do not differ by case
    keep_digests: bool = True

    @property
    def queue(self) -> WorkQueue:
        return self.context.queue
