"""Coroutines that wait for answers without a thread each: futures, tasks, and budgets of bytes.

The names are asyncio's. What differs: a task's first step runs within start(), so requests are sent
in that order, and a callback runs within set_result(). The reader of the answers calls that, so
nothing here waits for a descriptor, and nothing needs a lock: the process has one thread.

Not here: the answers (client.py), and who reads them (event_loop.py).
Read next: event_loop.py.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Generic, TypeVar, overload

from pscp.endpoint.frames import failures

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


Steps = Coroutine["Future[object]", None, T]  # yields the futures for which it waits


class Future(Generic[T]):
    """A value that comes later, or the exception that comes in its place."""

    __slots__ = ("_is_done", "_value", "_error", "_callbacks")
    _value: T

    def __init__(self) -> None:
        self._is_done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def set_result(self, value: T) -> None:
        self._value = value
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        assert not self._is_done
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def done(self) -> bool:
        return self._is_done

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call this once the future is done; now if it is."""
        if self._is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def exception(self) -> BaseException | None:
        """Return the exception of a future that is done, if it has one."""
        return self._error

    def result(self) -> T:
        """Return the value of a future that is done, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self._is_done:
            yield self
        return self.result()


class _RunQueue:
    """The tasks' steps that may run now. Only a task's first step runs within another step."""

    def __init__(self) -> None:
        self.tasks = 0  # number of those that have not ended
        self._ready: deque[Callable[[], None]] = deque()
        self._is_running = False

    def run(self, step: Callable[[], None], *, is_first: bool) -> None:
        was_running, self._is_running = self._is_running, True
        try:
            if is_first:
                step()
            else:
                self._ready.append(step)
            while self._ready and not was_running:
                self._ready.popleft()()
        finally:
            self._is_running = was_running


_run_queue = _RunQueue()


class Task(Future[T]):
    """A running coroutine, and the future of what it returns."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Steps[T]) -> None:
        super().__init__()
        self._steps = steps
        _run_queue.tasks += 1
        _run_queue.run(self._step, is_first=True)

    def _step(self) -> None:
        try:
            awaited = self._steps.send(None)
        except StopIteration as end:
            _run_queue.tasks -= 1
            self.set_result(end.value)
        except Exception as error:
            _run_queue.tasks -= 1
            self.set_exception(error)
        else:
            awaited.add_done_callback(lambda: _run_queue.run(self._step, is_first=False))


def start(steps: Steps[T]) -> Task[T]:
    """Run a coroutine as a task: now up to where it first waits, the rest later."""
    return Task(steps)


def are_alive() -> bool:
    """Tell whether any task has not ended."""
    return _run_queue.tasks > 0


class Budget:
    """An amount, of bytes for instance, that may be in use at once; first come, first served."""

    def __init__(self, amount: int) -> None:
        self._all = self._left = amount
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    async def take(self, amount: int) -> None:
        """Take from the budget, once there is so much left."""
        amount = min(amount, self._all)
        if self._waiting or amount > self._left:
            turn: Future[None] = Future()
            self._waiting.append((amount, turn))
            await turn  # give() has taken it for this task
            return
        self._left -= amount

    def give(self, amount: int) -> None:
        """Give back what was taken."""
        self._left += min(amount, self._all)
        while self._waiting and self._waiting[0][0] <= self._left:
            wanted, turn = self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)

    @contextlib.asynccontextmanager
    async def taken(self, amount: int) -> AsyncIterator[None]:
        """Take from the budget, and give it back at the end."""
        await self.take(amount)
        try:
            yield
        finally:
            self.give(amount)


@overload
async def outcomes(first: Awaitable[A], /) -> tuple[A | Exception]: ...
@overload
async def outcomes(
    first: Awaitable[A], second: Awaitable[B], /
) -> tuple[A | Exception, B | Exception]: ...
@overload
async def outcomes(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /
) -> tuple[A | Exception, B | Exception, C | Exception]: ...
@overload
async def outcomes(*awaited: Awaitable[T]) -> tuple[T | Exception, ...]: ...
async def outcomes(*awaited: Awaitable[object]) -> tuple[object, ...]:
    """Wait for all; return the value of each, or its exception.

    It is asyncio.gather(return_exceptions=True); so coroutines become tasks.
    """
    futures = [each if isinstance(each, Future) else start(_value(each)) for each in awaited]
    found: list[object] = []
    for each in futures:
        try:
            found.append(await each)
        except Exception as error:
            found.append(error)
    return tuple(found)


async def _value(awaitable: Awaitable[T]) -> T:
    return await awaitable


@overload
async def gather(first: Awaitable[A], second: Awaitable[B], /) -> tuple[A, B]: ...
@overload
async def gather(*awaited: Awaitable[T]) -> tuple[T, ...]: ...
async def gather(*awaited: Awaitable[object]) -> tuple[object, ...]:
    """Wait for all; then raise the first exception, if any, or return the values."""
    found = await outcomes(*awaited)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


async def results(asked: Iterable[tuple[str, Awaitable[T]]]) -> list[T | failures.Data]:
    """Wait for what was asked about several paths; return per path the answer, or the failure."""
    listed = list(asked)
    found = await outcomes(*[awaited for _, awaited in listed])
    return [
        failures.from_exception(result, path) if isinstance(result, Exception) else result
        for (path, _), result in zip(listed, found, strict=True)
    ]
