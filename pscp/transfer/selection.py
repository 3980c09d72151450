"""Which files a copy leaves out by their size and age, or as its caller selects. Folders and
symbolic links it takes.

What is left out is neither a failure nor skipped: as what --exclude leaves out, it is not
counted. It is in the source all the same, so nothing may delete it at the destination.

Not here: patterns (../filters.py), what the destination says about a file (resume.py), what
has not settled (settled.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from pscp.endpoint import source, tree
from pscp.options import Options
from pscp.transfer.job_terms import Select
from pscp.transfer.plan import source_path

_NANO = 10**9


class Selection:
    """The bounds of a copy. They hold for the size and time that the walk saw."""

    def __init__(
        self,
        options: Options,
        now_ns: int,
        tops: Sequence[source.Top] = (),
        select: Select | None = None,
    ) -> None:
        """Ages are counted from `now_ns`, by the clock of this machine.

        `select` is asked about each file of these sources that is within the bounds.
        """
        self._tops, self._select = tops, select
        self._least_bytes, self._most_bytes = options.min_size_bytes, options.max_size_bytes
        # The times between which a file was changed last.
        self._first_ns = None if options.max_age_s is None else now_ns - options.max_age_s * _NANO
        self._last_ns = None if options.min_age_s is None else now_ns - options.min_age_s * _NANO
        self._left_out: set[object] = set()  # files with other names that may come: (source, path)

    def leaves_out(self, entry: tree.Entry) -> bool:
        """Return whether the entry is not to be copied. The entry is as its source knows it.

        A hard link has the size and time of the file that it names, so both stay or neither does;
        what is at the destination under the first name may be another file.
        """
        if entry.kind == tree.HARDLINK:
            return (entry.extra["in"], entry.extra["to"]) in self._left_out
        if entry.kind != tree.FILE or self._takes(entry):
            return False
        if "linked" in entry.extra:
            self._left_out.add((entry.top, entry.path))
        return True

    def _takes(self, entry: tree.Entry) -> bool:
        if not (
            _is_between(entry.size, self._least_bytes, self._most_bytes)
            and _is_between(entry.mtime_ns, self._first_ns, self._last_ns)
        ):
            return False
        if self._select is None:
            return True
        path = source_path(self._tops[entry.top], entry.path)
        return self._select(path, entry.size, entry.mtime_ns, entry.inode)


def _is_between(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)
