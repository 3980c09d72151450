"""A connected TCP socket: how its sending goes, and its congestion control. Only Linux says both.

Not here: which congestion control is good (congestion.py), options that are set before a socket
connects (link.py).
"""

import _socket as socket  # socket.py would take 9 ms more to load
import struct
from typing import NamedTuple, Optional

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
    """A connected TCP socket of Linux, or a duplicate of one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def sending(self) -> Optional[Sending]:
        """Return how the sending goes; None where the kernel does not say."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
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
            name = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return ""
        return name.rstrip(b"\0").decode("ascii", "replace")

    def set_congestion(self, name: str) -> bool:
        """Change the congestion control. Return False where the kernel refuses."""
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the duplicate; the connection is the process's own."""
        self._socket.close()
