"""A copy that moves (--remove-source-files): what has landed, and was verified, is removed at the
source once the copy is over, or once all copies that move together are.

Not here: what the source does (endpoint/there/moving.py), the order of a copy's end (ending.py),
what several copies have landed (../terms/moves.py), and where (../terms/twins.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import source, tree
from pscp.endpoint.reading.files import Identity
from pscp.endpoint.reading.paths import part_name, to_text
from pscp.endpoint.there import lookup, moving
from pscp.endpoint.writing import fence
from pscp.endpoint.writing.removal import COMPARED, DIGEST, Durable, is_safe_to_remove
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import ignored
from pscp.transfer.pieces.plan import Ask, Failure, source_path
from pscp.transfer.pieces.spool import Spool, grouped_rows
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.moves import Moves, State
from pscp.transfer.terms.results import Results
from pscp.transfer.terms.twins import Shown, ShownFile

# What would have the names of the parts that are looked for: at the source, at the destination.
_MARK, _SOURCE_MARK = "pscp-move", "pscp-source"
# What to do where a source cannot be removed; {also} is the folder that it goes to.
_READ_ONLY = "the source is mounted read-only"
_NOT_WRITABLE = "its folder at the source{also} has to be writable for this user"
_WHY_NOT_REMOVED = {
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: f"{_NOT_WRITABLE}, and neither immutable (lsattr) nor a sticky one of another's",
    errno.EROFS: _READ_ONLY,
}
_NOT_THERE = (
    "stays at the source: it has landed, and is not there any more; was a folder above it renamed?"
)
_SHOWN_MOST = 16  # files by which another copy tells its place from this one's


class Moving:
    """The removals of one copy at its source. For the main thread, but for what the queue runs."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._queue, self._results = terms, terms.queue, results
        # Later writes fill these: what has landed, and paths of the sources in whose folders
        # something was at the destination already.
        self._spool, self._found = Spool(), Spool()
        self._last_found = (-1, "")  # the folder of the last one
        self._firsts: dict[tuple[int, str], Identity] = {}  # what landed and has other names
        self._why_not = ""  # why nothing is removed
        self._mounted: frozenset[str] = frozenset()  # paths there: mounted from elsewhere
        self._moves = terms.job.moves  # of several copies
        self._to = terms.to.text
        if self._moves is not None:
            self._moves.begin(self._to)
        results.landed, results.was_there = self._landed, self._was_there
        results.link_landed = self._link_landed

    def close(self) -> None:
        if self._moves is not None:  # a fence that is still there is no longer looked after
            self._moves.twins.hide(self._to)
        self._spool.close()
        self._found.close()

    # --- what the queue runs

    def _landed(self, known: tree.Entry, proof: str = DIGEST) -> None:
        if not self._terms.options.resume:  # nothing has looked whether it was there
            self._note_folder(known)
        if "linked" in known.extra:
            self._firsts[known.top, known.path] = source.identity(known)
        row = [known.kind, source.listed(known), proof]
        self._queue.write_later(lambda: self._spool.add(row))

    def _was_there(self, known: tree.Entry) -> None:
        self._note_folder(known)
        self._landed(known, COMPARED)

    def _note_folder(self, known: tree.Entry) -> None:
        folder = known.top, known.path.rpartition("/")[0]
        if folder != self._last_found:
            self._last_found = folder
            self._queue.write_later(lambda: self._found.add([known.top, known.path]))

    def _link_landed(self, entry: tree.Entry) -> None:
        first_top = entry.extra["in"]
        assert isinstance(first_top, int)
        first = self._firsts.get((first_top, self._terms.placement.known(first_top, entry.target)))
        if first is not None:  # what this name has now may be newer than what was read
            path = self._terms.placement.known(entry.top, entry.path)
            self._landed(entry._replace(kind=tree.FILE, path=path, **first._asdict()))

    # --- the main thread

    def look_for_others(self) -> None:
        """Show where this copy goes, and look there for what others have. Nothing was sent yet."""
        if self._moves is None or not self._moves.are_several:
            return
        twins, fence_name = self._moves.twins, self._fence_name()
        names = tuple(map(_folded, self._terms.target.names))
        if self._kinds_there([fence_name]).get(fence_name) == tree.FILE:
            twins.show(self._to, Shown(fence_name, names))
        while unseen := twins.unseen(self._to):
            asked = [(other, shown, self._paths_of(shown)) for other, shown in unseen]
            kinds = self._kinds_there([path for _, _, paths in asked for path in paths])
            for other, shown, paths in asked:
                found = [kinds.get(path) for path in paths]
                are_there = True if found and None not in found else None
                twins.saw(self._to, names, other, shown, False if "" in found else are_there)

    def _kinds_there(self, paths: list[str]) -> dict[str, str | None]:
        """Return the kinds of what the destination has there, "" for nothing; None: not known."""
        found: dict[str, str | None] = {}

        def then(asked: list[str], answer: object) -> None:
            found.update(zip(asked, map(_kind_of, answers.items(answer)), strict=True))

        for group in grouped_rows([path] for path in paths):
            asked = [path for (path,) in group]
            self._queue.put(Ask(False, lookup.Lookup(asked), partial(then, asked), ignored))
        self._queue.wait_for(self._queue.is_idle)
        return found

    def _paths_of(self, shown: Shown) -> list[str]:
        """Return where what another copy shows would be, here."""
        if shown.fence:
            return [shown.fence]
        tops = self._terms.tops
        with contextlib.suppress(failures.Refusal, ValueError):  # of other sources than these
            return [self._place_of(tops.index(top), path) for top, path in shown.landed]
        return []

    def _show_landed(self) -> None:
        """Show files that have landed: the fence will go. Best are those that were not there."""
        if self._moves is not None and self._moves.are_several:
            new = (known for _, known, proof in self._spool.take() if proof == DIGEST)
            some = [*itertools.islice(new, _SHOWN_MOST)]
            more = (known for _, known, _ in self._spool.take())
            some += itertools.islice(more, _SHOWN_MOST - len(some))
            landed = [ShownFile(self._terms.tops[top], path) for top, path, *_ in some]
            self._moves.twins.hide(self._to, landed)

    def _fence_name(self) -> str:
        return to_text(fence.fence_name(self._terms.token))

    def check_place(self) -> None:
        """Find out whether the sources are what lies at the destination. The fence is still there,
        and no other copy looks for it any more once this returns.
        """
        self._compare_places()
        if not self._why_not:
            self._look_for_landed()
        self._show_landed()

    def _compare_places(self) -> None:
        """Look at the source for what the destination alone should have, and the other way round.

        Where the fence shows in the destination's root, it shows there too if both are one folder.
        Through a link or a mount a folder below may be one of the destination's too; then all in it
        was there already. So what only the destination should have is put beside that, and looked
        for; and the other way round, as a union mount shows its layers' files, and gives them none.
        """
        if not self._terms.counters.verified:
            self._why_not = "nothing has verified what landed"
            return
        name, tops, names = self._fence_name(), self._terms.tops, self._terms.target.names
        beside = (
            [number, top.name, name]
            for number, (top, to) in enumerate(zip(tops, names, strict=True))
            if not top.name or _folded(top.name) == _folded(to.rpartition("/")[2])
        )

        def then_sink(answer: object) -> None:
            [row] = answers.items(answer)
            if _kind_of(row) == tree.FILE:
                for group in grouped_rows(beside):
                    look = moving.SamePlace([(top, path, mark) for top, path, mark in group])
                    self._queue.add(Ask(True, look, self._is_same, self._cannot))
            else:
                self._why_not = "the destination takes no file that would tell it from the source"

        # One folder may be given its name here, and be there already for the next copy.
        is_one = len(tops) == 1 and tops[0].is_folder
        folder, below = (names[0], [""]) if is_one else ("", names)

        def learn(answer: object) -> None:
            place, mounted = answers.items(answer)
            if self._moves is not None:
                told = answers.text(place)
                self._moves.twins.at(self._to, json.dumps([told, below]) if told else "")
            self._mounted = frozenset(answers.texts(mounted))

        self._wait(Ask(False, moving.Destination(folder), learn, self._cannot))
        self._wait(Ask(False, lookup.Lookup([name]), then_sink, self._cannot))
        self._queue.finish_writing()
        for number, (top, path) in enumerate(self._found.take()):  # one folder may come again
            if self._why_not:
                return
            self._queue.put(self._mark(top, path, f"{_MARK}{number}"))
            self._remove_marks(top, path, f"{_SOURCE_MARK}{number}")
            self._queue.put(self._mark_source(top, path, f"{_SOURCE_MARK}{number}"))
        self._queue.wait_for(self._queue.is_idle)
        if not self._why_not:
            self._make_durable()

    def _look_for_landed(self) -> None:
        """Doubt what has its name no more, as where a folder above it was renamed meanwhile."""
        root = self._terms.target.root
        for group in grouped_rows(self._spool.take()):
            paths = [self._place_of(*known[:2]) for _, known, _ in group]
            then = partial(self._seen, group, paths)
            self._queue.put(Ask(False, lookup.Landed(root, paths), then, self._cannot))
        self._queue.wait_for(self._queue.is_idle)

    def _seen(self, rows: list[list[Any]], paths: list[str], answer: object) -> None:
        for (kind, known, _), path, found in zip(rows, paths, answers.items(answer), strict=True):
            failure = failures.data(failures.DESTINATION, path, _NOT_THERE)
            if isinstance(found, dict):
                failure = failures.parse_failure(found)
            else:
                kind_there, size_there, *_ = answers.items(found)
                has_size = kind != tree.FILE or size_there == source.SourceFile(*known).size
                if kind_there == kind and has_size:
                    continue
            self._results.doubt([path])
            self._results.failed(failure, was_copied=True)

    def _make_durable(self) -> None:
        """Have what was at the destination already synced, as what this copy wrote has been."""
        for group in grouped_rows(row for row in self._spool.take() if row[2] == COMPARED):
            paths = [self._place_of(*known[:2]) for _, known, _ in group]
            then = partial(self._synced, paths)
            self._queue.put(Ask(False, moving.MakeDurable(paths), then, self._cannot))
        self._queue.wait_for(self._queue.is_idle)

    def _synced(self, paths: list[str], answer: object) -> None:
        for place, failure in answers.places(answer):
            self._results.doubt([paths[place]])
            self._results.failed(failure)

    def _is_same(self, answer: object) -> None:
        if any(answers.items(answer)):
            self._why_not = "the source is what lies at the destination"

    def _mark(self, top: int, path: str, name: str) -> Ask:
        """Return the request that puts a part beside where a path landed; then it is looked for."""
        mark = tree.Entry(tree.FILE, top, self._beside(top, path, name), 0, 0, 0, 0, {})
        look = moving.SamePlace([(top, path, self._part_name(name))])
        looking = Ask(True, look, self._is_same, self._cannot)
        then = self._look(looking, Ask(False, requests.Discard(mark.path, [""]), ignored, ignored))
        return Ask(False, requests.Make(mark), then, self._cannot)

    def _remove_marks(self, top: int, path: str, name: str) -> None:
        """Remove those of earlier runs that were killed as they looked for them."""
        for nonce in self._terms.earlier:
            killed = moving.Mark((top, path, self._part_name(name, nonce)), False)
            self._queue.put(Ask(True, killed, ignored, ignored))

    def _mark_source(self, top: int, path: str, name: str) -> Ask:
        """Return the request that puts a file beside a source; then it is looked for where that
        landed.
        """
        name = self._part_name(name)
        make, remove = (moving.Mark((top, path, name), is_made) for is_made in (True, False))

        def is_seen(answer: object) -> None:
            [row] = answers.items(answer)
            self._is_same([_kind_of(row) != ""])

        def cannot(failure: Failure) -> None:
            if failure["kind"] != failures.UNSUPPORTED:  # through a link, where each file says so
                self._results.doubt([self._beside(top, path, "").rstrip("/")])
                self._cannot_remove({**failure, "path": path})

        looking = Ask(False, lookup.Lookup([self._beside(top, path, name)]), is_seen, self._cannot)
        then = self._look(looking, Ask(True, remove, ignored, self._cannot))
        return Ask(True, make, then, cannot)

    def _look(self, looking: Ask, remove: Ask) -> Callable[[object], None]:
        """Return what looks for something that was made, and then has it removed."""

        def then(_: object) -> None:
            self._queue.add(replace(looking, then=over(looking.then), failed=over(looking.failed)))

        def over(act: Callable[[Any], None]) -> Callable[[Any], None]:
            def both(answer: Any) -> None:
                act(answer)
                self._queue.add(remove)

            return both

        return then

    def _part_name(self, name: str, nonce: str = "") -> str:
        key = self._terms.token + (nonce or self._terms.nonce)
        return to_text(part_name(name.encode(), key))

    def _beside(self, top: int, path: str, name: str) -> str:
        folder = self._place_of(top, path).rpartition("/")[0]
        return f"{folder}/{name}" if folder else name

    def finish(self) -> None:
        """Remove at the source what has landed."""
        self._queue.finish_writing()
        if not self._why_not:
            for group in grouped_rows(self._to_remove()):
                self._wait(self._removal(group))
        if self._why_not and len(self._spool):  # else none would have been
            why = f"no source was removed: {self._why_not}"
            self._fail(failures.data(failures.DESTINATION, "", why))  # "": the destination itself

    def _to_remove(self) -> Iterator[list[Any]]:
        """Yield what this copy has landed; of several copies, the last one what all have landed."""
        for row in self._spool.take():
            place, durable = self._durable(row)
            if not durable.is_elsewhere:
                why = "stays at the source: its copy is a mount, maybe of the source itself"
                self._fail(failures.data(failures.DESTINATION, place, why))
        safe = (row for row in self._spool.take() if is_safe_to_remove(self._durable(row)[1]))
        moves = self._moves
        if moves is None:
            yield from safe
        elif moves.finish(self._to, map(self._state, safe)):
            everywhere = self._everywhere(moves)
            first = next(everywhere, None)
            if first is not None and not (why := moves.twins.why_not_several()):
                yield from itertools.chain([first], everywhere)
            elif first is not None:
                self._why_not = why

    def _everywhere(self, moves: Moves) -> Iterator[list[Any]]:
        """Yield what all copies have landed; tell what was another file to one of them."""
        for row in self._spool.take():
            state = self._state(row)
            if moves.is_everywhere(state):
                yield row
            elif moves.has_changed(state):
                path = source.SourceFile(*row[1]).path
                why = "changed before all destinations had it: they have different versions"
                self._fail(answers.from_source(failures.data(failures.CHANGED, path, why)))

    def _durable(self, row: list[Any]) -> tuple[str, Durable]:
        """Return where a row's file has landed, and what is known of it there."""
        place = self._place_of(*row[1][:2])
        is_synced = self._results.is_durable(place)
        return place, Durable(row[2], is_synced, is_elsewhere=place not in self._mounted)

    def _place_of(self, top: int, path: str) -> str:
        known = tree.Entry(tree.FILE, top, path, 0, 0, 0, 0, {})
        return self._terms.placement.place(known).entry.path

    def _fail(self, failure: Failure) -> None:
        self._queue.run_alone(lambda: self._results.failed(failure, was_copied=True))

    def _state(self, row: list[Any]) -> State:
        """Return what tells a file from all others, and its state from those it had."""
        kind, known = row[0], source.SourceFile(*row[1])
        path = os.path.abspath(source_path(self._terms.tops[known.top], known.path))
        return State(_digest([path, known.path]), _digest([kind, *known[2:]]))

    def _removal(self, rows: list[list[Any]]) -> Ask:
        def then(answer: object) -> None:
            failed = answers.places(answer)
            for _, failure in failed:
                self._results.failed(self._as_not_removed(failure), was_copied=True)
            self._terms.counters.add(files_removed=len(rows) - len(failed))
            if self._terms.reporter.names_copied:
                stays = {place for place, _ in failed}
                gone = [known for place, (_, known) in enumerate(moved) if place not in stays]
                self._queue.write_later(lambda: self._tell(gone))
            if self._moves is not None:
                self._moves.count_moved(len(rows) - len(failed))

        moved = [(kind, source.SourceFile(*known)) for kind, known, _ in rows]
        folder = self._moves.folder if self._moves is not None else ""
        return Ask(True, moving.RemoveSources(moved, folder), then, self._cannot_remove)

    def _tell(self, gone: list[source.SourceFile]) -> None:
        """Name in a log what is no longer at the source."""
        reporter, places = self._terms.reporter, self._terms.places
        into = f" to {self._moves.folder}" if self._moves and self._moves.folder else ""
        for known in gone:
            reporter.gone(f"{'moved' if into else 'removed'} {places.of_entry(known)}{into}")

    def _cannot_remove(self, failure: Failure) -> None:
        self._results.failed(self._as_not_removed(failure), was_copied=True)

    def _as_not_removed(self, failure: Failure) -> Failure:
        """Return the source's failure to remove or move a file, told as one: it was copied."""
        if failure["kind"] != failures.SYSTEM:
            return answers.from_source(failure)
        folder = self._moves.folder if self._moves is not None else ""
        done, also = (f"moved to {folder}", f", and {folder},") if folder else ("removed", "")
        why = f"copied, but could not be {done} at the source: {failure['message']}"
        hint = _WHY_NOT_REMOVED.get(failure["errno"], "")
        return answers.from_source({**failure, "message": why, "hint": hint.format(also=also)})

    def _cannot(self, failure: Failure) -> None:
        self._why_not = failure["message"]

    def _wait(self, ask: Ask) -> None:
        self._queue.put(ask)
        self._queue.wait_for(self._queue.is_idle)


def _kind_of(row: object) -> str | None:
    """Return the kind in a row of Lookup's answer; None where that could not be looked at."""
    return None if isinstance(row, dict) else answers.text(answers.items(row)[0])


def _digest(told: list[Any]) -> bytes:
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).digest()


def _folded(name: str) -> str:
    """Return a name without what some filesystem does not tell apart."""
    return unicodedata.normalize("NFC", name.casefold())
