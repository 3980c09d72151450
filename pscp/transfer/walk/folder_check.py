"""The quick check of whole folders: what is unchanged in them never becomes an entry here.

The source's walk yields folders with listings of what is in them. The sink compares these with what
it has, and only what differs is described by the source, and then looked up like any entry.

Not here: listings, and how they are compared (endpoint/there/listings.py), under which terms, and
what becomes of a single file (decide.py).
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pscp.endpoint.asking.entries import entry as checked_entry
from pscp.endpoint.frames import failures
from pscp.endpoint.frames.wire import WireError
from pscp.endpoint.reading import tree
from pscp.endpoint.reading.paths import to_bytes, to_text
from pscp.endpoint.reading.rows import Listing, Rows, as_listing, unpack
from pscp.endpoint.there.counting import NO_BOUNDS, Bounds
from pscp.endpoint.there.listings import Compare, Describe, listing
from pscp.options.attributes import Attributes, ModeChange, changed_mode
from pscp.transfer.pieces import answers
from pscp.transfer.pieces.plan import MEMORY_BYTES, Ask, Failure, PlannedEntry
from pscp.transfer.walk.items import Items

if TYPE_CHECKING:  # few copies need it
    from pscp.transfer.ending.mirror import Mirror

_NAMES_MOST = 4096  # in the listings of one request: an end compares as many in some 20 ms
_TEXT_MOST_BYTES = 512 * 1024  # of listings in one request: half of what a frame may hold
_ENTRIES_MOST = 256  # a batch's, so that what has no listing waits for little
_AHEAD = 4  # batches that are compared while the walk goes on
_DESCRIBED_BYTES = 256 * 1024  # of names in one request
_NO_PLACE = -1  # of a further listing of a folder, whose entry came with the first

Place = Callable[[tree.Entry, Listing | None], PlannedEntry | None]
Group = tuple[int, str, list[str]]  # the source's number, a folder's path, and names in it


class FolderCheck:
    """The check of one copy's folders. The walk's thread uses it, and what the queue runs."""

    def __init__(
        self,
        items: Items,
        place: Place,
        passes: Callable[[tree.Entry], bool],
        *,
        attributes: Attributes | None,
        bounds: Bounds,
        may_refuse: Callable[[str], bool] | None,
        mirror: Mirror | None,
    ) -> None:
        """Make the check.

        Args:
            place: returns an entry with how it lands, None for one that will be refused. With a
                mirror it gets all entries, else listed folders.
            passes: gets the folders that are the same, as they land, and says whether none is to
                come of them.
            attributes: what the copy changes of modes and owners.
            bounds: of the files that the copy takes.
            may_refuse: says whether a file may be refused for its path at the destination, so that
                it gets an entry.
            mirror: is told where more is there than is listed.
        """
        self.items, self.terms, self.results = items, items.terms, items.results
        self.place, self.passes = place, passes
        self.attributes, self.bounds, self.may_refuse, self.mirror = (
            attributes, bounds, may_refuse, mirror,
        )  # fmt: skip
        options, picks = self.terms.options, bounds != NO_BOUNDS or may_refuse is not None
        self.hides = picks and bool(options.link_dest)
        # Whether it matters which files are unchanged or linked, and not only how many.
        is_shown = self.results.wants_files or options.itemize
        self.tells = is_shown or self.terms.counts_ahead or picks

    def changed(self, walked: Iterable[tree.Entry]) -> Iterator[tree.Entry]:
        """Yield the entries that are not, by their folder's listing, there already."""
        batches: deque[_Batch] = deque()
        batch = _Batch(self)
        for entry in walked:
            if not batch.has_room(entry):
                batch.ask()
                batches.append(batch)
                batch = _Batch(self)
                while batches and (len(batches) > _AHEAD or batches[0].is_done):
                    yield from batches.popleft().rest()
            batch.add(entry)
        batch.ask()
        for each in (*batches, batch):
            yield from each.rest()


