"""Replicates datasets: asks both ends, takes a snapshot, has all sent, or shows what would be.

Not here: which dataset goes when (schedule.py). Read next: schedule.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from pscp.ground import errors, state, stops
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options, check_names, with_fields
from pscp.progress.callbacks import log_notes
from pscp.progress.progress import (
    CallbackReporter,
    Counters,
    Failure,
    Reporter,
    Result,
    Silent,
    Ticking,
    count,
)
from pscp.progress.progress import format_bytes as shown
from pscp.zfs import commands
from pscp.zfs.afterwards import Sent
from pscp.zfs.dataset_job import Job
from pscp.zfs.holds import Holds
from pscp.zfs.inventory import Dataset, Zfs, together
from pscp.zfs.names import Place, as_place, check_ends, is_excluded, moved, relative
from pscp.zfs.plan import NOT_TAKEN, Plan, arrivals, awaited, planned
from pscp.zfs.record import Record
from pscp.zfs.runner import Here, Link
from pscp.zfs.schedule import Schedule
from pscp.zfs.settings import Settings
from pscp.zfs.stream_link import open_link

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import ReplicateFields

Connect = Callable[[Location, Options, Callable[[str], None]], Link]
_log = Log("zfs")
_SETTINGS = {each.name for each in dataclasses.fields(Settings)}


@dataclass(frozen=True)
class Replicated(Result):
    """What a replication did; `files` counts datasets. Its `failures` name those that failed."""

    datasets: tuple[Sent, ...] = ()
    snapshot: str = ""  # that was taken first


def replicate(
    source: str | Place,
    dest: str | Place,
    *,
    options: Options | None = None,
    settings: Settings | None = None,
    reporter: Reporter | None = None,
    progress: Callable[[Counters], object] | None = None,
    connect: Connect = open_link,
    **fields: Unpack[ReplicateFields],
) -> Replicated:
    """Bring a ZFS dataset at the destination to the newest snapshot of the source.

    One of the two is "[user@]host:pool/dataset", the other "pool/dataset" here. `fields` are
    fields of Settings, for instance recursive=True, and of Options, such as connections=8.
    `progress` is called about ten times a second with a snapshot of Counters; an exception in it
    ends the replication, and is raised here.

    Returns a Replicated; its `failures` name each dataset that was not replicated. Raises
    UsageError before anything is contacted, NoSuchDataset or NoZfs where there is nothing to do
    it with, ConnectError where the far end is out of reach, CopyRunning where the same
    replication is at work already.
    """
    given: Mapping[str, Any] = fields
    check_names(given, {*Options.__dataclass_fields__, *_SETTINGS})
    of_zfs: dict[str, Any] = {n: value for n, value in given.items() if n in _SETTINGS}
    of_ssh: dict[str, Any] = {n: value for n, value in given.items() if n not in _SETTINGS}
    asked = dataclasses.replace(settings or Settings(), **of_zfs)
    how = with_fields(options or Options(), of_ssh)
    froms, to = as_place(source), as_place(dest)
    check_ends(froms, to)
    stop = stops.current() or stops.Stop()
    reporter = reporter or Silent()
    if progress is not None:
        reporter = CallbackReporter(progress, reporter, stop.stop)
    counters = Counters(host=(to if to.is_remote else froms).location.login)
    counters.nouns = ("dataset", "stream")
    result: Replicated | None = None
    with _alone(_mark(froms, to)), stop.here():
        link = connect((to if to.is_remote else froms).location, how, reporter.note)
        try:
            reporter.start(counters)
            with stop.ended_by(lambda error: link.close()):
                run = _Run((froms, to), how, asked, reporter=reporter, counters=counters, link=link)
                result = run.run()
            return result
        finally:
            link.close()
            reporter.stop(result)


class _Run:
    """One replication, from the first question to its result."""

    def __init__(
        self,
        ends: tuple[Place, Place],
        options: Options,
        settings: Settings,
        *,
        reporter: Reporter,
        counters: Counters,
        link: Link,
    ) -> None:
        source, dest = ends
        self.top, self.dest_top = source.dataset, dest.dataset
        self.options, self.settings, self.reporter = options, settings, reporter
        self._shows_progress = reporter.is_live or isinstance(reporter, Ticking)
        self.counters, self.link = counters, link
        self.mark = _mark(source, dest)
        self.is_push = dest.is_remote
        self.source, self.dest = (
            Zfs(link, settings.commands(True), place.location.login)
            if place.is_remote
            else Zfs(Here(), settings.commands(False), "here")
            for place in ends
        )
        self.record = Record(self.mark)
        self.taken = ""
        self.failures: list[Failure] = []
        self.sent: list[Sent] = []

    def run(self) -> Replicated:
        self.source.learn(self.top)
        self.dest.learn(self.dest_top)
        commands.check_abilities(self.settings, self.source.can, self.dest.can)
        common = together(self.source.can, self.dest.can)
        if not common.holds:
            self._explain(f"{self.source.where}: zfs has no holds; going without")
        if not common.resume:
            self._explain("no resume tokens: an increment that is cut starts over")
        speech = commands.Speech(self.settings, common)
        job = Job(
            source=self.source,
            dest=self.dest,
            link=self.link,
            is_push=self.is_push,
            speech=speech,
            mark=self.mark,
            counters=self.counters,
            note=self.reporter.note,
            explain=self._explain,
            record=self.record,
            holds=Holds(self.source, f"pscp:{self.mark}", common.holds),
            dest_top=self.dest_top,
        )
        names, sources = self._sources()
        dests = self.dest.datasets(self.dest_top, self.settings.recursive)
        job.at_dest.update(each.guid for of in dests.values() for each in of.snapshots)
        if not (common.unmounted or self.settings.mount or self.dest_top in dests):
            self._warn_of_mountpoints()
        if self.options.dry_run:
            self._show(job, names, sources, dests)
        else:
            self._work(job, names, sources, dests)
            self._close_record()
        return self._result()

    def _explain(self, text: str) -> None:
        _log.info("%s", text)
        if self.options.verbose:
            self.reporter.note(text)

    def _warn_of_mountpoints(self) -> None:
        where = "where the parent is" if self.is_push else "wherever the stream says"
        and_then = "" if self.settings.keep_mountpoints else ", and takes the mountpoint back"
        if not (self.is_push and self.options.quiet):
            self.reporter.note(
                f"{self.dest.where}: this zfs mounts what it receives, {where} (it has no receive "
                f"-u); pscp-zfs unmounts it afterwards{and_then}"
            )

    def _close_record(self) -> None:
        """Note, in one line, that --prune left what is in no record at the destination."""
        if not self.failures:
            self.record.all_delivered()
        if self.settings.keep_last is None or self.settings.prune == "source":
            return
        place = os.path.join(state.folder(), self.record.name)
        if strange := self.record.strange:
            self.reporter.note(
                f"{self.dest_top}: {count(len(strange), 'snapshot')} marked as this replication's "
                f"but not in its record, so not pruned (such as {strange[0]}): {place}"
            )
        elif not self.record.is_kept:
            self.reporter.note(f"{place} cannot be written: --prune will leave what came now")

    # --- the sources

    def _sources(self) -> tuple[list[str], dict[str, Dataset]]:
        """Take the snapshot that was asked for, and return the datasets, parents first."""
        found = self.source.datasets(self.top, self.settings.recursive)
        if self.top not in found:
            raise errors.NoSuchDataset(self.top, f"{self.source.where}: there is no such dataset")
        exclude = self.settings.exclude
        names = [each for each in found if not is_excluded(relative(each, self.top) or "", exclude)]
        name = self.settings.snapshot_now()
        if name is None:
            return names, found
        if self.options.dry_run:
            for each in names:
                if any(name == has.name for has in found[each].snapshots):
                    raise errors.SnapshotExists(each, f"@{name} already exists")
            self.reporter.line(f"{self.top}@{name} would be taken first")
            return names, found | {each: planned(found[each], name) for each in names}
        self.record.take(name)
        self._take(names, name, is_all=len(names) == len(found))
        self.taken = name
        return names, self.source.datasets(self.top, self.settings.recursive)

    def _take(self, names: list[str], snapshot: str, is_all: bool) -> None:
        """Take a snapshot of all, at one moment if zfs can: below the top, or of several names."""
        words = commands.take(names, snapshot, self.mark)
        if is_all and self.settings.recursive:
            words = commands.take([self.top], snapshot, self.mark)
            self.source.do(self.top, words[0], "-r", *words[1:])
        elif self.source.can.bookmarks:  # as old is the taking of several
            self.source.do(self.top, *words)
        else:
            for name in names:
                self.source.do(name, *commands.take([name], snapshot, self.mark))

    # --- what would be done

    def _show(
        self, job: Job, names: list[str], sources: dict[str, Dataset], dests: dict[str, Dataset]
    ) -> None:
        for name in awaited(names, sources):
            dest = moved(name, self.top, self.dest_top)
            try:
                plan = job.plan(sources[name], dest, dests.get(dest))
                job.at_dest.update(arrivals(sources[name], plan))
                texts = list(self._commands(job, sources[name], plan))
            except errors.DatasetError as error:
                self._record_failure(error)
                continue
            self.reporter.line(f"{name} -> {dest}: {plan.describes}")
            for text in texts:
                self.reporter.line(f"  {text}")

    def _commands(self, job: Job, source: Dataset, plan: Plan) -> Iterator[str]:
        """Yield the commands as they would be run, with the end that runs them before each."""
        if plan.rollback_to:
            yield self._command_line(self.dest, commands.rollback(plan))
        for number, stream in enumerate(plan.streams):
            is_there = stream.snapshot is None or stream.snapshot.guid != NOT_TAKEN
            size = job.foresee(source, stream).bytes if is_there else None
            said = "" if size is None else f"  # {shown(size)}"
            if not is_there:
                said = "  # its size is known once the snapshot is there"
            self.counters.add(bytes_total=size or 0)
            readonly = number == 0 and job.makes_readonly(plan)
            yield self._command_line(self.source, job.speech.send(stream)) + said
            yield self._command_line(self.dest, job.speech.receive(stream, readonly=readonly))
            if readonly and not job.speech.common.sets:
                yield self._command_line(self.dest, commands.set_readonly(plan.dest))

    def _command_line(self, zfs: Zfs, words: tuple[str, ...]) -> str:
        return f"{zfs.where}: {shlex.join(zfs.argv(*words))}"

    # --- the work

    def _work(
        self, job: Job, names: list[str], sources: dict[str, Dataset], dests: dict[str, Dataset]
    ) -> None:
        self.counters.add(files_total=len(names))
        schedule = Schedule(
            job,
            names,
            sources,
            dests,
            top=self.top,
            sent=self._record_sent,
            failed=self._record_failure,
        )
        with self._estimating(job, names, sources, dests):
            schedule.run()

    def _record_sent(self, sent: Sent) -> None:
        self.sent.append(sent)
        self.counters.add(files_done=1)

    @contextlib.contextmanager
    def _estimating(
        self, job: Job, names: list[str], sources: dict[str, Dataset], dests: dict[str, Dataset]
    ) -> Iterator[None]:
        """Find the sizes of all streams, for the bar, while the first of them are sent."""

        def estimate() -> None:
            for name in names:
                dest = moved(name, self.top, self.dest_top)
                with contextlib.suppress(errors.PscpError):
                    source = sources[name]
                    for stream in job.plan(source, dest, dests.get(dest)).streams:
                        if done.is_set():
                            return
                        self.counters.add(bytes_total=job.foresee(source, stream).bytes or 0)
            self.counters.set(plan_complete=True)

        done = threading.Event()
        thread = threading.Thread(target=estimate, name="zfs sizes")
        if job.speech.common.sizes and self._shows_progress:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()

    def _record_failure(self, error: errors.DatasetError) -> None:
        self.counters.add(files_failed=1)
        self.failures.append(Failure(error.path, type(error).__name__, error.message, error.hint))
        log_notes.warning("%s: %s", error.path, error.message)
        self.reporter.note(f"{error.path}: {error.message}")
        if error.hint:
            self.reporter.note(f"  {error.hint}")

    def _result(self) -> Replicated:
        went = sum(each.bytes for each in self.sent)
        return Replicated(
            files=len(self.sent),
            bytes=self.counters.bytes_total if self.options.dry_run else went,
            bytes_sent=went,
            seconds=time.monotonic() - self.counters.started_s,
            failures=tuple(self.failures),
            datasets=tuple(self.sent),
            snapshot=self.taken,
        )


def _mark(source: Place, dest: Place) -> str:
    """Return a replication's mark, the same for the same two datasets at the same two ends."""
    here = os.uname().nodename
    ends = [(each.location.host or here, each.dataset) for each in (source, dest)]
    return hashlib.sha256(repr(ends).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _alone(mark: str) -> Iterator[None]:
    """Raise CopyRunning if the same replication runs; not noticed without a state folder."""
    path = os.path.join(state.folder(), "zfs", f"{mark}.lock")
    lock: IO[bytes] | None = None
    try:
        lock = state.lock(path)
    except BlockingIOError:
        what = f"the same replication is already running{state.holder(path)}"
        raise errors.CopyRunning(what) from None
    except OSError:
        pass
    with lock or contextlib.nullcontext():
        yield
