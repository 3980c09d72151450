"""The receive windows of all channels of a process, within the memory that they have together.

A window is what a client may send unasked, so it bounds what may wait here for a slow disk as well.

Not here: how one window grows (../transports/receive_window.py).
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable

from pscp.serve.account import Account
from pscp.transports.libraries.asyncssh_server_internals import Channel
from pscp.transports.receive_window import FIRST_BYTES, Window, is_due, round_trip_s

PACKET_BYTES = 128 * 1024  # of channel data, at most; each costs about as much, whatever is in it
_LEAST_BYTES = 3 * PACKET_BYTES  # more than a request, which waits until it has come whole
_MOST_BYTES = 128 << 20  # 10 Gbit/s at 100 ms
_RATE_WINDOW_S = 0.5  # a window of a user with a rate holds what comes in so many seconds


class Windows:
    """The windows of a process. The event loop alone uses it."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.open: weakref.WeakSet[ChannelWindow] = weakref.WeakSet()

    def share_bytes(self, more: int = 0) -> int:
        """Return what one channel may have of the memory, now or with so many more of them."""
        return max(_LEAST_BYTES, self.memory_bytes // max(len(self.open) + more, 1))

    def first_bytes(self) -> int:
        return min(FIRST_BYTES, self.share_bytes(1))


class ChannelWindow:
    """Grants one channel's window as its bytes are written."""

    def __init__(
        self, windows: Windows, channel: Channel, waiting: Callable[[], int], account: Account,
        rate: int | None,
    ) -> None:  # fmt: skip
        """Own the window of a channel, of which `waiting` bytes wait to be written."""
        self._windows, self._channel, self._account = windows, channel, account
        self._waiting = waiting
        self._rate, self._uncounted_bytes, self._is_paused = rate, 0, False
        sock = channel.get_connection().get_extra_info("socket")
        self._window = Window(round_trip_s(sock) or 0.001, _MOST_BYTES)
        channel.own_window()
        windows.open.add(self)

    @property
    def bytes(self) -> int:
        """The size of the window now."""
        size_bytes = min(self._window.bytes, self._windows.share_bytes())
        if self._rate:
            size_bytes = min(size_bytes, max(_LEAST_BYTES, int(self._rate * _RATE_WINDOW_S)))
        return size_bytes

    def came(self, size_bytes: int) -> None:
        """Count bytes that came."""
        self._window.came(size_bytes, time.monotonic())
        self._uncounted_bytes += size_bytes

    def settle(self) -> None:
        """Grant what is free of the window."""
        if self._is_paused or self._channel.is_closing():
            return
        size_bytes, waiting_bytes = self.bytes, self._waiting()
        if waiting_bytes * 2 > size_bytes:
            self._window.stalled()
        lacking_bytes = size_bytes - waiting_bytes - self._channel.granted_bytes
        if not is_due(lacking_bytes, size_bytes):
            return
        if self._rate:
            delay_s = self._account.delay_s(self._uncounted_bytes)
            self._uncounted_bytes = 0
            if delay_s > _RATE_WINDOW_S / 4:
                self._is_paused = True
                pause_s = delay_s - _RATE_WINDOW_S / 8
                asyncio.get_running_loop().call_later(pause_s, self._resume)
                return
        self._channel.grant(lacking_bytes)

    def _resume(self) -> None:
        self._is_paused = False
        self.settle()
