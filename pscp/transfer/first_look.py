"""A short look at a push's sources before its walk, for how many logins they are worth.

Not here: how many that is (lanes/autotune.py), the walk itself (walk/). Read next: logins.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence

_LOOK_ENTRIES = 10_000  # that are looked at; some 30 ms where they are in memory
_LOOK_S = 0.05  # for which it lasts at most, where they are not


def least_bytes(paths: Sequence[str]) -> float:
    """Return the bytes of these sources; a file counts for more. Infinite: more than a look finds.

    What options leave out counts, too.
    """
    from pscp.transfer.pieces.plan import MEMORY_BYTES  # here: loaded while ssh logs in

    until_s = time.monotonic() + _LOOK_S
    found_bytes, entries, waiting = 0, 0, list(paths)
    while waiting:
        with contextlib.suppress(OSError):
            path = waiting.pop()
            if not os.path.isdir(path):
                found_bytes += os.stat(path).st_size
                continue
            with os.scandir(path) as listing:
                for entry in listing:
                    entries += 1
                    if entries > _LOOK_ENTRIES or time.monotonic() > until_s:
                        return math.inf
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        found_bytes += MEMORY_BYTES + entry.stat(follow_symlinks=False).st_size
    return found_bytes
