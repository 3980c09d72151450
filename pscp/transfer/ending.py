"""The end of a copy: hard links, folders' metadata, the fence, and parts that nobody needs.

Not here: what comes before (coordinator.py).
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable, Iterator
from typing import IO

from pscp.endpoint import failures, requests, tree
from pscp.transfer import answers
from pscp.transfer.copy_terms import CopyTerms
from pscp.transfer.plan import Ask, Failure, Pack, Work, groups
from pscp.transfer.results import Results
from pscp.transfer.temporary import room_for_temporary_files

_MEMORY_BYTES = 4 * 1024 * 1024  # some 30,000 entries; more go to a temporary file

# A request that is made for many entries at once.
_OfEntries = type[requests.Adopt] | type[requests.HardLinks] | type[requests.Folders]


class Ending:
    """Keeps what is to be done at a copy's end. But for its spools only the queue changes it."""

    def __init__(self, terms: CopyTerms, results: Results) -> None:
        self._terms, self._queue, self._results = terms, terms.queue, results
        self.links = Spool()  # the walk's thread fills it
        self.folders = Spool()  # filled by later writes (later_writes.py)
        self._unwanted: dict[str, list[str]] = {}  # parts that lanes may have made late, or held
        terms.queue.when_lost(self._revocation)

    def finish(self) -> None:
        """Make hard links, finish folders, and release the fence. For the main thread."""
        self._finish_all(self.links, requests.HardLinks, backwards=False)
        self._finish_all(self.folders, requests.Folders, backwards=True)
        if not self._terms.options.dry_run:
            self._release()

    def close(self) -> None:
        self.folders.close()
        self.links.close()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so()`. Raises the error that stops the copy."""
        self._queue.wait_until(is_so)
        self._queue.check()

    def _finish_all(self, spool: Spool, request: _OfEntries, backwards: bool) -> None:
        """Make the request for one group after the other: a folder comes after its content."""
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
        """Have this file's parts of these runs ("" is this one) removed at the end."""
        self._unwanted.setdefault(path, []).extend(nonces)

    def _revocation(self, lane: int, works: list[Work]) -> Ask:
        """Return the request that refuses a lost lane's late work, so that another may do it."""

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
        """Release the fence, then remove the parts that nobody needs.

        Once the fence is released, nothing that comes late changes what has landed or makes a part.
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


class Spool:
    """Keeps any number of entries for the end of the copy: many of them in a temporary file.

    Its methods raise CopyError where the folder for temporary files has no more room.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None  # made when it is needed: many copies have one file
        self._begins = array("Q")

    def add(self, entry: tree.Entry) -> None:
        if self._file is None:
            from tempfile import SpooledTemporaryFile

            self._file = SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        assert self._file is not None
        with room_for_temporary_files():
            self._begins.append(self._file.tell())
            self._file.write(json.dumps(entry).encode("ascii") + b"\n")

    def take(self, backwards: bool) -> Iterator[tree.Entry]:
        for begin in reversed(self._begins) if backwards else iter(self._begins):
            assert self._file is not None
            with room_for_temporary_files():  # what was added last is written now
                self._file.seek(begin)
                line = self._file.readline()
            yield tree.Entry(*json.loads(line))

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # no room, but nobody needs the rest any more
                self._file.close()
