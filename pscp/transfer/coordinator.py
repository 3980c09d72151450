"""Hands chunks to lanes; retries, verifies, journals, finishes. One Coordinator is one copy.

Where a chunk goes: plan.py (born) -> here and file_job.py (put on the queue, journaled once it
landed) -> lane.py (becomes frames) -> endpoint/files.py (pread, hash, pwrite), with
endpoint/wire.py open as the dictionary.

The copy's parts in time: the walk puts work on the queue while lanes take it; when all of it is
done come the hard links, then the folders' metadata, deepest first.

Not here: where work waits (work_queue.py), the walk of a far source (far_walk.py), connections
(lane_pool.py, worker.py), what is kept for the end (spool.py), what a user calls (api.py).
Read next: file_job.py, then lane.py.
"""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pscp import errors
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import failures, hashes, requests, source, tree
from pscp.endpoint.wire import WireError
from pscp.log import Log
from pscp.options import CHUNK_BYTES, Options
from pscp.progress import Counters, Reporter
from pscp.progress import Failure as Reported
from pscp.transfer.far_walk import FarWalk
from pscp.transfer.file_job import FileJob
from pscp.transfer.journal import AnyJournal, Landed
from pscp.transfer.lane_pool import LanePool
from pscp.transfer.plan import (
    QUESTION_BYTES,
    Ask,
    Asked,
    Failure,
    Pack,
    PackBuilder,
    Placed,
    Placement,
    Work,
    goes_in_pack,
    groups,
    weight_bytes,
)
from pscp.transfer.resume import LOOK_ITEMS, Look
from pscp.transfer.spool import Spool
from pscp.transfer.work_queue import WorkQueue

_log = Log("transfer")

# What failures may take up in memory, some ten thousand of them. What comes after is noted and
# counted, and is in no Result.
_FAILURES_BYTES = 8 * 1024 * 1024
_SHARES = 4  # of what is left, a lane takes one at a time
_START_BYTES, _START_SHARE = 64 * 1024 * 1024, 4  # a chunk at the start: a fourth of one later
_LEAST_SHARE = 16  # and toward the end: smaller ones cost more than the end of a copy gains

_ERRORS: dict[str, type[errors.FileError]] = {
    failures.CHANGED: errors.SourceChanged,
    failures.UNSUPPORTED: errors.UnsupportedFile,
    failures.UNSAFE: errors.UnsafeName,
    failures.DAMAGED: errors.VerifyError,
    failures.VERIFY: errors.VerifyError,
    failures.SYSTEM: errors.SystemFailure,
    failures.DESTINATION: errors.FileError,
    failures.SUPERSEDED: errors.FileError,
}

# What is asked for many entries at once.
_OfEntries = type[requests.Adopt] | type[requests.HardLinks] | type[requests.Folders]


