"""The walk of a copy: each entry of the source is checked, placed, and sent or looked up.

Not here: how a folder is walked (endpoint/reading/tree.py), a walk at the far end (far_walk.py),
what is sent how (items.py), what is at the destination already (folder_check.py, lookups.py), the
rules by which an entry is checked, placed and left out (../pieces/plan.py, selection.py), names
that may be one there (names.py).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.wire import WireError
from pscp.endpoint.reading import metadata, tree
from pscp.endpoint.reading.rows import Listing
from pscp.endpoint.there import listings
from pscp.endpoint.there.listed_paths import Above, PathsWalk, above
from pscp.ground import errors
from pscp.ground.contexts import with_context
from pscp.options.attributes import Attributes, Ids, Owner, known_id, parse_modes, parse_owner
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.asked_for import SourceRules
from pscp.transfer.pieces.plan import (
    QUESTION_BYTES,
    QUESTION_ITEMS,
    Ask,
    Failure,
    PlannedEntry,
    goes_in_pack,
    weight_bytes,
)
from pscp.transfer.walk.count_ahead import CountAhead
from pscp.transfer.walk.decide import must_look
from pscp.transfer.walk.far_walk import FarPathsWalk, FarWalk, WalkRequest, from_far
from pscp.transfer.walk.folder_check import FolderCheck
from pscp.transfer.walk.items import Items
from pscp.transfer.walk.lookups import DestinationLookup
from pscp.transfer.walk.names import ONE, Names
from pscp.transfer.walk.selection import Selection

if TYPE_CHECKING:
    from pscp.transfer.ending.mirror import Mirror

# Entries of a new source that are carried out together: each turn of the queue's lock costs as much
# as the step that is done in it.
_NEW_ITEMS = 16
LOOK_ITEMS = 256  # entries that are looked up with one request
_NOT_ROOT = "--chown: the destination's user is not root, and can give nothing to another user"


# Why nothing is made in a folder, and so nothing is lost: not there, or not ours to write in.
_NOTHING_MADE = {*failures.ABSENT, errno.EACCES, errno.EPERM, errno.EROFS}
_MAY_BE_ONE = "the destination may take this name and another of this copy for one: {}"

# Of a folder whose name is another's at the destination: what is there is that one's.
_ALL_STAYS = Listing("", 0, True, None, "")

_T = TypeVar("_T")
_REFUSALS = (failures.Refusal, ValueError, LookupError)  # of an entry, by the rules


class PlanWalk(threading.Thread):
    """The thread that walks the source, and waits while much waits to be sent."""

    def __init__(self, items: Items, lookup: DestinationLookup, mirror: Mirror | None) -> None:
        super().__init__(target=with_context(self._walk), name="walk", daemon=True)
        self._items, self._lookup, self._mirror = items, lookup, mirror
        self._terms, self._queue = items.terms, items.terms.queue
        self._attributes: Attributes | None = None  # what changes; known when the walk begins
        self._is_here = self._terms.is_source_here
        options, tops = self._terms.options, self._terms.tops
        self._rules = SourceRules(tops, options, not self._is_here)
        self._selection = Selection(options, time.time_ns(), tops, self._terms.job.select)
        self.count = CountAhead(self._terms, self._selection.bounds)
        self._new_tops = self._terms.new_tops
        # Only this thread uses these.
        self._looking: list[PlannedEntry] = []  # items to be looked up
        self._looking_bytes = 0
        self._new: list[PlannedEntry] = []  # to be carried out together
        # A program's `select` may wait for what was found before.
        self._new_most = _NEW_ITEMS if self._terms.job.select is None else 1
        self._names = Names(self._folds, above=self._terms.above)
        self._walked_folders = Names(self._folds, self._names.refused, self._terms.above)

    def _walk(self) -> None:
        try:
            self._attributes = self._new_attributes()
            self._take_above()
            for entry in self._entries():
                self._take(entry)
                if self._queue.error is not None:
                    return
            self._take_new()
            self._ask_collected()
            self._queue.run_alone(self._end)
            self._queue.wake(lanes=True)
        except WireError as error:
            self._queue.stop(errors.ProtocolError(str(error)))
        except BaseException as error:  # the main thread raises it
            self._queue.stop(error)

    def _end(self) -> None:
        self._items.flush()
        self._terms.counters.set(plan_complete=True)
        self.count.stop()

    def _take_above(self) -> None:
        """Have the folders above the sources (-R) arrive as folders too."""
        folders = self._terms.above
        if not folders:
            return
        wanted = list(folders.values())
        if self._is_here:
            found = list(self._terms.context.near_source_entries(lambda near: above(near, wanted)))
        else:
            found = []
            for begin in range(0, len(wanted), QUESTION_ITEMS):
                found += self._ask_above(wanted[begin : begin + QUESTION_ITEMS])
        for path, entry in zip(folders, found, strict=True):
            if entry.kind != tree.FOLDER:
                self._refuse({**failures.parse_failure(entry.extra), "path": path})
                continue
            item = PlannedEntry(entry, entry._replace(path=path))
            try:
                self._names.check(item.entry)
                self._walked_folders.check(item.entry)
            except failures.Refusal as error:
                self._refuse(failures.data(error.kind, path, str(error)))
                continue
            self._items.ending.swept.add([path])
            self._collect_lookup(self._changed(item))

    def _ask_above(self, wanted: list[tuple[int, int]]) -> list[tree.Entry]:
        def checked(answer: object) -> list[tree.Entry]:
            found = [from_far(value) for value in answers.items(answer)]
            if len(found) != len(wanted):
                raise ValueError("other folders than were asked for")
            return found

        def failed(failure: Failure) -> NoReturn:
            raise errors.CopyError(failure["message"])

        return self._answer(True, Above(wanted), checked, failed)

    def _answer(
        self,
        of_source: bool,
        request: requests.Request,
        checked: Callable[[object], _T],
        failed: Callable[[Failure], _T],
    ) -> _T:
        """Return what `checked` makes of an end's answer, or `failed` of its failure. Raises what
        stops the copy.
        """
        answered: list[_T] = []
        refused: list[Failure] = []

        def then(answer: object) -> None:
            answered.append(checked(answer))
            self._queue.wake()

        def cannot(failure: Failure) -> None:
            refused.append(failure)
            self._queue.wake()

        self._queue.add(Ask(of_source, request, then, cannot))
        self._queue.wait_for(lambda: bool(answered or refused))
        return answered[0] if answered else failed(refused[0])

    def _new_attributes(self) -> Attributes | None:
        """Return what --chmod, --chown and --numeric-ids change; None for nothing."""
        options = self._terms.options
        if not (options.chmod or options.chown or options.numeric_ids):
            return None
        modes = parse_modes(options.chmod, metadata.current_umask()) if options.chmod else []
        ids = self._find_ids(parse_owner(options.chown)) if options.chown else Ids()
        return Attributes(modes, ids, options.numeric_ids)

    def _find_ids(self, owner: Owner) -> Ids:
        """Return the numbers of --chown; those of names the destination knows."""
        from pscp.endpoint.there import owners  # here: few copies need it

        known = [known_id(name) for name in owner]
        asked = owners.Owners(*[n if i is None else "" for n, i in zip(owner, known, strict=True)])

        def checked(answer: object) -> tuple[Ids, bool]:
            *found, own = answers.items(answer)
            ids = [
                answers.integer(each) if name else number
                for each, name, number in zip(found, asked, known, strict=True)
            ]
            if own is None:
                return Ids(*ids), True
            user, *groups = map(answers.integer, answers.items(own))
            return Ids(*ids), ids[0] in (None, user) and ids[1] in (None, *groups)

        def failed(failure: Failure) -> NoReturn:
            raise errors.DestinationError(f"--chown: {failure['message']}")

        found, may_give = self._answer(False, asked, checked, failed)
        if not may_give:
            self._terms.reporter.note(_NOT_ROOT)
        return found

    def _entries(self) -> Iterator[tree.Entry]:
        listed = self._terms.listed
        if listed is not None:
            for failure in listed.refused:
                self._refuse(failure)
            if not self._is_here:
                return FarPathsWalk(self._queue, listed.batches()).entries()
            rows, context = listed.rows(), self._terms.context
            return context.near_source_entries(lambda near: PathsWalk(near).listed(rows))
        if self._terms.checks_folders:
            walked = self._walked(listings.ListingWalk, listings.WalkFolders)
            terms = self._terms
            refuses = terms.options.backup or terms.of_the_manifest or terms.placement.taken
            check = FolderCheck(
                self._items,
                self._placed,
                self._claim_name,
                attributes=self._attributes,
                bounds=self._selection.bounds,
                may_refuse=self._may_refuse if refuses else None,
                mirror=self._mirror,
            )
            return check.changed(walked)
        return self._walked(tree.Walk, requests.Walk)

    def _walked(self, near: type[tree.Walk], far: WalkRequest) -> Iterator[tree.Entry]:
        """Return what is walked at this end or at the far one."""
        if not self._is_here:
            rtt_s = self._terms.context.rtt_s
            return FarWalk(self._queue, far, self.count.ask, rtt_s).entries()
        return self._terms.context.near_source_entries(lambda found: found.entries(kind=near))

    def _placed(self, entry: tree.Entry, of_folder: Listing | None) -> PlannedEntry | None:
        """Return the entry with how it lands, None where _take() will refuse it. The mirror sees
        it.
        """
        if entry.kind == tree.ERROR:
            return None
        try:
            item = self._place(entry)
            self._see(item, of_folder)
            return item
        except _REFUSALS:
            return None

    def _see(self, item: PlannedEntry, of_folder: Listing | None = None) -> None:
        """Have the mirror see an entry. Raises Refusal for a folder that would land on another."""
        if of_folder is not None and of_folder.after:
            self._names.check_above(item.entry.path)
            if self._mirror is not None:
                self._mirror.saw_more(item.known, of_folder)
            return
        try:
            if item.entry.kind == tree.FOLDER:
                self._walked_folders.check(item.entry)
        except failures.Refusal:
            of_folder = _ALL_STAYS
            raise
        finally:
            if self._mirror is not None:
                self._mirror.saw(item, of_folder)

    def _claim_name(self, folder: tree.Entry) -> bool:
        """Return whether a folder that is the same, and never comes here, may have its name."""
        try:
            self._names.check(folder)
        except failures.Refusal:
            return False
        return True

    def _take(self, entry: tree.Entry) -> None:
        if entry.kind == tree.ERROR:
            self._refuse(failures.parse_failure(entry.extra), entry)
            return
        item = self._unless_refused(entry, self._land, entry)
        if item is None or self._leave_out(entry):  # what `select` raises is no refusal
            return
        if self._unless_refused(entry, self._check_name, item) is None:
            return
        if entry.kind == tree.FOLDER:
            self._items.ending.swept.add([item.entry.path])
        is_new = entry.top in self._new_tops and item.entry.path != ""  # which is DEST itself
        if must_look(entry, is_new, self._terms.options):
            if entry.kind != tree.FOLDER:
                self._terms.counters.add(files_total=1)
            self._collect_lookup(item)
            if entry.top in self._new_tops:  # DEST itself: a dry run tells of it before its content
                self._ask_collected()
                if self._terms.options.dry_run:
                    self._queue.wait_until(self._queue.is_idle)
        else:
            self._new.append(item)
            # Nothing waits with a large file for what comes next.
            if len(self._new) >= self._new_most or not goes_in_pack(entry):
                self._take_new()

    def _take_new(self) -> None:
        """Carry out what becomes of entries whose sources' names are new at the destination."""
        items, self._new = self._new, []
        if items:
            kinds = [item.entry.kind for item in items]
            self._terms.counters.add(files_total=len(kinds) - kinds.count(tree.FOLDER))
            self._queue.run_with_room(self._lookup.take_new, items)

    def _leave_out(self, entry: tree.Entry) -> bool:
        """Return whether the entry is left out, neither copied nor a failure, and count it."""
        terms = self._terms
        is_special = entry.kind in terms.unmade_kinds
        if not (is_special or self._selection.leaves_out(entry)):
            return False
        terms.counters.add(files_left_out=1)
        if is_special and not terms.options.quiet:
            where = terms.places.of_entry(entry)
            self._queue.run_alone(lambda: self._items.results.lines.leave_out(where, entry.kind))
        return True

    def _unless_refused(
        self, entry: tree.Entry, step: Callable[[_T], PlannedEntry], given: _T
    ) -> PlannedEntry | None:
        """Return what the step returns; None where it refuses the entry, which is reported."""
        try:
            return step(given)
        except _REFUSALS as error:
            kind = error.kind if isinstance(error, failures.Refusal) else failures.UNSAFE
            self._refuse(failures.data(kind, entry.path, str(error)), entry)
            return None

    def _place(self, entry: tree.Entry) -> PlannedEntry:
        self._rules.check(entry)
        return self._changed(self._terms.placement.place(entry))

    def _land(self, entry: tree.Entry) -> PlannedEntry:
        item = self._place(entry)
        if self._mirror is not None and not self._terms.checks_folders:
            self._see(item)
        return item

    def _check_name(self, item: PlannedEntry) -> PlannedEntry:
        """Raise Refusal for a name that cannot be given to this entry."""
        try:
            self._names.check(item.entry)
        except failures.Refusal:  # which is about this name of its file alone
            self._queue.run_alone(lambda: self._items.results.leave_to_next(item))
            raise
        self._terms.job.check_kind(item.entry)
        why = self._refusal(item.entry.path) if item.entry.kind != tree.FOLDER else ""
        if why:
            raise failures.Refusal(failures.DESTINATION, item.entry.path, why)
        return item

    def _refusal(self, path: str) -> str:
        """Return why nothing but a folder may get this path, "" for no reason."""
        if path in self._terms.of_the_manifest:
            return "is where the manifest will be"
        if self._terms.options.backup:  # the backup of another file may get it in this very copy
            suffix, folder = self._terms.options.backups
            if path.startswith(f"{folder}/" if folder else "") and path.endswith(suffix):
                other = (
                    "--backup-dir chooses another folder"
                    if folder
                    else "--suffix chooses other names"
                )
                return f"has a backup's name, so one might replace it ({other})"
        return ""

    def _may_refuse(self, path: str) -> bool:
        """Return whether a file of a listed folder may be refused for its path."""
        return path in self._terms.placement.taken or bool(self._refusal(path))

    def _folds(self, folder: str) -> str:
        """Return why names of this folder that are alike are not both given, "" where they are."""
        options = self._terms.options
        if options.dry_run or options.transfer_test:  # nothing is made there, nor lost
            return ""

        def failed(failure: Failure) -> str:
            is_sure = failure["kind"] != failures.SYSTEM or failure["errno"] in _NOTHING_MADE
            return "" if is_sure else _MAY_BE_ONE.format(failure["message"])

        asked = requests.Folds(folder, not options.existing)
        return self._answer(False, asked, lambda answer: ONE if answer is True else "", failed)

    def _changed(self, item: PlannedEntry) -> PlannedEntry:
        if self._attributes is None:
            return item
        return item._replace(entry=self._attributes.change(item.entry))

    def _collect_lookup(self, item: PlannedEntry) -> None:
        self._looking.append(item)
        self._looking_bytes += weight_bytes(item.entry)
        if len(self._looking) >= LOOK_ITEMS or self._looking_bytes >= QUESTION_BYTES // 2:
            self._ask_collected()

    def _refuse(self, failure: Failure, known: tree.Entry | None = None) -> None:
        marked = answers.from_source(failure)
        if known is not None:  # by its path alone it could be of another source
            marked["place"] = self._terms.places.of_entry(known)
        self._terms.counters.add(files_total=1)
        self._queue.run_alone(lambda: self._items.results.failed(marked))

    def _ask_collected(self) -> None:
        if self._looking:
            items, self._looking, self._looking_bytes = self._looking, [], 0
            self._queue.put(self._lookup.request(items))
