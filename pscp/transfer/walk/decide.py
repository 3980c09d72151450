"""The one table that decides what becomes of an entry, by facts alone.

What was looked up at the destination is decided here and nowhere else.

decide() tells by the entry, what its name has there, the copy's rules and what earlier runs left
which row of ROWS holds: the first that fits. docs/design.md shows them.

Not here: what asks, and acts (lookups.py); what is never looked up: names that filters leave out
(../../endpoint/reading/tree.py), files by size, age or a caller's choice (selection.py), whole
folders that are unchanged (folder_check.py); whether an earlier run's part is continued
(../terms/journal.py).
"""

from __future__ import annotations

import enum
import functools
import stat
from collections.abc import Sequence
from typing import NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import is_unfinished
from pscp.endpoint.there.lookup import OWN
from pscp.endpoint.there.sameness import is_same_time
from pscp.options.options import Options
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import Failure


class Action(enum.Enum):
    """The outcome for an entry."""

    SEND = "it is copied"
    HASH = "both ends hash it, and what differs is copied"
    LINK = "it becomes another name of its file, once that has landed"
    UNCHANGED = "it is taken for the same; metadata that differs is given to it"
    SKIP = "an option leaves it out"
    REPLACE = "it is copied once the mirror has deleted what is in the way"
    REFUSE = "it fails, and what is in the way stays"


class State(enum.Enum):
    """The things that an entry's name may have at the destination."""

    NOTHING = "nothing"
    UNFINISHED = "a folder that a killed run left"
    SAME = "the same, as far as can be told unread"
    SIZE = "a file of its size"
    OTHER = "another file or link"
    FOLDER = "a folder"
    SPECIAL = "a special file"


class Fact(enum.Enum):
    """Facts of the copy's rules and its history about an entry."""

    EXISTING = "--existing"
    IGNORE_EXISTING = "--ignore-existing"
    NEWER = "-u, and what is there is newer"
    NO_RESUME = "--no-resume"
    LISTS = "-n or --check"
    TELLS_TIMES = "--check, where times decide"
    PART = "an earlier run left a part of this large file"
    MIRRORS = "--delete"


class There(NamedTuple):
    """The sink's answer about a name at the destination."""

    kind: str  # of the entry; "" where there is none
    size_bytes: int
    mtime_ns: int
    left: list[str]  # the runs that have left a part
    mode: int = 0
    differs: str = ""  # besides, as Lookup's answer has it (endpoint/there/lookup.py)
    target: str = ""  # of a link, or which device it is
    unit_ns: int = 0  # in what its time is kept; 0: not known
    failure: Failure | None = None  # why it could not be looked at: nothing above is known


class Row(NamedTuple):
    """A row of the table: it holds for these kinds and states, `when` and `unless` a fact is so."""

    kinds: frozenset[str]
    states: frozenset[State]
    when: Fact | None
    unless: Fact | None
    action: Action


def _row(
    kinds: str, states: str, action: Action, when: Fact | None = None, unless: Fact | None = None
) -> Row:
    every = {*State} if states == "any" else {State[each] for each in states.split()}
    named = _KINDS if kinds == "any" else frozenset(kinds.split())
    return Row(named, frozenset(every), when, unless, action)


_KINDS = frozenset([tree.FILE, tree.LINK, tree.HARDLINK, tree.FOLDER, tree.FIFO, tree.DEVICE])

# The first row that fits decides.
ROWS = (
    _row("folder", "UNFINISHED", Action.SEND),
    _row("any", "NOTHING", Action.SKIP, when=Fact.EXISTING),
    _row("hardlink", "NOTHING", Action.LINK),
    _row("any", "NOTHING", Action.SEND),
    _row("folder", "FOLDER", Action.SEND),  # its metadata
    _row("folder", "any", Action.SEND, when=Fact.MIRRORS, unless=Fact.IGNORE_EXISTING),
    _row("folder", "any", Action.REFUSE),
    _row("any", "any", Action.SKIP, when=Fact.IGNORE_EXISTING),
    _row("fifo device", "SAME", Action.UNCHANGED),
    _row("any", "FOLDER SPECIAL", Action.REPLACE, when=Fact.MIRRORS),
    _row("any", "FOLDER SPECIAL", Action.REFUSE),
    _row("hardlink", "SAME", Action.UNCHANGED, when=Fact.LISTS),
    _row("hardlink", "any", Action.SKIP, when=Fact.NEWER),
    _row("hardlink", "SIZE", Action.LINK, when=Fact.TELLS_TIMES),
    _row("hardlink", "SIZE", Action.HASH, when=Fact.LISTS),
    _row("hardlink", "any", Action.LINK),
    _row("file", "SAME SIZE OTHER", Action.SKIP, when=Fact.NEWER),
    _row("file link", "SAME", Action.UNCHANGED, unless=Fact.NO_RESUME),
    _row("file", "SAME SIZE", Action.SEND, when=Fact.TELLS_TIMES),
    _row("file", "SIZE", Action.SEND, when=Fact.PART),  # whose run has found that it differs
    _row("file", "SIZE", Action.HASH, unless=Fact.NO_RESUME),
    _row("any", "any", Action.SEND),
)


