"""Keeps people's answers to prompts, for all sessions of this process that go the same way to a
host.

Not here: what is asked, and what may be answered twice (prompts.py). Read next: prompts.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class Turn:
    """Lets one thread at a time ask a person; a thread that waits can be woken to give up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._is_taken = False

    def take(self, is_over: Callable[[], bool]) -> bool:
        """Wait for the turn, and take it. Return False if `is_over()` before that."""
        with self._changed:
            self._changed.wait_for(lambda: is_over() or not self._is_taken)
            if is_over():
                return False
            self._is_taken = True
            return True

    def give(self) -> None:
        """Let the next one have the turn."""
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()

    def wake(self) -> None:
        """Have those who wait call their `is_over` again."""
        with self._changed:
            self._changed.notify_all()


class Answers:
    """The answers to the prompts of one way to a host, in memory, until the last session ends."""

    def __init__(self) -> None:
        self.turn = Turn()  # guards `known`: a second session waits for the answer to the first one
        self.known: dict[str, str] = {}  # the answers, by their prompts
        self.users = 0  # sessions; guarded by the lock of this module


_shared: dict[Hashable, Answers] = {}
_lock = threading.Lock()  # guards _shared

PERSON = Turn()  # a person answers one question after the other


def acquire(key: Hashable) -> Answers:
    """Return the answers that all sessions with this key share, until each calls release()."""
    with _lock:
        found = _shared.setdefault(key, Answers())
        found.users += 1
        return found


def release(key: Hashable) -> None:
    """Give up a session's use of the answers; after the last one they are forgotten."""
    with _lock:
        _shared[key].users -= 1
        if not _shared[key].users:
            _shared.pop(key).known.clear()


def are_known(key: Hashable) -> bool:
    """Return whether another session has answers for this way to a host."""
    found = _shared.get(key)
    return found is not None and bool(found.known)
