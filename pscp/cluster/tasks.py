"""The records that go to a worker, and come back: what all tasks share, a task, and its outcome.

They travel as bytes, so that another version of pscp says so before it reads them.

Not here: how a task is done (mover.py), who makes tasks and takes outcomes (dispatcher.py).
Read next: dispatcher.py.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pscp.endpoint.asking import requests
from pscp.endpoint.reading.files import Extent
from pscp.ground.errors import PscpError
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transfer.pieces.plan import Failure, PlannedEntry

if TYPE_CHECKING:
    from pscp.connect.connections import Admission


class Login(NamedTuple):
    """The far end of a copy, and how to log in there: a worker does before it has a task."""

    copy: str  # stands for it
    is_push: bool
    host: Location  # the far end
    options: Options


class Errand(NamedTuple):
    """A copy as a worker needs it: its two ends, and what a host must show to join."""

    login: Login
    of_source: requests.BeginSource
    of_sink: requests.BeginSink  # of which each lane has a number of its own
    place: object  # what tells the files at the near end from another machine's (mover.place_here)
    admission: Admission | None = None


class Task(NamedTuple):
    """Pieces of work, which one worker does. Their places here stand for them in the outcome."""

    number: int  # of this run, from 1 on
    files: list[tuple[PlannedEntry, list[Extent]]]  # large ones, and the chunks of each
    packs: list[list[PlannedEntry]]  # small ones
    expected: list[dict[str, str]]  # of each pack, digests that files have to have
    limit_kbit_s: int | None


class ChunkOutcome(NamedTuple):
    """Says whether a chunk has landed, was damaged on the way (no digest), or has failed."""

    digest: str = ""
    receipt: int = 0
    failure: Failure | None = None


class PackOutcome(NamedTuple):
    """The rows that the source wrote of a pack's files, and the files that failed."""

    rows: list[object]
    failed: list[tuple[int, Failure]]


class Outcome(NamedTuple):
    """The chunks and packs that a worker has done of a task, and how it ended."""

    worker: str  # the machine's name and the process
    chunks: dict[tuple[int, int], ChunkOutcome]  # by the places of file and extent
    packs: dict[int, PackOutcome]
    problem: PscpError | None = None  # why not all was done
    seconds: float = 0.0
    lanes: int = 0  # at once at most
    lost: int = 0  # connections
    is_retry: bool = False  # a worker that seems lost had begun it before
    is_shut_out: bool = False  # another try of it has begun since
    notes: tuple[str, ...] = ()  # for people
    address: str = ""  # by which Dask knows the worker


def pack(record: Login | Errand | Task | Outcome | partial[Any]) -> bytes:
    return pickle.dumps(record)


if TYPE_CHECKING:

    def login_of(data: bytes) -> Login: ...
    def errand_of(data: bytes) -> Errand: ...
    def task_of(data: bytes) -> Task: ...
    def outcome_of(data: bytes) -> Outcome: ...
    def call_of(data: bytes) -> partial[Any]: ...

else:
    # Dask's own protocol carries code anyway.
    login_of = errand_of = task_of = outcome_of = call_of = pickle.loads
