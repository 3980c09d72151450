"""The socket at which a library's program listens for further channels of its connection.

Not here: the programs that connect there (../mux_client.py), how a channel is opened
(asyncssh_helper.py, paramiko_helper.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pscp.transports.ssh_settings import Request

_REQUEST_MAX_BYTES = 64 * 1024


class MuxClient(NamedTuple):
    """A program that uses a channel of this connection: its request, and its descriptors."""

    sock: socket.socket
    fds: tuple[int, int, int]
    request: Request

    @classmethod
    def accept(cls, listener: socket.socket) -> MuxClient | None:
        """Accept a connection; None if it brings no request. Raises OSError if none is accepted."""
        sock, _ = listener.accept()
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(sock, _REQUEST_MAX_BYTES, 3)
            stdin, stdout, stderr = fds
            return cls(sock, (stdin, stdout, stderr), Request(*json.loads(data)))
        except (OSError, TypeError, ValueError):
            _close(sock, fds)
            return None

    def finish(self, status: int, error: Exception | None = None) -> None:
        """Tell the program its exit status, write the error to its standard error, and close."""
        if error is not None:
            with contextlib.suppress(OSError):
                os.write(self.fds[2], f"{error}\n".encode())
        with contextlib.suppress(OSError):
            self.sock.sendall(status.to_bytes(4, "big", signed=True))
        _close(self.sock, self.fds)


def _close(sock: socket.socket, fds: Sequence[int]) -> None:
    sock.close()
    for fd in fds:
        os.close(fd)


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
