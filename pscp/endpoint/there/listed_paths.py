"""The entries of listed paths, for --files-from, and of the folders above a source, for -R.

Not here: the walk of whole folders (../reading/tree.py), how the list is read
(../../transfer/terms/path_list.py).
"""

import os
import weakref
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ..asking import answers
from ..frames import failures, wire
from ..reading import source, tree
from ..reading.paths import Root, to_bytes, to_text

ALONE, ALL, ABOVE = 0, 1, 2  # a path as it is; with all that is below; a folder above listed paths
Row = Tuple[str, int]
Linked = Dict[Tuple[int, int], Tuple[int, str]]


class WalkPaths(NamedTuple):
    """The next entries of listed paths of the first source. Answer: as to Walk."""

    paths: List[
        Tuple[str, int]
    ]  # (`[path, 0: alone, 1: with all below, 2: a folder above others]`)
    after: Optional[Tuple[int, str]]  # as with Walk
    restart: bool  # as with Walk
    most: int  # entries


class Above(NamedTuple):
    """The folders above sources. Answer: per folder its entry, without a path."""

    folders: List[Tuple[int, int]]  # (`[number of a source, levels above it]`)


# First names of hard links, by the source that has sent them.
_linked: "weakref.WeakKeyDictionary[source.Source, Linked]" = weakref.WeakKeyDictionary()


class PathsWalk(tree.Walk):
    """The entries of listed paths, in the order of the list, which is that of a walk."""

    def __init__(self, of_source: source.Source) -> None:
        super().__init__(of_source.named, of_source.rules)
        self._linked = _linked.setdefault(of_source, {})

    def listed(
        self, paths: Iterable[Row], after: Optional[Tuple[int, str]] = None
    ) -> Iterator[tree.Entry]:
        """Yield the entries of these paths; with `after` only those behind it."""
        full = self._tops[0][1]
        # Only what -a reads could lead elsewhere meanwhile: each folder on the way is opened.
        root = None if self._rules.follow else Root(to_text(full), follow=False)
        try:
            for path, how in paths:
                for entry in self._of_path(path, how, root):
                    if after is None or tree.place(0, entry.path) > tree.place(*after):
                        yield entry
        finally:
            if root is not None:
                root.close()

    def _of_path(self, path: str, how: int, root: Optional[Root]) -> Iterator[tree.Entry]:
        """Yield the entries of one path."""
        if is_below_excluded(self._filters, path):
            return
        full = self._tops[0][1]
        fd = None
        try:
            if path:
                full = b"%s/%s" % (full, to_bytes(path))
                fd = None if root is None else root.at(path)[0]
        except (OSError, failures.Refusal) as error:
            failure = failures.from_exception(error, path)
            if isinstance(error, failures.Refusal):
                message = "is below a link or a file (-L follows links)"
                failure = failures.data(failures.UNSUPPORTED, path, message)
            if how != ABOVE:  # else what is listed below it says so
                yield tree.error_entry(0, path, failure)
            return
        if how == ALL:
            for entry in self._below(0, path, full, None if fd is None else os.dup(fd)):
                yield entry
            return
        found = self._entry(0, path, full, fd, [(0, 0)])[0]
        if found is not None and (how == ALONE or found.kind == tree.FOLDER):
            yield found


def is_below_excluded(filters: tree.Filters, path: str) -> bool:
    """Is it below a folder that the filters leave out?"""
    while "/" in path and filters:
        path = path.rpartition("/")[0]
        if tree.is_excluded(filters, path, True):
            return True
    return False


def _listed(of_source: source.Source, request: WalkPaths) -> Tuple[List[tree.Entry], bool]:
    """Return the next entries, and whether these were the last of these paths."""
    if request.restart or of_source.walking is None:
        of_source.walking = PathsWalk(of_source).listed(request.paths, request.after)
    return of_source.walk(None, False, request.most)


def above(of_source: source.Source, folders: Iterable[Tuple[int, int]]) -> Iterator[tree.Entry]:
    """Yield the entry of each folder; links on the way are followed, as the user has named it."""
    rules = of_source.rules._replace(recursive=True, follow=True, filters=())
    walk = tree.Walk(of_source.named, rules)
    for top, levels in folders:
        if top >= len(of_source.tops):
            raise wire.WireError("a folder above no source")
        full = to_bytes(above_path(of_source.tops[top].path, levels))
        found = walk._entry(top, "", full, None, [(0, 0)])[0]
        assert found is not None  # there are no filters
        yield found


def above_path(path: str, levels: int) -> str:
    """Return the path so many levels above this one, as it is written."""
    for _ in range(levels):
        while path.endswith(("/", "/.")):
            path = path[:-1]
        path = os.path.dirname(path)
    return path


answers.add(
    answers.SOURCE,
    {WalkPaths: _listed, Above: lambda of_source, request: list(above(of_source, request.folders))},
)