class _Batch:
    """Entries of a walk, some with listings. The walk's thread fills it and takes from it; between
    ask() and is_done only what the queue runs changes it.
    """

    def __init__(self, check: FolderCheck) -> None:
        self._check, self._mirror = check, check.mirror
        self._terms, self._queue = check.terms, check.terms.queue
        self._entries: list[tree.Entry] = []
        self._same: dict[int, tree.Entry] = {}  # folders that are the same, as they land
        self._listed: list[tuple[int, PlannedEntry, Listing]] = []  # and the entry's place
        self._described: list[tree.Entry] = []
        self._names = self._text_bytes = 0
        self._asked = 0  # requests that are not answered
        self.is_done = False

    def has_room(self, entry: tree.Entry) -> bool:
        if not (self._entries or self._listed):
            return True
        value = entry.extra.get("list")
        text_bytes = len(listing(value).text) if value is not None else 0
        is_full = self._names >= _NAMES_MOST or len(self._entries) >= _ENTRIES_MOST
        return not is_full and self._text_bytes + text_bytes <= _TEXT_MOST_BYTES

    def add(self, entry: tree.Entry) -> None:
        value = entry.extra.pop("list", None)
        is_listed = value is not None and entry.kind == tree.FOLDER
        of_folder = listing(value) if is_listed else None
        place = _NO_PLACE
        if of_folder is not None and of_folder.after:
            entry = entry._replace(path=whole_folder(entry.path, of_folder.after))
        else:
            place = len(self._entries)
            self._entries.append(entry)
        is_asked = is_listed or self._mirror is not None
        item = self._check.place(entry, of_folder) if is_asked else None
        if item is not None and of_folder is not None:
            self._listed.append((place, item, of_folder))
            self._names += of_folder.files + 1
            self._text_bytes += len(of_folder.text) + 6 * len(item.entry.path)

    def ask(self) -> None:
        if not self._listed:
            self.is_done = True
            return
        folders = []
        for _, item, of_folder in self._listed:
            listed = as_it_lands(self._check, item, of_folder)
            folders.append(item.entry._replace(extra={**item.entry.extra, "list": listed}))
        request = Compare(
            folders,
            parts=bool(self._terms.earlier),
            extras=self._mirror is not None,
            seconds=not self._terms.reuses,
        )

        def failed(_: Failure) -> None:
            self._compared([None] * len(folders))

        cost_bytes = MEMORY_BYTES + self._text_bytes
        self._queue.put(Ask(False, request, self._compared, failed, cost_bytes=cost_bytes))

    def rest(self) -> Iterator[tree.Entry]:
        """Yield what may have to be copied, once that is known, in the order of the walk: names of
        one folder are compared while the walk is in it (names.py).
        """
        if self._queue.wait_until(lambda: self.is_done):
            found = [*enumerate(self._entries), *((_NO_PLACE, each) for each in self._described)]
            if self._described:
                found.sort(key=lambda each: tree.place(each[1].top, each[1].path))
            for place, entry in found:
                if place not in self._same or not self._check.passes(self._same[place]):
                    yield entry

    # --- the queue runs these

    def _compared(self, answer: object) -> None:
        groups: list[Group] = []
        unchanged = all_linked = left_out = unneeded_bytes = 0
        rows = answers.items(answer)
        for (place, item, of_folder), row in zip(self._listed, rows, strict=True):
            names, is_same, linked, has_more = differing(of_folder, row)
            here = of_folder.files
            if self._check.tells:
                found = sort(item.entry.path, of_folder, names, linked, self._check)
                names, left_out = found.wanted, left_out + found.left_out
                here, unneeded_bytes = here - found.left_out, unneeded_bytes + found.bytes
                self._check.results.unchanged(found.unchanged)
                self._check.results.record_outcome("linked", [(path, "") for path in found.linked])
            unchanged += here - len(names) - len(linked)
            all_linked += len(linked)
            if has_more and self._mirror is not None:
                self._mirror.has_more(item, of_folder)
            elif is_same and of_folder.is_whole and not names and not self._gets_backups(item):
                self._same[place] = item.entry
            if names:
                groups.append((item.known.top, item.known.path, names))
        self._terms.counters.add(files_total=unchanged + all_linked, files_linked=all_linked)
        self._terms.counters.add(files_unchanged=unchanged, bytes_unneeded=unneeded_bytes)
        self._terms.counters.add(files_left_out=left_out)
        self._listed = []
        for group in requests_of(groups):
            self._describe(group)
        self._finish()

    def _gets_backups(self, item: PlannedEntry) -> bool:
        """May the folder of the backups be made in this one, which changes its time?"""
        path, backups = item.entry.path, self._terms.options.backup_dir
        return bool(backups) and f"{backups}/".startswith(f"{path}/" if path else "")

    def _describe(self, names: list[Group]) -> None:
        """Have the source describe these names, as many at a time as an answer has room for."""
        self._asked += 1

        def then(answer: object) -> None:
            listed, count = answers.items(answer)
            for value in answers.items(listed):
                entry = checked_entry(value)
                entry.extra.pop("new", None)  # as of a far walk
                self._described.append(entry)
            left = behind(names, answers.integer(count))
            self._asked -= 1
            if left:
                self._describe(left)
            self._finish()

        def failed(failure: Failure) -> None:
            for top, folder, _ in names:
                refused = failures.data(failure["kind"], folder, failure["message"])
                self._described.append(tree.error_entry(top, folder, refused))
            self._asked -= 1
            self._finish()

        cost_bytes = MEMORY_BYTES * sum(len(group[2]) for group in names)
        self._queue.add(Ask(True, Describe(names), then, failed, cost_bytes=cost_bytes))

    def _finish(self) -> None:
        if not self._asked:
            self.is_done = True
            self._queue.wake()


