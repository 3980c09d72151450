"""Carries out what was decided about an item of a copy: it is sent, linked, or was there.

Small files, folders and links go in packs, a large file by a FileJob.

Not here: the decision (decide.py), how a pack is filled (../pieces/plan.py), what is reported of a
file (../terms/results.py), what waits for the end (../ending/ending.py).
Read next: file_job.py.
"""

from __future__ import annotations

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.there import lookup
from pscp.transfer.ending.ending import Ending
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import (
    Failure,
    Pack,
    PackBuilder,
    PlannedEntry,
    as_new,
    goes_in_pack,
    groups,
)
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.journal import FileNotes
from pscp.transfer.terms.results import Results
from pscp.transfer.walk.decide import KIND, MISSING, TIME
from pscp.transfer.walk.file_job import FileJob

_SPECIAL = frozenset([tree.FIFO, tree.DEVICE])
_CONTENTLESS = _SPECIAL | {tree.LINK}


class Items:
    """The items of one copy. Only what the queue runs uses it."""

    def __init__(self, terms: CopyTerms, results: Results, ending: Ending) -> None:
        self.terms, self.results, self.ending = terms, results, ending
        self._queue, self._counters, self._options = terms.queue, terms.counters, terms.options
        self._differing: dict[str, str] = {}  # in what, by path, of what may be unchanged
        self._builder = PackBuilder(self._packed, terms.job.expected)
        terms.queue.when_idle(self._collected)

    def send(
        self,
        item: PlannedEntry,
        landed: FileNotes | None = None,
        compare: bool = False,
        basis_bytes: int = 0,
        why: str = MISSING,
    ) -> None:
        """Copy this item; a large file as FileJob.start() says.

        `why` says how it differs from what is at the destination.
        """
        entry = item.entry
        self._differing.pop(entry.path, None)
        self.ending.count_attributes(entry)
        if self._options.dry_run:
            self._would_copy(entry, why)
            return
        if entry.kind == tree.FOLDER and why and "new" not in entry.extra:
            self.ending.differing_folders.add(entry.path)
        if entry.kind == tree.FOLDER and (self._options.preserve or "new" in entry.extra):
            if entry.path and self.terms.job.expected:  # it goes if its only file was refused
                entry = entry._replace(extra={**entry.extra, "filled": 1})
            self._queue.write_later(lambda: self.ending.folders.add(entry))
        if entry.kind == tree.FOLDER and self.ending.keeps(entry):
            return
        if not goes_in_pack(entry):
            FileJob(self.terms, self.results, self.ending, item).start(landed, compare, basis_bytes)
        elif self._builder.add(item):
            self.flush()

    def _would_copy(self, entry: tree.Entry, why: str) -> None:
        is_folder = entry.kind == tree.FOLDER
        self.results.awaited.discard(entry.path)
        if self._options.check:
            if why:
                self._counters.add(files_done=1)
                line = f"{entry.path or '.'}: {why}"
                self._queue.write_later(lambda: self.terms.reporter.line(line))
                self._differs(entry.path or ".", why)
            return
        if is_folder and "new" not in entry.extra:
            if why:
                self._would_adopt(entry, why)
            return  # at most its times would change
        if not is_folder:
            size_bytes = entry.size if entry.kind == tree.FILE else 0  # a further name has no bytes
            self._counters.add(files_done=1, bytes_total=size_bytes, bytes_done=size_bytes)
            self._differs(entry.path, why)
        is_new = is_folder or self.results.is_new(entry.path)
        self.results.would_be("copied", _shown_path(entry), is_new)

    def _would_adopt(self, entry: tree.Entry, why: str) -> None:
        """Tell of what is there that it would be given other metadata."""
        self._counters.add(metadata_set=1)
        if entry.kind != tree.FOLDER:
            self._differs(entry.path, why)
        self.results.would_be("metadata", _shown_path(entry))

    def _differs(self, path: str, why: str) -> None:
        self._queue.write_later(lambda: self.terms.reporter.differs(path, why, why == MISSING))

    def send_blocked(self, items: list[PlannedEntry]) -> None:
        """Copy items whose names had something that is deleted by now."""
        for item in items:
            if item.entry.kind == tree.HARDLINK and not self._options.dry_run:
                self.link_later(item)
            else:
                self.send(as_new(item), why=KIND)

    def link_later(self, item: PlannedEntry) -> None:
        row = [*item.entry, item.known.path]
        self._queue.write_later(lambda: self.ending.links.add(row))

    def note_metadata(self, entry: tree.Entry, why: str) -> None:
        """Note how the metadata differs of what is there, and may be unchanged else."""
        if why:
            self._differing[entry.path] = why

    def already_there(self, items: list[PlannedEntry], digests: list[str], size_bytes: int) -> None:
        """Count files of so many bytes that are at the destination already, and verified."""
        self._counters.add(chunks_verified=len(items))
        self._counters.add(bytes_total=size_bytes, bytes_resumed=size_bytes)
        self._found(items, digests, is_verified=True)
        self._counters.add(files_resumed=self._unchanged(items, digests))

    def unchanged(self, items: list[PlannedEntry]) -> None:
        """Count what is taken for the same, unread."""
        self._counters.add(bytes_unneeded=_bytes_of(items))
        digests = [""] * len(items)
        self._found(items, digests)
        self._counters.add(files_unchanged=self._unchanged(items, digests))

    def _unchanged(self, items: list[PlannedEntry], digests: list[str]) -> int:
        """Tell of what needs no bytes, and give it the metadata that it lacks. Return how many are
        not told to be another outcome.
        """
        found = dict(zip((each.entry.path for each in items), self._known(digests), strict=True))
        pairs = [(e.entry, self._differing.pop(e.entry.path, "")) for e in items]
        differing = [(entry, why) for entry, why in pairs if why]
        others = 0
        told = {entry.path for entry, _ in differing}
        if self._options.dry_run:
            self.results.awaited.difference_update(found)
            others = [self._tell(*each) for each in differing].count(True)
            differing = []
        unchanged = [(path, digest) for path, digest in found.items() if path not in told]
        self.results.record_outcome("unchanged", unchanged)

        def adopted(entries: list[tree.Entry]) -> None:
            self._counters.add(metadata_set=len(entries))
            self.results.record_outcome("metadata", [(e.path, found[e.path]) for e in entries])

        for group in groups(entry for entry, _ in differing):
            self.ending.ask(lookup.Adopt, group, adopted)
        return len(items) - others

    def _tell(self, entry: tree.Entry, why: str) -> bool:
        """Tell, if it is so, that metadata differs (-n, --check). Return whether that makes the
        entry another outcome than unchanged.
        """
        if self._options.check and why == TIME and entry.kind not in _SPECIAL:
            return False  # of what was hashed only the content counts, and what else differs
        # A file of several names is replaced where its metadata is another, but over SFTP.
        is_linked_anew = entry.kind == tree.HARDLINK and self.terms.reuses
        if self._options.check or is_linked_anew:
            self._would_copy(entry, why)
            return True
        if entry.kind != tree.HARDLINK:
            self._would_adopt(entry, why)
        return False

    def linked(self, items: list[PlannedEntry], digests: list[str]) -> None:
        """Count names of files in other folders; those with digests were verified."""
        self._counters.add(files_linked=len(items), bytes_unneeded=_bytes_of(items))
        self._counters.add(chunks_verified=sum(map(bool, digests)))
        self._found(items, digests)
        paths = [item.entry.path for item in items]
        self.results.record_outcome("linked", [*zip(paths, self._known(digests), strict=True)])

    def _known(self, digests: list[str]) -> list[str]:
        return digests if self._options.strong else [""] * len(digests)

    def _found(
        self, items: list[PlannedEntry], digests: list[str], *, is_verified: bool = False
    ) -> None:
        """Note what is there: verified are all, or those with digests or without content."""
        for item, digest in zip(items, digests, strict=True):
            self.results.is_there(item.entry)
            self.ending.count_attributes(item.entry)
            if is_verified or digest or item.entry.kind in _CONTENTLESS:
                self.results.was_there(item.known)

    # --- packs

    def flush(self) -> bool:
        """Put what was collected on the queue. Return whether there was anything."""
        pack = self._collected()
        if pack is not None:
            self._queue.add(pack)
        return pack is not None

    def _collected(self) -> Pack | None:
        """Return what was collected as a pack, and count its bytes; None if there is nothing."""
        pack = self._builder.flush()
        if pack is not None:
            self._counters.add(bytes_total=pack.size_bytes)
        return pack

    def _packed(self, pack: Pack, failed: list[tuple[int, Failure]]) -> None:
        failure_at, results = dict(failed), self.results
        damaged: list[PlannedEntry] = []
        landed: list[tree.Entry] = []
        digests: list[tuple[str, str]] = []
        for place, (item, row) in enumerate(zip(pack.items, pack.rows, strict=True)):
            failure = failure_at.get(place)
            if failure is None:
                landed.append(item.entry)
                if item.entry.kind == tree.FOLDER:
                    results.folder_made(item.entry)
                else:
                    digest = row[1] if isinstance(row, list) and self._options.strong else ""
                    digests.append((item.entry.path, digest))
                    results.is_there(item.entry)
                    results.landed(item.known)
            elif failure["kind"] == failures.DAMAGED and not pack.is_again:
                damaged.append(item)
                self._counters.add(chunks_resent=1, bytes_sent=item.entry.size)
            else:
                is_sinks = isinstance(row, list)
                results.name_failed(item, failure if is_sinks else answers.of_known(failure))
        results.record_outcome("copied", digests)
        size_bytes = sum(entry.size for entry in landed)
        self._counters.add(
            bytes_done=size_bytes,
            bytes_sent=size_bytes,
            chunks_verified=[entry.kind for entry in landed].count(tree.FILE),
            files_done=len(digests),
        )
        if damaged:
            again = Pack(damaged, self._packed, is_again=True, expected=self.terms.job.expected)
            self._queue.add(again)


def _shown_path(entry: tree.Entry) -> str:
    return (entry.path or ".") + "/" if entry.kind == tree.FOLDER else entry.path


def _bytes_of(items: list[PlannedEntry]) -> int:
    return sum(item.entry.size for item in items if item.entry.kind == tree.FILE)
