"""The TCP socket of a running ssh process: how its sending goes, and its congestion control.

Linux lends a process the descriptors of its children (pidfd_getfd(2)), unless Yama or a container's
seccomp profile forbids it. An option that is set on the lent descriptor is the connection's.

Not here: options that are set before a socket connects (socket_options.py), which congestion
control is good (transfer/congestion.py).
"""

from __future__ import annotations

import _socket as socket  # socket.py would take 9 ms more to load
import contextlib
import os
import struct
from typing import NamedTuple

_PIDFD_GETFD = 438  # the same on every architecture
_DESCRIPTORS_MAX = 64  # that are looked at: ssh opens its connection as one of the first
_INFO_BYTES = 160
# Of struct tcp_info (linux/tcp.h): rtt in microseconds, segments sent again, bytes acknowledged,
# the least rtt.
_RTT_AT, _RESENT_AT, _ACKED_AT, _MIN_RTT_AT = 68, 100, 120, 148


class Sending(NamedTuple):
    """How the sending over a connection goes."""

    acked_bytes: int  # since it was made
    resent: int  # segments, likewise
    rtt_s: float  # lately, with what waits in queues
    min_rtt_s: float


class LiveSocket:
    """A duplicate of the connected socket of another process."""

    def __init__(self, lent: socket.socket) -> None:
        self._lent = lent

    def sending(self) -> Sending | None:
        """Return how the sending goes; None where the kernel does not say."""
        try:
            info = self._lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except OSError:
            return None
        if len(info) < _INFO_BYTES:
            return None
        [acked_bytes] = struct.unpack_from("Q", info, _ACKED_AT)
        rtt_us, resent, least_us = (
            struct.unpack_from("I", info, at)[0] for at in (_RTT_AT, _RESENT_AT, _MIN_RTT_AT)
        )
        return Sending(acked_bytes, resent, rtt_us / 1e6, least_us / 1e6)

    def congestion(self) -> str:
        """Return the congestion control of the connection; "" where that is not known."""
        try:
            name = self._lent.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return ""
        return name.rstrip(b"\0").decode("ascii", "replace")

    def set_congestion(self, name: str) -> bool:
        """Change the congestion control. Return False where the kernel refuses."""
        try:
            self._lent.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the duplicate; the connection is the process's own."""
        self._lent.close()


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
            if lent is None:
                continue
            if _is_connected_tcp(lent):
                return LiveSocket(lent)
            lent.close()
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


def _lent(process: int, number: int) -> socket.socket | None:
    import ctypes  # here: only far pushes need it

    descriptor = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, number, 0)
    return socket.socket(fileno=descriptor) if descriptor >= 0 else None


def _is_connected_tcp(lent: socket.socket) -> bool:
    if lent.family not in (socket.AF_INET, socket.AF_INET6) or lent.type != socket.SOCK_STREAM:
        return False
    try:
        lent.getpeername()
    except OSError:
        return False
    return True
