"""What is remembered of a host from the last copy there, for the next one.

How many logins passed without a prompt: the next copy logs in over several connections at once
from its start, instead of waiting for the first; over 100 ms that is a second and a half. And how
many lanes -c auto came to, over which path. Nothing is lost with this memory, and nothing secret
is in it: {"push": [logins, lanes, rtt_s], "pull": likewise}, a file a host.

Not here: the connections (api.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from pscp.journal import state_folder, token_of
from pscp.options import Location, Options

_ALIKE = 2.0  # two round trips that differ by less than this factor are of one path
_NEAR_S = 0.01  # and so are all below this


class Known(NamedTuple):
    """The last copy in one direction."""

    logins: int = 0  # connections that were open at once
    lanes: int = 0  # that -c auto came to; 0: there was none yet
    rtt_s: float = 0.0

    def lanes_over(self, rtt_s: float) -> int:
        """The lanes that were good, if this is still the path; else 0."""
        low, high = sorted((self.rtt_s, rtt_s))
        return self.lanes if high < max(_ALIKE * low, _NEAR_S) else 0


def _file(host: Location, options: Options) -> Path:
    key = token_of(
        str(host.user), str(host.host), str(host.port or options.port),
        options.program, str(options.config_file), str(options.jump),
    )  # fmt: skip
    return state_folder() / "hosts" / f"{key}.json"


def recall(host: Location, options: Options, is_push: bool) -> Known:
    """What the last copy in this direction came to, as far as it is known."""
    try:
        logins, lanes, rtt_s = json.loads(_file(host, options).read_text())[_way(is_push)]
    except (OSError, ValueError, LookupError, TypeError):
        return Known()
    are_counts = isinstance(logins, int) and isinstance(lanes, int)
    return Known(logins, lanes, rtt_s) if are_counts and isinstance(rtt_s, float) else Known()


def remember(host: Location, options: Options, is_push: bool, known: Known) -> None:
    """Best effort: a state folder that cannot be written is no reason to fail."""
    file = _file(host, options)
    before = recall(host, options, is_push)
    if options.connections is not None:  # it says nothing about what auto would come to
        known = known._replace(lanes=before.lanes, rtt_s=before.rtt_s)
    if known[:2] == before[:2] and known.lanes_over(before.rtt_s):
        return
    both = {_way(way): list(recall(host, options, way)) for way in (True, False)}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = file.with_name(f"{file.name}.{os.getpid()}")
        written.write_text(json.dumps({**both, _way(is_push): list(known)}))
        written.replace(file)


def _way(is_push: bool) -> str:
    return "push" if is_push else "pull"
