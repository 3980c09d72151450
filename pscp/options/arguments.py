"""Makes parsers of command lines from the tables of options.

Not here: the options (copy_options.py, connection_options.py), values (../ground/values.py), what a
pattern means (filters.py), the command line (../cli/copy.py), what users of scp and rsync type
(habits.py).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pscp.ground.errors import UsageError
from pscp.ground.values import no_such_option, parse_number
from pscp.options.connection_options import SENT, SHOWN, SSH
from pscp.options.copy_options import COPIED, NO_COPY, THERE, VERIFIED, WHICH
from pscp.options.habits import understood
from pscp.options.option_rows import Group, Row, rows_of
from pscp.options.options import Options

if TYPE_CHECKING:
    from pscp.options.filters import Filter

SEVERAL = Group("to several destinations")
USAGE = "pscp [options] SOURCE... DEST, or --measure [options] HOST, or --clean [options] DIR"
DESCRIPTION = (
    "Copy files and folders over several SSH connections at once; every chunk is verified. "
    "SOURCE, DEST or both are [USER@]HOST[,HOST]:PATH or ssh://[USER@]HOST[:PORT]/PATH, else a "
    "path here."
)
EPILOG = (
    "DEST/ is a folder to copy into, made if it is missing. Sizes take K, M, G or T (powers of "
    "1024). Run the same command again to go on with a copy that was cut short. Exit codes: 0 all "
    "copied, 1 something was not, 2 wrong use, 3 no connection, 4 broken protocol, 130 and 143 "
    "ended by a signal."
)
# By their names, what -h says of them; "": as --help does.
EVERYDAY = {
    "-r": "", "-a": "-r and -p, with links, hard links, attributes", "-p": "", "-n": "",
    "-u": "leave out what is newer there",
    "--exclude": "leave out what matches, as rsync does",
    "--delete": "delete there what the sources do not have", "--backup": "",
    "--remove-source-files": "remove each file once it is safely there",
    "--check": "copy nothing; list what differs there",
    "--checksum": "with -p or -a, hash files of the same size",
    "-s": "also compare a SHA-256 of each whole file",
    "-c": "", "-l": "the most to send: 10M is 10 Mbit/s",
    "-P": "", "-i": "", "-J": "", "-F": "", "-o": "",
    "-B": "never ask for a password or the like", "-q": "",
    "-v": "name each file that is copied or deleted", "--stats": "",
    "--log-file": "write errors, what is copied and deleted to it",
    "--clean": "list what cut copies left below DIR",
    "--measure": "measure the path to HOST, in a minute",
}  # fmt: skip
EXAMPLES = (
    "  pscp -a data/. host:backup/           # what is in data, with times and links",
    "  pscp -an --delete data host:mirror/   # what a mirror would copy and delete",
    "  pscp host:'logs/*.gz' .               # pull; the far end expands the pattern",
)
MORE = "pscp --help lists every option. The same command again goes on with a cut copy."


def with_files(given: Sequence[Filter], *, from0: bool, stdin_is_taken: bool) -> tuple[Filter, ...]:
    """Return the filters, with the patterns of each file in its place.

    Args:
        given: ("exclude" | "include", pattern) and ("exclude-from" | "include-from", file).
        from0: a NUL ends the files' lines, and nothing else does.
        stdin_is_taken: something else is read from standard input.

    Raises UsageError for a file that cannot be read.
    """
    if stdin_is_taken + sum(kind.endswith("-from") and text == "-" for kind, text in given) > 1:
        raise UsageError("standard input is one file: only one option or source can be - for it")
    from pscp.options import filters  # here: --help needs none of it

    return tuple(filters.expanded(given, lambda kind, file: _lines(kind, file, from0)))


def _lines(kind: str, file: str, from0: bool) -> list[str]:
    """Return the lines of a file but blank ones and comments, which -0 leaves comments as well."""
    is_stdin = file == "-"
    try:
        with open(0 if is_stdin else file, "rb", closefd=not is_stdin) as stream:
            content = stream.read()
    except OSError as error:
        name = "standard input" if is_stdin else file
        raise UsageError(f"--{kind}: {name}: {error.strerror}") from None
    from pscp.endpoint.reading.paths import to_text

    found = content.split(b"\0") if from0 else re.split(rb"[\r\n]", content)
    return [to_text(line) for line in found if line and line[:1] not in (b"#", b";")]


class Parser(argparse.ArgumentParser):
    """argparse that raises where it would print its own message and exit."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            add_help=False,
            allow_abbrev=False,  # a script must not break when an option is added
            argument_default=argparse.SUPPRESS,  # Options and Settings have the defaults
        )

    def read(self, argv: Sequence[str], hint: str = "") -> tuple[dict[str, Any], list[str]]:
        """Return the options that were given, by the field of each, and the other words.

        Options stand before a "--". Raises UsageError; `hint` is added for what is no option.
        """
        help_hint = f"{self.prog} --help lists the options"
        words = self._with_numbers(self.understood(before_dashes(argv)))
        given, rest = self.parse_known_args(words)
        for text in rest:
            if text.startswith("-") and text != "-":
                raise self.no_such_option(text, hint)
        if "help" in given:
            message = '-h does not go with other letters, and no host name starts with "-"'
            raise UsageError(message, help_hint)
        return option_values(given), [*rest, *argv[len(before_dashes(argv)) + 1 :]]

    def understood(self, words: list[str]) -> list[str]:
        """Return the words as they are parsed. Raises UsageError."""
        return words

    def _with_numbers(self, words: list[str]) -> list[str]:
        """Return the words, each number below 0 in one with its option: argparse takes it for one
        by itself, and the value for missing.
        """
        found = words[:1]
        for word in words[1:]:
            action = self._option_string_actions.get(found[-1])
            if re.fullmatch("-[0-9]+", word) and action is not None and action.nargs != 0:
                found[-1] += f"={word}" if found[-1].startswith("--") else word
            else:
                found.append(word)
        return found

    def no_such_option(self, text: str, hint: str = "") -> UsageError:
        port = "the port is -P here; " if re.match("-p[0-9]*$", text) else ""  # as ssh has it
        help_hint = f"{port}{self.prog} --help lists the options{hint}"
        return no_such_option(text, self._option_string_actions, help_hint)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            raise self.no_such_option(message.split(": ", 1)[1].split(" ")[0])
        if message.startswith("the following arguments are required: host"):
            raise UsageError("a host and a command are missing")
        # Its words for -rZ and for --stats=1, where neither Z nor 1 can be.
        clear = message.replace(
            "ignored explicit argument", "takes no value, and no option is called"
        )
        raise UsageError(clear.removeprefix("argument "))