class Rules(NamedTuple):
    """A copy's options, as far as they are about every entry."""

    options: Options
    facts: frozenset[Fact]
    goes_by_time: bool  # files of the same size and time are the same

    @classmethod
    def of(cls, options: Options) -> Rules:
        """Return the rules of a copy with these options."""
        by_time = goes_by_time(options)
        said = {
            Fact.EXISTING: options.existing,
            Fact.IGNORE_EXISTING: options.ignore_existing,
            Fact.NO_RESUME: not (options.resume or options.check),
            Fact.LISTS: options.dry_run,
            Fact.MIRRORS: options.delete,
            Fact.TELLS_TIMES: options.check and by_time,
        }
        return cls(options, frozenset(fact for fact, is_so in said.items() if is_so), by_time)


def decide(
    entry: tree.Entry, there: There | None, rules: Rules, *, has_part: bool = False
) -> Action:
    """Return what becomes of an entry.

    Args:
        there: what its name has at the destination; None: the name of its source is new there.
        has_part: earlier runs left a part of a large file, for which pieces of the old one are
            looked for.
    """
    if there is None:
        return _decided(entry.kind, State.NOTHING, rules.facts)
    facts = rules.facts
    if rules.options.update and there.kind == tree.FILE and there.mtime_ns > entry.mtime_ns:
        facts |= {Fact.NEWER}
    if has_part:
        facts |= {Fact.PART}
    return _decided(entry.kind, state_of(entry, there, rules), facts)


@functools.cache
def _decided(kind: str, state: State, facts: frozenset[Fact]) -> Action:
    return next(row for row in ROWS if _fits(row, kind, state, facts)).action


def _fits(row: Row, kind: str, state: State, facts: frozenset[Fact]) -> bool:
    is_so = (row.when is None or row.when in facts) and row.unless not in facts
    return is_so and kind in row.kinds and state in row.states


def state_of(entry: tree.Entry, there: There, rules: Rules) -> State:
    """Return what the destination has, as the table names it."""
    if there.kind == "":
        return State.UNFINISHED if is_unfinished(stat.S_IFDIR | there.mode) else State.NOTHING
    if there.kind == tree.FOLDER:
        return State.FOLDER
    if there.kind == entry.kind and (entry.kind == tree.FIFO or _is_device(entry, there)):
        return State.SAME  # but for its metadata, which it is given
    if there.kind not in (tree.FILE, tree.LINK):
        return State.SPECIAL
    if there.kind == tree.LINK or entry.kind == tree.LINK:
        is_same = there.kind == entry.kind and entry.target == there.target
        is_same = is_same and not differing_metadata(entry, there, rules)
        return State.SAME if is_same else State.OTHER
    if there.size_bytes != entry.size:
        return State.OTHER
    is_same_age = rules.goes_by_time and is_same_time(entry.mtime_ns, there.mtime_ns, there.unit_ns)
    return State.SAME if rules.options.size_only or is_same_age else State.SIZE


def _is_device(entry: tree.Entry, there: There) -> bool:
    return entry.kind == tree.DEVICE and entry.target == there.target


def must_look(entry: tree.Entry, is_new: bool, options: Options) -> bool:
    """Return whether the destination has to be asked about an entry before it is decided.

    Args:
        is_new: the name of its source is new there.
    """
    if is_new or options.transfer_test:
        return False
    # Whatever file has the name of a hard link is replaced, unless one of these asks about it.
    asks = options.existing or options.ignore_existing or options.update or options.dry_run
    return entry.kind != tree.HARDLINK or asks or options.delete


