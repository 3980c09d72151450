"""Makes parsers of command lines from the tables of options.

Not here: the options (../copy_options.py, ../connection_options.py), letters of other programs
(habits.py), values (../values.py), the command line (copy.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from pscp.connection_options import SENT, SHOWN, SSH
from pscp.copy_options import COPIED, NO_COPY, THERE, VERIFIED, WHICH
from pscp.errors import UsageError
from pscp.option_rows import Group, Row, rows_of
from pscp.options import Options
from pscp.values import no_such_option, parse_number

SEVERAL = Group("to several destinations")
USAGE = "pscp [options] SOURCE... DEST, or --measure [options] HOST, or --clean [options] DIR"
DESCRIPTION = (
    "Copy files and folders over several SSH connections at once; every chunk is verified. "
    "SOURCE, DEST or both are [USER@]HOST:PATH or ssh://[USER@]HOST[:PORT]/PATH, else a path here."
)
EPILOG = (
    "DEST/ is a folder to copy into, made if it is missing. Sizes take K, M, G or T (powers of "
    "1024). Run the same command again to go on with a copy that was cut short. Exit codes: 0 all "
    "copied, 1 something was not, 2 wrong use, 3 no connection, 4 broken protocol, 130 and 143 "
    "ended by a signal."
)


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
        words = self.understood(before_dashes(argv))
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

    def no_such_option(self, text: str, hint: str = "") -> UsageError:
        help_hint = f"{self.prog} --help lists the options{hint}"
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
        from pscp.cli.habits import understood

        return understood(words, self._option_string_actions)


class Asked:
    """What a command line of pscp asks for beside the options of a copy."""

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
    list_connections: bool = NO_COPY.flag(
        "--list-connections", "list the connections that --persist keeps"
    )
    disconnect: bool = NO_COPY.flag(
        "--disconnect", "end the connections that --persist keeps, to HOST or all"
    )


# In the order in which --help shows them.
_GROUPS = (COPIED, WHICH, THERE, SEVERAL, VERIFIED, SENT, SSH, SHOWN, NO_COPY)
NO_COPIES = [name for name, _, row in rows_of(Asked) if row.group is NO_COPY]


def make_parser() -> Parser:
    return with_tables(CopyParser("pscp", USAGE, DESCRIPTION, EPILOG))


def with_tables(parser: Parser, *tables: type) -> Parser:
    """Return the parser with the options of these tables, and those of Options that are for it.

    A letter is the option's that has it first.
    """
    rows = [row for table in (*tables, Options, Asked) for row in rows_of(table)]
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
        return metadata.version("pscp")
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
