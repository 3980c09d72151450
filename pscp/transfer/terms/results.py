"""Outcomes of a copy's files: those that failed, with the lines that tell a user where, why, and
once for each reason what to do; and the digests of those that landed.

On a terminal, what the destination refuses for one reason below one folder is one line with a
count, and so is what goes beyond LINES_MOST lines for one reason. Elsewhere each has a line.

Not here: a copy's Result, and how a line gets to the user (progress/progress.py), a failure as an
end reports it (endpoint/frames/failures.py).
"""

from __future__ import annotations

import errno
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.ground import errors
from pscp.ground.log import Log
from pscp.options.keywords import said
from pscp.progress.progress import CHANGES, Outcome, Reporter, what_became
from pscp.progress.progress import Failure as Reported
from pscp.progress.progress_words import count
from pscp.transfer.pieces.answers import ignored
from pscp.transfer.pieces.plan import Failure, PlannedEntry
from pscp.transfer.terms.copy_terms import CopyTerms, FilePlaces, folders_of

_log = Log("transfer")

# The memory for failures, some ten thousand of them. Those beyond are shown and counted, but are in
# no Result.
_FAILURES_BYTES = 8 * 1024 * 1024
_DOUBTED_MOST = 50_000  # paths; with more, all is doubted
# Why a mirror deletes nothing once the destination has failed like this.
_NO_ROOM = (
    "there was no room at the destination for all of the source; "
    "--dry-run lists what --delete would remove, to be deleted there by hand"
)
_STOPS_DELETION = {
    errno.EIO: "what has landed may not be on the disk there",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
}

_ERRORS: dict[str, type[errors.FileError]] = {
    failures.CHANGED: errors.SourceChanged,
    failures.UNSUPPORTED: errors.UnsupportedFile,
    failures.UNSAFE: errors.UnsafeName,
    failures.DAMAGED: errors.VerifyError,
    failures.VERIFY: errors.VerifyError,
    failures.SYSTEM: errors.SystemFailure,
    failures.DESTINATION: errors.FileError,
    failures.SUPERSEDED: errors.FileError,
    failures.OWNER: errors.FileError,
}


_OTHER_BYTES = failures.DAMAGED, failures.VERIFY
_NOT_EXPECTED = "not the digest that is expected"
_OTHER_SOURCE = "the source is not what was expected"

LINES_MOST = 20  # for one reason
_NAMED_MOST = 2  # files that a line names beside its first
_LEFT_OUT = {
    tree.FIFO: "left out: a FIFO",
    tree.DEVICE: "left out: a device, which root makes with -a",
    tree.SPECIAL: "left out: a socket",
}
_LACKED_BY_SFTP = {
    tree.FIFO: "left out: a FIFO, which SFTP cannot make",
    tree.DEVICE: "left out: a device, which SFTP cannot make",
}

# These are about a whole file system, not about a folder of it.
_OF_ALL = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS])
# What the destination says of a name, unless it would say the same of the file's other names.
_OF_A_NAME = frozenset([failures.SYSTEM, failures.DESTINATION, failures.UNSAFE])
_OF_EVERY_NAME = _OF_ALL | {errno.EIO, errno.EFBIG}
_NAMES_TRIED_MOST = 32  # of a file: each costs a round trip, and there may be thousands
_ROOM = "make room there, then run the same command again: what has landed is not sent again"
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "it is mounted read-only there",
}
_NOT_READABLE = "ls -l where it lies shows who may read it; --exclude leaves it out"
_NOT_WRITABLE = "ls -ld there shows who may write in its folder; USER@HOST logs in as another user"
IMMUTABLE = "; lsattr there shows what is immutable, for root as well"
_LEAVE_OUT = "leave it out with --exclude"
_PATH_MAX_BYTES = 4096
_PATH_MOST = 256  # characters of a path that is longer than a system call takes


def hint_of(number: int, of_source: bool) -> str:
    """Return what to do about an errno at one end, or ""."""
    if number in (errno.EACCES, errno.EPERM):
        is_immutable = number == errno.EPERM and not of_source
        return (_NOT_READABLE if of_source else _NOT_WRITABLE) + IMMUTABLE * is_immutable
    return _HINTS.get(number, "")


def shortened(place: str) -> str:
    """Return a place with its path in short where no system call takes it whole (PATH_MAX)."""
    if len(place.encode("utf-8", "surrogatepass")) < _PATH_MAX_BYTES:  # whatever a far end sends
        return place
    half = _PATH_MOST // 2
    return f"{place[:half]}...{place[-half:]} ({len(place)} characters)"


class _Reason(NamedTuple):
    """A reason why files failed; those with an equal one are shown together."""

    of_source: bool
    is_system: bool  # an operating system said no
    errno: int
    message: str

    @property
    def has_folder(self) -> bool:
        """Return whether it is the folder's rather than the file's."""
        return self.is_system and not self.of_source


