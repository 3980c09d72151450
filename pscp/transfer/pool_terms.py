"""What the lanes of a copy are opened with: nothing of it changes during the copy.

Not here: what changes (lane_pool.py, lane_layout.py, logins.py, autoscaler.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pscp.connect.connections import Connections
from pscp.connect.host_cache import Known
from pscp.log import Log
from pscp.options import Options
from pscp.progress import Counters
from pscp.transfer.autotune import Path
from pscp.transfer.lane_context import LaneContext

_log = Log("transfer")


@dataclass(frozen=True)
class PoolTerms:
    """What is known when a copy's first lane begins. Any thread may use it."""

    context: LaneContext
    connections: Connections
    options: Options
    counters: Counters
    path: Path
    known: Known  # what the last copy over this path came to
    note: Callable[[str], None]  # shows a message to the user

    @property
    def has_one_login(self) -> bool:
        """Whether all lanes are channels of one connection."""
        return self.connections.has_one_login

    @property
    def is_tuned(self) -> bool:
        """Whether the number of lanes follows what is measured (-c auto)."""
        options = self.options
        is_free = options.connections is None and not options.limit_kbit_s
        return is_free and not options.dry_run and not self.has_one_login

    def explain(self, text: str) -> None:
        """Log what was decided, and show it with -v."""
        _log.debug("%s", text)
        if self.options.verbose:
            self.note(text)
