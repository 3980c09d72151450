"""The size of a channel's receive window, grown to what the path holds.

The rate is at most a window per round trip (RFC 4254, 5.2).

Not here: how a library is told of it (libraries/asyncssh_internals.py). Read next: channel.py.
"""

from __future__ import annotations

import os
import socket
import sys

FIRST_BYTES = 2 * 1024 * 1024  # as OpenSSH's
_GRANTS = 16  # a window is granted in so many parts; with two the path would be half empty
_GRANT_BYTES = 512 * 1024  # or in parts so large, up to a quarter: each costs a packet and a call
_USUAL_BYTES_S = 125_000_000  # 1 Gbit/s, for a path whose rate is not known yet
_IN_A_ROW = 2  # round trips; a single one may bring what had waited here
_MAX_BYTES = 64 * 1024 * 1024  # sshd may buffer as much, and has no buffer above 128 MiB
_SHARE = 64  # of the memory, since a whole window may wait here for a reader that stands still
_MIN_RTT_AT = 148  # in Linux's struct tcp_info, microseconds


def most_bytes() -> int:
    """Return the largest window that this machine's memory allows."""
    try:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return FIRST_BYTES
    return max(FIRST_BYTES, min(_MAX_BYTES, memory_bytes // _SHARE))


def round_trip_s(sock: socket.socket | None) -> float | None:
    """Return the path's round trip as Linux's kernel knows it, else None."""
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _MIN_RTT_AT + 4)
    except OSError:
        return None
    rtt_us = int.from_bytes(info[_MIN_RTT_AT:], sys.byteorder)
    return rtt_us / 1e6 if len(info) == _MIN_RTT_AT + 4 and 0 < rtt_us < 2**32 - 1 else None


def is_due(lacking_bytes: int, window_bytes: int) -> bool:
    """Is a window that lacks so many bytes of its size to be granted anew?"""
    return lacking_bytes >= max(window_bytes // _GRANTS, min(window_bytes // 4, _GRANT_BYTES))


class Window:
    """The size of one channel's receive window, from what comes through it.

    When two round trips in a row brought nine tenths of the window, it grows by a quarter, so it
    ends a little above the path's bandwidth-delay product, or at the limit that memory sets. It is
    not doubled, since bytes beyond that product wait in a queue on the path, and a queue that
    overflows costs more than a larger window gains.
    """

    def __init__(self, rtt_s: float, max_bytes: int | None = None) -> None:
        self._rtt_s = rtt_s
        self._max_bytes = most_bytes() if max_bytes is None else max_bytes
        self.bytes = max(FIRST_BYTES, min(int(rtt_s * _USUAL_BYTES_S), self._max_bytes))
        self._begun_s, self._came_bytes = 0.0, 0  # of this round trip
        self._filled = 0  # round trips in a row that filled most of the window

    def came(self, size_bytes: int, now_s: float) -> None:
        """Count the bytes that came, and were passed on."""
        self._came_bytes += size_bytes
        elapsed_s = now_s - self._begun_s
        if elapsed_s < self._rtt_s:
            return
        is_filled = self._came_bytes * 10 * self._rtt_s > self.bytes * 9 * elapsed_s
        self._begun_s, self._came_bytes = now_s, 0
        self._filled = self._filled + 1 if is_filled else 0
        if self._filled == _IN_A_ROW and self.bytes * 5 // 4 <= self._max_bytes:
            self.bytes = self.bytes * 5 // 4
            self._filled = 0

    def stalled(self) -> None:
        """Count no full round trips: the reader here limits the rate, not the window."""
        self._filled = 0
