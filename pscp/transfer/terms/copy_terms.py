"""The request of a copy, and what does not change once it has begun; also what a job asks of its
copies beside their options: functions and objects of the program.

Not here: what is done with them (../coordinator.py, ../lane_pool.py), what the lanes share
(../lanes/lane_context.py), a job itself (../../jobs/toml/job.py), the bounds of --min-age and the
like (../walk/selection.py).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pscp.connect.connections import Connections
from pscp.connect.known.host_memory import PathRecord
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source, tree
from pscp.endpoint.writing import placing
from pscp.ground import errors
from pscp.ground.locations import Location, plain_path
from pscp.ground.log import Log
from pscp.options.option_rows import MAX_LIMIT_KBIT_S
from pscp.options.options import Options
from pscp.progress.progress import LiveCounters, Reporter, Ticking
from pscp.transfer.lanes.autotune import Path
from pscp.transfer.lanes.lane_context import KbitS, LaneContext, RateLimiter
from pscp.transfer.lanes.work_queue import WorkQueue
from pscp.transfer.pieces.plan import Placement, Work
from pscp.transfer.terms.journal import Journal
from pscp.transfer.terms.path_list import PathList

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pscp.endpoint.asking import requests
    from pscp.transfer.lanes.relay import FarSource
    from pscp.transfer.terms.moves import Moves

_SHARES = 4  # toward the end a chunk is a fourth of what is left for each lane
_START_BYTES, _START_SHARE = 64 * 1024 * 1024, 4  # up to here a chunk is a fourth of a later one
_LEAST_SHARE = 16  # of a chunk: smaller ones cost more than the end of a copy gains

_WITH_TARGET = f"{tree.LINK}:", f"{tree.DEVICE}:"  # of what is expected

_log = Log("transfer")
Select = Callable[[str, int, int, int], bool]  # path, size in bytes, mtime in ns, inode


@dataclass(frozen=True)
class JobTerms:
    """The terms of one copy, or of several: those that are given the same object share them.

    Args:
        select: is called for each file of the walk that no option leaves out (not for folders and
            links, nor for further names of a file), with its path as the source was typed, its
            size in bytes, mtime in nanoseconds and inode (0 over SFTP). Where it returns False,
            the file is left out as by --min-age: it counts in files_left_out and is no failure,
            and --delete does not delete it.
        kbit_s: returns the limit that holds now, in kbit/s, or None for none, for all copies with
            this object together; the option limit_kbit_s then says nothing. It is asked ten times a
            second and more, by several threads, one at a time.
        name: of the copy, instead of what it copies: with it, a copy that was cut goes on though
            its sources are others now, as those that a pattern matches may be.
        moves: a pscp.Moves.
        expected: what has to come, by path below the destination: of a file its SHA-256 in hex, of
            a link "link:" and its target, of a FIFO "fifo:", of a device "device:c 1:3". The
            options get strong. What is another thing or has other bytes fails, and never gets its
            name; so does what is there with other bytes, what is skipped and what does not come.

    The functions are called while a copy runs, by threads of it, and should return at once.
    """

    select: Select | None = None
    kbit_s: KbitS | None = None
    name: str = ""
    moves: Moves | None = None
    expected: Mapping[str, str] = field(default_factory=dict, hash=False)
    limiter: RateLimiter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        limiter = RateLimiter(self.kbit_s) if self.kbit_s is not None else None
        object.__setattr__(self, "limiter", limiter)
        expected = {path: _as_expected(path, said) for path, said in self.expected.items()}
        object.__setattr__(self, "expected", expected)

    def _check_kinds(self) -> None:
        for name in ("select", "kbit_s"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise errors.UsageError(f"`{name}` must be a function, not {value!r}")
        if self.moves is not None:
            from pscp.transfer.terms.moves import Moves  # here: few copies have any

            if not isinstance(self.moves, Moves):
                raise errors.UsageError(f"`moves` must be pscp.Moves, not {self.moves!r}")
        if not isinstance(self.expected, Mapping):
            raise errors.UsageError(f"`expected` must be a dict, not {self.expected!r}")

    def options(self, options: Options) -> Options:
        """Return the options of a copy on these terms. Raises UsageError where both clash."""
        if self.moves is not None:
            options = replace(options, remove_source_files=True)
        if self.expected:
            options = replace(options, strong=True)
        if self.kbit_s is None:
            return options
        # Its lanes and blocks are those of a copy with a limit. The limiter knows which.
        return replace(options, limit_kbit_s=self.kbit_s() or MAX_LIMIT_KBIT_S)

    def check_kind(self, entry: tree.Entry) -> None:
        """Raise Refusal for an entry that is another kind of thing than is expected of its path."""
        wanted = self.expected.get(entry.path)
        if wanted is None:
            return
        is_file = entry.kind in (tree.FILE, tree.HARDLINK)
        said = tree.FILE if is_file else f"{entry.kind}:{entry.target}"
        if said != (wanted if ":" in wanted else tree.FILE):
            what = said.rstrip(":").replace(":", " to ", 1)
            message = f"is a {what} at the source, not as it is listed"
            raise failures.Refusal(failures.UNSUPPORTED, entry.path, message)

    def is_expected(self, path: str, digest: str) -> bool:
        """Return whether a file at this path may have this SHA-256."""
        return self.expected.get(path, digest) == digest


def _as_expected(path: str, said: object) -> str:
    """Return what is expected of a path, a digest in lower case. Raises UsageError."""
    if isinstance(said, str):
        if re.fullmatch("[0-9a-fA-F]{64}", said):
            return said.lower()
        if said.partition(":")[::2] == (tree.FIFO, "") or said.startswith(_WITH_TARGET):
            return said
    what = "is no SHA-256 in hex, nor a link, FIFO or device"
    raise errors.UsageError(f"`expected` of {path!r}: {said!r} {what}")


NO_TERMS = JobTerms()


class Movers:
    """Who moves the bytes of a copy: the lanes of this machine, or workers of a cluster as well
    (../../cluster/clusters.py).
    """

    wants: Callable[[Work], bool] | None = None  # says which work this machine's lanes do

    def options_here(self, options: Options) -> Options:
        """Return the options of this machine's lanes."""
        return options

    def prepare(self, request: CopyRequest) -> None:
        """Have the other machines log in while this one does."""

    def check(self, request: CopyRequest, own: str, tops: Sequence[source.Top]) -> None:
        """Make sure that all machines see the same files; `own` is of this run alone."""

    def begin(
        self, terms: CopyTerms, of_source: requests.BeginSource, of_sink: requests.BeginSink
    ) -> None:
        """Have the other machines begin."""

    def end(self) -> None:
        """Have them end: all is done, or the copy stops."""

    def executor(self, root: str, note: Callable[[str], None]) -> Executor | None:
        """Return what looks at the tree `root` of this machine in its place, if anything does."""
        return None


