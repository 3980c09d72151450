"""The command line: argv becomes Options, an outcome becomes words and an exit code.

Not here: what an option means (options.py), what a copy does (api.py), and how it is shown
while it runs (progress.py). It imports little at the top, so that --help and a slip of the
finger are answered at once. Read next: api.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NoReturn

from pscp.errors import FileError, Interrupted, PscpError, Terminated, UsageError
from pscp.lines import write_line
from pscp.options import (
    Location,
    Options,
    check_direction,
    parse_cpus,
    parse_location,
    parse_number,
    parse_size,
)
from pscp.progress import Result, count, format_bytes, format_duration, make_reporter

USAGE = "pscp [options] SOURCE... DEST"
DESCRIPTION = (
    "Copy files and folders over several SSH connections at once; every chunk is verified. "
    "SOURCE or DEST is [USER@]HOST:PATH or ssh://[USER@]HOST[:PORT]/PATH, the other a path here."
)
EPILOG = (
    "Sizes take K, M, G or T (powers of 1024). Run the same command again to go on with a copy "
    "that was cut short. Exit codes: 0 all copied, 1 something was not, 2 wrong use, 3 no "
    "connection, 4 broken protocol, 130 and 143 ended by a signal."
)


@dataclass(frozen=True)
class Command:
    """A command line that makes sense."""

    sources: tuple[Location, ...]
    destination: Location
    options: Options


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    try:
        words = sys.argv[1:] if argv is None else argv
        return 0 if told(words) else run(parse(words))
    except PscpError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:  # before the copy listens for signals, or after
        complain(Interrupted("interrupted"))
        return Interrupted.exit_code
    finally:
        flush_stdout()


def program() -> NoReturn:
    """The command `pscp`. It skips the interpreter's own farewell, which takes 10 ms."""
    status = main()
    with contextlib.suppress(OSError, AttributeError):  # a stream that is None, or nobody reads
        sys.stderr.flush()
    os._exit(status)


def told(argv: Sequence[str]) -> bool:
    """Answer --help or --version, wherever it stands and whatever else is wrong."""
    words = set(before_dashes(argv))
    if words & {"-h", "--help"}:
        make_parser().print_help()
    elif "--version" in words:
        write_line(sys.stdout, f"pscp {version()}")
    else:
        return False
    return True


def parse(argv: Sequence[str]) -> Command:
    """Read a command line, or raise UsageError; looks at local sources, contacts nothing."""
    words = before_dashes(argv)
    given, rest = make_parser().parse_known_args(words)
    for text in rest:
        if text.startswith("-") and text != "-":
            raise UsageError(
                f"no such option: {text}",
                'pscp --help lists the options; a path that starts with "-" goes after --',
            )
    if "help" in given:
        raise UsageError('-h does not go with other letters, and no host name starts with "-"')
    options = Options(**{name: frozen(value) for name, value in vars(given).items()})
    locations = [parse_location(text) for text in (*rest, *argv[len(words) + 1 :])]
    if not locations:
        raise UsageError("a source and a destination are missing", f"usage: {USAGE}")
    if len(locations) == 1:
        raise UsageError("a destination is missing", f"usage: {USAGE}")
    *sources, destination = locations
    check_direction(sources, destination)
    for source in sources:
        if not source.is_remote:
            check_local_source(source.path, options.recursive)
    return Command(tuple(sources), destination, options)


def run(command: Command) -> int:
    from pscp.api import copy
    from pscp.endpoint import machine

    machine.raise_descriptor_limit()
    options = command.options
    is_terminal = bool(sys.stderr and sys.stderr.isatty()) and os.environ.get("TERM") != "dumb"
    reporter = make_reporter(options, is_terminal)
    with signals_raised():
        try:
            result = copy(
                command.sources, command.destination, options=options, reporter=reporter,
                keep_digests=False,
            )  # fmt: skip
        finally:
            reporter.stop(None)
    conclude(result, options)
    return 0 if result.ok else 1


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """SIGINT and SIGTERM end the copy in the order of its own code: the first of them raises.

    What comes later finds the copy ending already. What is ignored (nohup, &) stays ignored.
    """
    errors = {signal.SIGINT: Interrupted, signal.SIGTERM: Terminated}
    ended: list[int] = []

    def end(number: int, frame: object) -> None:
        ended.append(number)
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise errors[signal.Signals(number)]("interrupted; what has landed is kept")

    before = {
        each: signal.getsignal(each)
        for each in errors
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each, action in () if ended else before.items():
            signal.signal(each, action)


def check_local_source(path: str, recursive: bool) -> None:
    """Refuse what cannot be meant; what the copy itself can report (no permission) is its."""
    try:
        os.lstat(path)
    except PermissionError:
        return
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "check the spelling of the source") from None
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:  # a dangling link
        return
    if is_folder and not recursive:
        raise UsageError(f"{path} is a folder: use -r", "-r copies folders, -a with everything")


