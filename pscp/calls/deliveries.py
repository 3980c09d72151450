"""One source to many destinations at once: fan_out(), and side_by_side(), which tries again too.

Each destination is a copy of its own, in a thread of its own: with its connections, its journal,
its pace and its outcome. They share what they read of the source
(../transfer/lanes/shared_reads.py), and where they are (../transfer/neighbours.py), and nothing
else; so a slow or dead one holds no other up.

Not here: one copy (api.py), the command line (../cli/fan_out.py), whether there is another attempt
(../jobs/attempts.py).
Read next: ../transfer/lanes/shared_reads.py.
"""

from __future__ import annotations

import heapq
import posixpath
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pscp.calls import api
from pscp.calls.call_arguments import (
    Patterns,
    Source,
    as_several,
    check_functions,
    check_terms,
    locations,
    seconds,
)
from pscp.ground import errors, stops
from pscp.ground.contexts import with_context
from pscp.ground.counters import Counters
from pscp.ground.locations import Location, as_location, check_beside, placed
from pscp.options.keywords import in_keywords
from pscp.options.option_pairs import check_no_cluster
from pscp.options.option_rows import with_keywords
from pscp.options.options import Options, with_fields
from pscp.progress.callbacks import FileEvent
from pscp.progress.progress import Reporter, Result, problem_of
from pscp.progress.progress_words import some_of
from pscp.transfer.lanes.shared_reads import Reader, SharedReads
from pscp.transfer.neighbours import Neighbours
from pscp.transfer.terms.copy_terms import JobTerms
from pscp.transfer.terms.moves import Moves

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import OptionFields

ReporterOf = Callable[[str], Reporter]
Progress = Callable[[str, Counters], object]
OnFile = Callable[[str, FileEvent], object]

_NAMED_MOST = 5  # destinations that failed, in a message after the first


@dataclass(frozen=True)
class Delivery:
    """The outcome for one destination of a fan_out()."""

    destination: str  # as it was typed
    result: Result | None  # None: the copy to it ended with the error
    error: errors.PscpError | None
    seconds: float
    counters: Counters  # how far it came, whichever way it ended
    bytes_read: int = 0  # read and hashed here for it: others had not read that yet
    cpu_s: float = 0.0  # of this process, to read, hash and send for it; without its ssh

    @property
    def ok(self) -> bool:
        """True if every file is there."""
        return self.result is not None and self.result.ok

    @property
    def problem(self) -> errors.PscpError | None:
        """The error, or a FilesFailed where files failed; None where all is well."""
        return self.error or (problem_of(self.result) if self.result is not None else None)

    @property
    def exit_code(self) -> int:
        """The exit code of pscp, had it copied to this destination alone."""
        return self.error.exit_code if self.error is not None else int(not self.ok)

    def as_dict(self) -> dict[str, object]:
        """Return what json.dumps() takes: its result's, if it has one, and the error's words."""
        return {
            "destination": self.destination,
            **({} if self.result is None else self.result.as_dict()),
            "ok": self.ok,
            "seconds": self.seconds,
            "bytes_read": self.bytes_read,
            "cpu_s": self.cpu_s,
            **errors.as_dict(self.error),
        }


Copy = Callable[[str, Callable[[Counters], object]], Result]
Again = Callable[[Delivery], float | None]


