"""The entrance of a direct plane's lanes: a listening socket, and the tokens that admit them.

A stranger who connects is told nothing and costs no process: whoever connects first sends a token,
which counts once. With TLS the certificates are checked after that.

Not here: the lanes (direct.py at the far end, ../../connect/direct_plane.py at this one).
Read next: link.py.
"""

import binascii
import contextlib
import errno
import hmac
import os
import random
import select
import socket
import time
from typing import Callable, Dict, List, Optional, Tuple

from . import link

OPEN_S = 10.0  # a gate that lanes do not come to is closed after this
TOKENS_MAX = 256  # of a gate
TOKEN_BYTES = 16  # the half that whoever connects sends; the other half is the answer
_WAITING_MAX = 64  # connections that have sent no token; the oldest is closed for a new one
_FULL_S = 0.05  # a pause, where no more files can be open
_PORTS_MAX = 100  # of a range are tried

Prepare = Callable[[socket.socket], None]  # sets the options of a socket
Admitted = Callable[[socket.socket], None]  # gets a connection whose token was right


def new_token() -> str:
    """Return both halves of a token, in hex."""
    return os.urandom(2 * TOKEN_BYTES).hex()


def listen(address: str, ports: Tuple[int, int], prepare: Prepare) -> socket.socket:
    """Return a socket that listens at this address, on a port of the range; (0, 0): on any.

    Raises OSError where none is free.
    """
    numbers = range(ports[0], ports[1] + 1)
    error = OSError("no port")
    for port in random.sample(numbers, min(len(numbers), _PORTS_MAX)):
        sock, where = _new_socket(address, port)
        try:
            prepare(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(_WAITING_MAX)
            return sock
        except OSError as failure:
            sock.close()
            error = failure
    raise error


def dial(to: Tuple[str, int], prepare: Prepare, limit_s: float) -> socket.socket:
    """Return a socket that is connected to this address and port. Raises OSError."""
    sock, where = _new_socket(*to)
    try:
        prepare(sock)
        sock.settimeout(limit_s)
        sock.connect(where)
    except BaseException:
        sock.close()
        raise
    return sock


def _new_socket(address: str, port: int) -> "Tuple[socket.socket, Tuple[object, ...]]":
    """Return a socket, and the address in the form that its family takes."""
    family, kind, _, _, where = socket.getaddrinfo(
        address, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST
    )[0]
    return socket.socket(family, kind), where


def knock(sock: socket.socket, token: str) -> None:
    """Send a connected socket's token, and await the answer. Raises OSError."""
    halves = binascii.unhexlify(token)
    sock.settimeout(OPEN_S)
    sock.sendall(halves[:TOKEN_BYTES])
    answer = b""
    while len(answer) < TOKEN_BYTES:
        data = sock.recv(TOKEN_BYTES - len(answer))
        if not data:
            raise OSError("the connection was not let in")
        answer += data
    if not hmac.compare_digest(answer, halves[TOKEN_BYTES:]):
        raise OSError("something else answers there")
    sock.settimeout(None)
    link.keep_alive(sock)


class Gate:
    """Admits one connection for each token. For one thread."""

    def __init__(self, listening: socket.socket, tokens: List[str], stopping: int) -> None:
        """`stopping` is the descriptor of a pipe; once its other end is closed, run() ends."""
        self._listening, self._stopping = listening, stopping
        listening.setblocking(False)  # who has connected may be gone before that is accepted
        self._tokens = [binascii.unhexlify(token) for token in tokens]
        self._waiting: Dict[int, Tuple[socket.socket, bytes]] = {}  # the oldest first

    def run(self, admit: Admitted) -> None:
        """Call `admit` for each connection until all tokens were used, or OPEN_S have passed."""
        until_s = time.monotonic() + OPEN_S
        try:
            while self._tokens:
                ready = self._ready(until_s - time.monotonic())
                if not ready or self._stopping in ready:
                    return
                for fd in ready:
                    if fd == self._listening.fileno():
                        self._accept()
                    elif fd in self._waiting:
                        self._hear(fd, admit)
        finally:
            self.close()

    def close(self) -> None:
        """Close the gate, and the connections that wait before it."""
        self._listening.close()
        os.close(self._stopping)
        for sock, _ in self._waiting.values():
            sock.close()
        self._waiting.clear()

    def _ready(self, limit_s: float) -> List[int]:
        """Return the descriptors that have something to be read, or have ended; none: too late."""
        waiting = select.poll()
        for fd in (self._listening.fileno(), self._stopping, *self._waiting):
            waiting.register(fd, select.POLLIN)
        return [fd for fd, _ in waiting.poll(max(limit_s, 0) * 1000)]

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._drop_oldest()
                time.sleep(_FULL_S)
            return
        sock.setblocking(False)
        if len(self._waiting) >= _WAITING_MAX:
            self._drop_oldest()
        self._waiting[sock.fileno()] = sock, b""

    def _drop_oldest(self) -> None:
        if self._waiting:
            self._waiting.pop(next(iter(self._waiting)))[0].close()

    def _hear(self, fd: int, admit: Admitted) -> None:
        sock, got = self._waiting.pop(fd)
        try:
            data = sock.recv(TOKEN_BYTES - len(got))
        except OSError:
            data = b""
        got += data
        if data and len(got) < TOKEN_BYTES:
            self._waiting[fd] = sock, got
            return
        token = self._taken(got) if data else None
        if token is None:
            sock.close()
            return
        with contextlib.suppress(OSError):  # it is lost already, as its lane will find
            sock.setblocking(True)
            sock.sendall(token[TOKEN_BYTES:])
            link.keep_alive(sock)
        admit(sock)

    def _taken(self, first: bytes) -> Optional[bytes]:
        """Return the token with this first half, which then counts no more; None for none."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token[:TOKEN_BYTES], first):
                found = token
        if found is not None:
            self._tokens.remove(found)
        return found
