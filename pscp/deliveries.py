"""One source to many destinations at once: fan_out().

Each destination is a copy of its own, in a thread of its own: with its connections, its journal,
its pace and its outcome. They share what they read of the source (transfer/shared_reads.py), and
nothing else; so a slow or dead one holds no other up.

Not here: one copy (api.py), the command line (cli/fan_out.py).
Read next: transfer/shared_reads.py.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pscp import api, errors, stops
from pscp.call_arguments import Patterns, Place, Source, locations
from pscp.callbacks import FileEvent
from pscp.counters import Counters
from pscp.locations import Location, as_location
from pscp.options import Options, with_fields
from pscp.progress import Reporter, Result
from pscp.transfer.job_terms import JobTerms
from pscp.transfer.moves import Moves
from pscp.transfer.shared_reads import Reader, SharedReads

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.option_fields import OptionFields

ReporterOf = Callable[[str], Reporter]
Progress = Callable[[str, Counters], object]
OnFile = Callable[[str, FileEvent], object]


@dataclass(frozen=True)
class Delivery:
    """What became of one destination of a fan_out()."""

    destination: str  # as it was typed
    result: Result | None  # None: the copy to it ended with the error
    error: errors.PscpError | None
    seconds: float
    bytes_read: int  # read and hashed here for it: others had not read that yet
    cpu_s: float  # of this process, to read, hash and send for it; without its ssh

    @property
    def ok(self) -> bool:
        """True if every file is there."""
        return self.result is not None and self.result.ok

    @property
    def exit_code(self) -> int:
        """What pscp would exit with, had it copied to this destination alone."""
        return self.error.exit_code if self.error is not None else int(not self.ok)


def fan_out(
    sources: Source,
    destinations: Sequence[Place],
    *,
    options: Options | None = None,
    max_hosts: int | None = None,
    exclude: Patterns = (),
    include: Patterns = (),
    reporter: ReporterOf | None = None,
    progress: Progress | None = None,
    on_file: OnFile | None = None,
    keep_digests: bool = True,
    terms: JobTerms | None = None,
    **fields: Unpack[OptionFields],
) -> tuple[Delivery, ...]:
    """Copy files and folders of this machine to many destinations at once.

    They are read and hashed once, and no destination waits for another. What is not named here
    is as for copy(), and holds for each of them; but limit_kbit_s holds for all together, and with
    remove_source_files a file is removed once all destinations have it.

    Args:
        sources: all are on this machine.
        destinations: locations on other machines, each once.
        max_hosts: copy to so many of them at a time; None: to all.
        reporter: is called with each destination, and returns what shows its copy.
        progress: is called with the destination and its Counters.
        on_file: is called with the destination and a FileEvent.
        terms: hold for all together.

    Returns:
        A Delivery for each destination, in their order. What ends one copy, such as a host that
        cannot be reached, is its `error`, and is not raised.

    Raises UsageError before anything is contacted. An exception of `progress`, `on_file` or a
    signal handler (KeyboardInterrupt) ends all copies tidily and is raised here; the same call
    goes on from there.
    """
    chosen = with_fields(options or Options(), fields)
    places = _checked(sources, destinations, chosen, max_hosts)
    copy = partial(
        api.copy,
        sources,
        options=chosen,
        exclude=exclude,
        include=include,
        keep_digests=keep_digests,
        terms=_shared(terms or JobTerms(), chosen, places),
    )
    return _Copies(places, _telling(copy, reporter, progress, on_file)).run(max_hosts)


def _telling(
    copy: Callable[..., Result],
    reporter: ReporterOf | None,
    progress: Progress | None,
    on_file: OnFile | None,
) -> Callable[[Location], Result]:
    """Return the copy to one destination, whose name these functions get first."""

    def copy_to(place: Location) -> Result:
        return copy(
            place,
            reporter=reporter(place.text) if reporter else None,
            progress=partial(progress, place.text) if progress else None,
            on_file=partial(on_file, place.text) if on_file else None,
        )

    return copy_to


def _checked(
    sources: Source, destinations: Sequence[Place], options: Options, most: int | None
) -> list[Location]:
    """Return the destinations. Raises UsageError for what cannot be fanned out."""
    if isinstance(destinations, str) or not isinstance(destinations, Iterable):
        raise errors.UsageError(f"the destinations are several, not {destinations!r}")
    places = [as_location(each) for each in destinations]
    if not places:
        raise errors.UsageError("there is no destination")
    if most is not None and (type(most) is not int or most < 1):
        raise errors.UsageError(f"the number of hosts at a time must be 1 or more, not {most!r}")
    _check_apart(places)
    for each in locations(sources, places[0])[0]:
        if each.is_remote:
            raise errors.UsageError(f"{each.text}: the source of a fan-out is on this machine")
    if options.manifest is not None:
        raise errors.UsageError("--manifest is of one destination: verify each with its own")
    if options.direct:
        raise errors.UsageError("--direct is from host to host: a fan-out is from this machine")
    if options.files_from == "-":
        raise errors.UsageError("standard input is read once: --files-from takes a file here")
    return places


def _shared(terms: JobTerms, options: Options, places: Sequence[Location]) -> JobTerms:
    """Return the terms of all copies: what the options say of all together is a matter of these."""
    kbit_s, moves = terms.kbit_s, terms.moves
    if kbit_s is None and options.limit_kbit_s is not None:
        kbit_s = partial(_same, options.limit_kbit_s)
    if moves is None and options.remove_source_files and not options.dry_run:
        moves = Moves(places)
    return replace(terms, kbit_s=kbit_s, moves=moves)


def _same(value: int) -> int:
    return value


def _check_apart(places: Sequence[Location]) -> None:
    """Raise UsageError for a destination that is here, or that is given twice."""
    seen = set[object]()
    for place in places:
        if not place.is_remote:
            raise errors.UsageError(f"{place.text}: a destination of a fan-out is HOST:PATH")
        key = place.user, place.host, place.port, posixpath.normpath(place.path or ".")
        if key in seen:
            raise errors.UsageError(f"{place.text} is there twice")
        seen.add(key)


class _Copies:
    """The copies of one fan-out. The main thread runs them; each thread makes one at a time."""

    def __init__(self, places: list[Location], copy: Callable[[Location], Result]) -> None:
        self._places, self._copy, self._reads = places, copy, SharedReads(len(places))
        self._stops = [stops.Stop() for _ in places]
        self._found: list[Delivery | None] = [None] * len(places)  # each thread sets its own
        self._lock = threading.Lock()  # guards what follows
        self._next = iter(range(len(places)))
        self._error: BaseException | None = None  # why all are to end

    def run(self, most: int | None) -> tuple[Delivery, ...]:
        """Make all copies, so many at a time. Raises what ends them all, once they have ended."""
        count = min(most or len(self._places), len(self._places))
        threads = [
            threading.Thread(target=self._work, name=f"to {number}", daemon=True)
            for number in range(1, count + 1)
        ]
        with stops.ended_by(self._end):
            try:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            except BaseException as error:
                self._end(error)
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
                raise
        if self._error is not None:
            raise self._error
        return tuple(filter(None, self._found))

    def _end(self, error: BaseException) -> None:
        """End all copies, and begin no other."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        for stop in self._stops:
            stop.stop(error)

    def _work(self) -> None:
        while (number := self._take()) is not None:
            try:
                self._found[number] = self._deliver(number)
            except BaseException as error:
                self._end(error)

    def _take(self) -> int | None:
        with self._lock:
            return None if self._error is not None else next(self._next, None)

    def _deliver(self, number: int) -> Delivery:
        place, reader = self._places[number], Reader(self._reads)
        result: Result | None = None
        failed: errors.PscpError | None = None
        begun_s = time.monotonic()
        try:
            with self._stops[number].here(), reader.here():
                result = self._copy(place)
        except errors.PscpError as error:
            failed = error
        seconds = time.monotonic() - begun_s
        return Delivery(place.text, result, failed, seconds, reader.bytes_read, reader.cpu_s)
