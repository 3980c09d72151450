"""What a Look tells of a name at the destination, and what follows from it: the rules, without I/O.

Not here: what is then done (resume.py), the same for whole folders at once (folder_check.py).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pscp.endpoint import tree
from pscp.endpoint.alike import is_same_time
from pscp.options import Options
from pscp.transfer import answers

# How what is at the destination differs, in words for --check.
MISSING = "is not there"
SIZE = "differs in size"
TIME = "differs in time"
CONTENT = "differs in content"
TARGET = "leads elsewhere there"
KIND = "is something else there"


class There(NamedTuple):
    """The sink's answer about a name at the destination."""

    kind: str  # of the entry; "" where there is none
    size_bytes: int
    mtime_ns: int
    left: list[str]  # the runs that have left a part
    mode: int = 0
    owner: tuple[int, ...] = ()  # uid and gid; () if not known
    target: str = ""  # of a link


class Verdict(enum.Enum):
    """What becomes of an entry."""

    SKIPPED = enum.auto()  # an option leaves it out
    UNCHANGED = enum.auto()  # the quick check takes it for the same
    HASHED = enum.auto()  # both ends hash it
    SENT = enum.auto()


def there_of(row: object) -> There:
    """Return what the sink has answered. Raises ValueError for another shape."""
    kind, size_bytes, mtime_ns, left, mode, owner, target = answers.items(row)
    return There(
        answers.text(kind),
        answers.integer(size_bytes),
        answers.integer(mtime_ns),
        answers.texts(left),
        answers.integer(mode),
        tuple(map(answers.integer, answers.items(owner))),
        answers.text(target),
    )


def verdict(entry: tree.Entry, there: There, options: Options) -> Verdict:
    """Decide about an entry whose name may be taken at the destination."""
    is_there = there.kind != ""
    if options.existing and not (is_there or there.left):  # a part may have been the file itself
        return Verdict.SKIPPED
    if entry.kind == tree.FOLDER:
        return Verdict.SENT
    if options.ignore_existing and is_there:
        return Verdict.SKIPPED
    if entry.kind == tree.FILE and there.kind == tree.FILE:
        return _of_file(entry, there, options)
    if entry.kind == tree.HARDLINK:
        is_same = (options.check or options.dry_run) and there.kind == tree.FILE
        return Verdict.UNCHANGED if is_same else Verdict.SENT
    is_link = entry.kind == there.kind == tree.LINK and entry.target == there.target
    if is_link and options.resume and has_same_metadata(entry, there, options):
        return Verdict.UNCHANGED
    return Verdict.SENT


def _of_file(entry: tree.Entry, there: There, options: Options) -> Verdict:
    has_same_size = there.size_bytes == entry.size
    if has_same_size and options.resume and passes_by_look(entry, there, options):
        return Verdict.UNCHANGED
    is_same = has_same_size and there.mtime_ns == entry.mtime_ns
    if options.update and (there.mtime_ns > entry.mtime_ns or is_same):
        return Verdict.SKIPPED
    if options.check and _goes_by_time(options):
        return Verdict.SENT  # it differs in time, which is worth a line
    return Verdict.HASHED if has_same_size and options.resume else Verdict.SENT


def passes_by_look(entry: tree.Entry, there: There, options: Options) -> bool:
    """Return whether a file of the same size is taken for the same without being hashed.

    As with rsync, its time decides, where copies keep times; -s asks for the contents.
    """
    if options.size_only:
        return True
    return _goes_by_time(options) and is_same_time(entry.mtime_ns, there.mtime_ns)


def _goes_by_time(options: Options) -> bool:
    # What is removed at its source has to be verified at its destination.
    is_verified = options.checksum or options.strong or options.remove_source_files
    return options.preserve and not is_verified


def is_hashed(options: Options) -> bool:
    """Return whether files of the same size are hashed to find out whether they are the same."""
    return not (options.size_only or _goes_by_time(options))


def has_same_metadata(entry: tree.Entry, there: There, options: Options) -> bool:
    """Return whether a file or link needs no metadata, as far as the Look tells.

    Attributes are not looked up, so that a file that has some is given them again.
    """
    if not options.preserve:
        return True
    if not is_same_time(entry.mtime_ns, there.mtime_ns):
        return False
    if entry.kind == tree.FILE and there.mode != entry.mode:
        return False
    if not options.archive:
        return True
    owner = entry.extra.get("o")
    has_same_owner = isinstance(owner, list) and tuple(owner[:2]) == there.owner
    return has_same_owner and "x" not in entry.extra


def difference(entry: tree.Entry, there: There) -> str:
    """Return how what is there differs, by what the Look tells; for a file, not its content.

    A folder that is there is no difference: "".
    """
    if there.kind == "":
        return MISSING
    if there.kind != (tree.FILE if entry.kind == tree.HARDLINK else entry.kind):
        return KIND
    if entry.kind == tree.FOLDER:
        return ""
    if entry.kind == tree.LINK:
        return TIME if entry.target == there.target else TARGET
    return SIZE if there.size_bytes != entry.size else TIME