def whole_folder(path: str, after: str) -> str:
    """Return the path of a folder, by that of an entry for the names of it behind this one. Raises
    WireError.
    """
    folder, slash, name = path[:-1].rpartition("/")
    if not path.endswith("/") or name != after or (slash and not folder):
        raise WireError("a stretch of names in no folder")
    return folder


def as_it_lands(check: FolderCheck, item: PlannedEntry, of_folder: Listing) -> Listing:
    """Return the listing that the sink compares: with the modes and the owner that the files get,
    and nothing said of those that --link-dest must not link unasked.
    """
    attributes = check.attributes
    if attributes is None and not check.hides:
        return of_folder
    rows, owner = unpack(of_folder.text), of_folder.owner
    landing = rows
    if attributes is not None:
        owner = attributes.owner(owner) or owner
        arriving = {mode: _arriving(mode, attributes.modes) for mode in set(rows.modes)}
        landing = rows._replace(modes=[arriving[mode] for mode in rows.modes])
    if check.hides:
        landing = _without(_not_linked(item.entry.path, landing, check), landing)
    if landing.modes == rows.modes:
        return of_folder._replace(owner=owner)
    listed = as_listing(landing, owner, of_folder.is_whole, of_folder.up_to, of_folder.after)
    return of_folder._replace(text="") if listed is None else listed  # "": it is not compared


def _arriving(mode: int, changes: Sequence[ModeChange]) -> int:
    """Return the mode that a file gets which has this one; of all else the same."""
    if not stat.S_ISREG(mode):
        return mode
    return stat.S_IFREG | changed_mode(stat.S_IMODE(mode), tree.FILE, changes)


def _not_linked(folder: str, rows: Rows, check: FolderCheck) -> set[int]:
    """Return the places of what the copy leaves out, and of what it may refuse for its name."""
    above, may_refuse = f"{folder}/" if folder else "", check.may_refuse
    places = set()
    for place, (name, mode, size, mtime_ns) in enumerate(zip(*rows[:4], strict=True)):
        is_out = stat.S_ISREG(mode) and not check.bounds.hold(size, mtime_ns)
        if is_out or (may_refuse is not None and may_refuse(above + to_text(name))):
            places.add(place)
    return places


