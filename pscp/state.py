"""The state folder: small values kept from one run to the next, a file each.

Whatever is kept here only saves time: a value that is lost or unreadable is as good as none.
It imports little, since the first value is wanted before ssh starts.

Not here: the journals that lie in the same folder (journal.py), what is remembered of a host
(hosts.py).
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any


def folder() -> str:
    """$XDG_STATE_HOME/pscp, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "pscp")


def name_of(folder_name: str, *what: object) -> str:
    """The name of the value that belongs to `what`, in a folder of its kind."""
    key = zlib.crc32(repr(what).encode(errors="replace"))
    return os.path.join(folder_name, f"{key:08x}.json")


def recall(name: str) -> Any:
    """The value of this name; None where there is none."""
    try:
        with open(os.path.join(folder(), name)) as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


def remember(name: str, value: Any) -> bool:
    """False where it cannot be kept: a folder that cannot be written is no reason to fail."""
    path = os.path.join(folder(), name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)
        written = f"{path}.{os.getpid()}"
        with open(written, "w") as file:
            json.dump(value, file)
        os.replace(written, path)
        return True
    except OSError:
        return False
