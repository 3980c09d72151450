"""The socket of a lane on the direct plane: plain, or with TLS 1.3. Both ends use it.

A link reads into a decoder's spaces, and sends frames. TLS works on memory here (ssl.MemoryBIO), so
that one system call receives many records: reading 1 GiB costs 1.0 to 1.2 CPU-seconds so, and 1.45
through an SSLSocket, which makes two calls for each record of 16 KiB.

Not here: who may connect (gate.py), the frames (../frames/wire.py), the descriptors of a channel of
SSH (../serving/agent.py).
"""

import contextlib
import os
import select
import socket
import sys
import threading
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, Union

from ..frames import system, wire

try:
    import ssl

    HAS_TLS = getattr(ssl, "HAS_TLSv1_3", False)
except ImportError:  # this Python was built without OpenSSL
    HAS_TLS = False

# A lane ends, and another one begins, when a key has encrypted so much: the ssl module cannot
# change keys, and RFC 8446 (5.5) lets AES-GCM encrypt 2**24.5 records of 16 KiB with one.
KEY_BYTES = 256 << 30
SILENCE_S = 60  # the kernel gives a connection up whose other end is silent for so long
HANDSHAKE_S = 10.0
_RECEIVE_BYTES = 128 * 1024
_CARRY_BYTES = 256 * 1024
_SEND_BYTES = 64 * 1024  # are encrypted before they are sent; four records

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # socket(7); Python has no names for them

Wait = Optional[Callable[[], None]]  # returns once there is something to receive; may raise
Bytes = Union[bytes, memoryview]


def prepare(sock: socket.socket, congestion: str, rcvbuf: int, sndbuf: int) -> None:
    """Set the options of a socket, before it connects or listens; "" and 0 leave the kernel's.

    Raises OSError where the kernel does not offer this congestion control.
    """
    if congestion:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode("ascii"))
    for force, option, size in (
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF, rcvbuf),
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF, sndbuf),
    ):
        if size and not _has_set(sock, force, size):
            sock.setsockopt(socket.SOL_SOCKET, option, size)


def _has_set(sock: socket.socket, force: int, size: int) -> bool:
    """Set a buffer beyond net.core.rmem_max or wmem_max, as root may on Linux."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, size)
    except OSError:
        return False
    return True


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel notice within SILENCE_S that the other end is gone, and send at once.

    TCP_USER_TIMEOUT is left alone: it would end a lane whose consumer has stood still for so long.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENCE_S // 4),
        ("TCP_KEEPINTVL", SILENCE_S // 4),
        ("TCP_KEEPCNT", 3),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class PlainLink:
    """A lane's socket without a cipher."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._fd = sock.fileno()

    @contextlib.contextmanager
    def lend_fds(self) -> Iterator[Tuple[int, int]]:
        """Lend descriptors, to read from and to write to, by which another process has the lane."""
        yield self._fd, self._fd

    def hang_up(self) -> None:
        """End the connection. From any thread."""
        _end(self.socket, socket.SHUT_RDWR)

    def read(self, spaces: Sequence[memoryview], wait: Wait = None) -> int:
        """Read what has come into the spaces, and return the number of bytes; 0 at the end."""
        if wait is not None:
            wait()
        return os.readv(self._fd, spaces)

    def send(self, header: bytes, payload: system.Payload) -> None:
        """Send a frame; of a file its pages, not a copy of them, if possible."""
        if not isinstance(payload, system.Block) or payload.fd < 0 or not hasattr(os, "sendfile"):
            system.write_all(self._fd, [header, *_parts(payload)])
            return
        file_fd = payload.fd
        system.send_pages(
            self._fd, header, payload, lambda at, n: os.sendfile(self._fd, file_fd, at, n)
        )