ALONE = Movers()


@dataclass(frozen=True)
class CopyRequest:
    """The copy that a command or a call asks for."""

    connections: Connections
    froms: Sequence[Location]
    to: Location
    options: Options
    reporter: Reporter
    counters: LiveCounters
    keep_digests: bool
    listed: PathList | None = None  # what is copied of the source (--files-from)
    job: JobTerms = NO_TERMS
    far_source: FarSource | None = None  # where neither end is here
    wait_s: float = 0.0  # for which it waits at most while the same copy is running
    movers: Movers = ALONE

    @property
    def is_push(self) -> bool:
        return self.to.is_remote

    @property
    def counts_ahead(self) -> bool:
        """Return whether somebody watches, whom the number of all files helps, and it can be had.

        A list's paths, and what a program selects, are known from the walk alone; a dry run is one.
        """
        is_watched = self.reporter.is_live or isinstance(self.reporter, Ticking)
        is_dry = self.options.dry_run or self.options.transfer_test
        return is_watched and not (is_dry or self.listed or self.job.select)

    @property
    def from_paths(self) -> list[str]:
        """The sources' paths; with a list, the contents of its folder."""
        paths = [each.path if each.is_remote else each.literal_path for each in self.froms]
        return paths if self.listed is None else [f"{path or '.'}/." for path in paths]

    @property
    def to_path(self) -> str:
        """The destination's path; where it is a folder in any case, with a slash at its end."""
        path = self.to.path if self.to.is_remote else self.to.literal_path
        options = self.options
        beside = (options.backup_dir or "").startswith("../")  # which is beside a folder
        is_folder = self.listed is not None or options.relative or options.link_dest or beside
        return f"{path}/" if is_folder and path and not path.endswith("/") else path

    def explain(self, text: str) -> None:
        _log.info("%s", text)
        if self.options.itemize:
            self.reporter.note(text)


class FilePlaces:
    """Says where a file is that is reported by its path in the manifest, or below the root."""

    def __init__(self, froms: str, tops: Sequence[source.Top], to: str, root: str) -> None:
        """`froms` stands before a source's path, as "host:", and `to` before the destination's.

        `root` is the folder at the destination.
        """
        self._froms, self._to, self._root = froms, to, root
        # Those of a far end may lead through links that nobody here knows of.
        here = [top._replace(path=plain_path(top.path)) for top in tops if not froms]
        self._listed = here or tops
        self._tops = {top.name: top.path for top in self._listed}

    def of(self, path: str, of_source: bool) -> str:
        """Return `host:/whole/path`, or a path here."""
        if of_source:
            return f"{self._froms}{self._of_source(path)}"
        return f"{self._to}{_joined(self._root, path)}"

    def of_entry(self, known: tree.Entry | source.SourceFile) -> str:
        if not 0 <= known.top < len(self._listed):
            return self.of(known.path, of_source=True)
        top = self._listed[known.top]
        return f"{self._froms}{_joined(top.path, known.path[len(top.name) :].strip('/'))}"

    def _of_source(self, path: str) -> str:
        for name in folders_of(path, itself=True):
            if name in self._tops:
                return _joined(self._tops[name], path[len(name) :].lstrip("/"))
        return path


