"""What the sources hold in all, counted ahead of their walk for whoever watches a copy.

Not here: the walk whose entries are copied (../reading/tree.py), who asks, and what for
(../../transfer/walk/count_ahead.py).
"""

import contextlib
import os
import threading
import weakref
from typing import Callable, Iterator, NamedTuple, Optional

from ..asking import answers
from ..asking.answers import Reply
from ..frames import failures
from ..reading import files, source, tree


class Bounds(NamedTuple):
    """The sizes and times of the files that a copy takes; null: no bound."""

    least_bytes: Optional[int]
    most_bytes: Optional[int]
    first_ns: Optional[int]
    last_ns: Optional[int]

    def hold(self, size_bytes: int, mtime_ns: int) -> bool:
        """Is a file of this size and time within them?"""
        return _is_between(size_bytes, *self[:2]) and _is_between(mtime_ns, *self[2:])


NO_BOUNDS = Bounds(None, None, None, None)


class Count(NamedTuple):
    """Count the files of the sources, beside other work. Answer: `[files, bytes]`, or null."""

    bounds: Bounds
    after_ms: int  # from now, unless the walk is over by then


class StopCounting(NamedTuple):
    """Have Count answered at once, since the walk is over. Answer: null."""


class SizesWalk(tree.Walk):
    """A walk that reads nothing but what stat(2) says, which is all that counting needs."""

    def _described(
        self, top: int, path: str, full: bytes, place: files.Place, status: os.stat_result
    ) -> tree.Entry:
        kind = tree.kind_of(status.st_mode)
        if kind == tree.FILE:
            kind = self._file(top, path, status, {})
        return tree.Entry(kind, top, path, status.st_size, 0, status.st_mtime_ns, 0, {})


class Tally:
    """The number and the bytes of some entries."""

    def __init__(self, bounds: Bounds) -> None:
        self.files = self.bytes = 0
        self._bounds = bounds

    def add(self, entry: tree.Entry) -> None:
        if entry.kind == tree.FILE:
            if not self._bounds.hold(entry.size, entry.mtime_ns):
                return
            self.bytes += entry.size
        self.files += entry.kind not in (tree.FOLDER, tree.SPECIAL)


def _is_between(value: int, least: Optional[int], most: Optional[int]) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)


class _Counting(threading.Thread):
    """The thread that counts, beside the one that serves the lane."""

    def __init__(self, walk: Iterator[tree.Entry], request: Count, reply: Reply) -> None:
        super().__init__(name="count", daemon=True)
        self._walk, self._tally, self._reply = walk, Tally(request.bounds), reply
        self._after_s = request.after_ms / 1000.0
        self.is_needless = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the channel has ended
            self._reply(self._counted(), False)

    def _counted(self) -> object:
        if self.is_needless.wait(self._after_s):
            return None
        try:
            for entry in self._walk:
                self._tally.add(entry)
                if self.is_needless.is_set():
                    return None
        except failures.EXPECTED:
            return None
        return [self._tally.files, self._tally.bytes]


_counting: "weakref.WeakKeyDictionary[source.Source, _Counting]" = weakref.WeakKeyDictionary()


def _count(of: source.Source, request: Count) -> Callable[[Reply], None]:
    def start(reply: Reply) -> None:
        thread = _counting[of] = _Counting(of.entries(kind=SizesWalk), request, reply)
        thread.start()

    return start


def _stop(of: source.Source, request: StopCounting) -> None:
    if of in _counting:
        _counting[of].is_needless.set()


answers.add(answers.SOURCE, {Count: _count, StopCounting: _stop})