@dataclass
class _Line:
    """A line, and how many failures it stands for beside the first."""

    place: str
    error: errors.FileError
    folder: str  # as it is shown
    more: int = 0
    named: list[str] = field(default_factory=list)  # places of the first of those
    is_below: bool = True  # all others are below the first one, a folder

    @property
    def of_other_names(self) -> str:
        """The line where the first is a file and what failed besides are its other names."""
        what = count(self.more, "other name")
        return f"{self.place}: and its {what}, not copied either{self._which(self.folder)}"

    @property
    def text(self) -> str:
        if not self.more:
            return f"{self.place}: {self.error.message}"
        where, folder = ("it", self.place) if self.is_below else (self.folder, self.folder)
        more = f"and {self.more} more below {where}{self._which(folder)}"
        return f"{self.place}: {self.error.message}, {more}"

    def _which(self, folder: str) -> str:
        """Return which the others are, below this folder, where they are few."""
        names = ", ".join(place.removeprefix(f"{folder}/") for place in self.named)
        return f": {names}" if self.more <= _NAMED_MOST else f" ({said('-v')} shows each)"

    def add(self, place: str) -> None:
        """Count one more failure."""
        self.more += 1
        self.named += [place] * (self.more <= _NAMED_MOST)
        self.is_below = self.is_below and place.startswith(self.place + "/")


class FailureLines:
    """Shows the failures of one copy. Only what the queue runs calls it."""

    def __init__(
        self, reporter: Reporter, places: FilePlaces, *, all: bool = False, lacks: bool = False
    ) -> None:
        """Show failures, with `all` each in a line of its own. With `lacks` SFTP is why what is
        asked for (-a) is left out.
        """
        self._why_left_out = _LEFT_OUT | (_LACKED_BY_SFTP if lacks else {})
        self._note, self._failed, self._is_live = reporter.note, reporter.failed, reporter.is_live
        self._places, self._all = places, all
        self._lines: dict[_Reason, dict[str, _Line]] = {}  # by folder, or file
        self._beyond: Counter[_Reason] = Counter()  # failures that have no line
        self._firsts: dict[str, _Line] = {}  # by path: files that failed, and their other names
        self._hinted: dict[bool, set[str]] = {False: set(), True: set()}
        self._left_out: Counter[str] = Counter()  # by kind

    def add(self, error: errors.FileError, of_source: bool, place: str = "") -> None:
        """Show a failure now, or count it for a line that close() shows.

        `place` is where the file is, unless its path says so.
        """
        place = shortened(place or self._places.of(error.path, of_source))
        self._show(f"{place}: {error.message}", error, is_sum=False)
        if self._all:
            self._show(f"{place}: {error.message}", error)
            return
        is_system = isinstance(error, errors.SystemFailure)
        number = error.errno if isinstance(error, errors.SystemFailure) else 0
        reason = _Reason(of_source, is_system, number, error.message)
        lines = self._lines.setdefault(reason, {})
        above = filter(None, map(lines.get, folders_of(error.path)))
        if reason.has_folder and (line := next(above, None)) is not None:
            line.add(place)
        elif len(lines) >= LINES_MOST:
            self._beyond[reason] += 1
        else:
            folder = "" if number in _OF_ALL else error.path.rpartition("/")[0]
            line = _Line(place, error, self._places.of(folder, of_source))
            lines[folder if reason.has_folder else error.path] = line
            if self._is_live or not reason.has_folder:
                self._show(line.text, error)

    def add_other_name(self, error: errors.FileError, first: str) -> None:
        """Count another name of a file that failed, for the line of that which close() shows."""
        if self._all or (len(self._firsts) >= LINES_MOST and first not in self._firsts):
            self.add(error, of_source=False)
            return
        places = (self._places.of(path, True) for path in (first, first.rpartition("/")[0]))
        line = self._firsts.setdefault(first, _Line(next(places), error, next(places)))
        place = self._places.of(error.path, True)
        self._show(f"{place}: {error.message}", error, is_sum=False)
        line.add(place)

    def leave_out(self, place: str, kind: str) -> None:
        """Show that this FIFO, socket or device is left out; of many only the first."""
        self._left_out[kind] += 1
        if self._left_out[kind] == 1 or self._all:
            self._note(f"{place}: {self._why_left_out[kind]}")

    def close(self) -> None:
        for kind, number in self._left_out.items():
            if number > 1 and not self._all:
                what = self._why_left_out[kind]
                self._note(f"and {number - 1} more: {what} ({said('-v')} shows each)")
        self._left_out.clear()
        for line in self._firsts.values():
            self._failed(line.of_other_names, True)
        self._firsts.clear()
        for reason, lines in self._lines.items():
            for line in lines.values() if reason.has_folder else ():
                if line.more or not self._is_live:
                    self._show(line.text, line.error)
            if beyond := self._beyond[reason]:
                text = f"and {beyond} more: {reason.message} ({said('-v')} shows each)"
                self._failed(text, True)
        self._lines.clear()

    def _show(self, text: str, error: errors.FileError, is_sum: bool = True) -> None:
        self._failed(text, is_sum)
        if error.hint and error.hint not in self._hinted[is_sum]:
            self._hinted[is_sum].add(error.hint)
            self._failed(f"  {error.hint}", is_sum)


