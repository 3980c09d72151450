"""ssh's ProxyCommand where the socket needs settings: makes it, connects it, and passes it to ssh.

    python3 -I -S fdpass.py HOST PORT FAMILY TIMEOUT_S ADDRESS CONGESTION RCVBUF_BYTES SNDBUF_BYTES

A program by itself. Its standard input and output are a Unix socket, from which ssh takes the
connected socket (ProxyUseFdpass). "none" and "-" stand for what is not asked for. Its messages are
ssh's own, so that they are read as ssh's (openssh.py).

Not here: which settings, and whether (socket_options.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take most of the time: 20 ms in all instead of 12
import errno
import os
import select
import sys
from time import monotonic

_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
_Found = list[tuple[int, int, int, str, _Address]]  # the result of getaddrinfo(3)

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class SshIsGone(Exception):
    """The process that waits for the socket has ended."""


def main(words: list[str]) -> int:
    host, port, family = words[:3]
    try:
        found = socket.getaddrinfo(host.encode(), port, FAMILIES.get(family, 0), socket.SOCK_STREAM)
    except OSError as error:
        print(f"ssh: Could not resolve hostname {host}: {error.strerror}", file=sys.stderr)
        return 255
    try:
        made, to_ssh = connected(found, *words[3:]), socket.socket(fileno=1)
        number = made.fileno().to_bytes(4, sys.byteorder)
        to_ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, number)])
    except OSError as error:
        print(f"ssh: connect to host {host} port {port}: {error.strerror}", file=sys.stderr)
        return 255
    except (SshIsGone, KeyboardInterrupt):
        return 255
    return 0


def connected(
    found: _Found, timeout_s: str, address: str, congestion: str, *sizes: str, watched_fd: int = 0
) -> socket.socket:
    """Connect a socket to the first of these addresses that answers.

    Raises the last address's OSError, and SshIsGone when the other end of `watched_fd` closes.
    """
    until_s = None if timeout_s == "none" else monotonic() + int(timeout_s)
    failure = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, peer in found:
        try:
            made = socket.socket(family, kind, protocol)
            if congestion != "-":
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            for option, size in zip((socket.SO_RCVBUF, socket.SO_SNDBUF), sizes, strict=True):
                if size != "-":
                    made.setsockopt(socket.SOL_SOCKET, option, int(size))
            if address != "-":
                made.bind(socket.getaddrinfo(address.encode(), None, family, kind)[0][4])
            _connect(made, peer, until_s, watched_fd)
            return made
        except OSError as error:
            failure = error
    raise failure


def _connect(made: socket.socket, peer: _Address, until_s: float | None, watched_fd: int) -> None:
    """Connect the socket. Raises SshIsGone when the other end of `watched_fd` closes."""
    made.setblocking(False)
    code = made.connect_ex(peer)
    if code == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(made.fileno(), select.POLLOUT)
        poll.register(watched_fd, 0)
        left_ms = None if until_s is None else max(0.0, until_s - monotonic()) * 1000
        ready = dict(poll.poll(left_ms))
        if watched_fd in ready:
            raise SshIsGone
        code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
    if code:
        raise OSError(code, os.strerror(code))
    made.setblocking(True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
