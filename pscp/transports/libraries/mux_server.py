"""The socket at which a library's program listens for further channels of its connection.

Not here: the programs that connect there (../mux_client.py), how a channel is opened
(asyncssh_helper.py, paramiko_helper.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator

from pscp.transports.ssh_settings import Request

_REQUEST_MAX_BYTES = 64 * 1024


class MuxClient:
    """A program that uses a channel of this connection: its request, and its descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        """Receive the request and descriptors. Raises OSError, and ValueError for no request."""
        self.sock = sock
        data, fds, _, _ = socket.recv_fds(sock, _REQUEST_MAX_BYTES, 3)
        self.fds = fds
        try:
            self.request = Request(*json.loads(data))
        except (TypeError, ValueError):
            self.close()
            raise ValueError("no request") from None
        if len(fds) != 3:
            self.close()
            raise ValueError("no descriptors")

    @classmethod
    def accept(cls, listener: socket.socket) -> MuxClient | None:
        """Accept a connection; None if it brings no request. Raises OSError if none is accepted."""
        sock, _ = listener.accept()
        try:
            return cls(sock)
        except (OSError, ValueError):
            sock.close()
            return None

    def finish(self, status: int, error: Exception | None = None) -> None:
        """Tell the program its exit status, write the error to its standard error, and close."""
        if error is not None:
            with contextlib.suppress(OSError):
                os.write(self.fds[2], f"{error}\n".encode())
        with contextlib.suppress(OSError):
            self.sock.sendall(status.to_bytes(4, "big", signed=True))
        self.close()

    def close(self) -> None:
        self.sock.close()
        while self.fds:
            os.close(self.fds.pop())


@contextlib.contextmanager
def listening(path: str) -> Iterator[socket.socket | None]:
    """Listen for further channels, in a folder that only the user may enter; None for no path."""
    if not path:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        os.chmod(f"{path}.new", 0o600)
        listener.listen(16)
        os.rename(f"{path}.new", path)  # from here on clients see it, and can connect
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
