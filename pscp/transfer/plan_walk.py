"""The walk of a copy: each entry of the source is checked, placed, and sent or looked up.

Not here: the walk of a far source (far_walk.py), what is sent how (coordinator.py), what is at the
destination already (resume.py), the rules by which an entry is checked and placed (plan.py).
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator
from typing import Protocol

from pscp import errors
from pscp.endpoint import failures, placing, source, tree
from pscp.endpoint.wire import WireError
from pscp.transfer.copy_terms import CopyTerms
from pscp.transfer.ending import Ending
from pscp.transfer.far_walk import FarWalk
from pscp.transfer.plan import (
    QUESTION_BYTES,
    Ask,
    Failure,
    Placed,
    Placement,
    SourceRules,
    as_new,
    weight_bytes,
)
from pscp.transfer.results import Results

LOOK_ITEMS = 256  # that are looked up with one request


class Copy(Protocol):
    """What the walk needs of the copy it belongs to; the queue runs the first two."""

    terms: CopyTerms
    results: Results
    ending: Ending

    def send(self, item: Placed) -> None: ...

    def walk_ended(self) -> None: ...

    def look(self, items: list[Placed]) -> Ask: ...


class PlanWalk(threading.Thread):
    """Walks the source, and waits while much of it is still to be sent."""

    def __init__(self, copy: Copy, tops: list[source.Top], target: placing.Target) -> None:
        super().__init__(name="walk", daemon=True)
        self._copy, self._terms, self._queue = copy, copy.terms, copy.terms.queue
        self._rules = SourceRules(tops, self._terms.options, not self._terms.context.is_push)
        self._placement = Placement(tops, target.names)
        existing = set(target.existing)
        self._new_tops = {top for top, name in enumerate(target.names) if name not in existing}
        # What follows only this thread uses.
        self._looking: list[Placed] = []  # items to be looked up
        self._looking_bytes = 0
        self._folded: set[int] = set()  # hashes of names so far, where their case tells nothing

    def run(self) -> None:
        try:
            for entry in self._entries():
                self._take(entry)
                if self._queue.error is not None:
                    return
            self._look()
            self._queue.run_alone(self._copy.walk_ended)
            self._queue.wake_lanes()
            self._queue.wake()
        except WireError as error:
            self._queue.stop(errors.ProtocolError(str(error)))
        except BaseException as error:  # the main thread raises it
            self._queue.stop(error)

    def _entries(self) -> Iterator[tree.Entry]:
        """Walk the source, here or, in answers of some thousand entries, there."""
        if self._terms.context.is_push:
            yield from self._terms.context.near_source_entries()
            return
        try:
            yield from FarWalk(self._queue).entries()
        except (ValueError, TypeError) as error:
            raise errors.ProtocolError(f"a walk of another shape: {error}") from None

    def _take(self, entry: tree.Entry) -> None:
        if entry.kind == tree.ERROR:
            self._refuse(failures.checked(entry.extra))
            return
        try:
            self._rules.check(entry)
            item = self._placement.place(entry)
            self._check_alone(item.entry)
        except (failures.Refusal, ValueError, LookupError) as error:
            kind = error.kind if isinstance(error, failures.Refusal) else failures.UNSAFE
            self._refuse(failures.data(kind, entry.path, str(error)))
            return
        if entry.kind != tree.FOLDER:
            self._terms.counters.add(files_total=1)
        if entry.kind == tree.HARDLINK:
            if not self._terms.options.dry_run:
                self._copy.ending.links.add(item.entry)
        elif entry.top in self._new_tops:
            new = as_new(item) if entry.kind == tree.FOLDER else item
            self._queue.run_with_room(self._copy.send, new)
        else:
            self._looking.append(item)
            self._looking_bytes += weight_bytes(item.entry)
            if len(self._looking) >= LOOK_ITEMS or self._looking_bytes >= QUESTION_BYTES // 2:
                self._look()

    def _refuse(self, failure: Failure) -> None:
        self._terms.counters.add(files_total=1)
        self._queue.run_alone(lambda: self._copy.results.failed(failure))

    def _check_alone(self, entry: tree.Entry) -> None:
        """Raises Refusal for a name that the destination takes for one that was there before."""
        if not self._terms.folds or entry.kind == tree.FOLDER:
            return
        folded = hash(unicodedata.normalize("NFC", entry.path.casefold()))
        if folded in self._folded:
            what = "the destination takes this name and another of this copy for one"
            raise failures.Refusal(failures.DESTINATION, entry.path, what)
        self._folded.add(folded)

    def _look(self) -> None:
        if self._looking:
            items, self._looking, self._looking_bytes = self._looking, [], 0
            self._queue.put(self._copy.look(items))
