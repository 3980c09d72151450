"""The channels of the direct plane: a TCP connection, or the program that encrypts for one.

Not here: how the connection is made (../connect/direct_plane.py), TLS itself
(../endpoint/plane/link.py), what the process runs (tls_pump.py).
Read next: tls_pump.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

from pscp.endpoint.frames import system
from pscp.endpoint.plane import link
from pscp.ground.errors import ConnectionLost, PscpError
from pscp.transports.channel import Channel
from pscp.transports.openssh import Child


class PlainChannel(Channel):
    """The socket of one lane, without a cipher."""

    pid = 0  # no process encrypts

    def __init__(self, sock: socket.socket) -> None:
        self.link = link.PlainLink(sock)
        self.read_fd = self.write_fd = sock.fileno()
        self.error_fd = os.open(os.devnull, os.O_RDONLY)  # what the agent writes goes over SSH
        self._closing = threading.Lock()  # guards what follows
        self._is_closed = False

    def read(self, spaces: list[memoryview]) -> int:
        try:
            return super().read(spaces)
        except OSError as error:  # a reset, or the kernel has given the connection up
            raise ConnectionLost(f"a direct lane: {error.strerror}") from None

    def write(self, header: bytes, payload: system.Payload) -> None:
        try:
            self.link.send(header, payload)
        except OSError as error:
            raise ConnectionLost(f"a direct lane: {error.strerror}") from None

    def end(self) -> None:
        with self._closing:
            if not self._is_closed:
                self.link.hang_up()

    def close(self) -> None:
        self.end()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self.link.socket.close()
                os.close(self.error_fd)

    def explain(self, messages: str, /) -> PscpError:
        return ConnectionLost("a direct lane was closed")


class TlsPump(Child):
    """A process that encrypts for a lane. It is started first, and gets its connection later."""

    def __init__(self, cpu: int | None) -> None:
        self._control, its = socket.socketpair()
        program = os.path.join(os.path.dirname(__file__), "tls_pump.py")
        package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        argv = [sys.executable or "python3", "-I", "-S", program, package, str(its.fileno())]
        with its:
            super().__init__(argv, False, cpu, None, pass_fds=(its.fileno(),))

    def begin(
        self, sock: socket.socket, own: str, peer: str, *, token: str, is_server: bool
    ) -> None:
        """Hand it this connection.

        `own` is the private key and certificate (PEM), `peer` the one certificate that is accepted,
        `token` what lets the connection in, "" where that was done. Raises OSError.
        """
        settings = {"own": own, "peer": peer, "token": token, "is_server": is_server}
        with self._control:
            socket.send_fds(self._control, [json.dumps(settings).encode("ascii")], [sock.fileno()])

    def close(self) -> None:
        self._control.close()
        super().close()
