"""A short look at a push's sources before its walk, for how many logins they are worth.

Not here: how many that is (lanes/autotune.py), the walk itself (walk/). Read next: logins.py.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Sequence

_LOOK_ENTRIES = 10_000  # that are looked at; 30 to 90 ms where they are in memory
_LOOK_S = 0.15  # after which it ends, where they are not: less than a far login takes


def least_bytes(paths: Sequence[str]) -> float:
    """Return the bytes of these sources; a file counts for more. Infinite: more than a look finds.

    What options leave out counts, too; what cannot be read does not.
    """
    from pscp.transfer.pieces.plan import MEMORY_BYTES  # here: loaded while ssh logs in

    until_s = time.monotonic() + _LOOK_S
    found_bytes, looked_at, waiting = 0, itertools.count(1), list(paths)

    def is_over() -> bool:
        return next(looked_at) > _LOOK_ENTRIES or time.monotonic() > until_s

    while waiting:
        if is_over():
            return math.inf
        path = waiting.pop()
        with contextlib.suppress(OSError):
            if not os.path.isdir(path):
                found_bytes += os.stat(path).st_size
                continue
            with os.scandir(path) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    if is_over():
                        return math.inf
                    with contextlib.suppress(OSError):  # it was removed meanwhile
                        size_bytes = entry.stat(follow_symlinks=False).st_size
                        found_bytes += MEMORY_BYTES + size_bytes
    return found_bytes
