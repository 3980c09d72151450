"""The error of a folder for temporary files that has no more room.

Not here: what is written there (ending.py, path_list.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pscp.errors import CopyError


@contextlib.contextmanager
def room_for_temporary_files() -> Iterator[None]:
    """Raise CopyError for an OSError."""
    try:
        yield
    except OSError as error:
        import tempfile

        folder = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise CopyError(
            f"{folder}: no room for the lists of a copy: {error.strerror}",
            "set TMPDIR to a folder with more room",
        ) from None
