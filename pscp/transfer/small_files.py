"""Collects a copy's small files, folders and links into packs, and handles their outcomes.

Not here: large files (file_job.py), how a pack is filled (plan.py).
"""

from __future__ import annotations

from pscp.endpoint import failures, tree
from pscp.transfer import answers
from pscp.transfer.copy_terms import CopyTerms
from pscp.transfer.plan import Failure, Pack, PackBuilder, Placed
from pscp.transfer.results import Results


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
