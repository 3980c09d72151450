"""Names that a destination may take for one: of one folder, and differing by case or by the form of
an accent. The second of two is refused where the folder does so, since it would replace the first.

Few trees have such names, so a folder is asked (requests.Folds) when it is to get the second.

Not here: names that cannot be given at all (../pieces/plan.py), an old name at the destination that
is another spelling of a new one (../../endpoint/there/mirror.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pscp.endpoint.frames import failures
from pscp.endpoint.reading import tree

ONE = "the destination takes this name and another of this copy for one"


class _Folder(NamedTuple):
    prefix: str  # of the paths of what is in it
    files: set[int]  # hashes of folded names
    folders: dict[int, str]  # their names, by such hashes: one may come again, from another source


class Names:
    """The names of entries as they land, in the order of a walk. For its thread alone."""

    def __init__(
        self,
        folds: Callable[[str], str],
        refused: list[str] | None = None,
        above: Iterable[str] = (),
    ) -> None:
        """Make them.

        Args:
            folds: tells why two such names cannot both be given in a folder of the destination, ""
                where they can.
            refused: of other names of the same walk, whose refused folders are these' as well.
            above: the folders above sources, which are checked before what is in any.
        """
        self._folds = folds
        self._above = {f"{path}/": _Folder(f"{path}/", set(), {}) for path in above}
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
                self._way.append(self._above.get(prefix) or _Folder(prefix, set(), {}))
        _, files, folders = self._way[-1]
        key = hash(_folded(name))
        if entry.kind == tree.FOLDER:
            may_be_one = key in files or folders.setdefault(key, name) != name
        else:
            may_be_one = key in files or key in folders
            files.add(key)
        why = self._folds(prefix[:-1]) if may_be_one else ""
        if why:
            if entry.kind == tree.FOLDER:
                self.refused.append(f"{path}/")
            raise failures.Refusal(failures.DESTINATION, path, why)

    def check_above(self, path: str) -> None:
        """Raise Refusal for the path of a folder that was refused, or of what is in one."""
        if self.refused and any(map(f"{path}/".startswith, self.refused)):
            raise failures.Refusal(failures.DESTINATION, path, ONE)


def _folded(name: str) -> str:
    # NFKC folds more than the NFC of ../ending/moving.py and of sftp/mirror.py, where names that
    # fold alike count as one place, or one file: here they only have the folder asked.
    folded = name.casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFKC", folded)
