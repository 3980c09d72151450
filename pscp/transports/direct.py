"""The channels of the direct plane: a TCP connection, or the program that encrypts for one.

Not here: how the connection is made (../connect/direct_plane.py), TLS itself
(../endpoint/link.py), the program (tls_pump.py).
Read next: tls_pump.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from pscp.endpoint import link
from pscp.errors import ConnectionLost, PscpError
from pscp.transports.control_sockets import Control
from pscp.transports.openssh import Child


class PlainChannel:
    """The socket of one lane, without a cipher."""

    control: Control | None = None
    needs_agent = True  # not SFTP
    pid = 0  # no process encrypts

    def __init__(self, sock: socket.socket) -> None:
        self.link = link.PlainLink(sock)
        self.read_fd = self.write_fd = sock.fileno()
        self.error_fd = os.open(os.devnull, os.O_RDONLY)  # what the agent writes goes over SSH
        self._closing = threading.Lock()  # guards what follows
        self._is_closed = False

    def end(self) -> None:
        with self._closing:
            if not self._is_closed:
                self.link.hang_up()

    def let_go(self, patience_s: float) -> None:
        """Close it at once, since it has no login of its own."""
        self.close()

    def close(self) -> None:
        self.end()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self.link.socket.close()
                os.close(self.error_fd)

    def lent(self) -> None:
        raise AssertionError("a direct lane is not given to a child process")

    def explain(self, messages: str, /) -> PscpError:
        return ConnectionLost("a direct lane was closed")


def tls_channel(
    sock: socket.socket, own: str, peer: str, *, is_server: bool, cpu: int | None
) -> Child:
    """Return a process that encrypts for this connection, which it takes over.

    `own` is the private key and certificate (PEM), `peer` the one certificate that is accepted.
    """
    settings = json.dumps({"own": own, "peer": peer, "is_server": is_server})
    fd = link.nameless(settings.encode("ascii"))
    try:
        start = (
            "import sys; sys.path.append(sys.argv.pop(1)); "
            "from pscp.transports.tls_pump import main; main()"
        )
        package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        words = [sys.executable or "python3", "-I", "-S", "-c", start, package]
        fds = (sock.fileno(), fd)
        return Child([*words, *map(str, fds)], False, cpu, None, pass_fds=fds)
    finally:
        os.close(fd)
        sock.close()