@with_keywords(Options)
@in_keywords()
def fan_out(
    sources: Source,
    destinations: Source,
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
    raises: bool = True,
    wait: bool | float = False,
    **fields: Unpack[OptionFields],
) -> tuple[Delivery, ...]:
    """Copy files and folders of this machine to many destinations at once.

    They are read and hashed once, and no destination waits for another. What is not named here
    is as for copy(), and holds for each of them; but limit_kbit_s holds for all together, and with
    remove_source_files a file is removed once all destinations have it.

    Args:
        sources: all are on this machine.
        destinations: one location or several on other machines, each once.
        max_hosts: copy to so many of them at a time; None: to all.
        reporter: is called with each destination, and returns what shows its copy.
        progress: is called with the destination and its Counters.
        on_file: is called with the destination and a FileEvent.
        terms: hold for all together.
        raises: with False what failed is not raised, but in the Deliveries.

    Returns a Delivery for each destination, in their order. Raises FanOutFailed, once all copies
    have ended, where one has not got every file, and UsageError before anything is contacted. An
    exception of `progress`, `on_file` or a signal handler ends all copies tidily, and is raised.
    """
    seconds(wait)
    check_functions(reporter=reporter, progress=progress, on_file=on_file)
    chosen, sources = with_fields(options or Options(), fields, fan_out), as_several(sources)
    places = _checked(sources, destinations, chosen, max_hosts)
    copy = partial(
        api.copy, sources, options=chosen, exclude=exclude, include=include,
        keep_digests=keep_digests, raises=False, terms=_shared(terms, chosen, places),
        wait=wait,
    )  # fmt: skip
    by_name = {each.text: each for each in places}
    told = _telling(copy, by_name, reporter, on_file)
    found = side_by_side([*by_name], told, progress=progress or _unseen, max_hosts=max_hosts)
    return _checked_all(found) if raises else found