class CopyParser(Parser):
    """The parser of pscp, which is typed by users of scp and rsync."""

    def understood(self, words: list[str]) -> list[str]:

        return understood(words, self._option_string_actions)


class CopyArguments:
    """The words of a command line of pscp beside the options of a copy."""

    fan_out: bool = SEVERAL.flag(
        "--fan-out",
        "copy to every HOST:PATH that is given, at once: SOURCE... HOST1:PATH HOST2:PATH...",
    )
    max_hosts: int | None = SEVERAL.value(
        "--max-hosts N", "with --fan-out, the most destinations at a time (all)", read=parse_number
    )
    help: bool = SHOWN.flag("-h --help", "show this and exit")
    version: bool = SHOWN.flag("--version", "show the version and exit")
    measure: bool = NO_COPY.flag(
        "--measure",
        "measure the path to HOST in about a minute, with no disk: ciphers, connections (-c: "
        "the most), windows, --plane if given; recommend what is best (--progress json: as JSON)",
    )
    save: bool = NO_COPY.flag(
        "--save", "with --measure: have later copies to HOST use what is recommended"
    )
    clean: bool = NO_COPY.flag(
        "--clean",
        "list what cut copies left below DIR (HOST:DIR, or one here) that no copy works on",
    )
    yes: bool = NO_COPY.flag("--yes", "with --clean: remove it")
    force: bool = NO_COPY.flag(
        "--force", "with --clean: also what is new, where nobody can tell who works on it"
    )
    list_connections: bool = NO_COPY.flag(
        "--list-connections", "list the connections that --persist keeps"
    )
    disconnect: bool = NO_COPY.flag(
        "--disconnect", "end what --persist keeps, to a HOST: or to all hosts"
    )


# In the order in which --help shows them.
_GROUPS = (COPIED, WHICH, THERE, SEVERAL, VERIFIED, SENT, SSH, SHOWN, NO_COPY)
NO_COPIES = [name for name, _, row in rows_of(CopyArguments) if row.group is NO_COPY]


def make_parser() -> Parser:
    return with_tables(CopyParser("pscp", USAGE, DESCRIPTION, EPILOG))


def short_help(parser: argparse.ArgumentParser) -> str:
    """Return what `pscp -h` shows: the options of every day, a line each."""
    lines = []
    for name, brief in EVERYDAY.items():
        action = parser._option_string_actions[name]
        value = f" {action.metavar}" if action.nargs != 0 else ""
        words = ", ".join(action.option_strings[:2]) + value
        lines.append(f"  {words:<28} {brief or action.help}")
    return "\n".join([f"usage: {USAGE}", "", *lines, "", *EXAMPLES, "", MORE]) + "\n"


def with_tables(parser: Parser, *tables: type) -> Parser:
    """Return the parser with the options of these tables, and those of Options that are for it.

    A letter is the option's that has it first.
    """
    rows = [row for table in (*tables, Options, CopyArguments) for row in rows_of(table)]
    own = [row.group for table in tables for _, _, row in rows_of(table)]
    for group in dict.fromkeys([*own, *_GROUPS]):
        if parser.prog in group.commands:
            added = parser.add_argument_group(group.title)
            for name, default, row in rows:
                if row.group is group and parser.prog in (row.commands or group.commands):
                    _add(added, name, default, row)
    return parser


def _add(group: argparse._ArgumentGroup, dest: str, default: object, row: Row) -> None:
    for flag in row.flags:
        names = [name for name in flag.names if name not in group._option_string_actions]
        if not flag.metavar:
            const = not default if flag.const is None else flag.const
            group.add_argument(*names, dest=dest, action="store_const", const=const, help=flag.help)
            continue
        read = flag.read or row.read
        kind: Any = partial(read, what="/".join(names)) if read else None
        group.add_argument(
            *names,
            dest=dest,
            metavar=flag.metavar,
            action=flag.action or ("append" if isinstance(default, tuple) else "store"),
            type=kind,
            help=flag.help,
        )


def version() -> str:
    from importlib import metadata  # here: it takes longer to import than --help to print

    try:
        return metadata.version("pscp-ssh")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def before_dashes(argv: Sequence[str]) -> list[str]:
    """Return the words in which options may stand: up to a "--"."""
    return list(argv[: argv.index("--")]) if "--" in argv else list(argv)


def option_values(given: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that were given, with tuples in place of lists."""
    values = vars(given)
    for value in values.values():
        if isinstance(value, list) and (not value or [] in value):  # argparse dropped a "--"
            raise UsageError('"--" is no value of an option')
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
