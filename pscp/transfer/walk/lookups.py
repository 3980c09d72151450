"""Looks up what is at the destination already, and carries out what decide.py says of it.

A file of the same size is hashed at both ends (comparing.py), unless times decide: so running a
command again costs reading, not sending. A part is continued as far as its journal knows it, by the
same rule: where times decide its digests count, else the source's.

Not here: the rules (decide.py, ../terms/journal.py), whole folders that are the same
(folder_check.py), the copying of what is missing (file_job.py, items.py).
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source, tree
from pscp.endpoint.there import lookup
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import unexpected
from pscp.transfer.pieces.plan import (
    MEMORY_BYTES,
    Ask,
    PlannedEntry,
    as_new,
    goes_in_pack,
)
from pscp.transfer.terms.copy_terms import folders_of
from pscp.transfer.terms.journal import FileNotes, PartUse, decide_part_use
from pscp.transfer.walk.comparing import Comparison
from pscp.transfer.walk.decide import (
    CONTENT,
    KIND,
    Action,
    Rules,
    There,
    as_for,
    decide,
    difference,
    differing_metadata,
    owners_wanted,
    parse_lookup_row,
)
from pscp.transfer.walk.items import Items

if TYPE_CHECKING:
    from pscp.transfer.walk.linking import Linking, Pair


# What no file and no link replaces; so nothing of it is sent.
_IN_THE_WAY = {
    tree.FOLDER: "a folder",
    tree.FIFO: "a special file",
    tree.DEVICE: "a special file",
    tree.SPECIAL: "a special file",
}
_MIRROR = "--delete replaces it, and deletes what else the source has not"
_NOTHING_THERE = There("", 0, 0, [])


class DestinationLookup:
    """Decides for each entry whose source may be at the destination. Only the queue runs it."""

    def __init__(self, items: Items) -> None:
        self._items, self._terms, self._queue = items, items.terms, items.terms.queue
        self._rules = Rules.of(items.terms.options)
        self._comparison = Comparison(items, self._send_differing)
        self._refused: set[str] = set()  # folders that something else has the place of
        self._linking: Linking | None = None
        if self._terms.options.link_dest and not self._terms.options.transfer_test:
            from pscp.transfer.walk.linking import Linking  # here: few copies need it

            self._linking = Linking(items)

    def request(self, items: list[PlannedEntry]) -> Ask:
        """Return the request that looks up some hundred items, and then decides about each."""
        paths = [item.entry.path for item in items]
        wanted = owners_wanted([item.entry for item in items], self._rules)

        def then(answer: object) -> None:
            rows = [parse_lookup_row(row) for row in answers.items(answer)]
            found = [as_for(item.entry, row) for item, row in zip(items, rows, strict=True)]
            if not self._terms.reuses:  # over SFTP, which tells whole seconds, at either end
                found = [each._replace(mtime_ns=each.mtime_ns // 10**9 * 10**9) for each in found]
            self._link(
                [pair for pair in zip(items, found, strict=True) if self._seen_or_failed(*pair)]
            )

        cost_bytes = len(items) * MEMORY_BYTES
        return Ask(False, lookup.Lookup(paths, wanted), then, unexpected, cost_bytes=cost_bytes)

    def _seen_or_failed(self, item: PlannedEntry, there: There) -> bool:
        """Return whether it is known what is there, if anything; else the entry fails."""
        if there.failure is not None:
            self._items.results.name_failed(item, there.failure)
        return there.failure is None

    def _link(self, pairs: list[Pair]) -> None:
        """Decide about these, once what is unchanged in other folders was linked (--link-dest)."""
        if self._linking is None:
            self._decide(pairs)
            return
        wanted = [pair for pair in pairs if self._may_be_linked(*pair)]
        asked = {id(item) for item, _ in wanted}
        self._decide([pair for pair in pairs if id(pair[0]) not in asked])
        self._linking.take(wanted, self._decide)

    def _may_be_linked(self, item: PlannedEntry, there: There) -> bool:
        is_wanted = self._action(item, there) in (Action.SEND, Action.HASH)
        # Without -p what replaces a file keeps its mode, which no file of DIR has to have.
        is_free = self._terms.options.preserve or there.kind == ""
        return is_wanted and is_free and item.entry.kind in (tree.FILE, tree.LINK)

    def _action(self, item: PlannedEntry, there: There) -> Action:
        has_part = bool(there.left and self._basis_bytes(item.entry, there))
        return decide(item.entry, there, self._rules, has_part=has_part)

    def take_new(self, items: list[PlannedEntry]) -> None:
        """Carry out what becomes of entries whose sources' names are new at the destination."""
        for item in items:
            action = decide(item.entry, None, self._rules)
            if action is Action.SEND and item.entry.kind == tree.FILE:  # most of a first copy
                self._items.send(item)
            else:
                self._carry_out(item, _NOTHING_THERE, action)

    def _decide(self, pairs: list[Pair]) -> None:
        unchanged: list[PlannedEntry] = []
        to_hash: list[PlannedEntry] = []
        for item, there in pairs:
            action = self._action(item, there)
            if self._refused and action is not Action.SKIP and self._refuse_below(item):
                continue
            if there.kind:
                self._items.results.replaces(item.entry.path)
            is_large = item.entry.kind == tree.FILE and not goes_in_pack(item.entry)
            if there.left and not (is_large and action is Action.SEND):  # else _send() sees to them
                self._items.ending.add_unwanted(item.entry.path, there.left)
            if action in (Action.UNCHANGED, Action.HASH):
                why = differing_metadata(item.entry, there, self._rules)
                self._items.note_metadata(item.entry, why)
            if action is Action.UNCHANGED:
                unchanged.append(item)
            elif action is Action.HASH:
                to_hash.append(item)
            else:
                self._carry_out(item, there, action)
        self._items.unchanged(unchanged)
        self._comparison.begin(to_hash)

    def _carry_out(self, item: PlannedEntry, there: There, action: Action) -> None:
        """Send, link, skip or refuse an entry, of which there is this at the destination."""
        entry, why = item.entry, difference(item.entry, there, self._rules)
        if action is Action.REPLACE:
            self._items.results.blocked[entry.path] = item, there.kind
        elif action is Action.REFUSE:
            message = f"is {_IN_THE_WAY.get(there.kind, 'a file or a link')} at the destination"
            failure = failures.data(failures.DESTINATION, entry.path, message)
            options = self._terms.options
            hint = _MIRROR if options.recursive and not options.files_from else ""
            if hint and options.ignore_existing:
                hint = "without --ignore-existing, " + hint
            self._items.results.name_failed(item, {**failure, "hint": hint})
            if entry.kind == tree.FOLDER:
                self._refused.add(entry.path)
        elif action is Action.SKIP:
            self._skip(item)
        elif action is Action.LINK and not self._terms.options.dry_run:
            self._items.link_later(item)
        elif entry.kind == tree.FILE:
            self._send(item, there, why)
        else:
            is_new = there.kind == "" or why == KIND
            self._items.send(as_new(item) if is_new else item, why=why)

    def _refuse_below(self, item: PlannedEntry) -> bool:
        """Return whether the entry is in a folder that was refused; then it fails, too."""
        path = item.entry.path
        above = next((each for each in folders_of(path) if each in self._refused), None)
        if above is None:
            return False
        message = f"{posixpath.basename(above)!a} is a link or a file there, not a folder"
        self._items.results.name_failed(item, failures.data(failures.UNSAFE, path, message))
        return True

    def _skip(self, item: PlannedEntry) -> None:
        """Leave an entry out. What lies there may have other bytes, another mode or owner, so
        another name of the source's file is no link to that.
        """
        entry, results = item.entry, self._items.results
        results.leave_to_next(item)
        if entry.kind != tree.FOLDER:
            size_bytes = entry.size if entry.kind == tree.FILE else 0
            self._terms.counters.add(files_skipped=1, bytes_unneeded=size_bytes)
            results.record_outcome("skipped", [(entry.path, "")])

    def _basis_bytes(self, entry: tree.Entry, there: There) -> int:
        """Return the size of the file that is there, if a large file may have parts of it."""
        may_reuse = self._terms.reuses and self._terms.options.resume and there.kind == tree.FILE
        return there.size_bytes if may_reuse and not goes_in_pack(entry) else 0

    def _send_differing(self, item: PlannedEntry) -> None:
        """Copy a file that was found to differ from one of its size."""
        self._send(item, There(tree.FILE, item.entry.size, 0, []), CONTENT)

    def _send(self, item: PlannedEntry, there: There, why: str) -> None:
        """Copy a file, continuing the part of the last run that has left one."""
        options, left = self._terms.options, there.left
        basis_bytes = self._basis_bytes(item.entry, there)
        if not left or goes_in_pack(item.entry) or options.dry_run:
            self._items.send(item, basis_bytes=basis_bytes, why=why)
            return
        file = item.entry.path, source.identity(item.known)
        is_anothers = self._terms.journal.knows_another(*file)
        landed = self._terms.journal.landed(*file)
        if landed is not None and landed.algorithm not in self._terms.algorithms:
            landed = None  # an end cannot check it any more
        how = decide_part_use(
            item.entry, left[-1], landed,
            is_anothers=is_anothers, resume=options.resume, by_time=self._rules.goes_by_time,
        )  # fmt: skip
        if how is PartUse.ANEW:
            self._discard(item, left)
            self._items.send(item, basis_bytes=basis_bytes)
            return
        self._discard(item, left[:-1])
        known = None if how is PartUse.COMPARED else landed
        compare = how is not PartUse.AS_NOTED
        self._inherit(item, left[-1], known, compare, basis_bytes)

    def _discard(self, item: PlannedEntry, left: list[str]) -> None:
        path = item.entry.path

        def then(is_gone: object) -> None:
            if not is_gone:  # then it is tried again when the copy is complete
                self._items.ending.add_unwanted(path, left)

        if left:
            self._queue.add(Ask(False, requests.Discard(path, left), then, answers.ignored))

    def _inherit(
        self,
        item: PlannedEntry,
        nonce: str,
        landed: FileNotes | None,
        compare: bool,
        basis_bytes: int,
    ) -> None:
        """Have the sink make an earlier run's part this run's own, and send what it lacks.

        What follows the run's nonce is as FileJob.start() takes it.
        """

        def then(is_ours: object) -> None:
            if is_ours:
                self._items.send(item, landed, compare, basis_bytes)
            else:
                self._discard(item, [nonce])
                self._items.send(item, basis_bytes=basis_bytes)

        inherit = lookup.Inherit(item.entry, nonce)
        self._queue.add(Ask(False, inherit, then, lambda _: then(False), is_exclusive=True))
