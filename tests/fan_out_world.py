"""A world for tests of the fan-out: hosts that are good, dead, closed to us, or that stand still.

Not here: what must have come of it (e2e/test_fan_out.py, faults/test_fan_out.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from conftest import until
from programs import script
from servers.private import PrivateServer, make_key

MIB = 1024 * 1024

# ssh's ProxyCommand for a host that takes so many bytes, and then none until FILE.go is there.
RELAY = """
import os, socket, sys, threading, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
most, name, parent = int(sys.argv[2]), sys.argv[3], os.getppid()
def back():
    while data := sock.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
done = 0
while data := os.read(0, 65536):
    done += len(data)
    if done > most and not os.path.exists(name + ".go"):
        with open(name + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(name + ".new", name + ".stands")
        while not os.path.exists(name + ".go"):
            if os.getppid() != parent:
                os._exit(0)
            time.sleep(0.005)
    sock.sendall(data)
"""


class Hosts:
    """Hosts of one ssh_config, all of which are one server. Each has a folder of its own."""

    def __init__(self, folder: Path, server: PrivateServer) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.source.mkdir()
        self.ssh_config = folder / "ssh_config"
        self._server = server
        self._plain = Path(server.ssh_config).read_text()
        self.ssh_config.write_text("")

    def good(self, name: str) -> str:
        """Return a destination at a host of this name."""
        return self._add(name, "")

    def dead(self, name: str) -> str:
        """Return one where nobody listens."""
        return self._add(name, "Port 1\n")

    def closed(self, name: str) -> str:
        """Return one that refuses the login."""
        key = self.folder / f"{name}.key"
        make_key(key)
        return self._add(name, f"IdentityFile {key}\n", without="IdentityFile")

    def still(self, name: str, most_bytes: int) -> str:
        """Return one that stands still after so many bytes, until go()."""
        words = [sys.executable, "-IS", "-c", RELAY, str(self._server.port), str(most_bytes)]
        quoted = shlex.join([*words, str(self.folder / name)]).replace("%", "%%")
        program = script(self.folder / f"{name}.sh", f"exec {quoted}")
        return self._add(name, f"ProxyCommand {program}\n")

    def _add(self, name: str, first: str, without: str = "nothing") -> str:
        self.at(name).mkdir()
        plain = re.sub(rf"(?m)^{without} .*\n", "", self._plain)
        block = plain.replace(f"Host {self._server.host}\n", f"Host {name}\n{first}")
        with open(self.ssh_config, "a") as file:
            file.write(block)
        return f"{name}:{self.at(name)}/"

    def at(self, name: str) -> Path:
        """Return the folder of a host."""
        return self.folder / f"at-{name}"

    def stands(self, name: str) -> bool:
        """Return whether the host stands still."""
        return (self.folder / f"{name}.stands").exists()

    def wait_until_stands(self, *names: str) -> None:
        until(lambda: all(map(self.stands, names)), "they stand still")

    def stop(self, name: str) -> None:
        """Stop for ever, by SIGSTOP, what stands still."""
        os.kill(int((self.folder / f"{name}.stands").read_text()), signal.SIGSTOP)
        self.go(name)

    def wake(self, name: str) -> None:
        """Have what was stopped go on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"{name}.stands").read_text()), signal.SIGCONT)

    def go(self, name: str) -> None:
        """Have a host that stands still go on."""
        (self.folder / f"{name}.go").touch()

    def fill(self, name: str, size: int) -> bytes:
        """Make a file of the source, and return what is in it."""
        data = os.urandom(size)
        (self.source / name).write_bytes(data)
        return data
