"""pscp-serve beside the stock sshd of a link, for clients that push to both.

Not here: the links (links.py), the clients (tools.py). Read next: regimes.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from links import FAR, READY_S, LabServer, Link, started
from servers.private import ADDRESS, PrivateServer, free_port
from tools import Run, Tool

PSCP_SERVE = (sys.executable, "-c", "from pscp.cli.start import pscp_serve; pscp_serve()")


class ServeServer(PrivateServer):
    """A pscp-serve whose user sees one folder."""

    kind = "pscp-serve"

    def __init__(self, far: Sequence[str], address: str, home: Path) -> None:
        self.far, self.address, self.home = far, address, home
        super().__init__()

    def _start(self) -> None:
        self.port = free_port()
        config = self.folder / "serve.toml"
        config.write_text(
            f'listen = "{self.address}:{self.port}"\nhost-keys = "host_key"\nstate = "state"\n'
            f'log = "serve.log"\n[user.{self.user}]\nfolder = "{self.home}"\n'
            'rules = ["read", "write"]\nkeys = "authorized_keys"\n'
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(self.folder / "notify"))
            told.settimeout(READY_S)
            words = [f"NOTIFY_SOCKET={self.folder}/notify", *PSCP_SERVE, "--config", str(config)]
            self._process = self._spawn([*self.far, "env", *words], None, pipes=False)
            try:
                told.recv(4096)
            except TimeoutError:
                raise self._failure() from None

    def _spawn(
        self, argv: Sequence[str], cwd: Path | None, *, pipes: bool
    ) -> subprocess.Popen[bytes]:
        os.environ.pop("NOTIFY_SOCKET", None)
        return super()._spawn(argv, cwd, pipes=pipes)

    def _write_client_files(self) -> None:
        super()._write_client_files()
        for name in ("known_hosts", "ssh_config"):
            file = self.folder / name
            file.write_text(file.read_text().replace(ADDRESS, self.address))


class HpnServer(LabServer):
    """HPN-SSH's server, where it is installed."""

    kind = "hpnsshd"
    find = staticmethod(lambda: shutil.which("hpnsshd"))


@contextlib.contextmanager
def servers(path: AbstractContextManager[Link], home: Path) -> Iterator[Link]:
    """A link whose far end has pscp-serve for what lies in this folder, and hpnsshd if it can."""
    with path as link, contextlib.ExitStack() as until_end:
        far, listen = FAR if link.near else (), f"ListenAddress {link.address}"
        hpn = None
        if HpnServer.find():
            words: Callable[[Sequence[str], int], Sequence[str]] = lambda argv, _: [*far, *argv]  # noqa: E731
            make = functools.partial(HpnServer, words, link.address, listen)
            hpn = until_end.enter_context(started(make))
        with started(lambda: ServeServer(far, link.address, home)) as server:
            yield replace(link, serve=server, hpn=hpn)


def served(tool: Tool) -> Tool:
    """The same tool, when it pushes to pscp-serve."""

    def command(run: Run) -> list[str]:
        assert run.link.serve is not None
        link = replace(run.link, server=run.link.serve)
        return tool.command(replace(run, link=link, out=Path("/") / run.out.name))

    return _of_server(tool, "pscp-serve", command)


def served_by_hpn(tool: Tool) -> Tool:
    """The same tool, when it pushes to hpnsshd."""

    def command(run: Run) -> list[str]:
        assert run.link.hpn is not None
        return tool.command(replace(run, link=replace(run.link, server=run.link.hpn)))

    return _of_server(tool, "hpnsshd", command)


def _of_server(tool: Tool, server: str, command: Callable[[Run], list[str]]) -> Tool:
    name, program = f"{tool.name}, {server}", tool.program or tool.name
    return replace(tool, name=name, command=command, program=program)
