"""Hands out the work of one copy, and learns what became of it. One Coordinator is one copy.

The walk puts work on the queue while lanes take it: small files, folders and links in packs. When
all of it is done come the hard links, then the folders' metadata, deepest first.

Not here: where work waits (lanes/work_queue.py), the walk (walk/plan_walk.py), how a pack is filled
(pieces/plan.py), the end (ending/ending.py), connections (lane_pool.py, lanes/worker.py), what is
reported of a file (terms/results.py), what a user calls (calls/api.py).
Read next: walk/file_job.py, then lanes/lane.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pscp.endpoint import failures, lookup, placing, source, tree
from pscp.progress.progress import what_became
from pscp.transfer.ending.ending import Ending
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Ask, Failure, Pack, PackBuilder, Placed, goes_in_pack, groups
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.journal import Landed
from pscp.transfer.terms.results import Results
from pscp.transfer.walk.decide import MISSING
from pscp.transfer.walk.file_job import FileJob
from pscp.transfer.walk.plan_walk import LOOK_ITEMS, PlanWalk
from pscp.transfer.walk.resume import DestinationLookup

if TYPE_CHECKING:
    from pscp.transfer.ending.mirror import Mirror
    from pscp.transfer.ending.moving import Moving
    from pscp.transfer.walk.linking import Linking

_SHARES = 4  # toward the end a chunk is a fourth of what is left for each lane
_START_BYTES, _START_SHARE = 64 * 1024 * 1024, 4  # up to here a chunk is a fourth of a later one
_LEAST_SHARE = 16  # of a chunk: smaller ones cost more than the end of a copy gains


class SmallFiles:
    """Puts packs on the queue. Only what the queue runs uses it."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._results = terms, results
        self._builder = PackBuilder(self._packed, terms.job.expected)
        terms.queue.when_idle(self._collected)

    def add(self, item: Placed) -> None:
        """Have this item travel in a pack."""
        if self._builder.add(item):
            self.flush()

    def flush(self) -> bool:
        """Put what was collected on the queue. Return whether there was anything."""
        pack = self._collected()
        if pack is not None:
            self._terms.queue.add(pack)
        return pack is not None

    def _collected(self) -> Pack | None:
        """Return what was collected as a pack, and count its bytes; None if there is nothing."""
        pack = self._builder.flush()
        if pack is not None:
            self._terms.counters.add(bytes_total=pack.size_bytes)
        return pack

    def _packed(self, pack: Pack, failed: list[tuple[int, Failure]]) -> None:
        failure_at = dict(failed)
        damaged: list[Placed] = []
        landed: list[tuple[tree.Entry, str]] = []  # with its digest
        for place, (item, row) in enumerate(zip(pack.items, pack.rows, strict=True)):
            failure = failure_at.get(place)
            if failure is None:
                digest = row[1] if isinstance(row, list) and self._terms.options.strong else ""
                landed.append((item.entry, digest))
                if item.entry.kind != tree.FOLDER:
                    self._results.is_there(item.entry)
                    self._results.landed(item.known)
            elif failure["kind"] == failures.DAMAGED and not pack.is_again:
                damaged.append(item)
                self._terms.counters.add(chunks_resent=1, bytes_sent=item.entry.size)
            else:
                is_read = isinstance(row, list)
                self._results.failed(failure if is_read else answers.from_source(failure))
        self._landed(landed)
        if damaged:
            again = Pack(damaged, self._packed, is_again=True, expected=self._terms.job.expected)
            self._terms.queue.add(again)

    def _landed(self, landed: list[tuple[tree.Entry, str]]) -> None:
        files = ((entry.path, digest) for entry, digest in landed if entry.kind != tree.FOLDER)
        self._results.became("copied", files)
        size_bytes = sum(entry.size for entry, _ in landed)
        kinds = [entry.kind for entry, _ in landed]
        self._terms.counters.add(
            bytes_done=size_bytes,
            bytes_sent=size_bytes,
            chunks_verified=kinds.count(tree.FILE),
            files_done=len(kinds) - kinds.count(tree.FOLDER),
        )