def goes_by_time(options: Options) -> bool:
    """Return whether a file of the same size and time is the same: as with rsync, where copies keep
    times. What is removed at its source has to be verified at its destination.
    """
    is_verified = options.checksum or options.strong or options.remove_source_files
    return options.preserve and not is_verified


def is_hashed(options: Options) -> bool:
    """Return whether files of the same size are hashed to find out whether they are the same."""
    return not (options.size_only or goes_by_time(options))


def differing_metadata(entry: tree.Entry, there: There, rules: Rules) -> str:
    """Return what of the metadata that is kept differs, as --check says it, and would be given to
    what is there; "" for nothing. A folder's time is not told: it changes with what is in it.
    """
    if not rules.options.preserve or there.differs == "none":
        return ""
    has_own = there.differs == OWN
    if entry.kind != tree.LINK and there.mode != entry.mode and not has_own:
        return MODE
    if there.differs and not has_own:
        return _NAMED.get(there.differs, OWNER)
    is_same_age = is_same_time(entry.mtime_ns, there.mtime_ns, there.unit_ns)
    return "" if entry.kind == tree.FOLDER or is_same_age else TIME


def owners_wanted(entries: Sequence[tree.Entry], rules: Rules) -> list[dict[str, object]]:
    """Return what a Lookup of these asks to be compared, once if it is the same for all."""
    if not rules.options.preserve:
        return []
    names = ("o", "x") if rules.options.archive else ()
    found = [{n: e.extra.get(n) for n in names if n == "o" or n in e.extra} for e in entries]
    return found if any(each != found[0] for each in found) else found[:1]


# With these, more is asked of a file than a folder's listing tells, or the source has no walk of
# its own.
_MORE_ASKED = (
    "strong", "checksum", "size_only", "ignore_existing", "transfer_test", "files_from",
    "remove_source_files",
)  # fmt: skip


def may_check_folders(options: Options) -> bool:
    """Return whether a whole folder may be taken for unchanged: size, time, mode and owner are all
    that is to be compared.
    """
    is_more = any(getattr(options, name) not in (None, False) for name in _MORE_ASKED)
    is_more |= bool(options.link_dest and options.existing)  # the check would link what is new
    return options.preserve and options.recursive and options.resume and not is_more


# How what is at the destination differs, in words for --check.
MISSING = "is not there"
SIZE = "differs in size"
TIME = "differs in time"
MODE = "differs in mode"
OWNER = "differs in owner"
ATTRIBUTES = "differs in ACLs or attributes"
_NAMED = {"owner": OWNER, "attributes": ATTRIBUTES}
CONTENT = "differs in content"
TARGET = "leads elsewhere there"
KIND = "is something else there"


def difference(entry: tree.Entry, there: There, rules: Rules) -> str:
    """Return how what is there differs, unread; of a folder that is there, in metadata or ""."""
    if there.kind == "":
        return MISSING
    if there.kind != (tree.FILE if entry.kind == tree.HARDLINK else entry.kind):
        return KIND
    if entry.kind == tree.FOLDER:
        return differing_metadata(entry, there, rules)
    if entry.kind == tree.LINK:
        is_alike = entry.target == there.target
        return differing_metadata(entry, there, rules) or TIME if is_alike else TARGET
    return SIZE if there.size_bytes != entry.size else TIME


def as_for(entry: tree.Entry, there: There) -> There:
    """Return what is there as it concerns the entry: a folder that is not finished yet, which a
    killed run has left, is for a folder as good as nothing, and in the way of everything else.
    """
    is_its_own = there.kind == entry.kind == tree.FOLDER
    if is_its_own and entry.path and is_unfinished(stat.S_IFDIR | there.mode):
        return There("", 0, 0, there.left, there.mode)
    return there


def parse_lookup_row(row: object) -> There:
    """Return what the sink has answered. Raises ValueError, WireError for another shape."""
    if isinstance(row, dict):
        return There("", 0, 0, [], failure=failures.parse_failure(row))
    kind, size_bytes, mtime_ns, left, mode, differs, target, unit_ns = answers.items(row)
    return There(
        answers.text(kind),
        answers.integer(size_bytes),
        answers.integer(mtime_ns),
        answers.texts(left),
        answers.integer(mode),
        answers.text(differs),
        answers.text(target),
        answers.integer(unit_ns),
    )
