"""What is remembered of a host: how many lanes the last copy there used, all without a prompt.

Where that is known, the next copy logs in over several connections at once from its start,
instead of waiting for the first: over 100 ms that is a second and a half. Nothing is lost with
this memory, and nothing secret is in it: {"push": lanes, "pull": lanes}, a file a host.

Not here: the connections (api.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from pscp.journal import state_folder, token_of
from pscp.options import Location, Options


def _file(host: Location, options: Options) -> Path:
    key = token_of(
        str(host.user), str(host.host), str(host.port or options.port),
        options.program, str(options.config_file), str(options.jump),
    )  # fmt: skip
    return state_folder() / "hosts" / f"{key}.json"


def recall(host: Location, options: Options, is_push: bool) -> int:
    """Lanes of the last copy in this direction; 0 where none is known."""
    try:
        found = json.loads(_file(host, options).read_text())["push" if is_push else "pull"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


def remember(host: Location, options: Options, is_push: bool, lanes: int) -> None:
    """Best effort: a state folder that cannot be written is no reason to fail."""
    file = _file(host, options)
    both = {way: recall(host, options, way == "push") for way in ("push", "pull")}
    way = "push" if is_push else "pull"
    if both[way] == lanes:
        return
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(json.dumps({**both, way: lanes}))
        written.replace(file)
