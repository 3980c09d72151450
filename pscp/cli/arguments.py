"""The options of the command line: letters, words and help.

Not here: what is copied (copy_arguments.py), options of a kind (option_types.py), letters of other
programs (habits.py), what the words mean (../options.py), values (../values.py), the command line
(copy.py).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from pscp.cli.copy_arguments import add_what_is_copied, add_what_is_done_there, add_which_files
from pscp.cli.option_types import number, seconds, size
from pscp.errors import UsageError
from pscp.values import no_such_option, parse_cpus, parse_kbit_s, parse_number, parse_ports

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


def make_parser() -> Parser:
    parser = CopyParser("pscp", USAGE, DESCRIPTION, EPILOG)
    add_what_is_copied(parser.add_argument_group("what is copied"))
    add_which_files(parser.add_argument_group("which files"))
    add_what_is_done_there(parser.add_argument_group("what happens at the destination"))
    add_to_several(parser.add_argument_group("to several destinations"))
    add_how_it_is_checked(parser.add_argument_group("how it is verified and resumed"))
    sent = parser.add_argument_group("how it is sent")
    add_how_it_is_sent(sent)
    sent.add_argument(
        "--direct",
        action="store_true",
        help="from host to host, have SOURCE's host connect to DEST's by its own ssh, and send the "
        "data straight there; without it all goes through this machine (-3)",
    )
    add_how_ssh_is_run(parser.add_argument_group("how ssh is run"))
    add_what_is_shown(parser.add_argument_group("what is shown"))
    add_what_is_no_copy(parser.add_argument_group("instead of a copy"))
    return parser


def add_to_several(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fan-out",
        action="store_true",
        help="copy to every HOST:PATH that is given, at once: SOURCE... HOST1:PATH HOST2:PATH...",
    )
    number(
        group,
        "",
        "--max-hosts",
        "max_hosts",
        metavar="N",
        help="with --fan-out, the most destinations at a time (all)",
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
        "--verify",
        metavar="HOW",
        help="over SFTP, where no agent can verify: auto (by a hash program there, else reading "
        "back), read-back, or none",
    )
    group.add_argument(
        "--no-resume",
        dest="resume",
        action="store_false",
        help="start afresh, whatever an earlier run left",
    )
    add_manifest(group)


def add_manifest(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--manifest",
        metavar="FILE",
        help="write to FILE which files are good at the destination, with a SHA-256 of each and of "
        "its chunks, hashed there (docs/manifests.md); pscp-verify compares with it later",
    )
    add(
        "--manifest-format",
        metavar="FORM",
        help="jsonl, sha256sum or bagit (by the name of FILE, else jsonl)",
    )
    add("--sign", metavar="KEY", help="sign the manifest with this SSH key, as FILE.sig")


def add_how_it_is_sent(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--remote",
        metavar="WAY",
        help="what to use at the far end: agent (python3), sftp, or auto (SFTP where no agent can "
        "be)",
    )
    for names, metavar, what in (
        (("-c", "--connections"), "N", "connections"),
        (("--channels",), "M", "channels of each connection"),
    ):
        read = partial(number_or_auto, what="/".join(names))
        help = f"the number of {what}, or auto (the default)"
        add(*names, metavar=metavar, type=read, help=help)
    size(group, "-b", "--block-size", "block_bytes", "what is read and written at once (1M)")
    size(
        group,
        "--chunk-size",
        "",
        "chunk_bytes",
        "what is verified and resent as one (4M, less toward the end)",
    )
    add(
        "-l",
        "--limit",
        metavar="RATE",
        dest="limit_kbit_s",
        type=parse_kbit_s,
        help="the most to send, in kbit/s, or with a unit: 10M is 10 Mbit/s",
    )
    add(
        "--plane",
        metavar="NAME",
        help="what carries the lanes: ssh, or TCP connections beside it with tls, or plain without "
        "any cipher (auto: ssh)",
    )
    add_sockets(group)


def add_sockets(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
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
    add(
        "--plane-port",
        metavar="PORTS",
        dest="plane_ports",
        type=parse_ports,
        help="for --plane, a port or a range of ports to listen on, such as 5000-5010 (any)",
    )


def add_how_ssh_is_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    add(
        "--transport",
        metavar="NAME",
        help="what makes the connections: openssh, asyncssh, paramiko, or auto (the default: "
        "openssh where ssh is installed, else asyncssh)",
    )
    number(group, "-P", "--port", "port", metavar="PORT", help="the port of the far end")
    many = partial(add, action="append")
    many("-i", "--identity", metavar="FILE", dest="identities", help="a private key to log in with")
    add("-F", "--config", metavar="FILE", dest="config_file", help="ssh_config to use")
    add("-J", "--jump", metavar="HOST", help="go through this host")
    many("-o", "--ssh-option", metavar="KEY=VALUE", dest="ssh_options", help="as ssh's -o")
    seconds(
        group,
        "--timeout",
        "timeout_s",
        "how long the host may take to answer (ConnectTimeout of ssh_config, else 30 seconds)",
    )
    seconds(
        group,
        "--retry-for",
        "retry_for_s",
        "keep trying to connect for so long (90, 30m, 2h) while the host cannot be reached",
    )
    add("--cipher", metavar="NAME", help="the cipher to use (the fastest that both ends do well)")
    flag("-C", "--compress", help="let ssh compress")
    add_how_one_logs_in(group)
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


def add_how_one_logs_in(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-B", "--batch", help="never ask for a password, a passphrase or a host key")
    add(
        "--password-file",
        metavar="FILE",
        help="what a login asks for is the first line of FILE, which nobody else may be able to "
        "read ($PSCP_PASSWORD_FILE)",
    )
    flag("--login-once", help="log in once, and send everything over that one connection")
    add(
        "--persist",
        metavar="TIME",
        help="keep the connections for so long (90, 10m, 1h30m, yes: without limit) after the last "
        "use, for the next copy to this host with the same options",
    )


def add_what_is_shown(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    flag = partial(add, action="store_true")
    flag("-q", "--quiet", help="errors only")
    flag("-v", "--verbose", help="say which hash, cipher and connections are used, and why")
    flag("-vv", "--itemize", help="-v, and name each file with what becomes of it")
    flag("-d", "--debug", help="show what pscp, ssh and the agents do, with the lane of each")
    add(
        "--progress",
        metavar="STYLE",
        help="auto (a bar on a terminal), bar, plain, json, or none, not even a closing line",
    )
    flag("--stats", help="end with a table of what was counted")
    add("--log-file", metavar="FILE", help="write notes, errors and the summary to FILE, dated")
    flag("--syslog", help="send notes, errors and the summary to syslog as well")
    flag("-h", "--help", help="show this and exit")
    flag("--version", help="show the version and exit")


def add_what_is_no_copy(group: argparse._ArgumentGroup) -> None:
    flag = partial(group.add_argument, action="store_true")
    flag(
        "--measure",
        help="measure the path to HOST in about a minute, with no disk: ciphers, connections (-c: "
        "the most), windows, --plane if given; recommend what is best (--progress json: as JSON)",
    )
    flag(
        "--check",
        help="copy nothing; list what differs at DEST, with -p or -a by size and time, without or "
        "with --checksum by content; exit code 1 if anything does",
    )
    flag("--save", help="with --measure: have later copies to HOST use what is recommended")
    flag(
        "--clean",
        help="list what cut copies left below DIR (HOST:DIR, or one here) that no copy works on",
    )
    flag("--yes", help="with --clean: remove it")
    flag("--list-connections", help="list the connections that --persist keeps")
    flag("--disconnect", help="end the connections that --persist keeps, to HOST or all")


def number_or_auto(text: str, what: str) -> int | None:
    if text == "auto":
        return None
    if what.startswith("-c") and re.match("[a-z]", text):
        hint = f"-c is the number of connections; a cipher is chosen with --cipher {text}"
        raise UsageError(f"{what}: {text!r} is not a whole number", hint)
    return parse_number(text, what)


def addresses(text: str) -> list[str]:
    return text.split(",")


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
