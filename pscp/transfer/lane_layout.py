"""How many lanes a copy has, and how they are spread over connections.

A worker with a master opens one more channel of the master's connection instead of a connection of
its own.

Not here: how many lanes are good (autotune.py), opening them (lane_pool.py, worker.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from pscp.options import Options
from pscp.transfer.autotune import Path, Start, start
from pscp.transfer.copy_terms import PoolTerms
from pscp.transfer.worker import Phase, Worker

_CHANNELS_ALONE = 4  # of the only connection there is; TCP's buffer has room for two windows


class LaneLayout:
    """The number of lanes, and of channels on each connection. The pool's lock guards it."""

    def __init__(self, terms: PoolTerms) -> None:
        self.count, self._channels, self.why = _first(terms.options, terms.path, terms.known.lanes)
        self._has_one_login = terms.has_one_login
        self._is_full = False  # the server lets no more channels on a connection
        self._has_reported_full = False
        if self._has_one_login:
            self._channels = 1
            if terms.options.connections is None:
                self.count = terms.options.channels or min(self.count, _CHANNELS_ALONE)
                self.why = "channels of one connection"

    def resize(self, count: int, needs_window: bool) -> None:
        """Set the number of lanes. With `needs_window` new connections get two channels."""
        self.count = count
        if needs_window:
            self._channels = max(self._channels, 2)

    def next_master(self, workers: Sequence[Worker]) -> Worker | None:
        """Return the worker whose connection carries the next lane; None for a new connection.

        Connections are opened before further channels, since they take longer.
        """
        masters = [each for each in workers if each.master is None]
        if len(masters) * self._channels < self.count:
            return None
        used = [each.master for each in workers]
        return next((m for m in masters if used.count(m) + 1 < self._channels), None)

    def share_connection(self, worker: Worker, workers: Sequence[Worker]) -> bool:
        """Let a worker whose login was refused use the only connection; return whether it may.

        This helps where only one login passes (a password, a token).
        """
        alive = [each for each in workers if each.is_up and each.master is None]
        shared = sum(each.master is not None for each in workers)
        if worker.master is not None or len(alive) != 1 or shared + 1 >= _CHANNELS_ALONE:
            return False
        worker.master = alive[0]
        return True

    def note_full(self) -> None:
        """Note that the server lets no more channels on a connection than it has now."""
        self._is_full = True

    def channels_found(self, workers: Sequence[Worker]) -> int:
        """Return, once, how many channels the server lets on a connection; 0 before and after that.

        It is known when no further channel is still to come: as many as any connection has.
        """
        if not self._is_full or self._has_reported_full:
            return 0
        sharing = [each for each in workers if each.master is not None or self._has_one_login]
        if not all(each.is_up or each.gave_up for each in sharing):
            return 0
        of_each: dict[Worker | None, int] = {}
        for each in sharing:
            before = of_each.get(each.master, 0 if self._has_one_login else 1)
            of_each[each.master] = before + each.is_up
        most = max(of_each.values(), default=0)
        if most:
            self._has_reported_full = True
            if not self._has_one_login:
                self._channels = most  # of new connections
        return most

    def park(self, workers: Sequence[Worker]) -> None:
        """Park the workers beyond the number of lanes, first those without a connection."""
        best_first = sorted(workers, key=lambda worker: worker.phase is not Phase.UP)
        for place, worker in enumerate(best_first):
            worker.is_parked = place >= self.count


def _first(options: Options, path: Path, known_lanes: int) -> Start:
    """Return the lanes to begin with, the channels of each connection, and why."""
    channels = options.channels or 1
    if options.connections is not None:
        return Start(options.connections * channels, channels, "as was asked for")
    found = start(path)
    if known_lanes:
        found = found._replace(lanes=known_lanes, why="as was found good before")
    if options.channels is not None:
        connections = max(-(-found.lanes // channels), min(found.lanes, 2))
        found = found._replace(lanes=connections * channels, channels=channels)
    return found
