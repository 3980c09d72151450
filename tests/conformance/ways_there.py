"""The ways to a far end that the suite runs over, each as "open a channel to this command".

A way that is added to pscp/transports is added to WAYS, and nothing else changes.

Read next: test_channels.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import far_environment
from lent_clients import lent_client
from servers.private import PrivateServer

from pscp.ground.errors import PscpError
from pscp.ground.locations import Location
from pscp.options.options import Options, with_fields
from pscp.transports import Channel, Control, Request, SshSetup, open_channel
from pscp.transports.libraries.external import LentChannel
from pscp.transports.openssh import error_of

Open = Callable[[str], Channel]  # takes the remote command
TRANSPORTS = ("openssh", "asyncssh", "paramiko")
LENT = ("asyncssh lent", "paramiko lent")  # connections of the program's own
RIDING = ("openssh riding", "asyncssh riding", "paramiko riding")  # further channels of one
WAYS = ("local", *TRANSPORTS, *RIDING, *LENT)
ENDING_S = 10.0


class LocalChannel(Channel):
    """A channel without a way: the command runs here, and these are its pipes."""

    pid = 0

    def __init__(self, command: str, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            ["sh", "-c", command], env=environment, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._files = (self._child.stdin, self._child.stdout, self._child.stderr)
        self.write_fd, self.read_fd, self.error_fd = (file.fileno() for file in self._files)

    def end(self) -> None:
        self._child.terminate()

    def close(self) -> None:
        self.end()
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        self._child.wait()

    def explain(self, messages: str, /) -> PscpError:
        return error_of(self._child.wait(ENDING_S), messages)


def opener(way: str, request: pytest.FixtureRequest, folder: Path) -> Open:
    """What opens channels of this way. `folder` is for what the way needs at the far end."""
    if way == "local":
        environment = far_environment(folder, folder, sys.executable)
        return lambda command: LocalChannel(command, environment)
    server: PrivateServer = request.getfixturevalue("sshd")
    transport, _, how = way.partition(" ")
    if how == "lent":
        stack = contextlib.ExitStack()
        request.addfinalizer(stack.close)
        client = stack.enter_context(lent_client(transport, server))
        return lambda command: LentChannel(client, Request(command))
    plain = Options(config_file=server.ssh_config, batch=True)
    options = with_fields(plain, {"transport": transport})
    host = Location("", "", host=server.host)
    control = master(request, host, options, folder) if how else None
    return lambda command: open_channel(
        host, options, SshSetup(), command, may_prompt=False, number=0, control=control
    )


def master(
    request: pytest.FixtureRequest, host: Location, options: Options, folder: Path
) -> Control:
    """The socket of a connection that is there."""
    path = str(folder / "control")
    first = open_channel(
        host, options, SshSetup(), "echo up; cat", may_prompt=False, number=0,
        control=Control(path, is_master=True),
    )  # fmt: skip
    request.addfinalizer(first.close)
    assert os.read(first.read_fd, 3) == b"up\n"
    return Control(path, is_master=False)
