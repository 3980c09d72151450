"""Where the TCP socket of a channel's connection is: in an ssh process, or in this one.

Linux lends a process the descriptors of its children (pidfd_getfd(2)), unless Yama or a container's
seccomp profile forbids it. An option that is set on the lent descriptor is the connection's.

Not here: options that are set before a socket connects (socket_options.py), what a
connected one says (../endpoint/tcp_socket.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take 9 ms more to load
import contextlib
import os
from typing import TYPE_CHECKING

from pscp.endpoint.tcp_socket import LiveSocket

if TYPE_CHECKING:
    from pscp.transports import Channel

_PIDFD_GETFD = 438  # the same on every architecture
_DESCRIPTORS_MAX = 64  # that are looked at: ssh opens its connection as one of the first


def of_channel(channel: Channel) -> LiveSocket | None:
    """Return the connected TCP socket of a channel, or a duplicate; None where there is none."""
    if channel.pid:
        return borrow(channel.pid)
    try:
        return _connected_tcp(os.dup(channel.read_fd))
    except OSError:  # it is closed
        return None


def borrow(pid: int) -> LiveSocket | None:
    """Return the connected TCP socket of a child process; None where it has or lends none."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux; or the process is gone
        return None
    try:
        if not _is_running_child(process):
            return None
        for number in _sockets_of(pid):
            lent = _lent(process, number)
            found = _connected_tcp(lent) if lent >= 0 else None
            if found is not None:
                return found
        return None
    finally:
        os.close(process)


def _is_running_child(process: int) -> bool:
    """Return whether this is a child of ours: its id may be another process's by now."""
    try:
        return os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except OSError:
        return False


def _sockets_of(pid: int) -> list[int]:
    """Return the numbers of a process's first descriptors that are sockets."""
    found = []
    for number in range(_DESCRIPTORS_MAX):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                found.append(number)
    return found


def _lent(process: int, number: int) -> int:
    """Return a duplicate of a process's descriptor; -1 where it lends none."""
    import ctypes  # here: only far pushes need it

    return int(ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, number, 0))


def _connected_tcp(descriptor: int) -> LiveSocket | None:
    """Return the socket that has this descriptor; close any other than a connected one of TCP."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        os.close(descriptor)
        return None
    try:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            found.getpeername()
            return LiveSocket(found)
    except OSError:  # it is not connected
        pass
    found.close()
    return None
