"""Replicates datasets: asks both ends, takes a snapshot, has all sent, or shows what would be.

Not here: which dataset goes when (schedule.py), what a dry run shows (dry_run.py).
Read next: schedule.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pscp.ground import errors, state, stops
from pscp.ground.contexts import with_context
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.keywords import in_keywords, said
from pscp.options.option_rows import with_keywords
from pscp.options.options import Options, check_names, with_fields
from pscp.progress.callbacks import log_notes
from pscp.progress.progress import (
    CallbackReporter,
    Counters,
    Failure,
    LiveCounters,
    Reporter,
    Result,
    Silent,
    Ticking,
    checked,
    count,
)
from pscp.progress.progress_words import some_of
from pscp.zfs import commands
from pscp.zfs.dataset_job import Job
from pscp.zfs.dry_run import DryRun
from pscp.zfs.error_messages import THERE
from pscp.zfs.holds import Holds
from pscp.zfs.inventory import Dataset, Zfs, together
from pscp.zfs.link import Link, run_here
from pscp.zfs.names import as_place, check_ends, excluded, moved, parent
from pscp.zfs.plan import Pair, all_in_vain, is_in_vain, planned, renamed
from pscp.zfs.record import Record
from pscp.zfs.schedule import ReplicatedDataset, Schedule
from pscp.zfs.settings import Settings

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import ReplicateFields

Connect = Callable[[Location, Options, Callable[[str], None]], Link]
_log = Log("zfs")
_NO_SOURCE = "zfs list shows what there is; zpool import brings back a pool that is not imported"
_SETTINGS = {each.name for each in dataclasses.fields(Settings)}


@dataclass(frozen=True)
class Replicated(Result):
    """The outcome of a replication; `files` counts datasets, `failures` name those that failed."""

    datasets: tuple[ReplicatedDataset, ...] = ()
    snapshot: str = ""  # that was taken first
    unknown_sizes: int = 0  # in a dry run, the streams whose size is not in `bytes`


@with_keywords(Settings, Options)
@in_keywords()
def replicate(
    source: str | Location,
    dest: str | Location,
    *,
    options: Options | None = None,
    settings: Settings | None = None,
    reporter: Reporter | None = None,
    progress: Callable[[Counters], object] | None = None,
    connect: Connect = Link,
    raises: bool = True,
    **fields: Unpack[ReplicateFields],
) -> Replicated:
    """Bring a ZFS dataset at the destination to the newest snapshot of the source.

    One of the two is "[user@]host:pool/dataset", the other here. `fields` are of Settings, for
    instance recursive=True, and of Options, such as connections=8.
    `progress` is called about ten times a second with a snapshot of Counters.

    Raises FilesFailed at the end, where datasets were not replicated (`failures` name them), unless
    raises=False; UsageError before anything is contacted, NoSuchDataset or NoZfs where there is
    nothing to do it with, ConnectError where the far end is out of reach, CopyRunning.
    """
    given: Mapping[str, Any] = fields
    check_names(given, {*Options.__dataclass_fields__, *_SETTINGS}, replicate)
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
    host = to if to.is_remote else froms
    counters = LiveCounters(host=host.login, nouns=("dataset", "stream"))
    result: Replicated | None = None
    mark = _mark(froms, to)
    with contextlib.nullcontext() if how.dry_run else _lock(mark), stop.here():
        link = connect(host, how, reporter.note)
        try:
            reporter.start(counters)
            with stop.ended_by(lambda error: link.close()):
                run = _Run(mark, asked, how, reporter, counters)
                result = run.run(froms, to, link)
        finally:
            link.close()
            reporter.stop(result)
    return checked(result) if raises else result


class _Run:
    """One replication, from the first question to its result."""

    def __init__(
        self,
        mark: str,
        settings: Settings,
        options: Options,
        reporter: Reporter,
        counters: LiveCounters,
    ) -> None:
        self.settings, self.options = settings, options
        self.reporter, self.counters = reporter, counters
        self.record = Record(mark, is_written=not options.dry_run)
        self.taken = ""  # the name of the snapshot that was taken
        self.failures: list[Failure] = []
        self._in_vain: list[Failure] = []  # those of them that are told in one line
        self.sent: list[ReplicatedDataset] = []
        self.unknown_sizes = 0  # of streams, in a dry run

    def run(self, source: Location, dest: Location, link: Link) -> Replicated:
        job = self._job(source, dest, link)
        common, found = job.speech.common, self._sources(job)
        dests = job.dest.datasets(job.dest_top, self.settings.recursive)
        job.at_dest.update(each.guid for of in dests.values() for each in of.snapshots)
        if not (common.unmounted or self.settings.mount or job.dest_top in dests):
            self._warn_of_mountpoints(job)
        lacks = "" if job.dest_top in dests else job.dest.missing_above(job.dest_top)
        pairs = {}
        for each in found:
            dest_name = moved(each.name, job.top, job.dest_top)
            pairs[each.name] = Pair(
                each,
                dest_name,
                dests.get(dest_name),
                last=self.taken,
                lacks=lacks if each.name == job.top else "",
            )
        self._leave_out(job, pairs)
        for name, earlier in renamed(pairs, dests):
            self._remark(
                f"{name}: sent whole, though {earlier} has snapshots of it: where it was renamed, "
                f"zfs rename {earlier} {name} there saves that"
            )
        if self.options.dry_run:
            dry = DryRun(job, self.reporter, self._record_failure)
            dry.show(pairs)
            self.unknown_sizes = dry.unknown_sizes
            self._tell_of_record(job)
        else:
            self.counters.add(files_total=len(pairs))
            schedule = Schedule(job, pairs, sent=self._record_sent, failed=self._record_failure)
            with self._estimating(job, pairs):
                schedule.run()
            job.clear_mountpoints()
            self._close_record(job)
        if self._in_vain:
            self.reporter.note(all_in_vain(self._in_vain))
        return self._result(link.most_lanes)

    def _job(self, source: Location, dest: Location, link: Link) -> Job:
        """Find out what both ends can do. Raises NoZfs, ZfsDenied."""
        ends = [
            Zfs(link.run, self.settings.commands(True), place.login, THERE)
            if place.is_remote
            else Zfs(run_here, self.settings.commands(False), "here")
            for place in (source, dest)
        ]
        for end, place in zip(ends, (source, dest), strict=True):
            end.learn(place.path)
        commands.check_abilities(self.settings, ends[0].can, ends[1].can)
        common = together(ends[0].can, ends[1].can)
        if not common.holds:
            self._explain(f"{ends[0].where}: zfs has no holds; going without")
        return Job(
            source=ends[0],
            dest=ends[1],
            link=link,
            is_push=dest.is_remote,
            speech=commands.Speech(self.settings, common),
            counters=self.counters,
            note=self.reporter.note,
            explain=self._explain,
            remark=self._remark,
            record=self.record,
            holds=Holds(ends[0], f"pscp:{self.record.mark}", common.holds),
            top=source.path,
            dest_top=dest.path,
            retry_for_s=self.options.retry_for_s,
        )

    def _explain(self, text: str) -> None:
        _log.info("%s", text)
        if self.options.verbose:
            self.reporter.note(text)

    def _remark(self, text: str) -> None:
        """Note what is no error."""
        if not self.options.quiet:
            self.reporter.note(text)

    def _warn_of_mountpoints(self, job: Job) -> None:
        where = "where the parent is" if job.is_push else "wherever the stream says"
        and_then = "" if self.settings.keep_mountpoints else ", and takes the mountpoint back"
        if not (job.is_push and self.options.quiet):
            self.reporter.note(
                f"{job.dest.where}: this zfs mounts what it receives, {where} (it has no receive "
                f"-u); pscp-zfs unmounts it afterwards{and_then}"
            )

    def _close_record(self, job: Job) -> None:
        if not self.failures:
            self.record.all_delivered()
        self._tell_of_record(job)

    def _tell_of_record(self, job: Job) -> None:
        """Note, a line for each, what --prune left at the destination, and why."""
        if not self.settings.prunes("dest"):
            return
        if left := job.left_behind:
            is_new = job.more_come.is_set()  # else it would be every night's
            only = "with --newest-only no more of them come, " if is_new else ""
            (self._remark if is_new else self._explain)(
                f"{job.dest_top}: {count(len(left), 'snapshot')} of another replication, which "
                f"{job.top} has no more, not pruned (such as {left[0]}): {only}zfs destroy removes "
                "these"
            )
        place = os.path.join(state.folder(), self.record.name)
        if strange := self.record.strange:
            self._remark(
                f"{job.dest_top}: {count(len(strange), 'snapshot')} marked as this replication's "
                f"but not in its record, {place}, so not pruned (such as {strange[0]}): zfs "
                "destroy removes what is not needed"
            )
        elif not self.record.is_kept:
            self.reporter.note(f"{place} cannot be written: --prune will leave what came now")

    # --- the sources

    def _sources(self, job: Job) -> list[Dataset]:
        """Take the snapshot that was asked for, and return the datasets, parents first."""
        zfs, top, is_recursive = job.source, job.top, self.settings.recursive
        found = zfs.datasets(top, is_recursive)
        if top not in found:
            raise errors.NoSuchDataset(top, f"{zfs.where}: there is no such dataset", _NO_SOURCE)
        left_out, unused = excluded(list(found), top, self.settings.exclude)
        for pattern in unused:
            self._remark(f"--exclude {pattern}: no dataset below {top} matches")
        names = [each for each in found if each not in left_out]
        if self.settings.snapshot_name is None:
            return [found[each] for each in names]
        chosen, is_all = [found[each] for each in names], len(names) == len(found)
        name = self._take_unused(job, chosen, is_all=is_all)
        if self.options.dry_run:
            self.reporter.line(f"{top}@{name} would be taken first")
            return [planned(each, name, self.record.mark) for each in chosen]
        self.taken = name
        found = zfs.datasets(top, is_recursive)
        return [found[each] for each in names]

    def _take_unused(self, job: Job, chosen: Sequence[Dataset], *, is_all: bool) -> str:
        """Take the snapshot, unless this is a dry run; return its name.

        Another replication of the same source may have taken the name, in this very second.
        """
        refused: errors.SnapshotExists | None = None
        for name in self.settings.snapshot_names():
            try:
                for each in chosen:
                    if any(name == has.name for has in each.snapshots):
                        raise errors.SnapshotExists(each.name, f"@{name} already exists")
                self.record.take(name)
                if not self.options.dry_run:
                    self._take(job, [each.name for each in chosen], name, is_all)
                return name
            except errors.SnapshotExists as error:
                refused = error
        assert refused is not None
        raise refused

    def _take(self, job: Job, names: list[str], snapshot: str, is_all: bool) -> None:
        """Take a snapshot of all, at one moment if zfs can: below the top, or of several names."""
        zfs, top, mark = job.source, job.top, self.record.mark
        if is_all and self.settings.recursive:
            words = commands.take([top], snapshot, mark)
            zfs.do(top, words[0], "-r", *words[1:])
        elif zfs.can.bookmarks:  # as old is the taking of several
            zfs.do(top, *commands.take(names, snapshot, mark))
        else:
            for name in names:
                zfs.do(name, *commands.take([name], snapshot, mark))

    def _leave_out(self, job: Job, pairs: dict[str, Pair]) -> None:
        """Leave out what is new below SOURCE: without a snapshot, and not at the destination.

        What the destination has, or what is above such, fails if it has no snapshot.
        """
        sendable = {job.top}
        for name, pair in pairs.items():
            is_new = pair.dest is None and not pair.source.snapshots
            while not is_new and name not in sendable:
                sendable.add(name)
                name = parent(name)
        new = sorted(pairs.keys() - sendable)
        for name in new:
            del pairs[name]
        if new:
            self.counters.add(files_left_out=len(new))
            self.reporter.note(
                f"{some_of(new, 1)}: left out, with no snapshot yet (--snapshot-name takes one; "
                "--exclude leaves it out without a word)"
            )

    # --- the work

    @contextlib.contextmanager
    def _estimating(self, job: Job, pairs: Mapping[str, Pair]) -> Iterator[None]:
        """Find the sizes of all streams, for the bar, while the first of them are sent."""

        def estimate() -> None:
            for pair in pairs.values():
                with contextlib.suppress(errors.PscpError):
                    for stream in job.plan(pair).streams:
                        if done.is_set():
                            return
                        size = job.foresee(pair.source, stream).bytes
                        self.counters.add(bytes_total=size or 0)
            self.counters.set(plan_complete=True)

        done = threading.Event()
        thread = threading.Thread(target=with_context(estimate), name="zfs sizes")
        shows_progress = self.reporter.is_live or isinstance(self.reporter, Ticking)
        if job.speech.common.sizes and shows_progress:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()

    def _record_sent(self, sent: ReplicatedDataset) -> None:
        self.sent.append(sent)
        self.counters.add(files_done=1)

    def _record_failure(self, error: errors.DatasetError) -> None:
        self.counters.add(files_failed=1)
        message, hint = said(error.message), said(error.hint)
        failure = Failure(error.path, type(error).__name__, message, hint)
        self.failures.append(failure)
        log_notes.warning("%s: %s", error.path, message)
        if is_in_vain(failure):
            self._in_vain.append(failure)
            return
        self.reporter.note(f"{error.path}: {message}")
        if hint:
            self.reporter.note(f"  {hint}")

    def _result(self, lanes: int) -> Replicated:
        went = sum(each.bytes for each in self.sent)
        return Replicated(
            files=len(self.sent),
            files_left_out=self.counters.files_left_out,
            bytes=self.counters.bytes_total if self.options.dry_run else went,
            bytes_sent=went,
            seconds=time.monotonic() - self.counters.started_s,
            connections=lanes,
            failures=tuple(self.failures),
            datasets=tuple(self.sent),
            snapshot=self.taken,
            unknown_sizes=self.unknown_sizes,
        )


def _mark(source: Location, dest: Location) -> str:
    """Return a replication's mark, the same for the same two datasets at the same two ends."""
    here = os.uname().nodename
    ends = [(each.host or here, each.path) for each in (source, dest)]
    return hashlib.sha256(repr(ends).encode()).hexdigest()[:16]


def _lock(mark: str) -> AbstractContextManager[object]:
    """Return a lock that is held. Raises CopyRunning; without a state folder nothing is noticed."""
    path = os.path.join(state.folder(), "zfs", f"{mark}.lock")
    try:
        return state.lock(path)
    except BlockingIOError:
        what = f"the same replication is already running{state.holder(path)}"
        raise errors.CopyRunning(what) from None
    except OSError:
        return contextlib.nullcontext()
