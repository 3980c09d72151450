"""--log-file and --syslog: a command's notes, errors and closing line, kept beside being shown.

A run's lines are appended to the file, each with the date, the program and its process.

Not here: what is shown (../progress.py, closing.py), records for who looks for a cause (../log.py).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from pscp.counters import Counters
from pscp.errors import ItemError, PscpError, UsageError
from pscp.options import Options
from pscp.progress import Outcome, Reporter, Result
from pscp.terminal_text import printable, write_line

Write = Callable[[str], None]


class RunLog:
    """The log of one run of a command. Any thread may write."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._writes = writes

    def write(self, text: str) -> None:
        for write in self._writes:
            write(printable(text))

    def of(self, reporter: Reporter) -> Reporter:
        """Return a reporter that shows what this one does, and logs its notes."""
        return Logging(reporter, self.write) if self._writes else reporter


class Logging:
    """Hands everything on to the reporter inside, and its notes to a log as well."""

    def __init__(self, inner: Reporter, write: Write) -> None:
        self._inner, self._write = inner, write
        self.is_live, self.wants_files = inner.is_live, inner.wants_files

    def start(self, counters: Counters) -> None:
        self._inner.start(counters)

    def note(self, text: str) -> None:
        self._inner.note(text)
        self._write(text)

    def line(self, text: str) -> None:
        self._inner.line(text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        self._inner.file(path, outcome, digest, is_new)

    def stop(self, result: Result | None = None) -> None:
        self._inner.stop(result)


@contextlib.contextmanager
def run_log(name: str, words: Sequence[str], options: Options) -> Iterator[RunLog]:
    """Keep the log of a command with these words, from its first line to the error that ends it.

    Raises UsageError where the file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        writes: list[Write] = []
        if options.log_file is not None:
            writes.append(_to_file(stack.enter_context(_opened(options.log_file)), name))
        if options.syslog:
            writes.append(_to_syslog(name))
        kept = RunLog(writes)
        kept.write(f"begins: {shlex.join([name, *words])}")
        try:
            yield kept
        except PscpError as error:
            where = f"{error.path}: " if isinstance(error, ItemError) else ""
            kept.write(f"ended: {where}{error.message}")
            raise
        except BaseException as error:
            kept.write(f"ended: {type(error).__name__}")
            raise


def _opened(path: str) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"--log-file {path}: {why}", "nothing was copied") from None


def _to_file(file: TextIO, name: str) -> Write:
    def write(text: str) -> None:
        date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_line(file, f"{date} {name}[{os.getpid()}]: {text}")

    return write


def _to_syslog(name: str) -> Write:
    import syslog  # here: few commands need it

    syslog.openlog(name, syslog.LOG_PID, syslog.LOG_USER)
    return lambda text: syslog.syslog(syslog.LOG_NOTICE, text)
