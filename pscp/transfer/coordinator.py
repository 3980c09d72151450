"""The story of one copy's work, once there are lanes: the walk, what it finds, and the end.

The walk puts work on the queue while lanes take it. When all of it is done come the hard links,
then the folders' metadata, deepest first.

Not here: where work waits (lanes/work_queue.py), the walk (walk/plan_walk.py), what becomes of an
item (walk/items.py), the end (ending/ending.py), connections (lane_pool.py), what a user calls
(calls/api.py).
Read next: walk/items.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pscp.transfer.ending.ending import Ending
from pscp.transfer.lanes.lost_work import revoke_first
from pscp.transfer.neighbours import neighbours_of
from pscp.transfer.pieces.plan import PlannedEntry
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.results import Results
from pscp.transfer.walk.items import Items
from pscp.transfer.walk.lookups import DestinationLookup
from pscp.transfer.walk.plan_walk import LOOK_ITEMS, PlanWalk

if TYPE_CHECKING:
    from pscp.transfer.ending.mirror import Mirror
    from pscp.transfer.ending.moving import Moving


class Coordinator:
    """One copy, from the first entry to the last rename. For the main thread."""

    def __init__(self, terms: CopyTerms) -> None:
        self.terms, self.results = terms, Results(terms)
        self._queue = terms.queue
        self._queue.when_lost(partial(revoke_first, self._queue.add, self.results.failed))
        self._ending = Ending(terms, self.results)
        self._items = Items(terms, self.results, self._ending)
        self._lookup = DestinationLookup(self._items)

    def run(self) -> None:
        """Copy everything. Raises what stops a copy as a whole; files' failures are kept."""
        mirror, moving = self._removers()
        walk = PlanWalk(self._items, self._lookup, mirror)
        try:
            if (neighbours := neighbours_of(self.terms.options)) is not None:
                neighbours.check(self.terms)
            if moving is not None:
                moving.look_for_others()
            walk.start()
            walk.count.count_here()
            self._wait_until_copied()
            self._queue.check()
            self._ending.finish(self._copy_now, self._copy_blocked, mirror, moving)
        except BaseException as error:
            self._queue.stop(error)
            if mirror is not None and isinstance(error, Exception):
                mirror.stopped()
            raise
        finally:
            if walk.ident is not None:
                walk.join()
            for part in (self._ending, mirror, moving):
                if part is not None:
                    part.close()
            self._queue.run_alone(self.results.lines.close)

    def _removers(self) -> tuple[Mirror | None, Moving | None]:
        """Load what few copies need: to delete at the destination, and files of the source."""
        options, mirror, moving = self.terms.options, None, None
        if options.delete and not options.transfer_test:
            from pscp.transfer.ending.mirror import Mirror

            mirror = Mirror(self.terms, self.results)
        if options.remove_source_files and not (options.dry_run or options.transfer_test):
            from pscp.transfer.ending.moving import Moving

            moving = Moving(self.terms, self.results)
        return mirror, moving

    def _wait_until_copied(self) -> None:
        self._queue.wait_for(self._is_copied)
        self._queue.finish_writing()

    def _is_copied(self) -> bool:
        """Return whether all of the plan is done.

        If the last answer has left small files that no lane was about to take, they are sent first.
        """
        is_idle = self.terms.counters.plan_complete and self._queue.is_idle()
        return is_idle and not self._items.flush()

    def _copy_now(self, items: list[PlannedEntry]) -> None:
        """Copy these items, those of new names as they are, and wait until that is done."""
        new = [item for item in items if item.entry.top in self.terms.new_tops]
        self._queue.run_with_room(self._lookup.take_new, new)
        others = [item for item in items if item.entry.top not in self.terms.new_tops]
        for begin in range(0, len(others), LOOK_ITEMS):
            self._queue.put(self._lookup.request(others[begin : begin + LOOK_ITEMS]))
        self._wait_until_copied()

    def _copy_blocked(self, items: list[PlannedEntry]) -> None:
        """Copy these items, in whose way nothing is any more, and wait until that is done."""
        self._queue.run_alone(lambda: self._items.send_blocked(items))
        self._wait_until_copied()
