"""SIGINT, SIGTERM and SIGHUP: an orderly end as long as there is one, and an end within seconds.

The first signal raises an exception in the main thread, and so the program ends in the order of
its own code. An exception that comes at any moment can hit code that was not made for it (within a
lock, in the start of a process), or a wait that nothing ends. So a thread gets the signal as well:
if the program is not over after some seconds, this thread ends every process below this one,
removes what would be left in temporary folders, and exits.

Not here: how processes are found and ended (processes.py), the exit codes (errors.py), what an end
means for a copy (../transfer/coordinator.py), signals before the program has been loaded
(../cli/start.py).
Read next: errors.py.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from pscp.ground import state
from pscp.ground.errors import Interrupted, PscpError, Terminated

if TYPE_CHECKING:
    from types import FrameType

PATIENCE_S = 3.0  # for the orderly end: with what the other one takes that is less than 5 s
_TERM_S = 0.5  # what processes below this one get to end by themselves
_POLL_S = 0.01
_AGAIN_S = 0.001  # after which an exception that Python ignored is raised again

_ERRORS = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: Terminated,  # the terminal is gone
}
_CURSOR = b"\x1b[?25h"  # a bar hides it

# What is below this process and began earlier is not ours: a shell started it, and became this
# program by exec. 0: not known.
_BEGUN_S = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0

_last_acts: list[Callable[[], object]] = []  # what a forced end does besides, newest first
_has_signal = threading.Event()  # set by the first signal that a command of this process gets


@contextlib.contextmanager
def raise_on_signals(
    hint: str = "",
    instead: Callable[[PscpError], bool] = lambda error: False,
    name: str = "pscp",
    patience_s: float = PATIENCE_S,
) -> Iterator[None]:
    """End what runs in this block by the first of these signals, as an exception, within seconds.

    Signals that are ignored (nohup, &) stay ignored; those after the first change nothing.

    Args:
        hint: what the user can do about the end, if it is not to run the command again.
        instead: takes the error and sees to the end by itself, or returns False.
        name: the command, for its last line where the end is forced.
        patience_s: what an orderly end may take.
    """
    words = "interrupted" if hint else "interrupted; what has landed is kept"
    ended: list[PscpError] = []

    def error_of(number: int) -> PscpError:
        return _ERRORS[signal.Signals(number)](words, hint)

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, lambda number, frame: None)  # SIG_IGN is inherited, as by an ssh
        _has_signal.set()
        error = error_of(number)
        ended.append(error)
        if not instead(error):
            if frame is not None and frame.f_code is threading.Thread.start.__code__:
                raise KeyboardInterrupt  # of an Exception it thinks that no thread has begun
            raise error

    before = {
        each: action for each in _ERRORS if (action := signal.getsignal(each)) != signal.SIG_IGN
    }
    guard = _Guard(error_of, set(before), name, patience_s)
    try:
        for each in before:
            signal.signal(each, end)
        with _raised_again(ended, before):
            yield
    except BaseException:
        if ended:  # whatever came of it: the signal is why
            raise ended[0] from None
        raise
    finally:
        for each, action in before.items():  # the end of the program is disturbed by nothing
            signal.signal(each, signal.SIG_IGN if ended else action)
        guard.close()


@contextlib.contextmanager
def _raised_again(ended: Sequence[PscpError], kinds: Iterable[signal.Signals]) -> Iterator[None]:
    """Raise the exception anew where Python ignored it and wrote it out instead.

    So it does in the callback of a weak reference, and each import has one.
    """

    kind = next(iter(kinds), signal.SIGTERM)

    def raise_ended(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is raise_later.__code__:  # there it would be ignored once more
                again()
                return
            frame = frame.f_back
        raise ended[0]

    def again() -> None:
        threading.Timer(_AGAIN_S, signal.pthread_kill, [threading.get_ident(), kind]).start()

    def raise_later(ignored: sys.UnraisableHookArgs) -> None:
        if ended and ignored.exc_value is ended[0]:
            signal.signal(kind, raise_ended)
            again()
        else:
            hook(ignored)

    hook, sys.unraisablehook = sys.unraisablehook, raise_later
    try:
        yield
    finally:
        sys.unraisablehook = hook


class _Guard:
    """A thread that gets signals by a pipe, even while the main thread is held up."""

    def __init__(
        self,
        error_of: Callable[[int], PscpError],
        numbers: set[signal.Signals],
        name: str,
        patience_s: float,
    ) -> None:
        # Loaded here: at the end that could wait for a module that another thread is loading.
        importlib.import_module("pscp.ground.processes")
        self._error_of, self._numbers, self._name = error_of, numbers, name
        self._patience_s = patience_s
        self._is_over = threading.Event()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)  # as set_wakeup_fd() wants it
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()
        self._before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def _run(self) -> None:
        number = 0
        while number not in self._numbers and not self._is_over.is_set():
            number = os.read(self._read_fd, 1)[0]
        if not self._is_over.wait(self._patience_s):
            force_end(self._error_of(number), self._name)

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._is_over.set()
        with contextlib.suppress(BlockingIOError):  # full of signals, so it wakes anyway
            os.write(self._write_fd, b"\0")
        self._thread.join()
        os.close(self._read_fd)
        os.close(self._write_fd)


@contextlib.contextmanager
def last_act(act: Callable[[], object]) -> Iterator[None]:
    """Have a forced end call `act` while this block runs; at an orderly end the block does it."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def force_end(error: PscpError, name: str) -> NoReturn:
    """End this process and all below it, whatever its threads are waiting for."""
    _end_all_below()
    for act in reversed(_last_acts):
        with contextlib.suppress(Exception):
            act()
    state.remove_private()
    _say_last(f"{name}: {error.message}\n{' ' * len(name)}  {error.hint}\n")
    os._exit(error.exit_code)


def leave(status: int) -> NoReturn:
    """End a command: nothing is below it or in temporary folders if a signal was the reason.

    The interpreter's own shutdown, which takes 10 ms, is skipped.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None, or nobody reads it
            stream.flush()
    if _has_signal.is_set():  # a process whose start was cut short is known to nobody here
        _end_all_below()
        state.remove_private()
    elif leaving := sys.modules.get("pscp.ground.leaving"):  # else no login has begun
        leaving.end_later()
    os._exit(status)


def _end_all_below() -> None:
    """End the processes that this one started, by SIGTERM, and those that stay by SIGKILL."""
    from pscp.ground import processes  # here: it takes longer to load than to show the help

    pid, deadline_s = os.getpid(), time.monotonic() + _TERM_S
    kind = signal.SIGTERM
    while found := processes.descendants(pid, _BEGUN_S):
        for process in found:
            processes.send(process.pid, kind)
            processes.send(process.pid, signal.SIGCONT)  # one that was stopped takes no SIGTERM
        if kind == signal.SIGKILL and time.monotonic() > deadline_s + _TERM_S:
            return
        if time.monotonic() > deadline_s:
            kind = signal.SIGKILL
        time.sleep(_POLL_S)


def _say_last(text: str) -> None:
    """Write on stderr, unless that takes nothing now: a terminal may be stopped by Ctrl-S."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if dict(poll.poll(0)).get(2, 0) & select.POLLOUT:
            os.write(2, (_CURSOR if os.isatty(2) else b"") + text.encode())
