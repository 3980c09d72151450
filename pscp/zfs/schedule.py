"""Has datasets replicated, several at once: a parent before those below it, and what a clone began
with before the clone. A failure stops only the datasets that wait for the one that failed.

Once several were received, each is looked for at the destination; only what that lists by its GUID
counts as replicated. Then come the record, the holds, a bookmark, and what --keep-last destroys.

Not here: how a dataset is sent (dataset_job.py), what --keep-last destroys (prune.py).
Read next: dataset_job.py, prune.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from pscp.ground import errors
from pscp.ground.contexts import with_context
from pscp.zfs import commands, prune
from pscp.zfs.dataset_job import Job, ReceivedDataset
from pscp.zfs.inventory import Dataset, guids
from pscp.zfs.plan import Pair, awaited, check_awaited

# So many were received before they are looked for together. Until then their snapshots are held.
_GROUP = 32


@dataclass(frozen=True)
class ReplicatedDataset:
    """One dataset that the destination now has as the source has it."""

    source: str
    dest: str
    snapshot: str  # the newest, at both ends
    base: str = ""  # "@name" or "#name", of a clone "dataset@name"; "": full, or nothing was sent
    streams: int = 0
    bytes: int = 0
    resumed: bool = False  # it went on with a cut receive
    pruned: tuple[str, ...] = ()


class Schedule:
    """The datasets of one replication, and where each stands. For one thread."""

    def __init__(
        self,
        job: Job,
        pairs: Mapping[str, Pair],
        *,
        sent: Callable[[ReplicatedDataset], object],
        failed: Callable[[errors.DatasetError], object],
    ) -> None:
        """`pairs` are by the source's name; `sent` and `failed` get each dataset's outcome."""
        self._job, self._pairs, self._report_sent, self._report_failed = job, pairs, sent, failed
        self._waiting = awaited({name: each.source for name, each in pairs.items()})
        self._pool = ThreadPoolExecutor(job.speech.settings.parallel, "zfs")
        self._running: dict[Future[ReceivedDataset], str] = {}
        self._received: list[ReceivedDataset] = []
        self._failed: list[str] = []
        self._given_up = 0  # of those that failed, the first of the list

    def run(self) -> None:
        """Replicate all. Raises ConnectError and the like, which end the whole replication."""
        try:
            self._expect_holds()
            while self._waiting or self._running:
                self._begin()
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    name = self._running.pop(future)
                    try:
                        self._received.append(future.result())
                    except errors.DatasetError as error:
                        self._fail(name, error)
                if len(self._received) >= _GROUP:
                    self._finish()
            self._finish()
        except Exception:
            self._end()
            if self._job.is_push:  # else what is held is out of reach
                release(self._job, [each.source for each in self._pairs.values()])
            raise
        finally:
            self._end()

    def _expect_holds(self) -> None:
        plans = {}
        for name in self._waiting:
            with contextlib.suppress(errors.DatasetError):  # it is reported when its turn comes
                plans[name] = self._job.plan(self._pairs[name])
        self._job.holds.expect(plans)

    def _begin(self) -> None:
        """Begin every dataset that waits for no other, and give up those that wait in vain."""
        for name, before in list(self._waiting.items()):
            if before & {*self._running.values(), *self._waiting}:
                continue
            del self._waiting[name]
            pair = self._pairs[name]
            try:
                check_awaited(pair, before & set(self._failed))
                self._running[self._pool.submit(with_context(self._job.replicate), pair)] = name
            except errors.DatasetError as error:
                self._fail(name, error)

    def _fail(self, name: str, error: errors.DatasetError) -> None:
        self._failed.append(name)
        self._report_failed(error)

    def _finish(self) -> None:
        """Have what follows done for those that came to their end since the last time."""
        received, self._received = self._received, []
        sent, wrong = settle(self._job, received)
        for each in sent:
            self._report_sent(each)
        for error in wrong:
            self._report_failed(error)
        new, self._given_up = self._failed[self._given_up :], len(self._failed)
        if new:
            give_up(self._job, [self._pairs[name] for name in new])

    def _end(self) -> None:
        """End what still runs, and begin nothing again."""
        self._job.ending.set()
        if self._running:
            self._job.link.close()
        self._pool.shutdown(cancel_futures=True)


# --- those that were received


def settle(
    job: Job, received: Sequence[ReceivedDataset]
) -> tuple[list[ReplicatedDataset], list[errors.DatasetError]]:
    """Confirm these datasets. Return those that are there, and what is wrong with others."""
    good: list[tuple[ReceivedDataset, Dataset | None, str]] = []
    wrong: list[errors.DatasetError] = []
    asked = [each.pair.dest_name for each in received if each.plan.streams]
    try:
        there = job.dest.look(asked, job.dest_top)
    except errors.DatasetError as error:
        return [], [type(error)(each.pair.dest_name, error.message) for each in received]
    for each in received:
        dest = there.get(each.pair.dest_name) if each.plan.streams else each.pair.dest
        try:
            good.append((each, dest, _confirmed(each, dest)))
        except errors.StreamRejected as error:
            wrong.append(error)
            continue
        if dest is not None:
            job.record.settle(dest)
    job.holds.release([name for each, _, _ in good for name in job.held(each.pair.source)])

    def finished(one: tuple[ReceivedDataset, Dataset | None, str]) -> ReplicatedDataset:
        return _finished(job, *one)

    with ThreadPoolExecutor(job.speech.settings.parallel, "zfs afterwards") as pool:
        sent = list(pool.map(with_context(finished), good))
    return sent, wrong


def _confirmed(received: ReceivedDataset, dest: Dataset | None) -> str:
    """Return the newest snapshot's name at the destination, which must have it, by its GUID."""
    there = {each.guid: each for each in dest.snapshots} if dest else {}
    target = received.plan.target or received.pair.source.snapshots[-1]
    if received.plan.streams and target.guid not in there:
        what = f"{target.short} is not there, though zfs receive said nothing against it"
        raise errors.StreamRejected(received.pair.dest_name, what)
    return there[target.guid].name if target.guid in there else target.name


