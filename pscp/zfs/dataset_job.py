"""Replicates one dataset: plans, holds, sends and receives; again after a cut.

Not here: which datasets (replicate.py); that it has arrived, what goes then, what follows from a
failure (schedule.py). Read next: plan.py, holds.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pscp.ground import errors
from pscp.progress.progress import LiveCounters
from pscp.zfs import commands, error_messages
from pscp.zfs.commands import Foreseen, Speech, Words
from pscp.zfs.holds import Holds
from pscp.zfs.inventory import Dataset, Zfs, in_batches
from pscp.zfs.link import Link
from pscp.zfs.names import parent, relative
from pscp.zfs.plan import Pair, Plan, Stream, arrivals, make_plan
from pscp.zfs.record import Record

ATTEMPTS = 4  # a cut stream is begun again, or gone on with, after a pause
# A busy dataset is waited for. Where pscp-zfs was killed, the far end has zfs receive wait a minute
# for other lanes, and then ends it (GRACE_S of endpoint/streams/stream_server.py, and TERM_S).
BUSY_S = 90
_BUSY_PAUSE_S = 30  # at most; each attempt sends what the window holds
_WAITS = "; --retry-for 30m waits for so long"
_GONE = b"No such file or directory"  # some zfs remove the folder that they made

_NO_POOL = "zpool import brings one back that is not imported; zpool list shows those that are"

Say = Callable[[str], None]


@dataclass
class Tally:
    """The work that was done for a dataset so far."""

    streams: int = 0
    bytes: int = 0
    base: str | None = None
    resumed: bool = False
    readonly_due: bool = False  # the destination was made, and zfs receive could not set that


@dataclass
class Tries:
    """The failures for one dataset so far. `busy_s`: how long one that is busy is waited for."""

    busy_s: float
    cuts: int = 0
    waits: int = 0
    starts_over: bool = False  # which is said once
    busy_until_s: float = 0.0

    def pause_s(self, error: errors.PscpError) -> float | None:
        """Count a failure; return the seconds until the next attempt, or None if there is none."""
        if not error.retry:
            return None
        if isinstance(error, errors.DatasetBusy):
            now_s = time.monotonic()
            self.busy_until_s = self.busy_until_s or now_s + self.busy_s
            self.waits += 1
            left_s = self.busy_until_s - now_s
            return min(1 << min(self.waits - 1, 10), _BUSY_PAUSE_S, left_s) if left_s > 0 else None
        self.cuts += 1
        return 1 << self.cuts - 1 if self.cuts < ATTEMPTS else None


@dataclass(frozen=True)
class ReceivedDataset:
    """One dataset whose streams were all received, as far as zfs said."""

    pair: Pair  # the destination as it was before the plan's streams
    plan: Plan  # the last one
    tally: Tally


@dataclass(frozen=True)
class Job:
    """The two ends of a replication, and how it is done. Any thread may use it."""

    source: Zfs
    dest: Zfs
    link: Link
    is_push: bool
    speech: Speech
    counters: LiveCounters
    note: Say
    explain: Say  # with -v
    remark: Say  # without --quiet: what is no error
    record: Record
    holds: Holds
    top: str
    dest_top: str
    retry_for_s: int | None = None  # how long a busy dataset is waited for
    mountpoints: dict[str, str] = field(default_factory=dict)  # that we unmounted, by dataset
    at_dest: set[int] = field(default_factory=set)  # GUIDs of snapshots; only ever added to
    left_behind: list[str] = field(default_factory=list)  # at DEST, by other replications
    more_come: threading.Event = field(default_factory=threading.Event)  # of these, each night
    began: set[str] = field(default_factory=set)  # sources of which something was sent
    ending: threading.Event = field(default_factory=threading.Event)  # nothing is begun again

    def plan(self, pair: Pair) -> Plan:
        settings = self.speech.settings
        if pair.lacks:
            is_pool = "/" not in pair.lacks
            kind, hint = ("pool", _NO_POOL) if is_pool else ("dataset", "")
            what = f"{self.dest.where}: there is no {kind} {pair.lacks}"
            raise errors.NoSuchDataset(pair.dest_name, what, hint)
        try:
            return make_plan(
                pair.source,
                pair.dest_name,
                pair.dest,
                all_between=settings.all_between,
                force_rollback=settings.force_rollback,
                can_resume=self.speech.common.resume,
                has_origin=pair.source.origin_guid != 0 and pair.source.origin_guid in self.at_dest,
                last=pair.last,
            )
        except errors.DestinationExists:
            if not self.dest.is_unfinished(pair.dest_name):
                raise
            what = "it is busy: an earlier zfs receive still makes it"
            raise errors.DatasetBusy(pair.dest_name, what) from None

    def attempt(self, zfs: Zfs, words: Words, failure: str) -> bool:
        """Run a zfs command. Where it fails, note `failure` with zfs's words, and return False."""
        ran = zfs.run(*words)
        if ran.status != 0:
            self.note(f"{failure}: {error_messages.complaint(ran.err)}")
        return ran.status == 0

    def held(self, source: Dataset) -> list[str]:
        """Return what this run holds of the dataset, and what an earlier one may have left."""
        listed = {f"{source.name}@{each.name}" for each in source.snapshots if each.is_held}
        return sorted(listed | self.holds.of(source.name))

    def makes_readonly(self, plan: Plan) -> bool:
        """Return whether the plan makes the user's DEST; what is below inherits from that."""
        is_top = plan.dest == self.dest_top and plan.makes_new
        return is_top and self.speech.settings.makes_readonly

    def foresee(self, source: Dataset, stream: Stream) -> Foreseen:
        """Ask zfs send what it would send for a stream. Raises the error that forbids it."""
        if not self.speech.common.sizes:
            return Foreseen()
        ran = self.source.run(*self.speech.size(stream))
        foreseen = commands.parse_foreseen((ran.out + ran.err).decode("utf-8", "replace"))
        if stream.is_resumed:
            self._check_token(source, stream, foreseen, ran.status == 0)
        if ran.status != 0:
            raise self.source.meaning(stream.source, ran.err)
        return foreseen

    def _check_token(
        self, source: Dataset, stream: Stream, foreseen: Foreseen, is_found: bool
    ) -> None:
        """Raise ResumeRefused for a receiver's token that is not of the source.

        zfs send -t takes the name in a token for a hint, and finds the snapshot by its GUID in
        the whole pool (guid_to_name in libzfs_sendrecv.c), so it is asked what it has found.
        """
        named = foreseen.named or "something else"
        is_ours = foreseen.is_of(source) if is_found else named == source.name
        if not is_ours:
            found = ", ".join(foreseen.sent)
            what = f"it would have {found} sent" if found else f"it is of {named}"
            said = f"its cut receive does not go on with {source.name}: {what}"
            raise errors.ResumeRefused(stream.dest, said)
        if self.speech.settings.raw and not foreseen.is_raw:
            raise errors.ResumeRefused(stream.dest, "its cut receive is not of a raw stream")

    # --- one dataset

    def replicate(self, pair: Pair) -> ReceivedDataset:
        """Send and receive one dataset. Raises the DatasetError or ConnectError that forbids it."""
        tally, tries = Tally(), Tries(BUSY_S if self.retry_for_s is None else self.retry_for_s)
        failure: errors.PscpError | None = None
        while True:
            try:
                if failure is not None:
                    pair = self._look(pair)
                    self._tell_how(pair, failure, tries)
                    failure = None
                plan = self._carry_out(pair, tally)
                if not plan.goes_on:
                    self.at_dest.update(arrivals(pair.source, plan))
                    return ReceivedDataset(pair, plan, tally)
                pair = self._look(pair)
            except errors.PscpError as error:
                pause_s = tries.pause_s(error)
                is_busy = isinstance(error, errors.DatasetBusy)
                if pause_s is None or self.ending.is_set():
                    if is_busy and self.retry_for_s is None:
                        error.hint += _WAITS
                    raise
                then = f"waiting for up to {tries.busy_s} s" if is_busy else "trying again"
                if not is_busy or tries.waits == 1:
                    where = getattr(error, "path", "") or pair.dest_name  # at the end that failed
                    self.note(f"{where}: {error.message}; {then}")
                self.ending.wait(pause_s)
                failure = error

    def _tell_how(self, pair: Pair, failure: errors.PscpError, tries: Tries) -> None:
        """Note how it goes on after a cut. After a wait it does so as if nothing had been."""
        if isinstance(failure, errors.DatasetBusy):
            return
        if pair.dest is not None and pair.dest.token:
            self.note(f"{pair.dest_name}: going on where it stopped")
        elif not tries.starts_over:
            tries.starts_over = True
            has_tokens = self.speech.common.resume
            why = "there is nothing to resume" if has_tokens else "there are no resume tokens"
            self.note(f"{pair.dest_name}: this increment starts over; {why}")

    def _look(self, pair: Pair) -> Pair:
        """Return the pair as both are now."""
        name, dest_name = pair.source.name, pair.dest_name
        found = self.source.look([name], name)
        if name not in found:
            raise errors.NoSuchDataset(name, "it is not there any more")
        there = self.dest.look([dest_name], dest_name).get(dest_name)
        self.at_dest.update(each.guid for each in (there.snapshots if there else ()))
        source = replace(found[name], origin_guid=pair.source.origin_guid)
        return replace(pair, source=source, dest=there)

    def _carry_out(self, pair: Pair, tally: Tally) -> Plan:
        source, dest_name, dest = pair.source, pair.dest_name, pair.dest
        plan = self.plan(pair)
        if dest is not None and dest.token and not self._may_resume(source, plan):
            self.dest.do(dest_name, "receive", "-A", dest_name)
            raise errors.StreamCut(dest_name, "what was cut is thrown away: its snapshot is gone")
        self.explain(f"{source.name}: {plan.describes}")
        if plan.rollback_to:
            self.dest.do(dest_name, *commands.rollback(plan))
        self.record.expect(dest_name, dest, source.snapshots)
        if dest is None and source.origin and not plan.streams[0].origin:
            self.note(
                f"{dest_name}: a clone of {source.origin}, which is not at the destination with "
                "this replication, so it arrives whole"
            )
        for number, stream in enumerate(plan.streams):
            if why_not := self.holds.take(source.name, stream.needed):
                self.note(f"{source.name}: going on without a hold: {why_not}")
            is_first = number == 0 and plan.makes_new
            readonly = is_first and self.makes_readonly(plan)
            self._move(stream, tally, is_new=is_first, readonly=readonly)
            self._settle_mounts(stream, is_first)
            self._settle_readonly(dest_name, tally)
        self._settle_readonly(dest_name, tally)  # also where that was cut off before
        return plan

    def _may_resume(self, source: Dataset, plan: Plan) -> bool:
        """Return whether a cut receive can be resumed: not if its snapshot is gone at the source.

        Raises ResumeRefused for a cut receive of something else: it is not ours to throw away.
        """
        try:
            self.foresee(source, plan.streams[0])
            return True
        except errors.ResumeRefused as error:
            if error.path == plan.dest:
                raise
            return False
        except errors.NoSuchDataset:
            return False

    def _move(self, stream: Stream, tally: Tally, *, is_new: bool, readonly: bool) -> None:
        """Send and receive a stream, which makes the dataset if that is new."""
        self.began.add(stream.source)
        self.counters.add(lanes_alive=1, lanes_wanted=1)
        try:
            piped = self.link.pipe(
                self.source.argv(*self.speech.send(stream)),
                self.dest.argv(*self.speech.receive(stream, readonly=readonly)),
                self.is_push,
                lambda moved: self.counters.add(bytes_done=moved, bytes_sent=moved),
            )
        except errors.CopyError as cut:
            raise errors.StreamCut(stream.dest, cut.message) from None
        finally:
            self.counters.add(lanes_alive=-1, lanes_wanted=-1)
        error = error_messages.of_stream(stream.source, stream.dest, piped, self.is_push)
        if is_new and self.speech.must_unmount and error_messages.is_unmounted_alone(piped):
            error = None  # zfs-fuse could not mount it, nor is it to be mounted
        if isinstance(error, errors.DatasetBusy):  # which took nothing of it
            self.counters.add(bytes_done=-piped.bytes)
            raise error
        tally.bytes += piped.bytes
        if error:
            raise error
        said = error_messages.complaint(piped.consumer.err)
        if readonly and (not self.speech.common.sets or "readonly property" in said):
            tally.readonly_due = True  # zfs receive may not: it says so, and receives
        tally.streams += 1
        tally.resumed = tally.resumed or stream.is_resumed
        if tally.base is None:
            tally.base = stream.base_name

    # --- what was received for the first time

    def _settle_readonly(self, dest: str, tally: Tally) -> None:
        """Have nobody change a new DEST: what did would have the next increment refused."""
        if tally.readonly_due:
            failure = f"{dest}: not readonly, so what changes it stops the next run"
            self.attempt(self.dest, commands.set_readonly(dest), failure)
            tally.readonly_due = False

    def _settle_mounts(self, stream: Stream, is_new: bool) -> None:
        """Unmount a dataset that this stream made, and undo the placing properties it brought.

        Only where zfs receive has no -u or no -x, which OpenZFS has had since 0.8.
        """
        common, settings = self.speech.common, self.speech.settings
        unmount = is_new and self.speech.must_unmount
        take_back = not (common.leaves or settings.keep_mountpoints)
        if not unmount and not take_back:
            return
        asked = self.dest.run(*commands.placing_of(stream.dest))
        if asked.status != 0:
            said = error_messages.complaint(asked.err)
            self.note(f"{stream.dest}: its mountpoint is not known: {said}")
        properties = commands.parse_placing(asked.out.decode("utf-8", "replace"))
        if properties["type"][0] != "filesystem":
            return
        todo: list[Words] = []
        is_mounted = properties["mounted"][0] == "yes"
        if unmount:
            todo += commands.unmounted(stream.dest, is_mounted=is_mounted)
        if unmount and is_mounted:
            where, source = properties.get("mountpoint", ("", ""))
            if source.startswith(("inherited", "default")):  # a received one may be any folder
                self.mountpoints[stream.dest] = where
        if take_back:
            came = [name for name, (_, source) in properties.items() if source == "received"]
            todo += [commands.undo_received_property(stream.dest, name) for name in came]
        for words in todo:
            what = " ".join(words[:2])
            failure = f"{stream.dest}: zfs {what} failed after it was received"
            self.attempt(self.dest, words, failure)

    def clear_mountpoints(self) -> None:
        """Remove the empty folders that stand where a dataset's parent would be mounted.

        zfs receive without -u makes them, and those above them, when it mounts what it received,
        and what is not empty is not mounted on. In a dataset that is mounted they stay: its own
        snapshot may have them.
        """
        above = {name: self._above(name) for name in self.mountpoints}
        if not above or not (rmdir := self.dest.beside("rmdir")):
            return
        between = set().union(*above.values())
        names = sorted({*between, parent(self.dest_top)} - {""})
        columns = ("get", "-H", "-o", "name,value,property", "mounted,mountpoint")
        said = self.dest.run(*columns, *names).out.decode("utf-8", "replace")
        rows = [line.split("\t") for line in said.splitlines()]
        unmounted = {row[0] for row in rows if row[1:] == ["no", "mounted"]}
        empty = {at for name, at in self.mountpoints.items() if above[name] <= unmounted}
        for name, at in (row[:2] for row in rows if row[2:] == ["mountpoint"]):
            is_below = relative(name, self.dest_top) is not None and name in unmounted
            if is_below and self._above(name) <= unmounted:
                empty |= {at} if any(each.startswith(f"{at}/") for each in empty) else set()
        for some in in_batches(sorted(empty, reverse=True)):  # what is below comes first
            ran = self.dest.run_there([*rmdir, "--", *some])
            lines = [line for line in ran.err.splitlines() if not line.endswith(_GONE)]
            if ran.status != 0 and lines:
                said = error_messages.complaint(b"\n".join(lines))
                self.note(f"{self.dest.where}: zfs mount may find folders in its way: {said}")

    def _above(self, dest: str) -> set[str]:
        """Return the datasets above one at the destination, as far as DEST; above DEST the next."""
        found = {parent(dest)}
        while relative(dest := parent(dest), self.dest_top):
            found.add(parent(dest))
        return found
