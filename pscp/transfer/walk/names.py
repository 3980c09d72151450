"""Names that a destination may take for one: of one folder, and differing by case or by the form of
an accent. The second of two is refused where the folder does so, since it would replace the first.

Few trees have such names, so a folder is asked (requests.Folds) when it is to get the second.

Not here: names that cannot be given at all (../pieces/plan.py), an old name at the destination that
is another spelling of a new one (../../endpoint/there/mirror.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree


class _Folder(NamedTuple):
    prefix: str  # of the paths of what is in it
    files: set[int]  # hashes of folded names
    folders: dict[int, str]  # their names, by such hashes: one may come again, from another source


class Names:
    """The names of entries as they land, in the order of a walk. For its thread alone."""

    def __init__(self, folds: Callable[[str], bool], refused: list[str] | None = None) -> None:
        """`folds` asks whether a folder of the destination takes such names for one. `refused` is
        of other names of the same walk, whose refused folders are these names' as well.
        """
        self._folds = folds
        self._way = [_Folder("", set(), {})]  # the folders on the way to where the walk is
        # Prefixes of what is in folders that were refused.
        self.refused: list[str] = [] if refused is None else refused

    def check(self, entry: tree.Entry) -> None:
        """Raise Refusal for an entry that would land on another one."""
        path = entry.path
        begin = path.rfind("/") + 1
        prefix, name = path[:begin], path[begin:]
        self.check_above(path)
        if prefix != self._way[-1].prefix:
            while not prefix.startswith(self._way[-1].prefix):
                self._way.pop()
            if prefix != self._way[-1].prefix:
                self._way.append(_Folder(prefix, set(), {}))
        _, files, folders = self._way[-1]
        key = hash(_folded(name))
        if entry.kind == tree.FOLDER:
            may_be_one = key in files or folders.setdefault(key, name) != name
        else:
            may_be_one = key in files or key in folders
            files.add(key)
        if may_be_one and self._folds(prefix[:-1]):
            if entry.kind == tree.FOLDER:
                self.refused.append(f"{path}/")
            raise self._refusal(path)

    def check_above(self, path: str) -> None:
        """Raise Refusal for the path of a folder that was refused, or of what is in one."""
        if self.refused and any(map(f"{path}/".startswith, self.refused)):
            raise self._refusal(path)

    def _refusal(self, path: str) -> failures.Refusal:
        what = "the destination takes this name and another of this copy for one"
        return failures.Refusal(failures.DESTINATION, path, what)


def _folded(name: str) -> str:
    folded = name.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFKC", folded)
