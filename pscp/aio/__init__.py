"""The calls of a program with asyncio: copy(), copying() with its progress, fan_out(), and Session.

Each takes what its namesake of pscp takes, and runs that in a thread of its own; functions that it
is given are called in other threads than the event loop's. Where its task is cancelled the call is
ended as by Session.cancel(): what had landed is kept, and CancelledError goes on only when it has
ended.

Not here: what the calls do (../calls/api.py, ../calls/deliveries.py), how they are ended
(../ground/stops.py). Read next: ../calls/api.py.

For other rooms: nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from pscp.calls import api, deliveries
from pscp.ground import errors, stops
from pscp.ground.contexts import with_context
from pscp.ground.locations import Location
from pscp.options.option_rows import KEYWORDS, with_keywords
from pscp.options.options import Options
from pscp.progress.progress import Counters, Result

if TYPE_CHECKING:
    from typing import Unpack

    from pscp.options.option_fields import SessionFields

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Copying:
    """A copy that runs while its block does: an async context manager, and an async iterator.

    It yields snapshots of Counters, about ten a second, the last one when the copy is over; who
    comes late gets the latest only. The block's end waits for the copy, and raises its error; an
    exception in the block ends it.
    """

    def __init__(self, copy: Callable[..., Result]) -> None:
        self._copy = copy
        self._call: _Call[Result] | None = None
        self._latest: Counters | None = None
        self._is_over = False
        self._news = asyncio.Event()

    async def __aenter__(self) -> Copying:
        loop = asyncio.get_running_loop()

        def tell(now: Counters) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell, now)

        self._call = _Call(partial(self._copy, progress=tell))
        self._call.done.add_done_callback(self._end)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._begun()
        if kind is None:
            await call.result()
        else:
            await call.cancel()

    def __aiter__(self) -> Copying:
        self._begun()
        return self

    async def __anext__(self) -> Counters:
        if self._latest is None and not self._is_over:
            await self._news.wait()
        self._news.clear()
        latest, self._latest = self._latest, None
        if latest is None:
            raise StopAsyncIteration
        return latest

    @property
    def result(self) -> Result:
        """Return what the copy did, once its block has ended. Raises the copy's error."""
        done = self._begun().done
        if not done.done():
            raise RuntimeError("the copy has not ended: its result is there after `async with`")
        return done.result()

    def _begun(self) -> _Call[Result]:
        if self._call is None:
            raise RuntimeError("the copy has not begun: use it with `async with`")
        return self._call

    def _tell(self, now: Counters) -> None:
        self._latest = now
        self._news.set()

    def _end(self, done: asyncio.Future[Result]) -> None:
        self._is_over = True
        self._news.set()


class _Call(Generic[_T]):
    """A call that runs in a thread of its own. For the event loop's thread."""

    def __init__(self, call: Callable[[], _T]) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[_T] = self._loop.create_future()
        self._call, self._stop = call, stops.Stop()
        threading.Thread(target=with_context(self._run), name="aio", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._stop.here():
                found = self._call()
        except BaseException as error:
            if isinstance(error, StopIteration):  # of the program's; no future takes one (PEP 479)
                error.__cause__, error = None, RuntimeError("a callback raised StopIteration")
            self._post(partial(self.done.set_exception, error))
        else:
            self._post(partial(self.done.set_result, found))

    def _post(self, settle: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(settle)

    async def result(self) -> _T:
        """Wait for the call; a task that is cancelled meanwhile ends it, and waits for that."""
        try:
            await asyncio.wait([self.done])
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.done.result()

    async def cancel(self) -> None:
        """End the call, and wait until it has ended, however often this task is cancelled."""
        self._stop.stop(errors.Cancelled("the task was cancelled"))
        while not self.done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self.done])
        self.done.exception()  # so that asyncio does not call it forgotten


def _with_keywords_of(call: Callable[..., object], text: str) -> str:
    """Return this docstring, with what the one of that call lists at its end."""
    _, heading, listed = (call.__doc__ or "").partition(KEYWORDS)
    return f"{inspect.cleandoc(text)}\n{heading}{listed}" if heading else text


def _awaited(call: Callable[_P, _T], text: str) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Return what takes what this call takes, and awaits it; with this docstring."""

    @wraps(call)
    async def awaited(*args: _P.args, **more: _P.kwargs) -> _T:
        return await _Call(partial(call, *args, **more)).result()

    awaited.__doc__ = _with_keywords_of(call, text)
    return awaited


def _shown(copy: Callable[_P, Result], text: str) -> Callable[_P, Copying]:
    """Return what takes what this copy takes, and returns a Copying; with this docstring."""

    @wraps(copy)
    def copying(*args: _P.args, **more: _P.kwargs) -> Copying:
        return Copying(partial(copy, *args, **more))

    copying.__doc__ = _with_keywords_of(copy, text)
    as_copy = inspect.signature(copy).replace(return_annotation="Copying")
    copying.__signature__ = as_copy  # type: ignore[attr-defined]
    return copying


def _ours(
    call: Callable[Concatenate[api.Session, _P], _T],
) -> Callable[Concatenate[Session, _P], _T]:
    """Return this method of pscp.Session as one of ours, for the two above."""

    def method(session: Session, /, *args: _P.args, **more: _P.kwargs) -> _T:
        return call(session.opened, *args, **more)

    update_wrapper(method, call)
    return method


copy = _awaited(api.copy, "As pscp.copy().")
copying = _shown(
    api.copy,
    """A copy whose progress is read while it runs, in place of `progress`; as copy() else.

    async with pscp.aio.copying("data", "host:backup/", recursive=True) as copying:
        async for now in copying:
            print(now.bytes_done)
    print(copying.result.files)
    """,
)
fan_out = _awaited(deliveries.fan_out, "As pscp.fan_out().")


@with_keywords(Options)
class Session:
    """pscp.Session as an async context manager. Tasks may call it at once.

    With `transport` an asyncssh.SSHClientConnection of this very event loop, everything goes over
    that connection, which stays open.
    """

    def __init__(
        self,
        host: str | Location | None = None,
        options: Options | None = None,
        **fields: Unpack[SessionFields],
    ) -> None:
        self._make = partial(api.Session, host, options, **fields)
        self._session: api.Session | None = None

    async def __aenter__(self) -> Session:
        self._session = await _Call(self._make).result()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _Call(partial(self.opened.__exit__, kind, value, trace)).result()

    @property
    def opened(self) -> api.Session:
        if self._session is None:
            raise errors.UsageError("the session is not open", "use it with `async with`")
        return self._session

    copy = _awaited(_ours(api.Session.copy), "As pscp.aio.copy(), over this session's connections.")
    copying = _shown(
        _ours(api.Session.copy), "As pscp.aio.copying(), over this session's connections."
    )
    run = _awaited(_ours(api.Session.run), "As pscp.Session.run().")
