"""A mirror (--delete): at the end of a copy, what the source does not have is deleted at DEST.

Nothing is deleted unless the walk was whole, and what landed is on the disk. The walk's names are
kept, folder by folder. Once all else has landed the sink is asked what else it has, and the source
whether it still lacks that; then all of it is counted, and only then removed, folders last.

Not here: what the ends do (endpoint/there/mirror.py), the names of one folder (walked_folder.py),
the order of a copy's end (ending.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.endpoint.reading.rows import Listing, unpack
from pscp.endpoint.there import mirror
from pscp.endpoint.writing import removal
from pscp.endpoint.writing.removal import Durable, is_safe_to_remove
from pscp.options import filters
from pscp.progress.progress_words import files_and_folders
from pscp.transfer.ending.walked_folder import Piece, WalkedFolder
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import QUESTION_ITEMS, Ask, PlannedEntry
from pscp.transfer.pieces.spool import Spool, grouped_rows
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.results import Results

_BESIDE_MOST = 1000  # names of other sources that a request has besides

_UNWANTED = "is not in the source"
_NO_ORDER = "the source's list has no order"
_NOT_DELETED = "nothing was deleted"
_LET_THEM = "a larger --max-delete, or none, lets them be deleted"


class Mirror:
    """The deletions of one copy. Each method says who may call it."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._queue, self._results = terms, terms.queue, results
        self._filters = tree.compiled(filters.regexes(terms.options.filters))
        # The names of sources, in their order, by the folder at the destination.
        self._beside: dict[str, dict[str, None]] = defaultdict(dict)
        for name in filter(None, terms.target.names):
            while name:
                folder, _, last = name.rpartition("/")
                self._beside[folder][last] = None
                name = folder
        # The walk's thread changes these, and the main thread once the walk has ended.
        self._open: list[WalkedFolder] = []  # the folders that the walk is in
        self._pieces = Spool()  # of folders without a listing
        self._last_top = -1  # the number of the last source that came
        self._problem = ""  # why the walk's list cannot be used
        # Later writes change these, and the main thread while the queue is idle.
        self._further = Spool()  # pieces to be asked about next
        self._files, self._folders = Spool(), Spool()  # what is to be removed
        self._apart: set[str] = set()  # folders of other file systems, with -x
        self._kept: set[str] = set()  # folders with something in them that is protected
        self._freed: set[str] = set()  # paths of blocked entries in whose way nothing is any more
        self._has_begun = False

    def close(self) -> None:
        for spool in (self._pieces, self._further, self._files, self._folders):
            spool.close()

    # --- the walk's thread

    def saw(self, item: PlannedEntry, of_folder: Listing | None = None) -> None:
        """Keep an entry's name, unless its folder's listing has it. `of_folder` is its own."""
        while self._open and not self._open[-1].holds(item.known):
            self._leave()
        if not self._is_next(item.known):
            self._problem = _NO_ORDER
        if self._open:
            folder, name = self._open[-1], item.known.path.rpartition("/")[2]
            full = None if folder.lists(name) else folder.add(name)
            if full is not None:
                self._pieces.add(full)
            folder.last = name
        if item.entry.kind == tree.FOLDER:
            self._open.append(WalkedFolder(item, of_folder))

    def saw_more(self, known: tree.Entry, of_folder: Listing) -> None:
        """Take the names of a further listing of a folder that the walk is in."""
        while self._open and self._open[-1].known[1:3] != known[1:3]:
            self._leave()
        folder = self._open[-1] if self._open else None
        if folder is None or not folder.ends_before(of_folder):
            self._problem = _NO_ORDER
            return
        if folder.names or of_folder.after != folder.low:
            self._pieces.add(folder.piece(of_folder.after))  # what no listing has
        folder.go_on(of_folder)

    def _leave(self) -> None:
        folder = self._open.pop()
        if not folder.is_listed:
            self._pieces.add(folder.piece(""))

    def _is_next(self, known: tree.Entry) -> bool:
        """Return whether an entry comes in the order of a walk, in which no folder comes twice."""
        above, _, name = known.path.rpartition("/")
        if self._open:
            folder = self._open[-1]
            return folder.known.path == above and to_bytes(name) > to_bytes(folder.last)
        before, self._last_top = self._last_top, known.top
        return known.top > before and known.path == self._terms.tops[known.top].name

    # --- what the queue runs

    def has_more(self, item: PlannedEntry, of_folder: Listing) -> None:
        """Have it asked at the end what a folder has that its listing has not."""
        self._queue.write_later(partial(self._ask_beside, item, of_folder))

    def _ask_beside(self, item: PlannedEntry, of_folder: Listing) -> None:
        folder = WalkedFolder(item, None)
        folder.low = of_folder.after
        for name in sorted(unpack(of_folder.text).names):
            full = folder.add(to_text(name))
            if full is not None:
                self._further.add(full)
        self._further.add(folder.piece(of_folder.up_to))

    # --- the main thread

    def finish(self) -> list[PlannedEntry]:
        """Delete what the source does not have, and what blocks names. All else has landed, or has
        failed. Return the entries that can be copied now; the other blocked ones fail.
        """
        blocked = self._results.blocked
        self._delete()
        self._results.blocked = {}
        freed: list[PlannedEntry] = []
        for path, (item, kind) in blocked.items():
            if path in self._freed:
                freed.append(item)
            else:
                what = "a folder" if kind == tree.FOLDER else "a special file"
                message = f"is {what} at the destination, which stays"
                failure = failures.data(failures.DESTINATION, path, message)
                self._queue.run_alone(partial(self._results.name_failed, item, failure))
        return freed

    def _delete(self) -> None:
        while self._open:
            self._leave()
        if self._is_refused():
            return
        self._settle([])
        blocked = list(self._results.blocked)
        for begin in range(0, len(blocked), QUESTION_ITEMS):
            self._settle([self._ask_in_the_way(blocked[begin : begin + QUESTION_ITEMS])])
        self._gather()
        count = len(self._files) + sum(row[0] not in self._kept for row in self._folders.take())
        most = self._terms.options.max_delete
        is_dry, is_too_much = self._terms.options.dry_run, most is not None and count > most
        if self._terms.options.check:
            self._tell_differing()
            return
        if is_dry:
            self._list(is_too_much)
        if is_too_much:
            why = f"{files_and_folders(count)} would be, more than --max-delete {most}"
            hint = _LET_THEM if is_dry else f"--dry-run lists them; {_LET_THEM}"
            self._fail(f"{_NOT_DELETED}: {why}", hint)
        elif not is_dry:
            self._has_begun = True
            self._settle(map(self._removal, grouped_rows(self._to_remove(self._files))))
            for group in grouped_rows(self._to_remove(self._folders)):
                self._settle([self._removal(group)])

    def _list(self, is_too_much: bool) -> None:
        """List what would be deleted; none of it counts as that where it is too much."""
        for spool in (self._files, self._folders):
            for group in grouped_rows(self._to_remove(spool)):
                self._show(group)
                if is_too_much:
                    continue
                self._gone(group)
                self._terms.counters.add(files_deleted=len(group))
                for path, *_ in group:
                    self._terms.reporter.differs(path, _UNWANTED, False)

    def _tell_differing(self) -> None:
        """Tell what is too much (--check). What is in the way of a source is told as that."""
        for spool in (self._files, self._folders):
            for group in grouped_rows(self._to_remove(spool)):
                self._gone(group)
                paths = [path for path, *_ in group if path not in self._results.blocked]
                self._terms.counters.add(files_done=len(paths))
                for path in paths:
                    self._terms.reporter.line(f"{path}: {_UNWANTED}")
                    self._terms.reporter.differs(path, _UNWANTED, False)

    def stopped(self) -> None:
        """Tell that the copy was cut short before its end, so that all or some was not deleted."""
        deleted = self._terms.counters.files_deleted
        why = f"{deleted} were deleted" if self._has_begun else _NOT_DELETED
        self._terms.reporter.note(f"{why}: the copy was not completed")

    def _is_refused(self) -> bool:
        """Tell why nothing is deleted, if something is wrong with the copy. Return whether so.

        A file that failed is in the source all the same: so nothing that it lacks is kept for it.
        """
        stops = self._results.stops_deletion
        if self._problem:
            self._fail(f"{_NOT_DELETED}: {self._problem}")
        elif self._results.is_partial:
            self._note(f"{_NOT_DELETED}, since a source is missing")
        elif stops:
            self._note(f"{_NOT_DELETED}: {stops}")
        is_known = not (self._problem or self._results.is_partial)
        proof = removal.DIGEST if is_known else ""  # the whole source was walked
        return not is_safe_to_remove(Durable(proof, is_synced=not stops, is_elsewhere=True))

    def _note(self, why: str) -> None:
        self._results.not_deleted = why
        self._terms.reporter.note(why)

    def _fail(self, why: str, hint: str = "") -> None:
        failure = failures.data(failures.DESTINATION, "", why)  # "": the destination itself
        failure["hint"] = hint
        self._queue.run_alone(lambda: self._results.failed(failure))

    def _settle(self, asks: Iterable[Ask]) -> None:
        """Make these requests, and wait for what follows from them. Raises what stops the copy."""
        for ask in asks:
            self._queue.put(ask)
        self._queue.wait_until(self._queue.is_idle)
        self._queue.finish_writing()
        self._queue.check()

    # --- what is to be deleted

    def _ask_in_the_way(self, paths: list[str]) -> Ask:
        def then(answer: object) -> None:
            for path, row in zip(paths, answers.items(answer), strict=True):
                if isinstance(row, dict):
                    self._results.failed(failures.parse_failure(row))
                    continue
                kind, seen = answers.texts(row)
                top = self._results.blocked[path][0].known.top
                if kind in (tree.FILE, tree.LINK, ""):  # it is another thing by now
                    self._freed.add(path)
                elif not self._is_protected(top, path, kind):
                    self._delete_later(top, path, kind, seen)

        return Ask(False, mirror.InTheWay(paths), then, self._results.failed)

    def _gather(self) -> None:
        """Find all that is to be deleted. Each turn finds what is in the last one's folders."""
        pieces = self._pieces
        while len(pieces) or len(self._further):
            self._settle(map(self._question, grouped_rows(pieces.take())))
            pieces.close()
            pieces, self._further = self._further, Spool()
        for path in sorted(self._apart):
            if path.rpartition("/")[0] not in self._apart:
                self._terms.reporter.note(f"{path}: is a mount point, and nothing in it is deleted")

    def _question(self, pieces: list[Piece]) -> Ask:
        def then(answer: object) -> None:
            pairs = zip(pieces, answers.items(answer), strict=True)
            for place, (piece, row) in enumerate(list(pairs)):
                if isinstance(row, dict):
                    self._results.failed_also([failures.parse_failure(row)])
                else:
                    self._take_answer(piece, row, is_first=place == 0)

        asked, tops = [], []
        for top, folder, _, low, high, names in pieces:
            if self._terms.options.one_file_system:
                tops.append(self._terms.target.names[top])
            # The sink needs other sources' names only where it takes two names for one.
            beside = islice(self._beside.get(folder, ()), _BESIDE_MOST)
            asked.append((folder, low, high, [*names, *beside]))
        return Ask(False, mirror.Extras(asked, tops), then, self._results.failed)

    def _take_answer(self, piece: Piece, row: object, is_first: bool) -> None:
        listed, has_more = answers.items(row)
        if has_more is None:
            self._apart.add(piece[1])
            return
        found = [_checked(each, piece) for each in answers.items(listed)]
        if has_more:
            low = found[-1][0] if found else piece[3]
            if is_first and low == piece[3]:
                raise ValueError("an answer that does not go on")
            self._queue.write_later(partial(self._further.add, [*piece[:3], low, *piece[4:]]))
        if not found:
            return
        if piece[2] is None:
            self._take(piece, found)
        else:
            self._queue.add(self._last_look(piece, found))

    def _last_look(self, piece: Piece, found: list[mirror.Row]) -> Ask:
        """Return the question whether the source still has none of these names.

        Names that it has, though the walk did not list them, are left out of the copy on purpose,
        or are new.
        """
        top, folder, inode = piece[:3]

        def then(answer: object) -> None:
            [there] = answers.items(answer)
            if isinstance(there, dict):  # so what is below it is not known, and stays
                failure = answers.from_source(failures.parse_failure(there))
                if failure["path"] not in {each.path for each in self._results.failures}:
                    self._results.failed(failure)
                return
            names = set(answers.texts(there))
            self._take(piece, [row for row in found if row[0] not in names])

        asked = [(top, self._terms.placement.known(top, folder), inode, [row[0] for row in found])]
        request = mirror.Absent(asked, crosses=not self._terms.options.one_file_system)
        return Ask(True, request, then, self._results.failed)

    def _take(self, piece: Piece, found: list[mirror.Row]) -> None:
        top, folder, inode = piece[:3]
        for name, kind, seen in found:
            path = f"{folder}/{name}" if folder else name
            if name in self._beside.get(folder, ()):
                continue
            if self._is_protected(top, path, kind):
                if inode is None:
                    self._keep(folder)
            else:
                self._delete_later(top, path, kind, seen)

    def _delete_later(self, top: int, path: str, kind: str, seen: str) -> None:
        """Keep what is to be deleted; of a folder also that what is in it is to be asked about."""
        if kind == tree.FOLDER:
            self._queue.write_later(partial(self._folders.add, [path, kind, seen]))
            self._queue.write_later(partial(self._further.add, [top, path, None, "", "", []]))
        else:
            self._queue.write_later(partial(self._files.add, [path, kind, seen]))

    def _is_protected(self, top: int, path: str, kind: str) -> bool:
        """Return whether filters leave a name out of the copy, or it is a mount point, or it has
        the backups.
        """
        if kind == mirror.MOUNT:
            self._terms.reporter.note(f"{path}: is a mount point, and is not deleted")
            return True
        backups = self._terms.options.backup_dir
        if backups and f"{path}/".startswith(f"{backups.rstrip('/')}/"):
            return True
        known = self._terms.placement.known(top, path)
        return tree.is_excluded(self._filters, known, kind == tree.FOLDER)

    def _keep(self, folder: str) -> None:
        """Have a folder stay, and those above it."""
        while folder and folder not in self._kept:
            self._kept.add(folder)
            folder = folder.rpartition("/")[0]

    # --- deleting it

    def _to_remove(self, spool: Spool) -> Iterable[Piece]:
        """Return the rows of what is to be removed, what is in a folder before the folder."""
        return (row for row in spool.take(backwards=True) if row[0] not in self._kept)

    def _removal(self, extras: list[Piece]) -> Ask:
        def then(answer: object) -> None:
            failed = dict(answers.places(answer))
            for failure in failed.values():
                self._results.failed(failure)
            gone = [row for place, row in enumerate(extras) if place not in failed]
            self._gone(gone)
            self._terms.counters.add(files_deleted=len(gone))
            if self._terms.options.verbose or self._terms.reporter.names_copied:
                self._queue.write_later(lambda: self._tell(gone))

        request = mirror.Remove([(path, kind, seen) for path, kind, seen in extras])
        return Ask(False, request, then, self._results.failed, is_exclusive=True)

    def _gone(self, rows: Iterable[Piece]) -> None:
        """Note whose names are free now, or would be."""
        self._freed |= {row[0] for row in rows} & self._results.blocked.keys()

    def _tell(self, rows: Sequence[Piece]) -> None:
        """Name what was deleted: to people with -v, and in a log."""
        reporter, places = self._terms.reporter, self._terms.places
        if self._terms.options.verbose:
            self._show(rows)
        for row in rows if reporter.names_copied else ():
            reporter.gone(f"deleted {places.of(_with_slash(row), of_source=False)}")

    def _show(self, rows: Iterable[Piece]) -> None:
        for row in rows:
            self._terms.reporter.line(f"deleting {_with_slash(row)}")


def _with_slash(row: Piece) -> str:
    path, kind, _ = row
    return f"{path}/" if kind == tree.FOLDER else f"{path}"


def _checked(row: object, piece: Piece) -> mirror.Row:
    """Return a row of an answer: a name in the piece, its kind, and what was seen."""
    name, kind, seen = answers.texts(row)
    if not name or "/" in name or not mirror.in_piece([to_bytes(name)], piece[3], piece[4]):
        raise ValueError("a name that was not asked for")
    return [name, kind, seen]
