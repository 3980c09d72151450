"""Tasks that wait for answers without a thread each: coroutines, and what they wait for.

A Task runs until it awaits a Promise that is not kept yet, and goes on from within keep() or
fail(). Whoever reads the answers calls those, so nothing here waits, and nothing needs a lock.

Not here: what the answers are (client.py), and who reads them (event_loop.py).
Read next: event_loop.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Promise(Generic[T]):
    """A value that comes later, or the exception that comes in its place."""

    __slots__ = ("is_settled", "_value", "_error", "_waiting")

    def __init__(self) -> None:
        self.is_settled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[Callable[[], None]] = []

    def keep(self, value: T) -> None:
        self._value = value
        self._settle()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        assert not self.is_settled
        self.is_settled = True
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def then(self, go_on: Callable[[], None]) -> None:
        """Call this once settled; now if it is."""
        if self.is_settled:
            go_on()
        else:
            self._waiting.append(go_on)

    def value(self) -> T:
        """What came. Raises what came in its place."""
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def __await__(self) -> Generator[Promise[Any], None, T]:
        if not self.is_settled:
            yield self
        return self.value()


class Task(Promise[T]):
    """A coroutine under way; itself the promise of what it returns."""

    __slots__ = ("_steps", "_group")

    def __init__(self, steps: Coroutine[Any, Any, T], group: Tasks) -> None:
        super().__init__()
        self._steps, self._group = steps, group
        group.alive += 1
        group.run(self._step, now=True)

    def _step(self) -> None:
        try:
            awaited: Promise[Any] = self._steps.send(None)
        except StopIteration as end:
            self._group.alive -= 1
            self.keep(end.value)
        except Exception as error:
            self._group.alive -= 1
            self.fail(error)
        else:
            awaited.then(self._go_on)

    def _go_on(self) -> None:
        self._group.run(self._step)


class Tasks:
    """All tasks of a lane. A new task's first step runs within the step that starts it, so what
    it asks is asked in that order; later steps never run within another's.
    """

    def __init__(self) -> None:
        self.alive = 0
        self._ready: deque[Callable[[], None]] = deque()
        self._is_running = False

    def start(self, steps: Coroutine[Any, Any, T]) -> Task[T]:
        return Task(steps, self)

    def run(self, step: Callable[[], None], now: bool = False) -> None:
        """Run it, `now` or once no other step runs."""
        was_running, self._is_running = self._is_running, True
        try:
            if now:
                step()
            else:
                self._ready.append(step)
            while self._ready and not was_running:
                self._ready.popleft()()
        finally:
            self._is_running = was_running


class Budget:
    """So many bytes may be under way; who wants more waits, first come first served."""

    def __init__(self, count: int) -> None:
        self._all = self._left = count
        self._waiting: deque[tuple[int, Promise[None]]] = deque()

    async def take(self, count: int) -> None:
        count = min(count, self._all)
        if self._waiting or count > self._left:
            turn: Promise[None] = Promise()
            self._waiting.append((count, turn))
            await turn  # who gives has taken it for us
            return
        self._left -= count

    def give(self, count: int) -> None:
        self._left += min(count, self._all)
        while self._waiting and self._waiting[0][0] <= self._left:
            wanted, turn = self._waiting.popleft()
            self._left -= wanted
            turn.keep(None)


async def settled(*promises: Promise[Any]) -> list[Any]:
    """Wait for all; per promise its value, or the exception."""
    found: list[Any] = []
    for each in promises:
        try:
            found.append(await each)
        except Exception as error:
            found.append(error)
    return found


async def all_of(*promises: Promise[Any]) -> list[Any]:
    """Wait for all, then raise the first exception if there is one; else their values."""
    found = await settled(*promises)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found