class Parser(argparse.ArgumentParser):
    """argparse that raises where it would print its own message and exit."""

    def error(self, message: str) -> NoReturn:
        # Its words for -rZ and for --stats=1, where neither Z nor 1 can be.
        clear = message.replace(
            "ignored explicit argument", "takes no value, and no option is called"
        )
        raise UsageError(clear.removeprefix("argument "))


def before_dashes(argv: Sequence[str]) -> list[str]:
    """The words in which options may stand: up to a "--"."""
    return list(argv[: argv.index("--")]) if "--" in argv else list(argv)


def version() -> str:
    from importlib import metadata  # here: it takes longer to import than --help to print

    try:
        return metadata.version("pscp")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def make_parser() -> Parser:
    parser = Parser(
        prog="pscp",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        add_help=False,
        allow_abbrev=False,  # a script must not break when an option is added
        argument_default=argparse.SUPPRESS,  # Options has the defaults
    )
    add_what_is_copied(parser.add_argument_group("what is copied"))
    add_how_it_is_checked(parser.add_argument_group("how it is verified and resumed"))
    add_how_it_is_sent(parser.add_argument_group("how it is sent"))
    add_how_ssh_is_run(parser.add_argument_group("how ssh is run"))
    add_what_is_shown(parser.add_argument_group("what is shown"))
    return parser


def add_what_is_copied(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-r", "--recursive", help="copy folders with what is in them")
    flag("-p", "--preserve", help="keep times and modes")
    flag(
        "-a",
        "--archive",
        help="-r and -p, and keep symlinks, hard links, extended attributes, and owners when root",
    )
    flag("--update", help="leave out what is not newer than at the destination")
    for kind, what in (("exclude", "leave out what matches"), ("include", "keep what matches")):
        add(
            f"--{kind}",
            metavar="PATTERN",
            dest="filters",
            action="append",
            type=partial(pair, kind),
            help=f"{what}; the first of these options that matches decides",
        )
    flag("-n", "--dry-run", help="list what would be copied, and copy nothing")
    add(
        "-T",
        "--no-strict-names",
        dest="strict_names",
        action="store_false",
        help="take the names that the far end gives, even where they do not match what was asked",
    )


def add_how_it_is_checked(group: argparse._ArgumentGroup) -> None:
    flag = partial(group.add_argument, action="store_true")
    flag(
        "-s",
        "--strong",
        help="also compare a SHA-256 of each file, read back at the destination, with the source",
    )
    flag(
        "-t",
        "--transfer-test",
        help="send made-up data of the sources' sizes; no disk is read or written",
    )
    group.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="start afresh, whatever an earlier run left",
    )


def add_how_it_is_sent(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "-c",
        "--connections",
        metavar="N",
        type=connections,
        help="the number of connections, or auto (the default)",
    )
    add(
        "--channels",
        metavar="M",
        type=channels,
        help="the number of channels of each connection, or auto (the default)",
    )
    size(group, "-b", "--block-size", "block_bytes", "what is read and written at once (256K)")
    size(
        group,
        "--chunk-size",
        "",
        "chunk_bytes",
        "what is verified and resent as one (4M, less toward the end)",
    )
    number(group, "-l", "--limit", "limit_kbit_s", "KBIT", "the most to send, in kbit/s")
    add("--congestion", metavar="NAME", help="the TCP congestion control to use, such as bbr")
    size(group, "", "--rcvbuf", "rcvbuf_bytes", "the receive buffer of each connection's socket")
    size(group, "", "--sndbuf", "sndbuf_bytes", "the send buffer of each connection's socket")
    add(
        "--bind",
        metavar="ADDRESS",
        action="extend",
        type=addresses,
        help="connect from this address; of several (A,B,...) each in turn",
    )
    add(
        "--cpus",
        metavar="LIST",
        type=parse_cpus,
        help="pin each ssh to one of these processors in turn, such as 0,2-5 (the kernel decides)",
    )


