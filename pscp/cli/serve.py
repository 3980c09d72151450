"""The command pscp-serve: argv becomes a server that runs until a signal, or an answer about one.

Not here: the server (../serve/server/process.py), its settings (../serve/server/config.py),
what is to be installed (../ground/libraries.py).
Read next: ../serve/server/process.py.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from pscp.cli.run_log import run_command, without_mistakes
from pscp.ground.errors import PscpError, UsageError
from pscp.ground.libraries import check_installed
from pscp.ground.locations import absolute
from pscp.ground.terminal_text import print_line, write_line
from pscp.options.arguments import Parser

if TYPE_CHECKING:
    from pscp.serve.settings import Settings

USAGE = "pscp-serve --config FILE, or pscp-serve --try"
DESCRIPTION = (
    "Serve uploads over SSH, by SFTP and scp, to any client: each user in a folder of their own, "
    "by rules and up to a quota, and each file under its name only once it is whole and durable."
)
EPILOG = (
    "The file is checked whole before anything is served. SIGHUP has it read again, and cuts "
    "nobody; SIGTERM ends the server. Exit codes: 0 all is well, 1 the server could not begin, or "
    "--check found what keeps a user out, 2 wrong use, or a mistake in the file."
)
_PACKAGES = ("argon2", "asyncssh", "prometheus_client", "pydantic")  # of the extra serve
_PORT = 2222  # of --try, where it is free
_PASSWORD_BYTES = 12


def make_parser() -> Parser:
    parser = Parser("pscp-serve", USAGE, DESCRIPTION, EPILOG)
    group = parser.add_argument_group("what is served")
    group.add_argument("--config", metavar="FILE", help="the file of settings: docs/serve.md")
    flag = partial(group.add_argument, action="store_true")
    flag("--try", dest="tries", help="serve this folder, with a password that is shown, until ^C")
    group = parser.add_argument_group("instead of serving")
    alone = group.add_mutually_exclusive_group().add_argument
    for what, help in (
        ("check", "check the file, and that what it names is there"),
        ("status", "show who is connected, how fast, and how far each upload is"),
        ("hash-password", "ask for a password, and print what to write into the file for it"),
    ):
        alone(f"--{what}", dest="what", action="store_const", const=what, help=help)
    flag = partial(group.add_argument, action="store_true")
    flag("--json", help="with --status: as JSON")
    flag("-h", "--help", help="show this and exit")
    flag("--version", help="show the version and exit")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns its exit code and prints what went wrong, if anything."""
    return run_command("pscp-serve", make_parser, _act, argv)


def _act(words: list[str]) -> int:
    given, texts = make_parser().read(words)
    what, tries = given.get("what", ""), given.get("tries", False)
    if texts:
        raise UsageError(f"{texts[0]!r}: pscp-serve takes options alone", f"usage: {USAGE}")
    if "json" in given and what != "status":
        raise UsageError("--json goes with --status")
    if (tries and (what or "config" in given)) or (what == "hash-password" and "config" in given):
        raise UsageError("--try and --hash-password stand alone")
    check_installed(*_PACKAGES)
    if what == "hash-password":
        return _hash_password()
    if tries:
        return _try()
    if "config" not in given:
        raise UsageError("--config FILE is needed", f"usage: {USAGE}; docs/serve.md shows a file")
    from pscp.serve.server.config import load

    settings = without_mistakes("pscp-serve", load, given["config"])
    if settings is None:
        return UsageError.exit_code
    return _served(given["config"], settings) if not what else _told(what, settings, given)


def _told(what: str, settings: Settings, given: dict[str, Any]) -> int:
    from pscp.serve.server import status
    from pscp.serve.server.config import unready

    if what == "check":
        found = [*unready(settings)]
        for text in found:
            write_line(sys.stderr, text)
        return 1 if found else 0
    known = status.ask(settings.state)
    if not known:
        raise PscpError(f"no server answers in {settings.state}", "it may be another user's")
    lines = [json.dumps(status.sessions(known))] if "json" in given else status.table(known)
    for text in lines:
        print_line(text)
    return 0


def _served(path: str, settings: Settings) -> int:
    from pscp.serve.server.process import prepared

    return prepared(os.path.abspath(path), settings).run()


def _hash_password() -> int:
    """Print the hash of a password, asked twice, or read from standard input where that is none."""
    import argon2

    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Once more: ") != password:
            raise UsageError("the two are not the same")
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise UsageError("the password is empty")
    print_line(argon2.PasswordHasher().hash(password))
    return 0


def _try() -> int:
    """Serve the current folder for a user "try", until a signal; nothing is left of it."""
    import argon2

    from pscp.serve.server.process import prepared
    from pscp.serve.settings import Settings, User

    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    rules = frozenset(["read", "write"])
    user = User("try", absolute("."), rules, password=argon2.PasswordHasher().hash(password))
    with tempfile.TemporaryDirectory(prefix="pscp-serve-") as state:
        port = _free_port()
        listen = (("0.0.0.0", port),)  # noqa: S104 - to be tried from elsewhere
        server = prepared("", Settings({"try": user}, listen, state=state, workers=1))

        def tell() -> None:
            print_line(f"serving {user.folder} until Ctrl-C; from here, or from elsewhere:")
            print_line(f"sftp -P {port} try@{socket.gethostname()}")
            print_line(f"password: {password}")
            print_line(f"host key: {server.keys[0].get_fingerprint()}")
            sys.stdout.flush()

        return server.run(tell)


def _free_port() -> int:
    for port in (_PORT, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError:
                continue
            found: int = tried.getsockname()[1]
            return found
    raise PscpError("no port is free")