def _checked_all(found: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
    """Return these. Raises FanOutFailed where one of them has a problem."""
    failed = [(each.destination, each.problem) for each in found if each.problem is not None]
    if failed:
        place, problem = failed[0]
        more = f"; {len(failed)} of {len(found)} destinations failed" if len(found) > 1 else ""
        others = [name for name, _ in failed[1:]]
        if others:
            more += f", also {some_of(others, _NAMED_MOST)}"
        message = placed(problem.message, place) + more
        raise errors.FanOutFailed(message, problem.hint, result=found)
    return found


def _telling(
    copy: Callable[..., Result],
    by_name: Mapping[str, Location],
    reporter: ReporterOf | None,
    on_file: OnFile | None,
) -> Copy:
    """Return the copy to one of these, whose name the functions get first."""

    def copy_to(name: str, show: Callable[[Counters], object]) -> Result:
        return copy(
            by_name[name],
            reporter=reporter(name) if reporter else None,
            progress=show,
            on_file=partial(on_file, name) if on_file else None,
        )

    return copy_to


def _checked(
    sources: Source, destinations: Source, options: Options, most: int | None
) -> list[Location]:
    """Return the destinations. Raises UsageError for what cannot be fanned out."""
    places = [as_location(each) for each in as_several(destinations)]
    if not places:
        raise errors.UsageError("there is no destination")
    if most is not None and (type(most) is not int or most < 1):
        raise errors.UsageError(f"--max-hosts must be 1 or more, not {most!r}")
    _check_apart(places)
    check_beside(places, mirrors=options.delete, backup_dir=options.backup_dir)
    for each in locations(sources, places[0])[0]:
        if each.is_remote:
            raise errors.UsageError(f"{each.text}: the source of a fan-out is on this machine")
    if options.manifest is not None:
        raise errors.UsageError("--manifest is of one destination: verify each with its own")
    check_no_cluster(options, "a fan-out: its workers would read the sources once for each")
    if options.direct:
        raise errors.UsageError("--direct is from host to host: a fan-out is from this machine")
    if options.files_from == "-":
        raise errors.UsageError("standard input is read once: --files-from takes a file here")
    return places


def _shared(given: JobTerms | None, options: Options, places: Sequence[Location]) -> JobTerms:
    """Return the terms of all copies: what the options say of all together is a matter of these."""
    check_terms(given)
    terms = given or JobTerms()
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
        where = place.port, posixpath.normpath(place.path or ".")
        keys = {place.text, *((each.login, *where) for each in place.each_host)}
        if seen & keys:  # by its text everybody knows it
            raise errors.UsageError(f"{place.text} is named twice", "name each destination once")
        seen |= keys


def _unseen(destination: str, counters: Counters) -> None:
    """Show nobody where a copy stands."""


def side_by_side(
    destinations: Sequence[str],
    copy: Copy,
    again: Again = lambda delivery: None,
    *,
    progress: Progress = _unseen,
    max_hosts: int | None = None,
    shares: bool = True,
) -> tuple[Delivery, ...]:
    """Copy to each destination, no two of which are the same, at its own pace.

    Return how the last attempt at each went. What is not a PscpError, and a stop of the caller's
    call (../ground/stops.py), ends all copies in order, and is raised once they have ended.

    Args:
        copy: is called with a destination, and a function to show its counters to.
        again: is told how each attempt ended, by its thread; it returns the seconds until the
            next one, or None.
        progress: is called with the destination and its Counters, as often as the copy shows them.
        max_hosts: destinations at once; one that waits for its next attempt is none of them.
        shares: the copies share what they read of the source, and it is counted who read it.
    """
    return _Copies(destinations, copy, again, progress, shares=shares).run(max_hosts)


class _Copies:
    """Copies to several destinations: each thread makes one at a time."""

    def __init__(
        self,
        destinations: Sequence[str],
        copy: Copy,
        again: Again,
        progress: Progress,
        *,
        shares: bool,
    ) -> None:
        self._destinations, self._copy, self._again = destinations, copy, again
        self._progress, self._shares = progress, shares
        self._reads, self._neighbours = SharedReads(len(destinations)), Neighbours()
        self._stops = {each: stops.Stop() for each in destinations}
        self._found: dict[str, Delivery] = {}  # each thread sets its own
        self._changed = threading.Condition()  # guards what follows
        self._left = self._at_once = len(destinations)
        # A heap: from when on an attempt may be made, the place in the order, the destination.
        self._due = [(0.0, number, each) for number, each in enumerate(destinations)]
        self._error: BaseException | None = None  # why all are to end

    def run(self, most: int | None) -> tuple[Delivery, ...]:
        """Make all copies, so many at a time. Raises what ends them all, once they have ended."""
        self._at_once = min(most or self._left, self._left)
        threads = [
            threading.Thread(target=with_context(self._work), name=f"to {number}", daemon=True)
            for number in range(1, self._at_once + 1)
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
        return tuple(self._found[each] for each in self._destinations)

    def _end(self, error: BaseException) -> None:
        """End all copies, and begin no other."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._changed.notify_all()
        for stop in self._stops.values():
            stop.stop(error)

    def _work(self) -> None:
        while (turn := self._take()) is not None:
            try:
                pause_s = self._attempt(turn[1])
            except BaseException as error:
                self._end(error)
                return
            with self._changed:
                if pause_s is None:
                    self._left -= 1
                else:
                    heapq.heappush(self._due, (time.monotonic() + pause_s, *turn))
                self._changed.notify_all()

    def _take(self) -> tuple[int, str] | None:
        """Wait until an attempt may be made, and return at which destination; None: no more."""
        with self._changed:
            while self._left and self._error is None:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._due)[1:]
                self._changed.wait(wait_s)
            return None

    def _attempt(self, destination: str) -> float | None:
        reader, last = Reader(self._reads, self._at_once), [Counters()]
        result: Result | None = None
        failed: errors.PscpError | None = None

        def show(now: Counters) -> None:
            last[0] = now
            self._progress(destination, now)

        begun_s = time.monotonic()
        try:
            reads = reader.here() if self._shares else nullcontext()
            with self._stops[destination].here(), self._neighbours.here(), reads:
                result = self._copy(destination, show)
        except errors.PscpError as error:
            failed = error
        seconds = time.monotonic() - begun_s
        delivery = self._found[destination] = Delivery(
            destination, result, failed, seconds, last[0], reader.bytes_read, reader.cpu_s
        )
        with self._stops[destination].here():
            return self._again(delivery)
