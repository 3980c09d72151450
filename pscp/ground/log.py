"""Records of what pscp does, for -d and for programs: the standard library's `logging`.

Loggers are called "pscp." and the room: pscp.connect, pscp.transfer, pscp.zfs; what ssh and the
agents write to their standard error is in pscp.stderr. What the command says to everybody (a file
that was not copied, a login's message) is in pscp.notes, of level WARNING; what it says with -vv is
of level INFO; all else of DEBUG. A record's threadName is that of the lane: "lane 3". Nothing
shows unless the program has set up `logging`.

A program that wants records has loaded `logging`; a command that has not saves the 6 ms of that.

Not here: notes for people (../progress/progress.py), the context in which a handler runs
(contexts.py).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


_DEBUG, _INFO, _WARNING = 10, 20, 30  # of the logging module, which may not be loaded


class Log:
    """A logger that loads `logging` only if something else has."""

    def __init__(self, room: str) -> None:
        self._name = f"pscp.{room}"

    @property
    def is_wanted(self) -> bool:
        """True where a record would be shown or kept anywhere."""
        logger = self._logger()
        return logger is not None and logger.isEnabledFor(_DEBUG)

    def debug(self, message: str, *values: object) -> None:
        """Write a record; `values` take the places of the message's %s and %d."""
        self._write(_DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        """Write a record, as debug(), of what -v says."""
        self._write(_INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        """Write a record, as debug(), of what everybody is told."""
        self._write(_WARNING, message, values)

    def _write(self, level: int, message: str, values: tuple[object, ...]) -> None:
        if (logger := self._logger()) is not None:
            logger.log(level, message, *values)

    def _logger(self) -> logging.Logger | None:
        """Return the logger; None while nobody has loaded `logging`."""
        if "logging" not in sys.modules:
            return None
        import logging

        top = logging.getLogger("pscp")
        if not top.handlers:  # else logging would write warnings to a program's standard error
            top.addHandler(logging.NullHandler())
        return logging.getLogger(self._name)


@contextlib.contextmanager
def show_records(is_wanted: bool, write: Callable[[str], None]) -> Iterator[None]:
    """Write every record of this block, a line each: seconds, lane or thread, message (-d)."""
    if not is_wanted:
        yield
        return
    import logging

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < _WARNING:  # else it is shown already
                text = f"{record.relativeCreated / 1000:.3f} s, {record.threadName}"
                write(f"{text}: {record.getMessage()}")

    logger, handler = logging.getLogger("pscp"), Lines()
    level, propagates = logger.level, logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(level)
