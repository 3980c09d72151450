"""The context variables (contextvars) of who makes a call, in the threads that work for it.

A new thread begins with an empty context: a logging.Handler, or a function that a call is given,
would find none of the program's variables there. So every thread that may log or call one, and
each piece of work for a pool's threads, is made with start_thread() or with_context().

Not here: how a thread knows which call it works for (stops.py).
Read next: log.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def with_context(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return what makes this call with the context variables of now, in any thread.

    Each call gets a copy of its own, since only one thread at a time can be in a Context.
    """
    context = contextvars.copy_context()

    def run(*args: _P.args, **more: _P.kwargs) -> _T:
        return context.copy().run(call, *args, **more)

    return run


@contextlib.contextmanager
def holding(variable: contextvars.ContextVar[_T], value: _T) -> Iterator[None]:
    """Run a block in which a context variable has this value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def start_thread(
    name: str | None, call: Callable[_P, object], *args: _P.args, **more: _P.kwargs
) -> threading.Thread:
    """Start a daemon thread that makes this call with the context variables of now.

    `name` is what records of `logging` call it; None: Python's own.
    """
    thread = threading.Thread(
        target=with_context(call), args=args, kwargs=more, name=name, daemon=True
    )
    thread.start()
    return thread
