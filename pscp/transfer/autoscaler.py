"""The thread that follows a copy: with -c auto the tuner decides how many lanes it has; on a far
push the choice decides which congestion control they use.

How busy this machine's processors are, and with what, comes from proc(5).

Not here: the decisions (lanes/autotune.py, ../endpoint/plane/congestion.py), opening and parking
lanes (lane_pool.py), how a process lends its socket (../transports/socket_options.py).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pscp.connect.first_login import idle_s
from pscp.connect.known.host_memory import PathRecord
from pscp.endpoint.frames import system
from pscp.endpoint.plane.congestion import LiveSocket, Sending
from pscp.ground.contexts import with_context
from pscp.transfer.lanes.autotune import CopyState, Tuner, usual_lanes
from pscp.transfer.terms.copy_terms import PoolTerms
from pscp.transports import Channel, socket_options

if TYPE_CHECKING:
    from pscp.endpoint.plane.congestion import Choice

_LOOK_S = 0.25  # between two looks at how the copy goes

# Gets how many lanes there are to be, and whether they need a larger window than a channel has.
Resize = Callable[[int, bool], None]
_ATTEMPTS = 40  # looks until a process that lends no socket is asked no more: it logs in meanwhile


class LaneSockets:
    """The sockets that are lent now. For one thread."""

    def __init__(self) -> None:
        # By the process that encrypts, which may have several channels; without one by the channel.
        self._lent: dict[object, tuple[LiveSocket, str]] = {}  # with the control it came with
        self._attempts: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def update(self, channels: Iterable[Channel], congestion: str) -> None:
        """Borrow the sockets of these channels, and give back others.

        Each gets this congestion control; "" stands for the one it came with.
        """
        current: dict[object, Channel] = {each.pid or each: each for each in channels}
        for key in self._lent.keys() - current.keys():
            self._lent.pop(key)[0].close()
        for key in current.keys() - self._lent.keys():
            self._attempts[key] = attempts = self._attempts.get(key, 0) + 1
            found = socket_options.of_channel(current[key]) if attempts < _ATTEMPTS else None
            if found is not None:
                self._lent[key] = found, found.congestion()
        for found, own in self._lent.values():
            wanted = congestion or own
            if wanted and found.congestion() != wanted:
                found.set_congestion(wanted)

    def sendings(self) -> dict[object, Sending]:
        seen = ((key, found.sending()) for key, (found, _) in self._lent.items())
        return {key: sending for key, sending in seen if sending is not None}

    def close(self) -> None:
        self.update((), "")


class Autoscaler:
    """Changes the number of lanes of one copy, unless the user has set that number, and their
    congestion control likewise.
    """

    def __init__(
        self, terms: PoolTerms, count: int, resize: Resize, channels: Callable[[], list[Channel]]
    ) -> None:
        """Follow a copy that begins with `count` lanes.

        `resize` changes their number; `channels` returns those of its lanes.
        """
        self._terms, self._resize, self._channels = terms, resize, channels
        # Once start() was called, only its thread changes what follows.
        self._tuner: Tuner | None = None
        if terms.is_tuned:
            known = terms.known
            congestion = known.congestion if terms.path.has_bbr else ""
            rates = known.enough_bytes_s, known.lanes_bytes_s
            if known.lanes != count:
                rates = 0.0, 0.0
            self._tuner = Tuner(terms.path, count, congestion, *rates)
        self._choice: Choice | None = None
        if terms.path.has_bbr and not terms.options.dry_run:
            from pscp.endpoint.plane.congestion import Choice  # here and below: few copies need it

            self._choice = Choice()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=with_context(self._look), name="tuner", daemon=True)

    def start(self) -> None:
        if self._tuner is not None or self._choice is not None:
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def congestion(self) -> str:
        """The congestion control for new connections; "": the system's default."""
        return self._tuner.congestion if self._tuner is not None else ""

    def lesson(self, known: PathRecord) -> PathRecord:
        """Return what the next copy should know, with what this one has learned."""
        tuner = self._tuner
        if tuner is None or not tuner.has_judged:
            return known
        lanes, bytes_s = tuner.found
        if lanes:
            known = known.after(lanes, bytes_s, usual_lanes(self._terms.path))
        congestion, enough_bytes_s = tuner.best_congestion, tuner.enough_bytes_s
        return known._replace(congestion=congestion, enough_bytes_s=enough_bytes_s)

    def _look(self) -> None:
        """Look again and again at how the copy goes, until all is decided or the copy ends."""
        tuner, choice = self._tuner, self._choice
        sockets = LaneSockets() if choice is not None else None
        try:
            while not self._ended.wait(_LOOK_S):
                if choice is not None and sockets is not None:
                    self._choose(choice, sockets)
                elif tuner is None or tuner.is_done:
                    return
                if tuner is not None and not tuner.is_done:
                    self._tune(tuner)
        finally:
            if sockets is not None:
                sockets.close()

    def _choose(self, choice: Choice, sockets: LaneSockets) -> None:
        """Show the choice the lanes' sockets, and have them use what it says."""
        tuner = self._tuner
        sockets.update(self._channels(), choice.name)
        if not sockets:
            return
        if tuner is not None:
            tuner.leave_congestion()
        now_s, before = time.monotonic(), choice.name
        sentence = choice.look(now_s, sockets.sendings())
        if sentence:
            self._terms.explain(sentence)
        if choice.name != before:
            sockets.update(self._channels(), choice.name)
            if tuner is not None:
                tuner.restart(now_s)

    def _tune(self, tuner: Tuner) -> None:
        before = max(tuner.count, tuner.awaited)
        sentence = tuner.look(self._seen())
        if sentence:
            self._terms.explain(sentence)
        wanted = max(tuner.count, tuner.awaited)
        if wanted != before:
            self._resize(wanted, tuner.needs_window)

    def _seen(self) -> CopyState:
        counters = self._terms.counters
        done_bytes, done_pieces = self._terms.context.queue.done()
        of_others = sum(system.cpu_seconds(each.pid) or 0.0 for each in self._channels())
        return CopyState(
            now_s=time.monotonic(),
            alive=counters.lanes_alive,
            done_bytes=done_bytes,
            done_pieces=done_pieces,
            left_bytes=counters.sending_bytes if counters.plan_complete else math.inf,
            idle_s=idle_s(),
            used_s=(time.process_time() + of_others) / (os.cpu_count() or 1),
        )
