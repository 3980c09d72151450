"""The command `pscp-pipe`, and `pscp - HOST:FILE`: one stream between here and there.

Not here: the stream (stream/stream.py), the words of a copy (copy.py).
Read next: stream/stream.py.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from pscp.cli.closing import rows
from pscp.cli.run_log import RunLog, run_command, run_log
from pscp.endpoint.frames import system
from pscp.ground import log
from pscp.ground.errors import CopyError, UsageError
from pscp.ground.locations import Location, parse_host, parse_location
from pscp.ground.signals import raise_on_signals
from pscp.ground.terminal_text import complain, is_terminal, write_line
from pscp.options import arguments
from pscp.options.keywords import as_typed
from pscp.options.option_pairs import ONE_STREAM, not_of_a_stream
from pscp.options.option_rows import Group
from pscp.options.options import Options
from pscp.progress.display import RichBar, make_reporter
from pscp.progress.progress import (
    NO_CIPHER,
    LiveCounters,
    Reporter,
    count,
    format_bytes,
    format_duration,
)

OWN_FAILURE = 255  # as ssh(1)
UNREAD = 128 + signal.SIGPIPE  # where the reader of a file has gone, as cat(1) in a shell
_HINT = "the command at the far end was ended"

USAGE = "pscp-pipe [options] HOST COMMAND..., or pscp-pipe --from [options] HOST COMMAND..."
DESCRIPTION = (
    "Run COMMAND on HOST, as ssh does, and send it what comes in here over several connections at "
    "once; with --from, bring here what it puts out. Every chunk is verified. COMMAND sees the end "
    "of its input only when all of it has arrived; in any other case it is ended first."
)
EPILOG = (
    "The exit status is COMMAND's, or 255 when the stream failed. Of several words COMMAND is made "
    "with spaces between them, for the user's shell on HOST."
)


class PipeCommand(NamedTuple):
    """A command line that makes sense."""

    host: Location
    words: str  # for the shell there; empty: a file
    path: str | None
    is_push: bool
    producer: str | None
    options: Options


STREAM = Group("the stream", ("pscp-pipe",))


class PipeArguments:
    """The options of pscp-pipe's own, beside those of connections."""

    is_from: bool = STREAM.flag("--from", "from COMMAND's standard output to here")
    producer: str | None = STREAM.value(
        "--producer COMMAND",
        "run this here for what is sent, and end the far COMMAND when it fails",
    )


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("pscp-pipe", USAGE, DESCRIPTION, EPILOG)
    arguments.with_tables(parser, PipeArguments)
    parser.add_argument("host", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parse(argv: Sequence[str]) -> PipeCommand:
    """Read a command line, or raise UsageError; contacts nothing."""
    given = make_parser().parse_args(argv)
    host, words = parse_host(given.host), given.words
    del given.host, given.words
    values = arguments.option_values(given)
    is_push, producer = not values.pop("is_from", False), values.pop("producer", None)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError("a command is missing", f"usage: {USAGE}")
    if producer is not None and not is_push:
        raise UsageError("--producer runs here; with --from the far command is the producer")
    with as_typed():
        return PipeCommand(host, " ".join(words), None, is_push, producer, Options(**values))


def file_command(source: str, destination: str, options: Options) -> PipeCommand:
    """Read `pscp - HOST:FILE` or `pscp HOST:FILE -`. Raises UsageError."""
    is_push = source == "-"
    host = parse_location(destination if is_push else source)
    if not host.is_remote:
        raise UsageError(ONE_STREAM)
    if not host.path:
        raise UsageError(f'{host.text} names no file; "-" is one: name it')
    if words := not_of_a_stream(options):
        raise UsageError(f'{", ".join(words)}: for files, not for "-"')
    return PipeCommand(host, "", host.path, is_push, None, options)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""

    def act(words: list[str]) -> int:
        command = parse(words)
        system.raise_descriptor_limit()
        return move(command, "pscp-pipe", words)

    return run_command("pscp-pipe", make_parser, act, argv, own=OWN_FAILURE)


def move(command: PipeCommand, name: str, words: Sequence[str]) -> int:
    """Move the stream; returns the far command's exit status. Raises as Stream.run() does.

    It is for the command of this name, with these words.
    """
    check_streams(command)
    unread = OWN_FAILURE if command.path is None else UNREAD
    try:
        with run_log(name, words, command.options) as kept:
            return moved(command, kept)
    except BrokenPipeError:  # nobody reads the far command's output any more; ssh says nothing
        return unread
    except CopyError:
        if command.is_push or is_read(1):
            raise
        return unread  # nor about `| head`


def check_streams(command: PipeCommand) -> None:
    """Raise UsageError where this end's stream, or what it is typed on, cannot be used, or has
    something else in it.
    """
    if command.options.progress == "json":
        why = "--progress json goes to the standard output, where the stream's bytes are"
        raise UsageError(why, "--progress plain goes to the standard error")
    fd = 0 if command.is_push else 1
    if command.producer is None and not is_open(fd):  # the next thing opened would be taken for it
        raise UsageError(f"the standard {'input' if command.is_push else 'output'} is closed")
    is_typed = command.producer is None and command.is_push and os.isatty(0)
    if command.options.plane == "plain" and is_typed:
        raise UsageError("--plane plain has no cipher, and what you type would be read on its way")


def moved(command: PipeCommand, kept: RunLog) -> int:
    from pscp.calls.api import Session
    from pscp.stream.pipe import Target
    from pscp.stream.stream import Program, Stream

    options = command.options
    fd = 0 if command.is_push else 1
    shown = make_reporter(options, is_terminal(sys.stderr))
    reporter, counters = kept.of(shown), LiveCounters(host=command.host.login)
    has_bar = isinstance(shown, RichBar)
    output = Output()
    out = LinesAboveBar(str(command.host.host), reporter, output) if has_bar else output
    session = Session(command.host, options)
    stream = Stream(
        session.connections,
        options,
        is_push=command.is_push,
        target=Target(command.words, command.path),
        counters=counters,
        out=out,
        note=reporter.note,
    )
    with (
        raise_on_signals(_HINT, stream.interrupt, "pscp-pipe"),
        log.show_records(options.debug, shown.note),
        session,
        contextlib.ExitStack() as stack,
    ):
        reporter.start(counters)
        stack.callback(reporter.stop)
        if isinstance(out, LinesAboveBar):
            stack.callback(out.finish)
        if command.producer is not None:
            producer = stack.enter_context(Program(command.producer, True, keeps_err=False))
            fd, stream.input_was_whole = producer.fd, producer.check_end
        status = stream.run(fd)
        plane = session.connections.carrier(options)
    closing = summary(counters) + (f", {NO_CIPHER}" if plane == "plain" else "")
    kept.write(f"{closing}, exit status {status}" if status else closing)
    conclude(counters, closing, options, has_bar)
    return output.status_with(status)


def conclude(counters: LiveCounters, closing: str, options: Options, has_bar: bool) -> None:
    """Write the closing words, if there was a bar or they are asked for: ssh has none."""
    if not options.quiet and (has_bar or options.progress in ("plain", "bar") or options.stats):
        write_line(sys.stderr, closing)
    if options.stats:
        shown = ("bytes_done", "bytes_sent", "chunks_verified", "chunks_resent", "connections_lost")
        counted = counters.as_dict()
        for text in rows({name.replace("_", " "): counted[name] for name in shown}):
            write_line(sys.stderr, text)


def summary(counters: LiveCounters) -> str:
    """Return, for example: 268.4 MB in 1.2 s (223.7 MB/s), 256 chunks verified."""
    passed_s = max(time.monotonic() - counters.started_s, 0.001)
    moved, rate = format_bytes(counters.bytes_done), format_bytes(counters.bytes_done / passed_s)
    chunks = count(counters.chunks_verified, "chunk")
    return f"{moved} in {format_duration(passed_s)} ({rate}/s), {chunks} verified"


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False


def is_read(fd: int) -> bool:
    """Return whether anybody reads what is written there; False for a pipe whose reader is gone."""
    poll = select.poll()
    poll.register(fd, 0)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class Output:
    """Our stdout (place 0) and stderr (1), on which what the far command writes comes out."""

    def __init__(self) -> None:
        self._lost: OSError | None = None  # why something is missing on stderr

    def __call__(self, place: int, data: bytes) -> None:
        """Write as it comes.

        What stdout does not take ends the stream: raises CopyError, and BrokenPipeError where
        nobody reads it any more.
        """
        try:
            if (sys.stdout, sys.stderr)[place] is None:  # its number may be another file's now
                raise OSError(errno.EBADF, "it is closed")
            while data:
                data = data[os.write(place + 1, data) :]
        except OSError as error:
            if place == 1:  # a far end that receives well is not ended for what it says
                self._lost = self._lost or error
            elif isinstance(error, BrokenPipeError):
                raise
            else:
                raise CopyError(f"the output cannot be written: {error.strerror}") from None

    def status_with(self, status: int) -> int:
        """Return the exit status of a command that has ended with this one: not 0 after a loss."""
        if self._lost is None:
            return status
        why = self._lost.strerror
        complain(CopyError(f"the command's standard error cannot be written: {why}"), "pscp-pipe")
        return status or OWN_FAILURE


class LinesAboveBar:
    """Shows the far command's stderr above a bar on the terminal, in whole lines."""

    def __init__(self, host: str, reporter: Reporter, output: Output) -> None:
        self._host, self._reporter, self._output = host, reporter, output
        self._line = b""  # that has not ended yet

    def __call__(self, place: int, data: bytes) -> None:
        if place == 0:
            self._output(place, data)
            return
        *whole, self._line = (self._line + data).split(b"\n")
        for line in whole:
            self._note(line)

    def finish(self) -> None:
        """Show the last line, if no line feed ended it."""
        if self._line:
            self._note(self._line)

    def _note(self, line: bytes) -> None:
        self._reporter.note(f"{self._host}: {line.decode(errors='replace')}")
