"""A command's run: help and errors, its reporter, its end by a signal, what --log-file and --syslog
keep of it.

A log has notes, errors and the closing line, beside their being shown. Lines are appended to the
file, each with the date, the program and its process.

Not here: what is shown (../progress/progress.py, closing.py), records for who looks for a cause
(../ground/log.py).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pscp.endpoint.frames import system
from pscp.ground import log
from pscp.ground.errors import (
    NO_MORE,
    CopyError,
    Interrupted,
    ItemError,
    PscpError,
    Terminated,
    UsageError,
)
from pscp.ground.signals import raise_on_signals
from pscp.ground.terminal_text import (
    complain,
    is_terminal,
    print_line,
    printable,
    write_line,
    write_text,
)
from pscp.options.arguments import Parser, before_dashes, short_help, version
from pscp.options.keywords import as_typed
from pscp.options.options import Options
from pscp.progress.display import make_reporter
from pscp.progress.progress import CHANGES, Outcome, Passing, Reporter

_File = TypeVar("_File")
Write = Callable[[str], None]
_NO_THREAD = "can't start new thread"  # as CPython has it for what pthread_create(3) refuses
_ALL_ELSE = "the log is not whole; all else was done, or told above"


class RunLog:
    """The log of one run of a command. Any thread may write."""

    def __init__(self, writes: Sequence[Write], of_files: Write | None = None) -> None:
        """`of_files` gets the name of each file that is copied, deleted or removed."""
        self._writes, self._of_files = writes, of_files

    def write(self, text: str) -> None:
        for write in self._writes:
            write(printable(text))

    def of(self, reporter: Reporter) -> Reporter:
        """Return a reporter that shows what this one does, and logs its notes."""
        return Logging(reporter, self.write, self._of_files) if self._writes else reporter


class Logging(Passing):
    """Hands everything on to the reporter inside, and its notes to a log as well; to that also the
    names of what is copied, deleted or removed, and of each file that failed.
    """

    def __init__(self, inner: Reporter, write: Write, of_files: Write | None) -> None:
        super().__init__(inner)
        self._write, self._of_files = write, of_files
        self.names_copied = inner.names_copied or of_files is not None

    def note(self, text: str) -> None:
        super().note(text)
        self._write(text)

    def failed(self, text: str, is_sum: bool) -> None:
        super().failed(text, is_sum)
        if not is_sum:
            self._write(text)

    def file(self, path: str, outcome: Outcome, digest: str, is_new: bool = True) -> None:
        super().file(path, outcome, digest, is_new)
        if self._of_files is not None and outcome in CHANGES:
            self._of_files(f"{outcome} {printable(path)}")

    def gone(self, text: str) -> None:
        super().gone(text)
        if self._of_files is not None:
            self._of_files(printable(text))


def run_command(
    name: str,
    make: Callable[[], Parser],
    act: Callable[[list[str]], int],
    argv: list[str] | None,
    *,
    own: int | None = None,
) -> int:
    """Run a command of this name: answer --help and --version, else act on its words.

    Returns the exit code, and prints what went wrong, if anything. With `own`, that is the code of
    all errors but signals, and the words after the first are another command's.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        with as_typed():
            asked = words if own is None else words[:1]
            return 0 if answer_help(name, make, asked) else act(words)
    except PscpError as error:
        if isinstance(error, UsageError) and not error.hint:
            error.hint = f"{name} --help lists the options"
        complain(error, name)
        is_signal = isinstance(error, Interrupted | Terminated)
        return error.exit_code if own is None or is_signal else own
    except KeyboardInterrupt:  # before the command listens for signals, or after
        complain(Interrupted("interrupted"), name)
        return Interrupted.exit_code
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        complain(CopyError("the system starts no more threads", NO_MORE), name)
        return CopyError.exit_code if own is None else own


def without_mistakes(name: str, load: Callable[[str], _File], path: str) -> _File | None:
    """Read a file in TOML; print its mistakes, a line each, and return None if it has any."""
    try:
        return load(path)
    except UsageError as error:
        for text in error.message.split("\n"):
            write_line(sys.stderr, text)
        write_line(sys.stderr, f"{name}: {error.hint}")
        return None


def answer_help(name: str, make: Callable[[], Parser], argv: Sequence[str]) -> bool:
    """Answer --help or --version wherever it stands. Return False if there is neither."""
    words = set(before_dashes(argv))
    if words & {"-h", "--help"}:
        is_short = name == "pscp" and "--help" not in words
        write_text(short_help(make()) if is_short else make().format_help(), sys.stdout)
    elif "--version" in words:
        print_line(f"{name} {version()}")
    else:
        return False
    return True


@contextlib.contextmanager
def shown_run(
    name: str, words: Sequence[str], options: Options, hint: str = ""
) -> Iterator[tuple[Reporter, RunLog]]:
    """Run a block as a command with these words: a signal ends it; it has a reporter and a log.

    The reporter is stopped where the block raises; `hint` is raise_on_signals()'s.
    """
    shown = make_reporter(options, is_terminal(sys.stderr), name)
    with (
        raise_on_signals(hint, name=name),
        log.show_records(options.debug, shown.note),
        run_log(name, words, options) as kept,
    ):
        reporter = kept.of(shown)
        try:
            yield reporter, kept
        finally:
            reporter.stop(None)


@contextlib.contextmanager
def run_log(name: str, words: Sequence[str], options: Options) -> Iterator[RunLog]:
    """Keep the log of a command with these words, from its first line to the error that ends it.

    Raises UsageError where the file cannot be opened, and at the end CopyError where something is
    missing in it: a full disk ends no copy.
    """
    with contextlib.ExitStack() as stack:
        writes: list[Write] = []
        of_files: Write | None = None
        if options.log_file is not None:
            of_files = stack.enter_context(LogFile(options.log_file, name)).write
            writes.append(of_files)
        if options.syslog:
            writes.append(_to_syslog(name))
        kept = RunLog(writes, of_files)
        kept.write(f"begins: {shlex.join([name, *words])}")
        try:
            yield kept
        except PscpError as error:
            where = f"{error.path}: " if isinstance(error, ItemError) else ""
            kept.write(f"ended: {where}{error.message}; exit code {error.exit_code}")
            raise
        except BaseException as error:
            kept.write(f"ended: {type(error).__name__}")
            raise


class LogFile:
    """The file of --log-file, open in its `with` block. Any thread may write."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name
        self._lost: OSError | None = None  # why something is missing
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"--log-file {path}: {why}", "nothing was copied") from None

    def write(self, text: str) -> None:
        date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = f"{date} {self._name}[{os.getpid()}]: {text}\n"
        try:
            system.write_all(self._fd, [line.encode("utf-8", "backslashreplace")])
        except OSError as error:
            self._lost = self._lost or error

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            os.close(self._fd)
        except OSError as closing:  # NFS tells only now
            self._lost = self._lost or closing
        if self._lost is not None and error is None:
            why = self._lost.strerror or self._lost
            raise CopyError(f"--log-file {self._path}: {why}", _ALL_ELSE)


def _to_syslog(name: str) -> Write:
    import syslog  # here: few commands need it

    syslog.openlog(name, syslog.LOG_PID, syslog.LOG_USER)
    return lambda text: syslog.syslog(syslog.LOG_NOTICE, text)
