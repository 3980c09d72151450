"""The end of a copy: hard links, folders' metadata, the fence, and parts that nobody needs.

Not here: what comes before (../coordinator.py), where rows are kept until then
(../pieces/spool.py), what is deleted (mirror.py, moving.py).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import stat
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from pscp.endpoint.asking import requests
from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.there import attributes, hardlinks, lookup
from pscp.progress.progress_words import count, files_and_folders, some_of
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.answers import ignored
from pscp.transfer.pieces.plan import Ask, Failure, PlannedEntry, groups
from pscp.transfer.pieces.spool import Spool, grouped_rows
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.results import IMMUTABLE, Results

if TYPE_CHECKING:  # few copies need them
    from pscp.transfer.ending.mirror import Mirror
    from pscp.transfer.ending.moving import Moving

CopyNow = Callable[[list[PlannedEntry]], None]
# A request that is made for many entries at once.
_OfEntries = type[lookup.Adopt] | type[hardlinks.HardLinks] | type[requests.Folders]
_OF_ITS_OWNER = "its owner there can set them, and root; without -p and -a they stay as they are"
_ATTRIBUTES = {
    "system": "ACLs",
    "user": "user.* attributes",
    "trusted": "trusted.* attributes",
    "security": "security.* attributes",
}
_SFTP_END_NS = (1 << 32) * 10**9  # the first time that SFTP cannot tell
_BOUNDED = "are before 1970 or after 2106, which SFTP cannot tell: they become the nearest ones"
_ENTERED = stat.S_IRUSR | stat.S_IXUSR  # what a folder's owner needs to list it and look in it
_QUIET_S = 10.0  # for which is waited for what an overtaken lane still has on its way


class Ending:
    """The work that waits for a copy's end. But for its spools only the queue changes it."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._queue, self._results = terms, terms.queue, results
        # Filled by later writes (../lanes/work_queue.py).
        self.links = Spool()  # with the path at the source
        self._blocked_links = Spool()  # of files that wait for the mirror
        self.folders = Spool()
        self.differing_folders: set[str] = set()  # there already, of another mode or owner
        self.swept = Spool()  # folders, in which lanes that died may have left parts
        # Files over SFTP, to which a lane that another has overtaken may still write, in memory as
        # _unwanted is.
        self.overtaken: list[tree.Entry] = []
        self._with_attributes = Counter[str]()  # entries, by the beginnings of attributes' names
        self._kept_folders = 0  # of other users, which keep their metadata
        self._is_to_sftp = terms.options.preserve and terms.is_source_here and not terms.reuses
        self._bounded = 0  # entries with times that SFTP cannot tell
        self._unwanted: dict[str, list[str]] = {}  # parts that lanes may have made late, or held

    def finish(
        self, copy_now: CopyNow, copy_blocked: CopyNow, mirror: Mirror | None, moving: Moving | None
    ) -> None:
        """Make hard links, delete, finish folders, and release the fence. For the main thread.

        Args:
            copy_now: copies items, and returns once that is done.
            copy_blocked: does so with those in whose way something was.
            mirror: deletes at the destination (--delete).
            moving: removes files of the source (--remove-source-files), once all else is done.
        """
        is_dry = self._terms.options.dry_run
        if self._terms.earlier or self._terms.counters.connections_lost:
            self._sweep()
        self._finish_links(copy_now)
        self._check_told()
        # Before folders that they are in go, or get their times; else once is enough, at the end.
        if not is_dry and (mirror is not None or len(self.folders)):
            self._discard()
        if mirror is not None:
            copy_blocked(mirror.finish())  # which may add links
            with contextlib.closing(self._blocked_links) as waiting:
                self._blocked_links = Spool()
                for row in waiting.take():
                    self.links.add(row)
            self._finish_links(copy_blocked)  # none is looked up: --existing would leave it out
        self._check_told()
        self._settle_overtaken()
        if moving is not None:
            moving.check_place()
        self._finish_folders()
        self._note_kept_folders()
        self._note_attributes()
        if not is_dry:
            self._release()
        if moving is not None:
            moving.finish()
        if self._terms.target.made and not (self._results.failures or is_dry):
            self._queue.add(Ask(False, requests.Unmark(), ignored, self._not_unmarked))
            self._queue.wait_for(self._queue.is_idle)

    def _not_unmarked(self, failure: Failure) -> None:
        if failure["errno"] == errno.ENOENT and self._terms.options.existing:
            return  # none was made
        self._results.failed(failure)

    def close(self) -> None:
        for spool in (self.folders, self.links, self._blocked_links, self.swept):
            spool.close()

    def _finish_folders(self) -> None:
        """Give folders their metadata, each after its content, and those that their owner cannot
        enter once all others have theirs: nothing is reached through them any more. Several lanes'
        answers may have come in another order than the walk's.
        """
        closed: dict[str, tree.Entry] = {}

        def not_closed() -> Iterator[tree.Entry]:
            for row in self.folders.take(backwards=True):
                entry = tree.Entry(*row)
                closed.pop(entry.path, None)  # of a later source: the first one's metadata counts
                # What may be removed goes before the folder that it is in has its time; and the
                # root, which was looked up while new ones were on their way, comes last.
                is_open = entry.mode & _ENTERED == _ENTERED or "filled" in entry.extra
                if is_open and entry.path:
                    yield entry
                else:
                    closed[entry.path] = entry

        self._finish_some(not_closed())
        self._finish_some(sorted(closed.values(), key=lambda each: -len(each.path)))

    def _finish_some(self, folders: Iterable[tree.Entry]) -> None:
        """Finish new ones first, none of which has an old one in it; old ones only if need be."""
        for group in groups(folders):
            self._finish(
                (each for each in group if not self.keeps(each)),
                requests.Folders,
                self._folders_done,
            )
            kept = {each.path: each for each in group if self.keeps(each)}  # as above
            self._finish(kept.values(), lookup.Adopt, self._folders_done)

    def keeps(self, folder: tree.Entry) -> bool:
        """Return whether a folder that is there is left alone if it is the same at the end.

        That what is in it is durable was seen to before it got its time. A move asks for more: that
        its own name is, whoever made it.
        """
        return "new" not in folder.extra and not self._terms.options.remove_source_files

    def _folders_done(self, entries: list[tree.Entry]) -> None:
        """Tell of the folders that have another mode or owner now."""
        differed = [each.path for each in entries if each.path in self.differing_folders]
        self.differing_folders.difference_update(differed)
        self._terms.counters.add(metadata_set=len(differed))
        self._results.record_outcome("metadata", [(f"{path or '.'}/", "") for path in differed])

    def _settle_overtaken(self) -> None:
        """Give files their times again, which an overtaken lane's late write has changed.

        It writes the bytes that are there, and SFTP has nothing that keeps it out.
        """
        if self.overtaken:
            self._queue.wait_until(self._queue.is_quiet, _QUIET_S)
            self._finish(self.overtaken, lookup.Adopt)

    def _note_kept_folders(self) -> None:
        kept = self._kept_folders
        which = "belong to another user and keep their times and modes"
        if kept == 1:
            which = "belongs to another user and keeps its time and mode"
        if kept and not self._terms.options.quiet:
            self._terms.reporter.note(f"{count(kept, 'folder')} {which}")

    def count_attributes(self, entry: tree.Entry) -> None:
        """Count which kinds of attributes the source of this entry has, and times that are none."""
        if self._is_to_sftp and not 0 <= entry.mtime_ns < _SFTP_END_NS:
            self._bounded += 1
        names = entry.extra.get("x")
        if isinstance(names, dict) and not self._terms.options.transfer_test:
            kinds = {str(name).partition(".")[0] for name in names}
            self._with_attributes.update(kinds & _ATTRIBUTES.keys())

    def _note_attributes(self) -> None:
        """Tell of times and attributes that the destination cannot have."""
        if self._bounded and not self._terms.options.quiet:
            entries = f"{self._bounded} {'entry' if self._bounded == 1 else 'entries'}"
            self._terms.reporter.note(f"the times of {entries} {_BOUNDED}")
        options = self._terms.options  # what a move leaves out is nowhere any more
        if not self._with_attributes or (options.quiet and not options.remove_source_files):
            return

        def then(answer: object) -> None:
            lacking = self._with_attributes.keys() & {*answers.texts(answer)}
            numbers = {_ATTRIBUTES[kind]: self._with_attributes[kind] for kind in sorted(lacking)}
            lost = [f"{what} of {files_and_folders(n)}" for what, n in numbers.items()]
            if lost:
                why = "the destination's file system has none"
                self._terms.reporter.note(f"left out, as {why}: {', '.join(lost)}")

        self._queue.add(Ask(False, attributes.Lacks(), then, ignored))
        self._queue.wait_for(self._queue.is_idle)

    def _sweep(self) -> None:
        """Remove parts of small files, whose names no lane knows but the one that made them."""
        for rows in grouped_rows(itertools.chain([[""]], self.swept.take())):
            folders = [path for (path,) in rows]
            self._queue.add(Ask(False, requests.Sweep(folders), ignored, ignored))
            self._queue.wait_for(self._queue.is_idle)

    def _check_told(self) -> None:
        """Fail what is expected and did not come, and where something became of fewer files than
        there are: no way leads there; if one does, a mirror deletes nothing.
        """
        of = self._terms.counters
        told = of.files_done + of.files_resumed + of.files_unchanged + of.files_linked
        waiting = len(self._results.blocked) + len(self._blocked_links)
        untold = of.files_total - told - of.files_skipped - of.files_failed - waiting
        if not waiting:
            self._queue.run_alone(self._results.fail_awaited)
        if untold > 0 and not self._results.failures:  # --check tells of folders as well
            message = f"{count(untold, 'file')} neither copied nor left out: a defect of pscp"
            failure = failures.data(failures.SYSTEM, "", message)
            self._results.is_partial = True
            self._queue.run_alone(lambda: self._results.failed(failure))

    def _finish(
        self,
        entries: Iterable[tree.Entry],
        request: _OfEntries,
        done: Callable[[list[tree.Entry]], None] = ignored,
    ) -> None:
        """Make the request for one group after the other."""
        for group in groups(entries):
            self.ask(request, group, done)
            self._queue.wait_for(self._queue.is_idle)

    def _finish_links(self, copy_now: CopyNow) -> None:
        """Make hard links to the files that are at the destination as at the source.

        To link to what else has the name would give other bytes to this one. Where an option left a
        file's first name out, or that cannot be had, its next name is copied as a file, and the
        others link to that.
        """
        while len(self.links):
            with contextlib.closing(self.links) as links:
                self.links = Spool()
                as_files: list[PlannedEntry] = []
                self._finish(self._to_link(links, as_files), hardlinks.HardLinks)
                copy_now(as_files)

    def _to_link(self, links: Spool, as_files: list[PlannedEntry]) -> Iterator[tree.Entry]:
        """Yield the links that can be made; keep those to be copied as files, and to come after."""
        results, next_names = self._results, dict[str, tree.Entry]()
        for *row, known_path in links.take():
            link = tree.Entry(*row)
            first = results.next_names.get(link.target)
            digest = results.digests.get(link.target, "")
            if link.target in results.firsts and not self._terms.job.is_expected(link.path, digest):
                self._queue.run_alone(functools.partial(results.fail_expected, link.path))
            elif link.target in results.firsts:
                yield link
            elif link.target in results.blocked:
                self._blocked_links.add([*row, known_path])
            elif first is None:
                why = f"is another name of {link.target}, which was not copied"
                failure = failures.data(failures.DESTINATION, link.path, why)
                self._queue.run_alone(functools.partial(results.failed, failure, link.target))
            elif (found := next_names.setdefault(link.target, link)) is link:
                known = first.known._replace(top=link.top, path=known_path)
                entry = first.entry._replace(top=link.top, path=link.path)
                as_files.append(PlannedEntry(known, entry))
            else:
                to = {**link.extra, "in": found.top, "to": found.path}
                self.links.add([*link._replace(extra=to), known_path])

    def ask(
        self,
        request: _OfEntries,
        entries: list[tree.Entry],
        done: Callable[[list[tree.Entry]], None] = ignored,
    ) -> None:
        """Make this request of the sink; each entry may fail by itself. `done` gets the others."""

        is_links = request is hardlinks.HardLinks

        def cannot(failure: Failure) -> None:
            self._results.doubt(each.path for each in entries)
            self._results.failed(failure)

        def then(answer: object) -> None:
            rows, same, others = answers.items(answer) if is_links else (answer, (), ())
            reported = dict(answers.places(rows))
            failed = {n: each for n, each in reported.items() if each["kind"] != failures.OWNER}
            self._kept_folders += len(reported) - len(failed)
            self._results.doubt(entries[place].path for place in failed)
            self._results.failed_also(_explained(request, each) for each in failed.values())
            done([each for place, each in enumerate(entries) if place not in reported])
            if is_links:
                replaced = set(map(answers.integer, answers.items(others)))
                for place in replaced & {*range(len(entries))}:
                    self._results.replaces(entries[place].path)
                there = set(map(answers.integer, answers.items(same)))
                self._linked(entries, failed, there)

        self._queue.add(Ask(False, request(entries), then, cannot))

    def _linked(
        self, entries: list[tree.Entry], failed: Container[int], there: Container[int]
    ) -> None:
        good = [(place, each) for place, each in enumerate(entries) if place not in failed]
        made = [(each.path, "") for place, each in good if place not in there]
        same = [(each.path, "") for place, each in good if place in there]
        self._terms.counters.add(files_done=len(made), files_unchanged=len(same))
        self._results.record_outcome("copied", made)
        self._results.record_outcome("unchanged", same)
        for _, each in good:
            self._results.link_landed(each)

    def add_unwanted(self, path: str, nonces: list[str]) -> None:
        """Have this file's parts of these runs ("" is this one) removed at the end."""
        self._unwanted.setdefault(path, []).extend(nonces)

    def _release(self) -> None:
        """Release the fence, then remove the parts that nobody needs.

        Once the fence is released, nothing that comes late changes what has landed or makes a part.
        """
        for end in (self._terms, self._terms.far_source):
            if end is not None:
                end.connections.begin_end()
        release = requests.Release()
        self._queue.add(Ask(False, release, ignored, self._results.failed, is_prompt=True))
        self._queue.wait_for(self._queue.is_idle)
        if kept := self._discard():
            places = [self._terms.places.of(path, False) for path in kept]
            self._terms.reporter.note(
                f"{some_of(places, 1)}: a hidden .pscp-part, left by an "
                "earlier version's --inplace, is all there is of it; pscp --clean shows where it is"
            )

    def _discard(self) -> list[str]:
        """Remove the parts that nobody needs, as far as they are known.

        Return the paths of those that are all there is of a file.
        """
        unwanted = [*self._unwanted.items()]
        if not self._results.failures:
            earlier = list(self._terms.earlier)
            unwanted += ((path, earlier) for path in self._terms.journal.unwanted())
        kept: dict[str, None] = {}

        def then(path: str, is_gone: object) -> None:
            if is_gone is None:
                kept[path] = None

        for path, nonces in unwanted:
            over = functools.partial(then, path)
            discard = requests.Discard(path, nonces)
            self._queue.add(Ask(False, discard, over, ignored, is_prompt=True))
        self._queue.wait_for(self._queue.is_idle)
        return list(kept)


def _explained(request: _OfEntries, failure: Failure) -> Failure:
    """Return a failure, in which it says what was not allowed, if that was only metadata."""
    if request is not lookup.Adopt or failure["errno"] not in (errno.EPERM, errno.EACCES):
        return failure
    message = f"is there already, but its time and mode could not be set: {failure['message']}"
    also = IMMUTABLE if failure["errno"] == errno.EPERM else ""
    return {**failure, "message": message, "hint": _OF_ITS_OWNER + also}