def _without(places: set[int], rows: Rows) -> Rows:
    """Return the rows, but of the files and links at these places nothing but their names."""
    hidden = set(filter(rows.is_file, places))
    modes = [0 if place in hidden else mode for place, mode in enumerate(rows.modes)]
    targets = {place: target for place, target in rows.targets.items() if place not in hidden}
    return rows._replace(modes=modes, targets=targets)


Found = tuple[list[str], bool, list[str], bool]


def differing(of_folder: Listing, row: object) -> Found:
    """Return the names of files and links that differ, whether the folder is the same, the names of
    those that were linked, and whether it may have more there.
    """
    if row is None:
        wanted = unpack(of_folder.text)
        return _files(of_folder, range(len(wanted.names))), False, [], True
    is_same, places, linked_places, has_more = answers.items(row)
    found = [answers.integer(place) for place in answers.items(places)]
    linked = [answers.integer(place) for place in answers.items(linked_places)]
    if not set(found).isdisjoint(linked):
        raise ValueError("a place that differs and was linked")
    names = _files(of_folder, found) if found else []
    return names, is_same is True, _files(of_folder, linked) if linked else [], has_more is True


class Sorted(NamedTuple):
    """The files and links of a listing."""

    wanted: list[str]  # names that get entries
    unchanged: list[str]  # paths at the destination
    linked: list[str]  # also paths
    left_out: int
    bytes: int  # of the unchanged and linked files


def sort(
    folder: str,
    of_folder: Listing,
    names: Iterable[str],
    linked_names: Iterable[str],
    check: FolderCheck,
) -> Sorted:
    """Sort a folder's files and links, of which those with these names differ, or were linked."""
    rows, differing = unpack(of_folder.text), set(map(to_bytes, names))
    were_linked = set(map(to_bytes, linked_names))
    above, may_refuse = f"{folder}/" if folder else "", check.may_refuse
    wanted, unchanged, linked = list[str](), list[str](), list[str]()
    left_out = all_bytes = 0
    for place, (name, mode, size, mtime_ns) in enumerate(zip(*rows[:4], strict=True)):
        is_file, path = stat.S_ISREG(mode), above + to_text(name)
        if not rows.is_file(place):
            continue
        if is_file and not check.bounds.hold(size, mtime_ns):
            left_out += 1
        elif name in differing or (may_refuse is not None and may_refuse(path)):
            wanted.append(to_text(name))
        else:
            (linked if name in were_linked else unchanged).append(path)
            all_bytes += size if is_file else 0
    return Sorted(wanted, unchanged, linked, left_out, all_bytes)


def _files(of_folder: Listing, places: Iterable[int]) -> list[str]:
    rows = unpack(of_folder.text)
    chosen = sorted(set(places))
    if chosen and not 0 <= chosen[0] <= chosen[-1] < len(rows.names):
        raise ValueError("a place that the listing has not")
    return [to_text(rows.names[place]) for place in chosen if rows.is_file(place)]


def requests_of(groups: Iterable[Group]) -> Iterator[list[Group]]:
    """Yield the groups for each request, cut so that it fits into a frame."""
    request: list[Group] = []
    total = 0
    for top, folder, names in groups:
        for name in names:
            weight = 6 * len(name) + 16
            if request and total + weight > _DESCRIBED_BYTES:
                yield request
                request, total = [], 0
            if not request or request[-1][:2] != (top, folder):
                request.append((top, folder, []))
                total += 6 * len(folder) + 64
            request[-1][2].append(name)
            total += weight
    if request:
        yield request


def behind(groups: list[Group], count: int) -> list[Group]:
    """Return what is left of the groups after so many names. Raises ValueError for none at all."""
    if count < 1:
        raise ValueError("an answer about no name")
    left: list[Group] = []
    for top, folder, names in groups:
        if count < len(names):
            left.append((top, folder, names[count:]))
        count = max(0, count - len(names))
    return left