def _finished(
    job: Job, received: ReceivedDataset, dest: Dataset | None, newest: str
) -> ReplicatedDataset:
    """Bookmark and prune as the user wants it, and return what was done for the dataset."""
    source, tally = received.pair.source, received.tally
    if job.speech.settings.bookmark and dest is not None:
        _bookmark(job, source, dest)
    return ReplicatedDataset(
        source.name,
        received.pair.dest_name,
        newest,
        base=tally.base or "",
        streams=tally.streams,
        bytes=tally.bytes,
        resumed=tally.resumed,
        pruned=prune.prune(job, source, dest),
    )


# --- those that were not


def give_up(job: Job, failed: Sequence[Pair]) -> None:
    """Let go of these datasets and their destinations, which were not replicated.

    Their snapshots are pruned at the source like others, or each night that fails would leave
    one more; but not what a cut stream goes on with, nor what the next increment begins with, be it
    at a destination that is out of sight.
    """
    release(job, [each.source for each in failed])
    if not job.speech.settings.prunes("source"):
        return
    try:
        there = job.dest.look([each.dest_name for each in failed], job.dest_top)
    except errors.DatasetError:  # then the next run prunes
        return
    is_in_sight = len(there) == len(failed) or not job.dest.missing_above(job.dest_top)
    for each in failed:
        if is_in_sight and (each.dest is None or each.dest_name in there):
            job.record.forget_cut(each.dest_name, there.get(each.dest_name))
        prune.prune_source(job, each.source, there.get(each.dest_name))


def release(job: Job, sources: Iterable[Dataset]) -> None:
    """Release what this run holds of these, but for what a cut stream goes on with."""
    may_resume = job.began if job.speech.common.resume else ()
    names = [each.name for each in sources if each.name not in may_resume]
    job.holds.release([held for name in names for held in sorted(job.holds.of(name))])


# --- bookmarks


def _bookmark(job: Job, source: Dataset, dest: Dataset) -> None:
    """Bookmark the newest snapshot that both ends have, and destroy our earlier bookmarks."""
    there = guids(dest)
    shared = [each for each in source.snapshots if each.guid in there]
    if not shared:
        return
    ours = f"pscp-{job.record.mark}-"  # a bookmark has no property for our mark
    earlier = [each for each in source.bookmarks if each.name.startswith(ours)]
    if all(each.guid != shared[-1].guid for each in earlier):
        name = f"{ours}{shared[-1].guid:016x}"
        failure = f"{source.name}{shared[-1].short}: no bookmark was made"
        if not job.attempt(job.source, commands.bookmark(source.name, shared[-1], name), failure):
            return
    for each in earlier:
        if each.guid != shared[-1].guid:
            job.source.run(*commands.destroy(source.name, each))