class Coordinator:
    """One copy, from the first entry to the last rename.

    The main thread calls run(), the walk's thread look(); the queue runs the other methods.
    """

    def __init__(self, terms: CopyTerms) -> None:
        self.terms = terms
        self._queue, self._counters, self._options = terms.queue, terms.counters, terms.options
        self.results = Results(terms)
        self._small = SmallFiles(terms, self.results)
        self.ending = Ending(terms, self.results)
        self.linking: Linking | None = None
        if self._options.link_dest and not self._options.transfer_test:
            from pscp.transfer.walk.linking import Linking  # here: few copies need it

            self.linking = Linking(self)
        self._lookup = DestinationLookup(self)
        self.mirror: Mirror | None = None

    # --- the story

    def run(self, tops: list[source.Top], target: placing.Target) -> None:
        """Copy everything. Raises what stops a copy as a whole; files' failures are kept."""
        moving = self._prepare(tops, target)
        if self.linking is not None:
            self.linking.ask_for_folders()
        walk = PlanWalk(self, tops, target)
        walk.start()
        try:
            self.ending.wait_for(self._is_copied)
            self._queue.finish_writing()
            self._queue.check()
            self.ending.finish(self._copy_now, self.mirror, moving)
        except BaseException as error:
            self._queue.stop(error)
            if self.mirror is not None and isinstance(error, Exception):
                self.mirror.stopped()
            raise
        finally:
            walk.join()
            for part in (self.ending, self.mirror, moving):
                if part is not None:
                    part.close()
            self._queue.run_alone(self.results.lines.close)

    def _prepare(self, tops: list[source.Top], target: placing.Target) -> Moving | None:
        """Load what few copies need: to delete at the destination, and files of the source."""
        options = self._options
        if options.transfer_test:
            return None
        if options.delete:
            from pscp.transfer.ending.mirror import Mirror

            self.mirror = Mirror(self.terms, self.results, tops, target)
        if not options.remove_source_files or options.dry_run:
            return None
        from pscp.transfer.ending.moving import Moving

        return Moving(self.terms, self.results, tops, target)

    def _is_copied(self) -> bool:
        """Return whether all of the plan is done.

        If the last answer has left small files that no lane was about to take, they are sent first.
        """
        is_idle = self._counters.plan_complete and self._queue.is_idle()
        return is_idle and not self._small.flush()

    def _copy_now(self, items: list[Placed]) -> None:
        """Look up and copy these items, and wait until that is done. For the main thread."""
        for begin in range(0, len(items), LOOK_ITEMS):
            self._queue.put(self.look(items[begin : begin + LOOK_ITEMS]))
        self.ending.wait_for(self._is_copied)
        self._queue.finish_writing()

    # --- the walk's steps

    def walk_ended(self) -> None:
        self._small.flush()
        self._counters.set(plan_complete=True)

    def look(self, items: list[Placed]) -> Ask:
        """Return the request that finds out what is at the destination of these items."""
        return self._lookup.request(items)

    def take_new(self, item: Placed) -> None:
        """Copy an item whose source has no name at the destination yet."""
        self._lookup.take_new(item)

    # --- what becomes of an item (walk/resume.py decides): outcomes of the queue, the walk's steps

    def send(
        self,
        item: Placed,
        landed: Landed | None = None,
        compare: bool = False,
        basis_bytes: int = 0,
        why: str = MISSING,
    ) -> None:
        """Copy this item; a large file as FileJob.start() says.

        `why` says how it differs from what is at the destination.
        """
        entry = item.entry
        if self._options.dry_run:
            self._would_copy(entry, why)
            return
        if entry.kind == tree.FOLDER and (self._options.preserve or "new" in entry.extra):
            if entry.path and self.terms.job.expected:  # it goes if its only file was refused
                entry = entry._replace(extra={**entry.extra, "filled": 1})
            self._queue.write_later(lambda: self.ending.folders.add(entry))
        if goes_in_pack(entry):
            self._small.add(item)
        else:
            FileJob(self, item).start(landed, compare, basis_bytes)

    def _would_copy(self, entry: tree.Entry, why: str) -> None:
        is_folder = entry.kind == tree.FOLDER
        if self._options.check:
            if why:
                self._counters.add(files_done=1)
                self._show(f"{entry.path or '.'}: {why}")
            return
        if not is_folder:
            size_bytes = entry.size if entry.kind == tree.FILE else 0  # a further name has no bytes
            self._counters.add(files_done=1, bytes_total=size_bytes, bytes_done=size_bytes)
        if is_folder and "new" not in entry.extra:
            return  # at most its times or its mode would change
        path = entry.path + ("/" if is_folder else "")
        became = what_became("copied", is_folder or self.results.is_new(entry.path))
        self._show(f"{became:<9} {path}" if self._options.itemize else path)

    def _show(self, line: str) -> None:
        self._queue.write_later(lambda: self.terms.reporter.line(line))

    def link_later(self, item: Placed) -> None:
        """Make this hard link at the end."""
        self._queue.write_later(lambda: self.ending.add_link(item))

    def already_there(self, items: list[Placed], digests: list[str], size_bytes: int) -> None:
        """Count files of so many bytes that are at the destination already, and verified."""
        self._counters.add(files_resumed=len(items), chunks_verified=len(items))
        self._counters.add(bytes_total=size_bytes, bytes_resumed=size_bytes)
        for item in items:
            self.results.is_there(item.entry)
            self.results.was_there(item.known)
        known = digests if self._options.strong else [""] * len(items)
        self.results.became(
            "unchanged",
            ((item.entry.path, digest) for item, digest in zip(items, known, strict=True)),
        )
        if self._options.preserve:
            self._adopt(items)

    def unchanged(self, items: list[Placed], differing: list[Placed]) -> None:
        """Count what is taken for the same, unread; the metadata of `differing` is another."""
        self._counters.add(files_unchanged=len(items))
        for item in items:
            self.results.is_there(item.entry)
            if item.entry.kind == tree.LINK:  # where it leads to has been compared
                self.results.was_there(item.known)
        self.results.became("unchanged", ((item.entry.path, "") for item in items))
        self._adopt(differing)

    def linked(self, items: list[Placed], digests: list[str]) -> None:
        """Count names of files in other folders; those with digests were verified."""
        self._counters.add(files_linked=len(items), chunks_verified=sum(map(bool, digests)))
        for item in items:
            self.results.is_there(item.entry)
        for item, digest in zip(items, digests, strict=True):
            if digest or item.entry.kind == tree.LINK:
                self.results.was_there(item.known)
        if self._options.dry_run and self._options.itemize:
            for item in items:
                self._show(f"{'linked':<9} {item.entry.path}")
        known = digests if self._options.strong else [""] * len(items)
        paths = (item.entry.path for item in items)
        self.results.became("linked", zip(paths, known, strict=True))

    def _adopt(self, items: list[Placed]) -> None:
        """Give files that are at the destination already their sources' metadata."""
        if not self._options.dry_run:
            for group in groups(item.entry for item in items):
                self.ending.ask(lookup.Adopt, group)

    def next_chunk_bytes(self) -> int:
        """Return the length of the next chunk.

        It is smaller at the start, so that it is soon known how fast lanes are, and toward the end,
        so that all of them end at about the same time. Copies that share their reads have the same
        chunks.
        """
        counters, most_bytes = self._counters, self.terms.chunk_bytes
        if self._options.chunk_bytes is not None or self.terms.context.shares_reads:
            return most_bytes
        in_flight_bytes = self._queue.in_flight_bytes()
        left_bytes = counters.left_bytes - in_flight_bytes
        if counters.bytes_total - left_bytes < _START_BYTES:
            return most_bytes // _START_SHARE
        if not counters.plan_complete:
            return most_bytes
        fair_bytes = left_bytes // (_SHARES * max(counters.lanes_alive, 1))
        least_bytes = most_bytes // _LEAST_SHARE
        return max(min(-(-fair_bytes // least_bytes) * least_bytes, most_bytes), least_bytes)
