"""What became of a copy's files: those that failed, and the digests of those that landed.

Not here: a copy's Result (progress/progress.py), a failure as an end reports it
(endpoint/failures.py), the lines that tell of it (failure_lines.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from pscp.endpoint import failures, tree
from pscp.ground import errors
from pscp.ground.log import Log
from pscp.progress.progress import Failure as Reported
from pscp.progress.progress import Outcome
from pscp.transfer.pieces.plan import Failure, Placed
from pscp.transfer.terms.copy_terms import CopyTerms
from pscp.transfer.terms.failure_lines import FailureLines, hint_of

_log = Log("transfer")

# The memory for failures, some ten thousand of them. Those beyond are shown and counted, but are in
# no Result.
_FAILURES_BYTES = 8 * 1024 * 1024
_DOUBTED_MOST = 50_000  # paths; with more, all is doubted

_ERRORS: dict[str, type[errors.FileError]] = {
    failures.CHANGED: errors.SourceChanged,
    failures.UNSUPPORTED: errors.UnsupportedFile,
    failures.UNSAFE: errors.UnsafeName,
    failures.DAMAGED: errors.VerifyError,
    failures.VERIFY: errors.VerifyError,
    failures.SYSTEM: errors.SystemFailure,
    failures.DESTINATION: errors.FileError,
    failures.SUPERSEDED: errors.FileError,
}


class Results:
    """Collects what became of each file. Only what the queue runs changes it."""

    def __init__(self, terms: CopyTerms) -> None:
        self._terms = terms
        self.lines = FailureLines(terms.reporter, terms.places, all=terms.options.verbose)
        self.failures: list[Reported] = []
        self.digests: dict[str, str] = {}  # by path, in hex
        self._failures_bytes = 0
        self._keeps_digests = terms.keep_digests and terms.options.strong
        self._wants_files = terms.reporter.wants_files and not terms.options.dry_run
        self._replaced: set[str] = set()  # paths with a file to be replaced; where files are wanted
        # Called with what has landed, and was verified: a file or link as its source knows it, or
        # a hard link as it is at the destination.
        self.landed: Callable[[tree.Entry], object] = _ignore
        self.link_landed: Callable[[tree.Entry], object] = _ignore
        # Files of several names: those that are at the destination as at the source, by path there,
        # and those that an option left out. The first alone get their other names.
        self.firsts: set[str] = set()
        self.skipped_firsts: dict[str, Placed] = {}
        self._doubted: set[str] = set()  # paths at the destination: what is there, and below
        # Called with what was at the destination already, and was verified.
        self.was_there: Callable[[tree.Entry], object] = _ignore

    def file_done(self, item: Placed, digest: str) -> None:
        """Count a file that has its final name. `digest` is in hex, with -s; else it is empty."""
        self._terms.counters.add(files_done=1)
        self.is_there(item.entry)
        self.landed(item.known)
        self.became("copied", [(item.entry.path, digest)])

    def is_there(self, entry: tree.Entry) -> None:
        """Note that the file may get its other names."""
        if "linked" in entry.extra:
            self.firsts.add(entry.path)

    def doubt(self, paths: Iterable[str]) -> None:
        """Note that what is at these paths, or below, may not be durable though it has landed."""
        self._doubted.update(paths)
        if len(self._doubted) > _DOUBTED_MOST:
            self._doubted = {""}

    def is_durable(self, path: str) -> bool:
        """Return whether nothing is known that puts in doubt what has landed there."""
        while path and path not in self._doubted:
            path = path.rpartition("/")[0]
        return path not in self._doubted

    def replaces(self, path: str) -> None:
        """Note that there is a file of this name, for what is reported of the one that comes."""
        if self._wants_files or self._terms.options.itemize:  # which a dry run says as well
            self._replaced.add(path)

    def is_new(self, path: str) -> bool:
        """Return whether there is no file of this name at the destination; forget it."""
        is_new = path not in self._replaced
        self._replaced.discard(path)
        return is_new

    def became(self, outcome: Outcome, files: Iterable[tuple[str, str]]) -> None:
        """Keep the digests of these files, and tell the reporter of them if it wants to know.

        Each is a path and its SHA-256 in hex, which is "" without -s.
        """
        if not (self._wants_files or self._keeps_digests):
            return
        listed = list(files)
        if self._keeps_digests:
            self.digests |= {path: digest for path, digest in listed if digest}
        if self._wants_files:
            told = [(path, digest, path not in self._replaced) for path, digest in listed]
            self._replaced -= {path for path, _ in listed}
            self._terms.queue.write_later(lambda: self._tell(outcome, told))

    def _tell(self, outcome: Outcome, files: Iterable[tuple[str, str, bool]]) -> None:
        for path, digest, is_new in files:
            self._terms.reporter.file(path, outcome, digest, is_new)

    def failed(self, failure: Failure) -> None:
        """Count and show a file that was not copied. Stops the copy if another run owns it now."""
        if failure["kind"] == failures.SUPERSEDED:
            self._terms.queue.stop(errors.CopyRunning(failure["message"]))
            return
        error, of_source = as_error(failure), failure.get("of_source", False)
        _log.debug("failed: %s: %s", error.path, failure)
        self._terms.counters.add(files_failed=1)
        self._failures_bytes += sys.getsizeof(error.path) + sys.getsizeof(error.message) + 200
        if self._failures_bytes < _FAILURES_BYTES or not self.failures:
            kind = type(error).__name__
            self.failures.append(Reported(error.path, kind, error.message, error.hint))
        self.lines.add(error, of_source, failure.get("place", ""))
        self.became("failed", [(error.path, "")])


def _ignore(_: tree.Entry) -> None:
    """Do nothing: few copies need to know what has landed."""


def as_error(failure: Failure) -> errors.FileError:
    """Return the error for an end's failure."""
    path, message = failure["path"], failure["message"]
    if failure["kind"] == failures.SYSTEM:
        hint = hint_of(failure["errno"], failure.get("of_source", False))
        return errors.SystemFailure(path, message, failure["errno"], hint)
    return _ERRORS[failure["kind"]](path, message)