def folders_of(path: str, *, itself: bool = False) -> Iterator[str]:
    """Yield the folders above a path, the nearest first, up to ""."""
    if itself:
        yield path
    while path:
        path = path.rpartition("/")[0]
        yield path


def _joined(folder: str, path: str) -> str:
    folder = folder.removesuffix("/.") if folder != "/." else "/"
    if not path or not folder:
        return folder or path
    return path if folder == "." else f"{folder.rstrip('/')}/{path}"


@dataclass(frozen=True, kw_only=True)
class CopyTerms(CopyRequest):
    """The request, the parts of the copy, and what was agreed with its ends.

    Any thread may use it.
    """

    journal: Journal  # written by later writes (../lanes/work_queue.py)
    context: LaneContext
    algorithm: str  # the digest of the copy
    algorithms: Collection[str]  # the digests that both ends have
    chunk_bytes: int
    tops: Sequence[source.Top]  # the sources
    target: placing.Target  # where they land
    places: FilePlaces  # of files that fail
    earlier: Sequence[str] = ()  # runs that may have left parts
    checks_folders: bool = False  # whole folders are compared by listings (../walk/folder_check.py)
    # With -R, by path at the destination: one of the sources below, and how many levels.
    above: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unmade_kinds: Collection[str] = ()  # of entries, which are left out
    reuses: bool = False  # the sink can take what is the same from a file that is there
    token: str = ""  # of the copy
    nonce: str = ""  # of this run

    @property
    def queue(self) -> WorkQueue:
        return self.context.queue

    @property
    def is_source_here(self) -> bool:
        return self.is_push and self.far_source is None

    @functools.cached_property
    def placement(self) -> Placement:
        return Placement(self.tops, self.target.names)

    @functools.cached_property
    def new_tops(self) -> frozenset[int]:
        """Return the sources, by number, below whose names is nothing at the destination.

        What may be linked is looked up, whatever is there.
        """
        if self.options.link_dest and not self.options.transfer_test:
            return frozenset()
        existing = set(self.target.existing)
        return frozenset(top for top, name in enumerate(self.target.names) if name not in existing)

    @functools.cached_property
    def of_the_manifest(self) -> frozenset[str]:
        """Return the paths below the destination that the manifest, and its signature, will have.

        What a copy brings there would be lost when the manifest is written, its source maybe gone.
        """
        if self.is_push or self.far_source is not None or self.options.manifest is None:
            return frozenset()
        place = os.path.realpath(self.options.manifest)
        return frozenset(
            os.path.relpath(each, self.target.root) for each in (place, f"{place}.sig")
        )

    def next_chunk_bytes(self) -> int:
        """Return the length of the next chunk.

        It is smaller at the start, so that it is soon known how fast lanes are, and toward the end,
        so that all of them end at about the same time. Copies that share their reads have the same
        chunks.
        """
        counters, most_bytes = self.counters, self.chunk_bytes
        if self.options.chunk_bytes is not None or self.context.reader is not None:
            return most_bytes
        left_bytes = counters.left_bytes - self.queue.in_flight_bytes()
        if counters.bytes_total - left_bytes < _START_BYTES:
            return most_bytes // _START_SHARE
        if not counters.plan_complete:
            return most_bytes
        fair_bytes = left_bytes // (_SHARES * max(counters.lanes_alive, 1))
        least_bytes = most_bytes // _LEAST_SHARE
        return max(min(-(-fair_bytes // least_bytes) * least_bytes, most_bytes), least_bytes)


@dataclass(frozen=True)
class PoolTerms:
    """Facts known when the first lane of a copy or a stream begins. Any thread may use it."""

    context: LaneContext
    connections: Connections
    options: Options
    counters: LiveCounters
    path: Path
    known: PathRecord  # what the last copy over this path has learned
    note: Callable[[str], None]  # shows a message to the user

    @property
    def is_tuned(self) -> bool:
        """Return whether the number of lanes follows what is measured (-c auto)."""
        options = self.options
        is_free = options.connections is None and not options.limit_kbit_s
        return is_free and not options.dry_run and not self.connections.has_one_login

    def explain(self, text: str) -> None:
        _log.info("%s", text)
        if self.options.itemize:
            self.note(text)
