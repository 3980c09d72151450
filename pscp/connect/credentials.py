"""Keeps what people have answered, for all sessions of this process that go the same way to a host.

Not here: what is asked, and what may be answered twice (prompts.py). Read next: prompts.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class Turn:
    """Lets one thread at a time ask; who waits for its turn can be woken to give up."""

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
    """The answers to the prompts of one way to a host, by the prompt, until their last user ends.

    They are in memory only. Whoever has `turn` may use `known`.
    """

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.turn = Turn()  # so that a second session waits for the answer to the first one
        self.users = 0  # sessions; guarded by the lock of this module


_shared: dict[Hashable, Answers] = {}
_lock = threading.Lock()  # guards _shared

PERSON = Turn()  # somebody at the terminal answers one question after the other


def acquire(key: Hashable) -> Answers:
    """Return the answers that all who give this key share, until each has called release()."""
    with _lock:
        found = _shared.setdefault(key, Answers())
        found.users += 1
        return found


def release(key: Hashable) -> None:
    """Give up one use of the answers; the last one to do so forgets them."""
    with _lock:
        _shared[key].users -= 1
        if not _shared[key].users:
            _shared.pop(key).known.clear()


def are_known(key: Hashable) -> bool:
    """Return whether another session has answers for this way to a host."""
    with _lock:
        return key in _shared and bool(_shared[key].known)
