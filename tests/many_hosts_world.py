"""A world for tests of copies to several far hosts: real sshds that share this machine's files, and
some that have another file system mounted, in a mount namespace of their own.

Not here: what must have come of it (faults/test_many_hosts.py).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servers.private import SshdServer

from pscp.ground.processes import end_all_below


class ApartSshd(SshdServer):
    """An sshd that runs a line of shell first, in a mount namespace of its own."""

    def __init__(self, mounts: str, *extra: str, **more: Any) -> None:
        self._mounts = mounts
        super().__init__(extra, **more)

    def _spawn(
        self, argv: Sequence[str], cwd: Path | None, *, pipes: bool
    ) -> subprocess.Popen[bytes]:
        words = ["unshare", "--mount", "sh", "-c", f'{self._mounts} && exec "$@"', "sh", *argv]
        return super()._spawn(words, cwd, pipes=pipes)


class Cluster:
    """Hosts dm1, dm2, ... of one ssh_config. It stands in for the server of a test's Way."""

    def __init__(self, folder: Path, *servers: Any) -> None:
        self.servers = list(servers)
        self._path = folder / "cluster_config"
        self.names = [f"dm{number}" for number, _ in enumerate(servers, 1)]
        self._blocks = dict(zip(self.names, map(_block, servers), strict=True))
        self._logins = [_logins(server) for server in servers]
        self._write()

    def _write(self) -> None:
        blocks = (f"Host {name}\n{block}" for name, block in self._blocks.items())
        new = self._path.with_suffix(".new")
        new.write_text("".join(blocks))
        new.rename(self._path)

    @property
    def ssh_config(self) -> str:
        return str(self._path)

    @property
    def host(self) -> str:
        """What stands before the ":"."""
        return ",".join(self.names)

    def dead(self, name: str) -> None:
        """From now on, nobody listens at this host; nor does what is connected to it live on."""
        self._blocks[name] = re.sub("Port .*", "Port 1", self._blocks[name])
        self._write()
        self.cut(name)

    def becomes(self, name: str, server: Any) -> None:
        """From now on, this host is another server, and what is connected to it is cut."""
        self._blocks[name] = _block(server)
        self._write()
        self.cut(name)

    def cut(self, name: str) -> None:
        """Kill what runs at this host."""
        if (number := int(name[2:]) - 1) < len(self.servers):
            end_all_below(self.servers[number].pid)

    def logins(self) -> list[int]:
        """How many logins there were at each server, since this was made."""
        counts = zip(self.servers, self._logins, strict=True)
        return [_logins(server) - before for server, before in counts]


def _logins(server: Any) -> int:
    count: int = server.log.count("\nAccepted publickey ")
    return count


def _block(server: Any) -> str:
    return str(Path(server.ssh_config).read_text().partition("\n")[2])
