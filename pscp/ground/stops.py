"""Ends a call of the API from another thread, as a signal ends a command: what its thread waits for
is ended, and the call raises the reason.

The thread of a call has its Stop while here() runs. Where it waits it says with ended_by() how that
is ended: a channel's end, a queue's stop. Whoever comes to such a place later, once the call is
stopped, waits for nothing any more.

Not here: signals (signals.py), what a program calls (../calls/api.py, ../aio/__init__.py), how a
copy ends (../transfer/lanes/work_queue.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from pscp.ground.contexts import with_context

End = Callable[[BaseException], object]  # ends what a thread waits for, from any thread

_thread = threading.local()  # `stop` is that of the call that the thread is in


class Stop:
    """The way to end one call early. Any thread may call stop()."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._error: BaseException | None = None  # why the call ends
        self._ends: list[End] = []  # of what it waits for
        self._wanted = threading.Event()  # the call is to end
        self._ended = threading.Event()  # and what it waited for has ended

    def stop(self, error: BaseException) -> None:
        """Have the call raise this error, soon. Only the first one counts."""
        with self._lock:
            if self._error is not None:
                return
            self._error, ends = error, list(self._ends)
        self._wanted.set()
        with contextlib.ExitStack() as each:  # also where one of them fails
            each.callback(self._ended.set)
            for end in ends:  # what was begun last is ended first
                each.callback(end, error)

    def check(self) -> None:
        """Raise the error by which the call is to end, if it is."""
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Run a block as the call that this ends. For the call's thread."""
        before = current()
        _thread.stop = self
        try:
            yield
        finally:
            _thread.stop = before

    @contextlib.contextmanager
    def ended_by(self, end: End) -> Iterator[None]:
        """Run a block that `end` ends; after a stop it raises the stop's error, not its own."""
        with self._lock:
            error = self._error
            self._ends.append(end)
        if error is not None:
            end(error)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)
            if self._error is not None:
                self._ended.wait()  # so that nothing ends what this thread goes on with
                raise self._error

    def pause(self, seconds: float) -> None:
        """Wait so long, or raise the error by which the call is to end."""
        self._wanted.wait(seconds)
        self.check()


def current() -> Stop | None:
    """Return the Stop of the call that this thread is in, if it is in one."""
    found: Stop | None = getattr(_thread, "stop", None)
    return found


@contextlib.contextmanager
def ended_by(end: End) -> Iterator[None]:
    """Run a block as Stop.ended_by() does, for the call that this thread is in, if it is in one."""
    stop = current()
    if stop is None:
        yield
    else:
        with stop.ended_by(end):
            yield


@contextlib.contextmanager
def ended_after(seconds: float, error: BaseException) -> Iterator[None]:
    """Run a block; after so many seconds have the call that this thread is in raise this error."""
    stop = current() or Stop()
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), with_context(stop.stop), [error])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def pause(seconds: float) -> None:
    """Wait so long, or until the call that this thread is in is to end. Raises its error."""
    stop = current()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.pause(seconds)


def acquire(lock: threading.Lock, look_s: float = 0.1) -> None:
    """Take a lock that another thread may hold for long, unless the call is to end meanwhile."""
    stop = current()
    while not lock.acquire(timeout=-1 if stop is None else look_s):
        if stop is not None:
            stop.check()
