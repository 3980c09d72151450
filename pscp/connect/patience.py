"""How long a login, and the start of what is to answer at the far end, may take.

A person who is asked for a password has all the time; the far end has not.

Not here: the limits of the transports themselves (ConnectTimeout, transports/), the silence of an
agent that has answered before (bootstrap.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pscp.errors import Unreachable

SILENT_HINT = "try: ssh HOST 'python3 --version'; --timeout TIME waits longer"


class Patience:
    """The time left for one login; it begins when this is made."""

    def __init__(self, limit_s: float, busy_until_s: Callable[[], float]) -> None:
        """`busy_until_s` tells until when a person was asked, on the monotonic clock: now, while
        one still is; infinity where nobody can tell.
        """
        self.limit_s = limit_s
        self._busy_until_s = busy_until_s
        self._begun_s = time.monotonic()

    def left_s(self) -> float:
        """Return the seconds left; infinite while a person may type. Raises Unreachable at 0."""
        from_s = max(self._begun_s, self._busy_until_s())
        left_s = from_s + self.limit_s - time.monotonic()
        if left_s <= 0:
            raise Unreachable(f"no answer after {self.limit_s:.0f} s", SILENT_HINT)
        return left_s
