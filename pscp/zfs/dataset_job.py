"""Replicates one dataset: plans, holds, sends, receives, confirms and prunes; again after a cut.

Not here: which datasets, and what follows from a failure (replicate.py). Read next: plan.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pscp import errors
from pscp.progress import Counters
from pscp.zfs import commands, error_messages
from pscp.zfs.commands import Foreseen, Speech
from pscp.zfs.inventory import Dataset, Snapshot, Zfs
from pscp.zfs.plan import Plan, Stream, make_plan, of_ours_to_prune
from pscp.zfs.record import Record
from pscp.zfs.runner import Link

ATTEMPTS = 4  # a cut stream is begun again, or gone on with, after a pause

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sent:
    """One dataset that the destination now has as the source has it."""

    source: str
    dest: str
    snapshot: str  # the newest, at both ends
    base: str = ""  # "@name" or "#name"; "": a full stream, or nothing was sent
    streams: int = 0
    bytes: int = 0
    resumed: bool = False  # it went on with a cut receive
    pruned: tuple[str, ...] = ()


@dataclass
class _Tally:
    """What was done for a dataset so far."""

    streams: int = 0
    bytes: int = 0
    base: str | None = None
    resumed: bool = False
    held: list[Snapshot] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """The two ends of a replication, and how it is done. Any thread may use it."""

    source: Zfs
    dest: Zfs
    link: Link
    is_push: bool
    speech: Speech
    mark: str  # of this replication; its snapshots and holds have it
    counters: Counters
    note: Say
    explain: Say  # with -v
    record: Record
    ending: threading.Event = field(default_factory=threading.Event)  # nothing is begun again

    @property
    def tag(self) -> str:
        return f"pscp:{self.mark}"

    def plan(self, source: Dataset, dest_name: str, dest: Dataset | None) -> Plan:
        settings = self.speech.settings
        return make_plan(
            source,
            dest_name,
            dest,
            all_between=settings.all_between,
            force_rollback=settings.force_rollback,
            can_resume=self.speech.common.resume,
        )

    def foresee(self, source: Dataset, stream: Stream) -> Foreseen:
        """Ask zfs send what it would send for a stream. Raises the error that forbids it."""
        if not self.speech.common.sizes:
            return Foreseen()
        ran = self.source.run(*self.speech.size(stream))
        foreseen = commands.parse_foreseen((ran.out + ran.err).decode("utf-8", "replace"))
        if stream.is_resumed:
            self._check_token(source, stream, foreseen, ran.status == 0)
        if ran.status != 0:
            raise error_messages.meaning(stream.source, ran.err)
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

    def replicate(self, source: Dataset, dest_name: str, dest: Dataset | None) -> Sent:
        """Send and receive one dataset. Raises the DatasetError or ConnectError that forbids it."""
        tally, attempt = _Tally(), 1
        while True:
            try:
                if attempt > 1:
                    source, dest = self._look(source.name, dest_name)
                    self._tell_what_is_left(dest_name, dest)
                plan = self._carry_out(source, dest_name, dest, tally)
                if plan.goes_on:
                    source, dest = self._look(source.name, dest_name)
                elif plan.streams:  # of the source all is known; over there, each question is slow
                    dest = self.dest.datasets(dest_name, False).get(dest_name)
                if not plan.goes_on:
                    break
            except errors.PscpError as error:
                if not error.retry or attempt == ATTEMPTS or self.ending.is_set():
                    self._let_go(source.name, tally)
                    raise
                self.note(f"{dest_name}: {error.message}; trying again")
                self.ending.wait(1 << attempt - 1)
                attempt += 1
        newest = self._confirmed(source, dest_name, dest, plan)
        if dest is not None:
            self.record.settle(dest)
        held = {each.name: each for each in source.snapshots if each.is_held}
        held.update({each.name: each for each in tally.held})
        self._release(source.name, list(held.values()))
        return Sent(
            source.name,
            dest_name,
            newest,
            base=tally.base or "",
            streams=tally.streams,
            bytes=tally.bytes,
            resumed=tally.resumed,
            pruned=self._prune(source, dest),
        )

    def _look(self, source: str, dest: str) -> tuple[Dataset, Dataset | None]:
        found = self.source.datasets(source, False)
        if source not in found:
            raise errors.NoSuchDataset(source, "it is not there any more")
        return found[source], self.dest.datasets(dest, False).get(dest)

    def _carry_out(
        self, source: Dataset, dest_name: str, dest: Dataset | None, tally: _Tally
    ) -> Plan:
        plan = self.plan(source, dest_name, dest)
        if dest is not None and dest.token and not self._may_resume(source, plan):
            self.dest.do(dest_name, "receive", "-A", dest_name)
            raise errors.StreamCut(dest_name, "what was cut is thrown away: its snapshot is gone")
        self.explain(f"{source.name}: {plan.describes}")
        if plan.rollback_to:
            self.dest.do(dest_name, *commands.rollback(plan))
        self.record.expect(dest_name, dest, source.snapshots)
        for stream in plan.streams:
            self._hold(stream, tally)
            self._move(stream, tally)
            is_new = dest is None and stream.base is None
            self._settle_mounts(stream, is_new)
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

    def _move(self, stream: Stream, tally: _Tally) -> None:
        def add(sent_bytes: int) -> None:
            self.counters.add(bytes_done=sent_bytes)

        self.counters.add(lanes_alive=1, lanes_wanted=1)
        try:
            piped = self.link.pipe(
                self.source.argv(*self.speech.send(stream)),
                self.dest.argv(*self.speech.receive(stream)),
                self.is_push,
                add,
            )
        except errors.CopyError as cut:
            raise errors.StreamCut(stream.dest, cut.message) from None
        finally:
            self.counters.add(lanes_alive=-1, lanes_wanted=-1)
        tally.bytes += piped.bytes
        if error := error_messages.of_stream(stream.source, stream.dest, piped):
            raise error
        tally.streams += 1
        tally.resumed = tally.resumed or stream.is_resumed
        if tally.base is None:
            tally.base = stream.base.short if stream.base else ""

    def _tell_what_is_left(self, dest_name: str, dest: Dataset | None) -> None:
        if dest is not None and dest.token:
            self.note(f"{dest_name}: going on where it stopped")
        else:
            self.note(f"{dest_name}: this increment starts over; there is nothing to resume")

    def _confirmed(self, source: Dataset, dest_name: str, dest: Dataset | None, plan: Plan) -> str:
        """Return the newest snapshot's name at the destination, which must have it, by its GUID."""
        there = {each.guid: each for each in dest.snapshots} if dest else {}
        target = plan.target or source.snapshots[-1]
        if plan.streams and target.guid not in there:
            what = f"{target.short} is not there, though zfs receive said nothing against it"
            raise errors.StreamRejected(dest_name, what)
        return there[target.guid].name if target.guid in there else target.name

    # --- where what was received is mounted

    def _settle_mounts(self, stream: Stream, is_new: bool) -> None:
        """Unmount a dataset that this stream made, and undo the placing properties it brought.

        Only where zfs receive has no -u or no -x, which OpenZFS has had since 0.8.
        """
        common, settings = self.speech.common, self.speech.settings
        unmount = is_new and not (common.unmounted or settings.mount)
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
        todo: list[commands.Words] = []
        if unmount and properties["mounted"][0] == "yes":
            todo += commands.unmounted(stream.dest)
        if take_back:
            came = [name for name, (_, source) in properties.items() if source == "received"]
            todo += [commands.not_received(stream.dest, name) for name in came]
        for words in todo:
            ran = self.dest.run(*words)
            if ran.status != 0:
                said, what = error_messages.complaint(ran.err), " ".join(words[:2])
                self.note(f"{stream.dest}: zfs {what} failed after it was received: {said}")

    # --- holds

    def _hold(self, stream: Stream, tally: _Tally) -> None:
        """Hold the snapshots of a stream, so that nobody destroys them before it was received."""
        if not self.speech.common.holds or stream.snapshot is None:
            return
        wanted = [
            each
            for each in (stream.base, stream.snapshot)
            if each is not None and not each.is_bookmark and each not in tally.held
        ]
        if not wanted:
            return
        ran = self.source.run(*commands.hold(stream.source, wanted, self.tag))
        if ran.status == 0 or b"already exists" in ran.err:
            tally.held += wanted
            return
        error = error_messages.meaning(stream.source, ran.err)
        if isinstance(error, errors.NoSuchDataset):
            raise error
        self.note(f"{stream.source}: going on without a hold: {error.message}")

    def _let_go(self, source: str, tally: _Tally) -> None:
        """Release the holds after a failure, unless the cut stream can be resumed with them."""
        if not self.speech.common.resume:
            with contextlib.suppress(errors.ConnectError):
                self._release(source, tally.held)

    def _release(self, dataset: str, snapshots: Sequence[Snapshot]) -> None:
        """Release the holds of this replication, an earlier run's included; others' stay."""
        if snapshots and self.speech.common.holds:
            self.source.run(*commands.release(dataset, snapshots, self.tag))

    # --- what goes afterwards

    def _prune(self, source: Dataset, dest: Dataset | None) -> tuple[str, ...]:
        settings = self.speech.settings
        if settings.keep_last is None:
            return ()
        gone: list[str] = []
        if settings.prune != "source" and dest is not None:
            ours = self.record.trusted(self._marked(dest))
            gone += self._prune_one(self.dest, ours, settings.keep_last)
        if settings.prune != "dest":
            gone += self._prune_one(self.source, source, settings.keep_last)
        return tuple(gone)

    def _marked(self, dest: Dataset) -> Dataset:
        """Mark what is in the record at the destination, since zfs send leaves the mark out."""
        new = [
            each
            for each in dest.snapshots
            if each.mark != self.mark and self.record.holds(dest.name, each)
        ]
        if not new:
            return dest
        ran = self.dest.run(*commands.set_mark(dest.name, new, self.mark))
        if ran.status != 0:
            self.note(f"{dest.name}: not marked for --prune: {error_messages.complaint(ran.err)}")
            return dest
        return self.dest.datasets(dest.name, False).get(dest.name, dest)

    def _prune_one(self, zfs: Zfs, dataset: Dataset, keep_last: int) -> list[str]:
        gone = []
        for each in of_ours_to_prune(dataset.snapshots, self.mark, keep_last):
            ran = zfs.run(*commands.destroy(dataset.name, each))
            if ran.status == 0:
                gone.append(f"{dataset.name}{each.short}")
            else:
                said = error_messages.complaint(ran.err)
                self.note(f"{dataset.name}{each.short}: not pruned: {said}")
        return gone