class Results:
    """Collects what became of each file. Only what the queue runs changes it."""

    def __init__(self, terms: CopyTerms) -> None:
        self._terms = terms
        self.lines = FailureLines(
            terms.reporter, terms.places, all=terms.options.verbose,
            lacks=terms.options.archive and not terms.reuses,
        )  # fmt: skip
        self.failures: list[Reported] = []
        self.digests: dict[str, str] = {}  # by path, in hex
        self._failures_bytes = 0
        self.failures_unlisted = 0
        # Paths of what is expected, of which nothing is known yet.
        self.awaited = set(terms.job.expected)
        keeps = terms.keep_digests or bool(self.awaited)  # which a hard link is compared with
        self._keeps_digests = keeps and terms.options.strong
        self.wants_files = terms.reporter.wants_files and not terms.options.dry_run
        self._names_copied = terms.reporter.names_copied and not terms.options.dry_run
        # Is each file in a dry run's list, and not only what would be changed?
        self._lists_all = (
            terms.options.itemize and terms.options.dry_run and not terms.options.check
        )
        self._replaced: set[str] = set()  # paths with a file to be replaced; where files are wanted
        # Called with what has landed, and was verified: a file or link as its source knows it, or
        # a hard link as it is at the destination.
        self.landed: Callable[[tree.Entry], object] = ignored
        self.link_landed: Callable[[tree.Entry], object] = ignored
        # Files of several names: those that are at the destination as at the source, by path there,
        # which get their other names; and those whose next name is copied instead, as an option
        # left this one out, or it cannot be had there.
        self.firsts: set[str] = set()
        self.next_names: dict[str, PlannedEntry] = {}
        self._names_tried = Counter[int]()  # by inode at the source, names that cannot be had
        # Entries whose names have something that the mirror deletes first, and its kind; by path.
        self.blocked: dict[str, tuple[PlannedEntry, str]] = {}
        self.is_partial = False  # not all of the source was seen: a source was missing
        self._doubted: set[str] = set()  # paths at the destination: what is there, and below
        self.stops_deletion = ""  # why, if what has failed at the destination does
        self.not_deleted = ""  # why nothing was deleted, in a sentence
        # Called with what was at the destination already, and was verified.
        self.was_there: Callable[[tree.Entry], object] = ignored

    def file_done(self, item: PlannedEntry, digest: str) -> None:
        """Count a file that has its final name. `digest` is in hex, with -s; else it is empty."""
        self._terms.counters.add(files_done=1)
        self.is_there(item.entry)
        self.landed(item.known)
        self.record_outcome("copied", [(item.entry.path, digest)])

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
        return self._doubted.isdisjoint(folders_of(path, itself=True))

    def replaces(self, path: str) -> None:
        """Note that there is a file of this name, for what is reported of the one that comes."""
        if self.wants_files or self._terms.options.itemize:  # which a dry run says as well
            self._replaced.add(path)

    def unchanged(self, paths: list[str]) -> None:
        """Tell of files that are there, and the same, if each is to be told of."""
        if self.wants_files or self._lists_all:
            self._replaced.update(paths)
            self.record_outcome("unchanged", [(path, "") for path in paths])

    def is_new(self, path: str) -> bool:
        """Return whether there is no file of this name at the destination; forget it."""
        is_new = path not in self._replaced
        self._replaced.discard(path)
        return is_new

    def record_outcome(self, outcome: Outcome, files: Sequence[tuple[str, str]]) -> None:
        """Keep the digests of these files, and tell the reporter of them if it wants to know.

        Each is a path and its SHA-256 in hex, which is "" without -s.
        """
        if self.awaited and outcome != "skipped":
            self.awaited.difference_update(path for path, _ in files)
        for path, _ in files if self._lists_all else ():
            self.would_be(outcome, path)
        is_told = self.wants_files or (self._names_copied and outcome in CHANGES)
        if not (is_told or self._keeps_digests):
            return
        if self._keeps_digests:
            self.digests |= {path: digest for path, digest in files if digest}
        if is_told:
            told = [(path, digest, path not in self._replaced) for path, digest in files]
            self._replaced -= {path for path, _ in files}
            self._terms.queue.write_later(lambda: self._tell(outcome, told))

    def would_be(self, outcome: Outcome, path: str, is_new: bool = False) -> None:
        """Show in a dry run's list what would become of a file."""
        became = what_became(outcome, is_new)
        line = f"{became:<9} {path}" if self._terms.options.itemize else path
        self._terms.queue.write_later(lambda: self._terms.reporter.line(line))

    def folder_made(self, entry: tree.Entry) -> None:
        """Tell the reporter, if it names what is copied, of a folder that is new."""
        if self._names_copied and entry.path and "new" in entry.extra:
            made = entry.path + "/", "", True
            self._terms.queue.write_later(lambda: self._tell("copied", [made]))

    def _tell(self, outcome: Outcome, files: Iterable[tuple[str, str, bool]]) -> None:
        for path, digest, is_new in files:
            self._terms.reporter.file(path, outcome, digest, is_new)

    def fail_awaited(self) -> None:
        """Fail what is expected and did not come."""
        for path in sorted(self.awaited):
            self.is_partial = True
            self.failed(failures.data(failures.DESTINATION, path, "is expected and did not come"))

    def fail_expected(self, path: str) -> None:
        """Fail a file of another digest than is expected."""
        self.failed(failures.data(failures.VERIFY, path, _NOT_EXPECTED))

    def name_failed(self, item: PlannedEntry, failure: Failure) -> None:
        """Count and show an entry that was not copied. Where that is about its name alone, the next
        name of its file is copied instead.
        """
        is_of_file = failure.get("of_source") or failure["errno"] in _OF_EVERY_NAME
        if failure["kind"] in _OF_A_NAME and not is_of_file and "linked" in item.entry.extra:
            self._names_tried[item.known.inode] += 1
            if self._names_tried[item.known.inode] < _NAMES_TRIED_MOST:
                self.leave_to_next(item)
        self.failed(failure)

    def leave_to_next(self, item: PlannedEntry) -> None:
        """Note that the next name of an entry's file, if it has one, is copied instead."""
        if "linked" in item.entry.extra:
            self.next_names[item.entry.path] = item

    def failed(self, failure: Failure, first: str = "", *, was_copied: bool = False) -> None:
        """Count and show a file that was not copied, maybe as another name of the file `first`;
        or one that `was_copied` and could not be removed at the source.

        Stops the copy if another run owns it now.
        """
        if failure["kind"] == failures.SUPERSEDED:
            self._terms.queue.stop(errors.CopyRunning(failure["message"]))
            return
        if failure["kind"] in _OTHER_BYTES and failure["path"] in self._terms.job.expected:
            failure = {**failure, "message": _NOT_EXPECTED, "hint": _OTHER_SOURCE}
        if failure["kind"] == failures.UNSUPPORTED and self._terms.options.archive:
            failure = {**failure, "hint": failure.get("hint") or _LEAVE_OUT}
        error, of_source = as_error(failure), failure.get("of_source", False)
        if was_copied and not isinstance(error, errors.SourceChanged):
            error = errors.NotRemoved(error.path, error.message, error.hint)
        _log.debug("failed: %s: %s", error.path, failure)
        self._terms.counters.add(files_failed=1)
        if failure["errno"] in _STOPS_DELETION and not of_source:
            self.stops_deletion = self.stops_deletion or _STOPS_DELETION[failure["errno"]]
            self.doubt([error.path])
        self._failures_bytes += sys.getsizeof(error.path) + sys.getsizeof(error.message) + 200
        if self._failures_bytes < _FAILURES_BYTES or not self.failures:
            kind, number = type(error).__name__, failure["errno"]
            self.failures.append(Reported(error.path, kind, error.message, error.hint, number))
        else:
            self.failures_unlisted += 1
        if first:
            self.lines.add_other_name(error, first)
        else:
            self.lines.add(error, of_source, failure.get("place", ""))
        self.record_outcome("failed", [(error.path, "")])

    def failed_also(self, found: Iterable[Failure]) -> None:
        """Count and show those of paths that are not among the failures yet: a folder that could
        not be made, for instance, can be given no time and not be listed either.
        """
        wanted = list(found)
        reported = {each.path for each in self.failures} if wanted else ()
        for failure in wanted:
            if failure["path"] not in reported:
                self.failed(failure)


def as_error(failure: Failure) -> errors.FileError:
    """Return the error for an end's failure."""
    path, message = failure["path"], said(failure["message"])
    if failure["kind"] == failures.SYSTEM:
        hint = failure.get("hint", "")
        hint = said(hint or hint_of(failure["errno"], failure.get("of_source", False)))
        return errors.SystemFailure(path, message, failure["errno"], hint)
    kind, hint = _ERRORS[failure["kind"]], failure.get("hint", "")
    if failure["message"] == tree.NEEDS_R:
        kind, hint = errors.UnsupportedFile, "-r copies folders, -a with everything"
    return kind(path, message, said(hint or kind.hint))
