"""What people have answered, for all sessions of this process that go the same way to a host.

Not here: what is asked, and what may be answered twice (prompts.py). Read next: prompts.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Turn:
    """One at a time, and nobody waits for longer than it is of use."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken = False

    def take(self, is_over: Callable[[], bool]) -> bool:
        """Wait for it. False: all is over before that."""
        with self._changed:
            self._changed.wait_for(lambda: is_over() or not self._is_taken)
            if is_over():
                return False
            self._is_taken = True
            return True

    def give(self) -> None:
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()

    def look(self) -> None:
        """Have those who wait look whether all is over."""
        with self._changed:
            self._changed.notify_all()


class Answers:
    """To the questions of one way to a host, by the prompt; in memory until the last user ends."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.turn = Turn()  # so that a second session waits for the answer to the first one
        self.users = 0


_shared: dict[str, Answers] = {}
_lock = threading.Lock()

PERSON = Turn()  # somebody at the terminal answers one question after the other


def used(name: str) -> Answers:
    """Those of this name, until released()."""
    with _lock:
        found = _shared.setdefault(name, Answers())
        found.users += 1
        return found


def released(name: str) -> None:
    with _lock:
        _shared[name].users -= 1
        if not _shared[name].users:
            _shared.pop(name).known.clear()


def are_known(name: str) -> bool:
    """Has another session answers for this way?"""
    with _lock:
        return name in _shared and bool(_shared[name].known)
