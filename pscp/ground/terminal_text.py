"""Lines for people: made printable, and written without making a lane wait for a terminal.

Names come from a far end, and a terminal acts on some characters. A terminal that was stopped with
Ctrl-S takes no line until Ctrl-Q.

Not here: which lines there are (../progress/progress.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from pscp.ground.errors import ItemError, PscpError

_WAITING_BYTES = 8 * 1024 * 1024  # of notes that nobody has read yet

# Controls, DEL, C1, half surrogates, and what reorders or breaks the line it stands in.
_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


class Notes:
    """Writes notes in order from a thread of its own, so that add() never waits for the stream.

    Any thread may call. The thread lives while there are notes.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._bytes = self._lost = 0
        self._thread: threading.Thread | None = None

    def add(self, text: str) -> None:
        """Have a note written, or drop it where too many wait."""
        with self._changed:
            if self._bytes >= _WAITING_BYTES:
                self._lost += 1
                return
            self._waiting.append(text)
            self._bytes += len(text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notes", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Wait until all is written."""
        with self._changed:
            while self._thread is not None:
                self._changed.wait()

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except BaseException:
            self._end()
            raise

    def _next(self) -> str | None:
        with self._changed:
            if self._waiting:
                text = self._waiting.popleft()
                self._bytes -= len(text)
                return text
            if self._lost:
                lost, self._lost = self._lost, 0
                return f"{lost} more notes came while nobody read them"
            self._end()
            return None

    def _end(self) -> None:
        with self._changed:
            self._thread = None
            self._changed.notify_all()


_is_typing = threading.Event()  # set while a person types an answer on the terminal
_typed_s = 0.0  # for which people have typed, in all
_clear: Callable[[], None] | None = None  # takes what shows progress off the terminal


def clear_before_typing(clear: Callable[[], None] | None) -> None:
    """Have this called before a person is asked, from the thread that asks; None: nothing."""
    global _clear
    _clear = clear


@contextlib.contextmanager
def pause_progress() -> Iterator[None]:
    """Write nothing that only shows progress in this block, in which a person types an answer."""
    global _typed_s
    begun_s = time.monotonic()
    _is_typing.set()
    if _clear is not None:
        _clear()
    try:
        yield
    finally:
        _is_typing.clear()
        _typed_s += time.monotonic() - begun_s


def typed_s() -> float:
    """Return the seconds for which people have typed answers, since this process began."""
    return _typed_s


def is_progress_paused() -> bool:
    """Return whether a person types an answer, so that no progress is to be shown."""
    return _is_typing.is_set()


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal on which lines can be written again."""
    return bool(stream and stream.isatty()) and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Return the text with what could act on a terminal spelled out: \\x1b, \\u202e."""
    return re.sub(_UNPRINTABLE, lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # surrogateescape: a byte that is not UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_lost: OSError | None = None  # why something is missing on stdout; set by whichever thread writes


def write_line(stream: TextIO | None, text: str) -> None:
    """Write one line, made printable. An error of the stream ends no copy: see all_is_written()."""
    if stream is not None:  # sys.stderr is None where the shell closed it
        write_text(printable(text) + "\n", stream)


def print_line(text: str) -> None:
    """Write one line on standard output, made printable; see write_text()."""
    write_text(printable(text) + "\n", sys.stdout)


def write_text(text: str, stream: TextIO | None) -> None:
    """Write text as it is on a stream, where None is a standard output that was closed.

    What standard output lacks is remembered: then the command's exit code is not 0.
    """
    global _lost
    try:
        if stream is None:
            raise OSError(errno.EBADF, "it is closed")
        encoding = getattr(stream, "encoding", None) or "utf-8"
        with contextlib.suppress(ValueError):
            if text:  # else nothing would be written to what is full, and that would fail
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
    except OSError as error:
        if stream is sys.stdout:
            _lost = _lost or error


def all_is_written(name: str) -> bool:
    """Flush stdout at a command's end; return False, and say so, where something is lost.

    Nothing is said where its reader has gone: who wrote `| head` has seen enough.
    """
    if sys.stdout is not None:
        write_text("", sys.stdout)
    if _lost is None:
        return True
    if not isinstance(_lost, BrokenPipeError):
        why = _lost.strerror or _lost
        complain(PscpError(f"not everything could be written to standard output: {why}"), name)
    return False


def complain(error: PscpError, name: str = "pscp") -> None:
    """Write an error and its hint on stderr, as the command of this name."""
    where = f"{error.path}: " if isinstance(error, ItemError) else ""
    write_line(sys.stderr, f"{name}: {where}{error.message}")
    if error.hint:
        write_line(sys.stderr, f"{' ' * len(name)}  {error.hint}")