def add_how_ssh_is_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    number(group, "-P", "--port", "port", "PORT", "the port of the far end")
    many = partial(add, action="append")
    many("-i", "--identity", metavar="FILE", dest="identities", help="a private key to log in with")
    add("-F", "--config", metavar="FILE", dest="config_file", help="ssh_config to use")
    add("-J", "--jump", metavar="HOST", help="go through this host")
    many("-o", "--ssh-option", metavar="KEY=VALUE", dest="ssh_options", help="as ssh's -o")
    add("--cipher", metavar="NAME", help="the cipher to use (the fastest that both ends do well)")
    flag("-C", "--compress", help="let ssh compress")
    flag("-B", "--batch", help="never ask for a password, a passphrase or a host key")
    for letter in (4, 6):
        add(
            f"-{letter}",
            f"--ipv{letter}",
            dest="address_family",
            action="store_const",
            const=letter,
            help=f"use IPv{letter} only",
        )
    add("-S", "--program", metavar="PROGRAM", help="run this instead of ssh")


def add_what_is_shown(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-q", "--quiet", help="errors only")
    flag("-v", "--verbose", help="say which hash, cipher and connections are used, and why")
    flag("-d", "--debug", help="show what pscp does")
    add("--progress", metavar="STYLE", help="auto (a bar on a terminal), bar, plain, json or none")
    flag("--stats", help="end with a table of what was counted")
    flag("-h", "--help", help="show this and exit")
    flag("--version", help="show the version and exit")


def size(group: argparse._ArgumentGroup, short: str, long: str, dest: str, help: str) -> None:
    names = [name for name in (short, long) if name]
    read: Callable[[str], int] = partial(parse_size, what="/".join(names))
    group.add_argument(*names, metavar="SIZE", dest=dest, type=read, help=help)


def number(
    group: argparse._ArgumentGroup, short: str, long: str, dest: str, metavar: str, help: str
) -> None:
    read: Callable[[str], int] = partial(parse_number, what=f"{short}/{long}")
    group.add_argument(short, long, metavar=metavar, dest=dest, type=read, help=help)


def pair(kind: str, pattern: str) -> tuple[str, str]:
    return kind, pattern


def connections(text: str) -> int | None:
    return None if text == "auto" else parse_number(text, "-c/--connections")


def channels(text: str) -> int | None:
    return None if text == "auto" else parse_number(text, "--channels")


def addresses(text: str) -> list[str]:
    return text.split(",")


def frozen(value: Any) -> Any:
    """An option's value as Options takes it."""
    if value == [] or isinstance(value, list) and [] in value:  # argparse drops it before 3.13
        raise UsageError('"--" is no value of an option')
    return tuple(value) if isinstance(value, list) else value


def complain(error: PscpError) -> None:
    where = f"{error.path}: " if isinstance(error, FileError) else ""
    write_line(sys.stderr, f"pscp: {where}{error.message}")
    if error.hint:
        write_line(sys.stderr, f"      {error.hint}")


def conclude(result: Result, options: Options) -> None:
    """The closing words, on stderr: stdout is for what was asked for."""
    if options.quiet:
        return
    if options.progress not in ("none", "json"):
        write_line(sys.stderr, dry_run_summary(result) if options.dry_run else summary(result))
    if options.stats:
        for text in table(result):
            write_line(sys.stderr, text)


def summary(result: Result) -> str:
    """For example: 268.4 MB in 1.2 s (223.7 MB/s), 12 files, 64 chunks verified, 3 resent."""
    moved_bytes = max(0, result.bytes - result.bytes_resumed)
    rate = format_bytes(moved_bytes / result.seconds if result.seconds > 0 else 0)
    extras = (
        (result.chunks_resent, f"{result.chunks_resent} resent"),
        (result.bytes_resumed, f"{format_bytes(result.bytes_resumed)} was there already"),
        (result.files_skipped, f"{result.files_skipped} skipped"),
        (len(result.failures), f"{len(result.failures)} failed"),
    )
    return ", ".join(
        [
            f"{format_bytes(moved_bytes)} in {format_duration(result.seconds)} ({rate}/s)",
            count(result.files, "file"),
            f"{count(result.chunks_verified, 'chunk')} verified",
            *(text for number, text in extras if number),
        ]
    )


def dry_run_summary(result: Result) -> str:
    there = f"{count(result.files, 'file')}, {format_bytes(result.bytes)}"
    return f"nothing was copied (dry run); it would have been {there}"


def table(result: Result) -> list[str]:
    rows = {
        item.name.replace("_", " "): getattr(result, item.name)
        for item in fields(result)
        if item.name not in ("digests", "failures")
    }
    rows |= {"seconds": f"{result.seconds:.3f}", "failures": len(result.failures)}
    return [f"{name:<17} {value:>16}" for name, value in rows.items()]


def flush_stdout() -> None:
    """So that a reader that went away (pscp -n ... | head) is not the interpreter's last word."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
