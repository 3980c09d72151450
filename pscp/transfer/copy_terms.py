"""The two records of one copy in which nothing changes once it has begun.

Not here: what is done with them (coordinator.py, lane_pool.py), what the lanes share
(lane_context.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pscp.connect.connections import Connections
from pscp.connect.host_cache import Known
from pscp.log import Log
from pscp.options import Options
from pscp.progress import Counters, Reporter
from pscp.transfer.autotune import Path
from pscp.transfer.failure_lines import FilePlaces
from pscp.transfer.job_terms import NO_TERMS, JobTerms
from pscp.transfer.journal import Journal
from pscp.transfer.lane_context import LaneContext
from pscp.transfer.path_list import PathList
from pscp.transfer.work_queue import WorkQueue

_log = Log("transfer")


@dataclass(frozen=True)
class CopyTerms:
    """The parts of a copy, and what was agreed with its ends. Any thread may use it."""

    options: Options
    counters: Counters
    reporter: Reporter
    journal: Journal  # written by later writes (later_writes.py)
    context: LaneContext
    algorithm: str  # the digest of the copy
    algorithms: Collection[str]  # the digests that both ends have
    chunk_bytes: int
    places: FilePlaces  # of files that fail
    earlier: Sequence[str] = ()  # runs that may have left parts
    folds: bool = False  # names at the destination do not differ by case
    made: str = ""  # the folder that the copy makes as its source, until it is complete
    checks_folders: bool = False  # whole folders are compared by listings (folder_check.py)
    keep_digests: bool = True
    # With -R, by path at the destination: one of the sources below, and how many levels.
    above: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    listed: PathList | None = None  # what is copied of the source, instead of all of it
    job: JobTerms = NO_TERMS
    to: str = ""  # the destination, as typed
    reuses: bool = False  # the sink can take what is the same from a file that is there
    token: str = ""  # of the copy
    nonce: str = ""  # of this run

    @property
    def queue(self) -> WorkQueue:
        return self.context.queue


@dataclass(frozen=True)
class PoolTerms:
    """What is known when the first lane of a copy or a stream begins. Any thread may use it."""

    context: LaneContext
    connections: Connections
    options: Options
    counters: Counters
    path: Path
    known: Known  # what the last copy over this path has learned
    note: Callable[[str], None]  # shows a message to the user

    @property
    def has_one_login(self) -> bool:
        """Whether all lanes are channels of one connection."""
        return self.connections.has_one_login

    @property
    def is_tuned(self) -> bool:
        """Whether the number of lanes follows what is measured (-c auto)."""
        options = self.options
        is_free = options.connections is None and not options.limit_kbit_s
        return is_free and not options.dry_run and not self.has_one_login

    def explain(self, text: str) -> None:
        """Log what was decided, and show it with -v."""
        _log.info("%s", text)
        if self.options.verbose:
            self.note(text)
