"""Replaces what a file holds in one step, also at a power loss: a reader finds all of one or other.

Not here: what is written (manifests/making.py, jobs/report.py), small values that may be lost
(state.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """Yield a new file, which gets this name once the block has ended well. Raises OSError."""
    folder = os.path.dirname(path)
    new = os.path.join(folder, f".pscp-new-{os.urandom(6).hex()}")  # there may be no room for more
    try:
        with open(new, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    with contextlib.suppress(OSError):  # a folder may not be read, or its filesystem not sync it
        folder_fd = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