class Coordinator:
    """One copy, from the first entry to the last rename."""

    def __init__(
        self, options: Options, counters: Counters, reporter: Reporter, journal: AnyJournal,
        pool: LanePool, *, keep_digests: bool = True, earlier: Sequence[str] = (),
        folds: bool = False, chunk_bytes: int = CHUNK_BYTES,
    ) -> None:  # fmt: skip
        """`earlier`: runs that may have left parts. With `folds` names at the destination do not
        differ by case. `chunk_bytes`: unless the options say.
        """
        self.options, self.counters, self.journal = options, counters, journal
        self.queue: WorkQueue = pool.queue
        self.algorithm, self.algorithms = pool.algorithm, pool.algorithms
        self.chunk_bytes, self.strong = options.chunk_bytes or chunk_bytes, options.strong
        self.failures: list[Reported] = []
        self._failures_bytes = 0
        self.digests: dict[str, str] = {}
        self._reporter, self._lanes, self._keep_digests = reporter, pool.context, keep_digests
        self._small = PackBuilder(self._packed)
        self._look = Look(self)
        self._looking: list[Placed] = []
        self._looking_bytes = 0
        self._folders, self._links = Spool(), Spool()
        self._is_new: Callable[[int], bool] = lambda top: True
        self._earlier = list(earlier)
        self._folded: set[int] | None = set() if folds else None  # hashes of names so far
        self._unwanted: dict[str, list[str]] = {}  # parts that lanes may have made late, or held
        self.queue.when_idle(self._small.flush)
        self.queue.revocation = self._revocation

    # --- the story

    def run(self, tops: list[source.Top], target: Any) -> None:
        """Copy everything. Raises what stops a copy as a whole; files' failures are kept."""
        existing = set(target[2])
        self._is_new = lambda top: target[1][top] not in existing
        plan = Asked(tops, self.options, not self._lanes.is_push), Placement(tops, target[1])
        walk = threading.Thread(target=self._walk, args=plan, name="walk", daemon=True)
        walk.start()
        try:
            self._wait_for(self._is_copied)
            self.queue.finish_writing()
            self.queue.check()
            self._finishing(self._links, requests.HardLinks, backwards=False)
            self._finishing(self._folders, requests.Folders, backwards=True)
            if not self.options.dry_run:
                self._release()
        except BaseException as error:
            self.queue.stop(error)
            raise
        finally:
            walk.join()
            self._folders.close()
            self._links.close()

    def _is_copied(self) -> bool:
        """Is all of the plan done? The queue asks."""
        if not self.counters.plan_complete or not self.queue.is_idle():
            return False
        # The last answer may have filled this when no lane was about to take it.
        pack = self._small.flush()
        if pack is not None:
            self.queue.add(pack)
        return pack is None

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        self.queue.wait_until(is_so)
        self.queue.check()

    # --- the walk

    def _walk(self, asked: Asked, placement: Placement) -> None:
        try:
            for entry in self._entries():
                self._take(entry, asked, placement)
                if self.queue.error is not None:
                    return
            self._flush_looking()
            self.queue.run_alone(self._complete)
            self.queue.wake_lanes()
            self.queue.wake()
        except WireError as error:
            self.queue.stop(errors.ProtocolError(str(error)))
        except BaseException as error:  # the main thread raises it
            self.queue.stop(error)

    def _complete(self) -> None:
        """The walk has come to its end."""
        pack = self._small.flush()
        if pack is not None:
            self.queue.add(pack)
        self.counters.set(plan_complete=True)

    def _entries(self) -> Iterator[tree.Entry]:
        """The walk of the source, here or, in answers of some thousand entries, there."""
        if self._lanes.is_push:
            yield from self._lanes.near_source_entries()
            return
        answers = FarWalk(self.queue)
        try:
            yield from answers.entries()
        except (ValueError, TypeError) as error:
            raise errors.ProtocolError(f"a walk of another shape: {error}") from None

    def _take(self, entry: tree.Entry, asked: Asked, placement: Placement) -> None:
        if entry.kind == tree.ERROR:
            self._not_taken(failures.checked(entry.extra))
            return
        try:
            asked.check(entry)
            item = placement.place(entry)
            self._check_alone(item.entry)
        except (failures.Refusal, ValueError, LookupError) as error:
            kind = error.kind if isinstance(error, failures.Refusal) else failures.UNSAFE
            self._not_taken(failures.data(kind, entry.path, str(error)))
            return
        if entry.kind != tree.FOLDER:
            self.counters.add(files_total=1)
        if entry.kind == tree.HARDLINK:
            if not self.options.dry_run:
                self._links.add(item.entry)
        elif self._is_new(entry.top):
            self._put(item)
        else:
            self._looking.append(item)
            self._looking_bytes += weight_bytes(item.entry)
            if len(self._looking) >= LOOK_ITEMS or self._looking_bytes >= QUESTION_BYTES // 2:
                self._flush_looking()

    def _not_taken(self, failure: Failure) -> None:
        self.counters.add(files_total=1)
        self.queue.run_alone(lambda: self._failed(failure))

    def _check_alone(self, entry: tree.Entry) -> None:
        """Raises Refusal for a name that the destination takes for one that was there before."""
        if self._folded is None or entry.kind == tree.FOLDER:
            return
        folded = hash(unicodedata.normalize("NFC", entry.path.casefold()))
        if folded in self._folded:
            what = "the destination takes this name and another of this copy for one"
            raise failures.Refusal(failures.DESTINATION, entry.path, what)
        self._folded.add(folded)

    def _flush_looking(self) -> None:
        if self._looking:
            items, self._looking, self._looking_bytes = self._looking, [], 0
            self.queue.put(self._look.request(items))

    def _put(self, item: Placed) -> None:
        """From the walk: a new item. Waits while the queue is full."""
        if item.entry.kind == tree.FOLDER:
            item = Placed(item.known, item.entry._replace(extra={**item.entry.extra, "new": 1}))
        self.queue.wait_for_room()
        self.queue.run_alone(lambda: self.send(item))

    # --- what becomes of an item (resume.py decides): outcomes of the queue, and the walk's steps

    def send(self, item: Placed, landed: Landed | None = None, compare: bool = False) -> None:
        """Copy this item."""
        entry = item.entry
        if self.options.dry_run:
            self._would_copy(item)
            return
        if entry.kind == tree.FOLDER and (self.options.preserve or "new" in entry.extra):
            self.queue.write_later(lambda: self._folders.add(entry))
        if not goes_in_pack(entry):
            FileJob(self, item).start(landed, compare)
            return
        self.counters.add(bytes_total=entry.size)
        pack = self._small.add(item)
        if pack is not None:
            self.queue.add(pack)

    def _would_copy(self, item: Placed) -> None:
        if item.entry.kind != tree.FOLDER:
            self.counters.add(files_done=1, bytes_total=item.entry.size, bytes_done=item.entry.size)
        line = item.entry.path + ("/" if item.entry.kind == tree.FOLDER else "")
        self.queue.write_later(lambda: self._reporter.line(line))

    def skipped(self, item: Placed) -> None:
        """--update: it stays as it is."""
        self.counters.add(files_skipped=1)

    def already_there(self, items: list[Placed], digests: list[str], size: int) -> None:
        """These files are at the destination already, and verified: `size` bytes of them."""
        self.counters.add(
            files_resumed=len(items), bytes_total=size, bytes_resumed=size,
            chunks_verified=len(items),
        )  # fmt: skip
        if self.options.strong and self._keep_digests:
            paths = (item.entry.path for item in items)
            self.digests.update(zip(paths, digests, strict=True))
        if self.options.preserve and not self.options.dry_run:
            for group in groups(item.entry for item in items):
                self._ask_each(requests.Adopt, group)

    def next_chunk_bytes(self) -> int:
        """Smaller at the start, so that it is soon known how fast lanes are, and toward the end,
        so that all of them end at about the same time.
        """
        counters = self.counters
        if self.options.chunk_bytes is not None:
            return self.chunk_bytes
        done = counters.bytes_done + counters.bytes_resumed + self.queue.in_flight_bytes()
        if done < _START_BYTES:
            return self.chunk_bytes // _START_SHARE
        if not counters.plan_complete:
            return self.chunk_bytes
        fair = (counters.bytes_total - done) // (_SHARES * max(counters.lanes_alive, 1))
        least = self.chunk_bytes // _LEAST_SHARE
        return max(min(-(-fair // least) * least, self.chunk_bytes), least)

    def file_done(self, item: Placed, digest: str) -> None:
        """A file has its final name."""
        self.counters.add(files_done=1)
        if digest and self._keep_digests:
            self.digests[item.entry.path] = digest

    def file_failed(self, item: Placed, failure: Failure) -> None:
        self._failed(failure)

    # --- packs

    def _packed(self, pack: Pack, failed: list[Any]) -> None:
        by_place = dict(failed)
        damaged: list[Placed] = []
        landed: list[tree.Entry] = []
        for place, (item, row) in enumerate(zip(pack.items, pack.rows, strict=True)):
            failure = by_place.get(place)
            if failure is None:
                landed.append(item.entry)
                if self.strong and self._keep_digests and row[1]:
                    self.digests[item.entry.path] = row[1]
            elif failure["kind"] == failures.DAMAGED and not pack.is_again:
                damaged.append(item)
                self.counters.add(chunks_resent=1, bytes_sent=item.entry.size)
            else:
                self._failed(failure)
        size = sum(entry.size for entry in landed)
        kinds = [entry.kind for entry in landed]
        self.counters.add(
            bytes_done=size, bytes_sent=size, chunks_verified=kinds.count(tree.FILE),
            files_done=len(kinds) - kinds.count(tree.FOLDER),
        )  # fmt: skip
        if damaged:
            self.queue.add(Pack(damaged, self._packed, is_again=True))

    def _failed(self, failure: Failure) -> None:
        if failure["kind"] == failures.SUPERSEDED:
            self.queue.stop(errors.CopyRunning(failure["message"]))
            return
        error = as_error(failure)
        _log.debug("failed: %s: %s", error.path, failure)
        self.counters.add(files_failed=1)
        told = Reported(error.path, type(error).__name__, error.message, error.hint)
        self._failures_bytes += sys.getsizeof(error.path) + sys.getsizeof(error.message) + 200
        if self._failures_bytes < _FAILURES_BYTES or not self.failures:
            self.failures.append(told)
        self._reporter.note(f"{error.path}: {error.message}")

    # --- the end

    def _finishing(self, spool: Spool, request: _OfEntries, backwards: bool) -> None:
        """One group after the other: a folder is finished after what is in it."""
        for group in groups(spool.take(backwards)):
            self._ask_each(request, group)
            self._wait_for(self.queue.is_idle)

    def _ask_each(self, request: _OfEntries, entries: list[tree.Entry]) -> None:
        def then(answer: Any) -> None:
            failed = {int(place): failures.checked(failure) for place, failure in answer}
            told = {each.path for each in self.failures} if failed else ()
            for failure in failed.values():
                if failure["path"] not in told:  # a folder that could not be made, for instance
                    self._failed(failure)
            if request is requests.HardLinks:
                self.counters.add(files_done=len(entries) - len(failed))

        self.queue.add(Ask(False, request(entries), then, self._failed))

    def unwanted(self, path: str, nonces: list[str]) -> None:
        """These runs ("" is this one) may have a part of this file when the copy is complete."""
        self._unwanted.setdefault(path, []).extend(nonces)

    def _revocation(self, lane: int, works: list[Work]) -> Ask:
        """Before another lane does what a lost one had: that one may come late with it."""

        def then(_: Any) -> None:
            for work in works:
                self.queue.add(work)

        def failed(failure: Failure) -> None:
            for work in works:
                if isinstance(work, Pack):
                    for item in work.items:
                        self._failed({**failure, "path": item.entry.path})
                elif isinstance(work, Ask):
                    work.failed(failure)

        return Ask(False, requests.Revoke(lane), then, failed, is_prompt=True)

    def _release(self) -> None:
        """Nobody owns the copy any more, so nothing changes what has landed, however late it
        comes. Only then can be removed what lanes may have made late.
        """
        self.queue.add(Ask(False, requests.Release(), _ignore, self._failed, is_prompt=True))
        self._wait_for(self.queue.is_idle)
        if not self.failures:
            for path in self.journal.unwanted():
                self.unwanted(path, self._earlier)
        for path, nonces in self._unwanted.items():
            discard = requests.Discard(path, nonces)
            self.queue.add(Ask(False, discard, _ignore, _ignore, is_prompt=True))
        self._wait_for(self.queue.is_idle)


def _ignore(_: Any) -> None:
    """What an end answers makes no difference."""


def as_error(failure: Failure) -> errors.FileError:
    """Failure data as the error it means."""
    path, message = failure["path"], failure["message"]
    if failure["kind"] == failures.SYSTEM:
        return errors.SystemFailure(path, message, failure["errno"])
    return _ERRORS[failure["kind"]](path, message)


def choose_hash(far: RemoteAgent) -> str:
    """The fastest digest both ends have. Raises ProtocolError for a HELLO without one."""
    try:
        return hashes.fastest(hashes.speeds(), far.hashes)
    except ValueError:
        raise errors.ProtocolError("the agent has no digest that this end has") from None
