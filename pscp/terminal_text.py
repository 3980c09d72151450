"""Lines for people: made printable, and written without making a lane wait for a terminal.

Names come from a far end, and a terminal acts on some characters; and one that was stopped with
Ctrl-S takes no line until it is let go.

Not here: which lines there are (progress.py).
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from pscp.errors import ItemError, PscpError

_WAITING_BYTES = 8 * 1024 * 1024  # of notes that nobody has read yet

# Controls, DEL, C1, half surrogates, and what reorders or breaks the line it stands in.
_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


class Notes:
    """Notes on their way to a stream: written in order, by a thread that lives while there are any.

    Whoever has something to say goes on at once. Any thread may.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._bytes = self._lost = 0
        self._thread: threading.Thread | None = None

    def add(self, text: str) -> None:
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


_typing = threading.Event()  # a person is, on the terminal


@contextlib.contextmanager
def kept_still() -> Iterator[None]:
    """Meanwhile a person types: nothing that only shows progress is written."""
    _typing.set()
    try:
        yield
    finally:
        _typing.clear()


def is_still() -> bool:
    """Return whether somebody types an answer, so that nothing is to be shown."""
    return _typing.is_set()


def printable(text: str) -> str:
    """The text with whatever could act on a terminal spelled out: \\x1b, \\u202e."""
    return re.sub(_UNPRINTABLE, lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # surrogateescape: a byte that is not UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write_line(stream: TextIO | None, text: str) -> None:
    """Write one line, made printable. A reader that went away ends no copy: it is ignored."""
    if stream is None:  # sys.stderr is None where the shell closed it
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    line = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):
        stream.write(line + "\n")
        stream.flush()


def complain(error: PscpError, name: str = "pscp") -> None:
    """An error's last words, of the command with this name."""
    where = f"{error.path}: " if isinstance(error, ItemError) else ""
    write_line(sys.stderr, f"{name}: {where}{error.message}")
    if error.hint:
        write_line(sys.stderr, f"{' ' * len(name)}  {error.hint}")
