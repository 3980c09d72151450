"""Writes a file that a reader finds whole: as it was before, or as it is now.

Not here: what is written (report.py, metrics.py, page.py), the one step (../replacing.py).
"""

from __future__ import annotations

import os

from pscp.replacing import replacing

# These may lead to a file, where a shell has redirected them; other devices are seen to be none.
_DEVICES = ("/dev/std", "/dev/fd/", "/proc/")


def write_whole(path: str, text: str) -> None:
    """Replace what a file holds in one step, also at a power loss; its links stay.

    A device or a pipe is written to as it is, without waiting for a reader. Raises OSError.
    """
    data = text.encode("utf-8", "backslashreplace")
    if path.startswith(_DEVICES) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), "wb") as file:
            file.write(data)
        return
    with replacing(os.path.realpath(path)) as file:
        file.write(data)
