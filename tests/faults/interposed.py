"""Puts relay.py between the coordinator and what it starts for a lane, whichever that is.

For openssh with an agent `-S` does that. Here: the programs that run asyncssh and paramiko, and the
one that stands in for an agent over SFTP.

Not here: what the relay does (relay.py), who asks for it (conftest.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pscp import transports
from pscp.sftp import channel as sftp

# As a module, since that is compiled once, and a program each time.
RELAY = f"import sys; sys.path.append({str(Path(__file__).parents[1])!r})\n"
RELAY += "from faults.relay import main; main()"
OPENING = vars(transports)  # where open_channel() looks up how a program is started
FOLDER = "PSCP_TEST_RELAY"  # in the environment of a command (conftest.py, PROGRAM)


def relay_argv(folder: str, kind: str) -> list[str]:
    """What goes in front of a command; `kind` is who is at its other end: agent or sftp."""
    return [sys.executable, "-I", "-S", "-c", RELAY, folder, kind]


def interpose(folder: str) -> None:
    """In this process, for all lanes that begin from now on."""
    program_argv, main = OPENING["program_argv"], sftp._MAIN

    def through_relay(transport: str, settings: Any) -> list[str]:
        argv: list[str] = program_argv(transport, settings)
        return argv if settings.request.is_subsystem else [*relay_argv(folder, "agent"), *argv]

    words = [*relay_argv(folder, "sftp"), sys.executable, "-I", "-c", main]
    OPENING["program_argv"] = through_relay
    sftp._MAIN = f"import os, sys; os.execv(sys.executable, [*{words!r}, *sys.argv[1:]])"


@contextmanager
def interposed(folder: str) -> Iterator[None]:
    """The same, and afterwards it is as it was."""
    program_argv, main = OPENING["program_argv"], sftp._MAIN
    interpose(folder)
    try:
        yield
    finally:
        OPENING["program_argv"], sftp._MAIN = program_argv, main
