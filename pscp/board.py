"""The board: where work waits, and from where lanes take it.

It holds what no lane has taken yet (single pieces, and lazy iterators over a file's chunks, so
that a file of any size costs the same), what each lane has in flight, and the lanes' windows.
One condition guards all of it; lanes sleep on it, never poll. The Limiter keeps them together
under a rate.

Not here: what the work means (coordinator.py), how it travels (lane.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pscp.endpoint.session import Window
from pscp.plan import Ask, Work

_WAITING_MAX = 32  # pieces or files put and not begun; the walk waits while there are more


class InFlight:
    """A lane's share of the board: what it has taken and not finished."""

    def __init__(self, window_bytes: int) -> None:
        self.window = Window(window_bytes)
        self.work: dict[int, Work] = {}


class Board:
    """Use `changed` (a Condition) around every call but put(), take() and the waits."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._again: deque[Work] = deque()  # what a lane gave back, and what follows from answers
        self._waiting: deque[Work | Iterator[Work]] = deque()
        self._open = 0  # pieces taken and not finished
        self._number = 0  # of the piece taken last
        self._reserve: Callable[[], Work | None] = lambda: None
        self.error: BaseException | None = None  # why the copy stops
        self.is_finished = False

    # --- putting

    def wait_for_room(self) -> None:
        """The walk waits here while much is waiting already."""
        with self.changed:
            while len(self._waiting) + len(self._again) >= _WAITING_MAX and self.error is None:
                self.changed.wait()

    def put(self, work: Work) -> None:
        """From the walk, once there is room."""
        with self.changed:
            self.wait_for_room()
            self._waiting.append(work)
            self.changed.notify_all()

    def add(self, work: Work | Iterator[Work]) -> None:
        """From an answer: goes before what the walk found; never waits."""
        if isinstance(work, Iterator):
            self._waiting.append(work)
        else:
            self._again.append(work)
        self.changed.notify_all()

    def when_idle(self, reserve: Callable[[], Work | None]) -> None:
        """Where to ask for work that is being collected, when there is no other."""
        self._reserve = reserve

    # --- taking

    def take(self, lane: Any, share: InFlight, room_bytes: int) -> tuple[int, Work] | None:
        """The next piece for this lane, with its number, once there is room; None: end."""
        with self.changed:
            while True:
                if self.error is not None or self.is_finished or lane.is_lost:
                    return None
                if share.window.has_room(room_bytes):
                    work = self._next(lane)
                    if work is not None:
                        self._open += 1
                        self._number += 1
                        share.window.take(work.cost_bytes)
                        share.work[self._number] = work
                        self.changed.notify_all()
                        return self._number, work
                self.changed.wait()

    def _next(self, lane: Any) -> Work | None:
        again = self._next_again(lane)
        while again is None and self._waiting:
            first = self._waiting[0]
            if not isinstance(first, Iterator):
                self._waiting.popleft()
                return first
            piece = next(first, None)
            if piece is not None:
                return piece
            self._waiting.remove(first)
            again = self._next_again(lane)  # its end may have added what follows from it
        return again or self._reserve()

    def _next_again(self, lane: Any) -> Work | None:
        for place, again in enumerate(self._again):
            pinned = again.lane if isinstance(again, Ask) else None
            if pinned is None or pinned is lane or pinned.is_lost:
                del self._again[place]
                return again
        return None

    def has_work(self) -> bool:
        """Is there anything that no lane has taken?"""
        return bool(self._again or self._waiting)

    # --- finishing

    def finish(self, share: InFlight, number: int) -> bool:
        """A lane is done with this piece. False: it was given back meanwhile; forget it."""
        work = share.work.pop(number, None)
        if work is None:
            return False
        self._open -= 1
        share.window.credit(work.cost_bytes)
        self.changed.notify_all()
        return True

    def give_back(self, share: InFlight) -> None:
        """A lane died: what it had in flight goes to the others."""
        for number, work in list(share.work.items()):
            self.finish(share, number)
            self._again.append(work)

    def is_idle(self) -> bool:
        """Is nothing waiting and nothing in flight?"""
        return not (self._again or self._waiting or self._open)

    def stop(self, error: BaseException) -> None:
        """The copy cannot go on: every lane ends."""
        with self.changed:
            if self.error is None:
                self.error = error
            self.changed.notify_all()


class Limiter:
    """Keeps all lanes together under a rate (-l), by having each wait for its turn."""

    def __init__(self, bytes_per_s: float | None, board: Board) -> None:
        self._rate, self._board = bytes_per_s, board
        self._free_at_s = 0.0

    def wait(self, count: int) -> None:
        """Wait until `count` bytes more may go; not once the copy stops."""
        if self._rate is None:
            return
        with self._board.changed:
            now_s = time.monotonic()
            self._free_at_s = max(self._free_at_s, now_s) + count / self._rate
            turn_s = self._free_at_s
            while self._board.error is None and (now_s := time.monotonic()) < turn_s:
                self._board.changed.wait(turn_s - now_s)
