"""How many lanes a copy logs in for before its walk begins, when a worker may log in, and for how
long a copy without lanes tries again.

Not here: the look at what there is (first_look.py), what an error means for its worker
(lane_pool.py), the login itself (connect/).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

from pscp.connect.first_login import NOTHING_AHEAD, Ahead, Worth
from pscp.connect.known.host_memory import HostMemory
from pscp.endpoint.asking import requests
from pscp.endpoint.reading.source import Top
from pscp.ground.values import LOGINS_MAX
from pscp.options.option_rows import CHUNK_BYTES
from pscp.transfer.first_look import least_bytes
from pscp.transfer.lanes.autotune import LOGIN_TRIPS, Path, is_worth_a_login, lanes_worth, start
from pscp.transfer.lanes.in_flight import STEADY_S
from pscp.transfer.pieces.plan import MEMORY_BYTES
from pscp.transfer.terms.copy_terms import ALONE, CopyRequest, PoolTerms

_ATTEMPTS_ALONE = 8  # connecting again, with no lane alive: one to one and a half minutes of pauses
_OUTAGE_S = 180.0  # with no lane alive, where each attempt may take as long as its timeout
LOGINS_LIKELY = 3  # logins that will pass at once the next time, where nobody typed a password
_MEASURED_S = 2.0  # after which the first lanes' rate is known, however long their login took


def ahead(request: CopyRequest, tops: Sequence[Top], first: requests.Request | None) -> Ahead:
    """Return what the copy has for its first connection before that has logged in.

    `first` is its first question. Several hosts are asked another one before, and so are a
    cluster's workers; direct lanes need no logins.
    """
    is_several = any(each.others for each in (request.to, *request.froms))
    if is_several or request.options.has_plane or request.movers is not ALONE:
        return NOTHING_AHEAD
    return Ahead(lanes_ahead(request, tops), first)


def lanes_ahead(request: CopyRequest, tops: Sequence[Top]) -> Worth | None:
    """Return what says for a round trip how many connections the copy is sure to need.

    None: one is enough until more is known, as where it was for the last copy. Of a pull it is not
    known yet what there is.
    """
    options = request.options
    known = HostMemory(request.connections.host, options).recall(request.is_push)
    if options.dry_run or options.check or options.transfer_test or known.logins == 1:
        return None

    def lanes(rtt_s: float) -> int:
        found = start(Path(rtt_s, LOGIN_TRIPS * rtt_s, os.cpu_count() or 1))
        wanted = options.connections or found.lanes // found.channels
        if not request.is_push:
            return min(wanted, LOGINS_LIKELY)
        return lanes_worth(rtt_s, least_bytes([top.path for top in tops]), wanted)

    return lanes


class Logins:
    """Decides which workers of a copy may log in, and counts them. The pool's lock guards it."""

    def __init__(self, terms: PoolTerms) -> None:
        self._terms = terms
        self._begun_s = time.monotonic()
        self._opening = 0  # logins under way
        self._may_open = LOGINS_MAX  # fewer once the server has closed one
        self._successes = 0  # logins that succeeded since that number was changed
        self.has_failed = False  # the server has closed one
        self.useful = 1  # lanes that were worth a login each
        self._outage = -1, 0.0  # the pieces that were done when it began, and when that was

    def begin(self, connected: int) -> bool:
        """Return whether one more worker may log in, beside `connected` ones; if so, count it.

        There are no more logins than pieces of work. Call it with the queue's lock held too.
        """
        lanes = self._opening + connected
        if self._opening >= self._may_open:
            return False
        is_useful = self._has_pieces_for_more(lanes) and self._is_worth_it(lanes)
        if is_useful:
            self.useful = max(self.useful, lanes + 1)
        is_first = not lanes or (not self._opening and self._terms.context.queue.is_held_up())
        may_begin = is_first or is_useful or self._terms.connections.has_early()
        self._opening += may_begin
        return may_begin

    def _has_pieces_for_more(self, lanes: int) -> bool:
        context, counters = self._terms.context, self._terms.counters
        if context.is_stream:
            return True
        # At the start a chunk is a fourth of a later one (terms/copy_terms.py).
        chunk_bytes = self._terms.options.chunk_bytes or CHUNK_BYTES // 4
        return lanes < context.queue.pieces_known(counters.sending_bytes, chunk_bytes)

    def _is_worth_it(self, lanes: int) -> bool:
        if not self._terms.is_tuned:
            return True
        counters = self._terms.counters
        left_bytes: float = counters.sending_bytes
        left_files = counters.files_total - counters.files_done - counters.files_unchanged
        left_bytes += MEMORY_BYTES * left_files
        if self._terms.context.is_stream and not counters.plan_complete:
            left_bytes = math.inf
        passed_s, path = time.monotonic() - self._begun_s, self._terms.path
        # What landed says how fast lanes are, once they had time to gather speed.
        is_measured = passed_s > min(2 * path.login_s, _MEASURED_S)
        bytes_per_s = counters.bytes_done / passed_s if is_measured else math.inf
        if counters.plan_complete:
            passed_s = 0.0
        return is_worth_a_login(path, lanes, left_bytes, passed_s, bytes_per_s)

    def worth(self) -> int:
        """Return how many logins were worth having for what this copy has moved, at most.

        One of which a part was there tells nothing of that.
        """
        counters, rtt_s = self._terms.counters, self._terms.path.rtt_s
        if counters.files_unchanged or counters.bytes_resumed:
            return LOGINS_MAX
        work_bytes = counters.bytes_sent + MEMORY_BYTES * counters.files_done
        return max(self.useful, lanes_worth(rtt_s, work_bytes, LOGINS_MAX))

    def end(self, is_refused: bool) -> None:
        """Count a login as over. With `is_refused` the server has closed its connection.

        After that half as many log in at once; one more does after as many successes.
        """
        self._opening -= 1
        if is_refused:
            self.has_failed = True
            self._may_open, self._successes = max(1, self._may_open // 2), 0
            return
        self._successes += 1
        if self._successes > self._may_open:
            self._may_open, self._successes = min(LOGINS_MAX, self._may_open + 1), 0

    # --- with no lane alive

    def lane_ended(self, lived_s: float) -> None:
        """End an outage if a lane lived for long, even one that had no work, as a stream's may."""
        if lived_s > STEADY_S:
            self._outage = -1, 0.0

    def is_alone(self, fruitless: int) -> bool:
        """Return whether no lane is alive, or a worker lost so many that the others count for
        nothing: each of its lanes ended before anything was finished over it.
        """
        return self._terms.counters.lanes_alive == 0 or fruitless >= _ATTEMPTS_ALONE

    def may_try_alone(self, attempt: int, done_pieces: int) -> tuple[bool, bool]:
        """Return whether to try again though no lane is alive, and whether that lasts too long.

        An outage begins with the first failure after a piece of work was done.
        """
        retry_for_s = self._terms.options.retry_for_s
        if self._outage[0] != done_pieces:
            self._outage = done_pieces, time.monotonic()
        left_s = self._outage[1] + (retry_for_s or _OUTAGE_S) - time.monotonic()
        if left_s > 0:
            return retry_for_s is not None or attempt < _ATTEMPTS_ALONE, False
        return False, not self._opening
