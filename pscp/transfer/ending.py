"""The end of a copy: hard links, folders' metadata, the fence, and parts that nobody needs.

Not here: what comes before (coordinator.py), how entries are kept until then (spool.py).
"""

from __future__ import annotations

from collections.abc import Callable

from pscp.endpoint import failures, requests, tree
from pscp.transfer import answers
from pscp.transfer.copy_terms import CopyTerms
from pscp.transfer.plan import Ask, Failure, Pack, Work, groups
from pscp.transfer.results import Results
from pscp.transfer.spool import Spool

# What is asked for many entries at once.
_OfEntries = type[requests.Adopt] | type[requests.HardLinks] | type[requests.Folders]


class Ending:
    """What is kept for a copy's end. Only what the queue runs changes it, but for its spools."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._queue, self._results = terms, terms.queue, results
        self.links = Spool()  # the walk's thread fills it
        self.folders = Spool()  # filled by whose turn it is to write (later_writes.py)
        self._unwanted: dict[str, list[str]] = {}  # parts that lanes may have made late, or held
        terms.queue.when_lost(self._revocation)

    def finish(self) -> None:
        """Make hard links and finish folders; then give the copy up. For the main thread."""
        self._finish_all(self.links, requests.HardLinks, backwards=False)
        self._finish_all(self.folders, requests.Folders, backwards=True)
        if not self._terms.options.dry_run:
            self._release()

    def close(self) -> None:
        self.folders.close()
        self.links.close()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`. Raises why the copy stops."""
        self._queue.wait_until(is_so)
        self._queue.check()

    def _finish_all(self, spool: Spool, request: _OfEntries, backwards: bool) -> None:
        """Finish one group after the other: a folder after what is in it."""
        for group in groups(spool.take(backwards)):
            self.ask(request, group)
            self.wait_for(self._queue.is_idle)

    def ask(self, request: _OfEntries, entries: list[tree.Entry]) -> None:
        """Make this request of the sink; each entry may fail by itself."""

        def then(answer: object) -> None:
            failed = [failures.checked(failure) for _, failure in answers.places(answer)]
            reported = {each.path for each in self._results.failures} if failed else ()
            for failure in failed:
                if failure["path"] not in reported:  # a folder that could not be made, for instance
                    self._results.failed(failure)
            if request is requests.HardLinks:
                self._terms.counters.add(files_done=len(entries) - len(failed))

        self._queue.add(Ask(False, request(entries), then, self._results.failed))

    def add_unwanted(self, path: str, nonces: list[str]) -> None:
        """Have parts of this file removed that these runs ("" is this one) may have then."""
        self._unwanted.setdefault(path, []).extend(nonces)

    def _revocation(self, lane: int, works: list[Work]) -> Ask:
        """Return what is asked before another lane does what a lost one may still come with."""

        def then(_: object) -> None:
            for work in works:
                self._queue.add(work)

        def failed(failure: Failure) -> None:
            for work in works:
                if isinstance(work, Pack):
                    for item in work.items:
                        self._results.failed(_about(item.entry.path, failure))
                elif isinstance(work, Ask):
                    work.failed(failure)

        return Ask(False, requests.Revoke(lane), then, failed, is_prompt=True)

    def _release(self) -> None:
        """Give the copy up, so nothing changes what has landed, however late it comes.

        Only then can be removed what lanes may have made late.
        """
        release = requests.Release()
        self._queue.add(Ask(False, release, _ignore, self._results.failed, is_prompt=True))
        self.wait_for(self._queue.is_idle)
        if not self._results.failures:
            for path in self._terms.journal.unwanted():
                self.add_unwanted(path, list(self._terms.earlier))
        for path, nonces in self._unwanted.items():
            discard = requests.Discard(path, nonces)
            self._queue.add(Ask(False, discard, _ignore, _ignore, is_prompt=True))
        self.wait_for(self._queue.is_idle)


def _ignore(_: object) -> None:
    """Do nothing about an end's answer."""


def _about(path: str, failure: Failure) -> Failure:
    """Return the failure as that of another file."""
    return failures.data(failure["kind"], path, failure["message"], failure["errno"])
