"""The lanes of one copy: how many, when they connect, what happens when they cannot.

Not here: what a worker does (worker.py), what there is to do (coordinator.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from pscp.board import Board, Limiter
from pscp.bootstrap import Far
from pscp.endpoint import metadata, source, tree
from pscp.endpoint.end import End
from pscp.errors import ConnectError, ConnectionLost, PscpError
from pscp.options import Options
from pscp.progress import Counters
from pscp.worker import OPENING_MAX, Worker

_LANES_MOST = 16  # each is a login, an ssh and an agent; more gained nothing on any path tried
_LANES_OF_CPUS = 8
_PATH_BYTES_S = 1.33 * 125e6  # what -c auto makes room for: 1 Gbit/s, and a third for lost time
_CHANNEL_BYTES = 2 * 1024 * 1024  # OpenSSH's channel window (channels.h), a round trip's worth
_ATTEMPTS_ALONE = 8  # connecting again, with no lane alive: one to one and a half minutes of pauses


class Crew:
    """What lanes share, and the lanes themselves."""

    def __init__(
        self, options: Options, counters: Counters, is_push: bool, algorithm: str,
        connect: Callable[[Worker], Far], note: Callable[[str], None], keeps: bool,
        rtt_s: float, cpus: int,
    ) -> None:  # fmt: skip
        """`connect` opens a lane's connection; with `keeps` they stay open in `kept`."""
        self.board = Board()
        self.is_push, self.algorithm = is_push, algorithm
        self.opening, self.may_open = 0, OPENING_MAX
        self.begin_near: dict[str, Any] = {}
        self.begin_far: dict[str, Any] = {}
        rate = options.limit_kbit_s * 1000 / 8 if options.limit_kbit_s else None
        self.limiter = Limiter(rate, self.board)
        self.most_alive = 0
        self.rtt_s = rtt_s
        self.connect, self.keeps = connect, keeps
        self.kept: list[Far] = []
        self.count = options.connections or auto_lanes(rtt_s, cpus)
        self._counters, self._note = counters, note
        self._has_told = False
        self.umask = metadata.current_umask()
        self._workers: list[Worker] = []

    def begin(self, of_source: dict[str, Any], of_sink: dict[str, Any], fars: list[Far]) -> None:
        """Start the lanes; `fars` are connections that are open already, 1 to `count`."""
        both = (of_source, of_sink) if self.is_push else (of_sink, of_source)
        self.begin_near, self.begin_far = both
        self._counters.set(lanes_wanted=self.count)
        ready = [*fars, *[None] * (self.count - len(fars))]
        self._workers = [Worker(n, self, far) for n, far in enumerate(ready, 1)]
        for worker in self._workers:
            worker.start()

    def near_source_entries(self) -> Iterator[tree.Entry]:
        """The walk of a source at this end."""
        end = End(self.umask)
        end.begin(self.begin_near)
        try:
            yield from end.the_source().entries()
        finally:
            end.end({})

    def end(self) -> None:
        """All is done, or the copy stops: have every lane end, and wait for it."""
        with self.board.changed:
            self.board.is_finished = self.board.error is None
            self.board.changed.notify_all()
        if self.board.error is not None:
            for worker in self._workers:
                worker.abort()
        for worker in self._workers:
            while worker.is_alive():
                worker.join(0.05)  # one that is just about to connect is found next time
                if self.board.error is not None or worker.is_connecting:
                    worker.abort()

    # --- what lanes tell

    def keep(self, far: Far) -> None:
        """A connection that the next copy can use."""
        far.session.state = "ready"
        with self.board.changed:
            self.kept.append(far)

    def lane_up(self) -> None:
        self._counters.add(lanes_alive=1)
        self.most_alive = max(self.most_alive, self._counters.lanes_alive)

    def lane_down(self, error: PscpError | None) -> None:
        self._counters.add(lanes_alive=-1, connections_lost=int(error is not None))

    def may_try_again(self, worker: Worker, error: PscpError, attempt: int) -> bool:
        """A lost connection is opened again while others work; alone only so many times."""
        with self.board.changed:
            if self.board.error is not None or self.board.is_finished:
                return False
            alone = self._counters.lanes_alive == 0
            # There was a login before, so "connection refused" and the like will pass as well.
            is_passing = isinstance(error, ConnectionLost) or type(error) is ConnectError
            if is_passing and (not alone or attempt < _ATTEMPTS_ALONE):
                return True
            worker.gave_up = True
            if all(each.gave_up for each in self._workers):
                self.board.stop(error)
            elif not is_passing and not self._has_told:
                self._has_told = True
                self._note(f"no more connections, going on with what there is: {error.message}")
            return False


def auto_lanes(rtt_s: float, cpus: int) -> int:
    """How many lanes -c auto takes.

    A far path needs as many channel windows as fill it in a round trip; a near one as many
    connections as there are processors to encrypt them, at the end that has fewer.
    """
    of_path = math.ceil(_PATH_BYTES_S * min(rtt_s, 1.0) / _CHANNEL_BYTES)
    of_cpus = min(max(cpus, 2), _LANES_OF_CPUS)
    return min(max(of_path, of_cpus), _LANES_MOST)


def source_question(
    tops: list[source.Top], options: Options, algorithm: str, is_push: bool
) -> dict[str, Any]:
    """The question that makes an end the source of this copy."""
    rules = tree.Rules(
        recursive=options.recursive, follow=not options.archive, preserve=options.preserve,
        archive=options.archive, filters=options.filters,
    )  # fmt: skip
    return {
        "ask": "begin", "role": "source", "tops": tops, "rules": rules, "hash": algorithm,
        "block_bytes": options.block_bytes, "strong": options.strong,
        "test": options.transfer_test,
    }  # fmt: skip


def sink_question(root: str, token: str, options: Options, algorithm: str) -> dict[str, Any]:
    """The question that makes an end the sink of this copy."""
    return {
        "ask": "begin", "role": "sink", "root": root, "token": token, "hash": algorithm,
        "preserve": options.preserve, "archive": options.archive, "strong": options.strong,
        "test": options.transfer_test,
    }  # fmt: skip