class TlsLink:
    """A lane's socket with TLS 1.3. One thread reads, any thread sends."""

    def __init__(self, sock: socket.socket, context: "ssl.SSLContext", is_server: bool) -> None:
        self.socket = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=is_server)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._sent_bytes = 0  # by the thread that holds _sending
        self._sending = threading.Lock()  # held until a frame's records are sent, in their order
        self._turn = threading.Lock()  # OpenSSL's object serves one thread at a time

    @contextlib.contextmanager
    def lend_fds(self) -> Iterator[Tuple[int, int]]:
        """Lend descriptors, to read from and to write to, by which another process has the lane.

        Two threads decrypt and encrypt meanwhile.
        """
        ours, theirs = socket.socketpair()
        stopping, stop = os.pipe()
        fd = ours.fileno()

        def bring() -> None:
            self.bring(fd, stopping)
            _end(ours, socket.SHUT_WR)

        def take() -> None:
            self.take(fd)
            _end(ours, socket.SHUT_RD)

        threads = [threading.Thread(target=run, daemon=True) for run in (bring, take)]
        try:
            for thread in threads:
                thread.start()
            yield theirs.fileno(), theirs.fileno()
        finally:
            theirs.close()
            os.close(stop)
            for thread in threads:
                thread.join()
            os.close(stopping)
            ours.close()

    def bring(self, fd: int, stopping: Optional[int] = None) -> None:
        """Write what comes to a descriptor, until the lane ends, or `stopping` has its end."""
        space = memoryview(bytearray(_CARRY_BYTES))
        waiting = select.poll()
        for each in (self.socket.fileno(), *([stopping] if stopping is not None else [])):
            waiting.register(each, select.POLLIN)

        def wait() -> None:
            if any(each == stopping for each, _ in waiting.poll()):
                raise OSError("the lane is no longer lent")

        with contextlib.suppress(OSError):
            count = self.read([space], wait)
            while count:
                system.write_all(fd, [space[:count]])
                count = self.read([space], wait)

    def take(self, fd: int) -> None:
        """Send what is read from a descriptor, until its end or the lane's."""
        space = memoryview(bytearray(_CARRY_BYTES))
        with contextlib.suppress(OSError):
            count = os.readv(fd, [space])
            while count:
                self.send(b"", space[:count])
                count = os.readv(fd, [space])

    def end_input(self) -> None:
        """Let the other end see the end of its input."""
        _end(self.socket, socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection. From any thread."""
        _end(self.socket, socket.SHUT_RDWR)

    def shake_hands(self, peer: str) -> None:
        """Agree on keys with the other end, whose certificate must be `peer` (PEM).

        Raises OSError, of which ssl.SSLError is one, also after HANDSHAKE_S.
        """
        self.socket.settimeout(HANDSHAKE_S)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise OSError("the connection closed during the handshake")
            finally:
                with contextlib.suppress(OSError):  # an alert tells the other end why
                    self._flush()
        if self._tls.getpeercert(True) != ssl.PEM_cert_to_DER_cert(peer):
            raise ssl.SSLError("another certificate than that of this run")
        self.socket.settimeout(None)

    def _flush(self) -> None:
        records = self._out.read()
        if records:
            self.socket.sendall(records)

    def _receive(self) -> bool:
        count = self.socket.recv_into(self._received)
        with self._turn:
            self._in.write(self._received[:count])
        return count > 0

    def read(self, spaces: Sequence[memoryview], wait: Wait = None) -> int:
        """Read what has come into the spaces, and return the number of bytes; 0 at the end."""
        count = self._decrypt(spaces)
        while not count:
            if wait is not None:
                wait()
            if not self._receive():
                return 0
            count = self._decrypt(spaces)
        return count

    def _decrypt(self, spaces: Sequence[memoryview]) -> int:
        """Decrypt the records that have come whole, up to a header: its block has another place."""
        done = 0
        with self._turn, contextlib.suppress(ssl.SSLWantReadError):
            for space in spaces:
                filled = 0
                while filled < len(space):
                    count = int(self._tls.read(len(space) - filled, space[filled:]))
                    filled, done = filled + count, done + count
                    if not count or count == wire.HEADER.size:
                        return done
        return done

    def send(self, header: bytes, payload: system.Payload) -> None:
        """Send a frame."""
        with self._sending:
            for part in (header, *_parts(payload)):
                view = memoryview(part)
                for begin in range(0, len(view), _SEND_BYTES):
                    self.socket.sendall(self._encrypted(view[begin : begin + _SEND_BYTES]))

    def _encrypted(self, view: memoryview) -> bytes:
        self._sent_bytes += len(view)
        if self._sent_bytes > KEY_BYTES:
            raise OSError("its key has encrypted enough")
        with self._turn:
            while view:
                view = view[self._tls.write(view) :]  # a record of 16 KiB at most
            return self._out.read()


def _end(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(how)


Link = Union[PlainLink, TlsLink]


def _parts(payload: system.Payload) -> List[Bytes]:
    if isinstance(payload, system.Block):
        return [payload.view, payload.check]
    return [payload.view if isinstance(payload, system.Lent) else payload]


def context(is_server: bool, own: str, peer: str) -> "ssl.SSLContext":
    """Return the context of one end.

    `own` is its private key and certificate (PEM), `peer` the one certificate that it accepts.
    Raises OSError where this Python has no TLS 1.3.
    """
    if not HAS_TLS:
        raise OSError("this Python has no TLS 1.3")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(made, "minimum_version"):
        made.minimum_version = ssl.TLSVersion.TLSv1_3
    else:  # Python 3.6
        made.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1 | ssl.OP_NO_TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=peer)
    with system.closing(nameless(own.encode("ascii"))) as fd:
        made.load_cert_chain("/dev/fd/%d" % fd)
    return made


def nameless(content: bytes) -> int:
    """Return a descriptor of a file in memory with this content; where there is none, of a file
    that has lost its name before anything is in it.
    """
    create: Optional[Callable[[str], int]] = getattr(os, "memfd_create", None)
    if create is not None:
        fd = create("pscp")
    else:
        import tempfile  # here: it takes long to load

        fd, path = tempfile.mkstemp()
        os.unlink(path)
    try:
        system.write_all(fd, [content])
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
