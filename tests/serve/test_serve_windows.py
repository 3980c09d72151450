"""The receive windows of pscp-serve's channels, within the memory that they have together.

Not here: how one of them grows (../unit/test_libraries.py).
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from pscp.serve.windows import ChannelWindow, Windows

MIB = 1 << 20


class FakeChannel:
    """A channel of which nothing is known but what it was granted."""

    def __init__(self, granted_bytes: int) -> None:
        self.granted_bytes, self.waiting_bytes = granted_bytes, 0

    def get_connection(self) -> Any:
        return Mock(get_extra_info=lambda name: None)

    def own_window(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def grant(self, size_bytes: int) -> None:
        assert size_bytes > 0
        self.granted_bytes += size_bytes

    def send(self, size_bytes: int) -> None:
        """Have the client send what it may."""
        assert size_bytes <= self.granted_bytes
        self.granted_bytes -= size_bytes
        self.waiting_bytes += size_bytes


def opened(windows: Windows) -> tuple[FakeChannel, ChannelWindow]:
    channel: Any = FakeChannel(windows.first_bytes())
    window = ChannelWindow(windows, channel, lambda: channel.waiting_bytes, Mock(), None)
    window.settle()
    return channel, window


def test_what_waits_here_is_not_granted_again() -> None:
    channel, window = opened(Windows(64 * MIB))
    channel.send(MIB)
    window.settle()
    assert channel.granted_bytes + channel.waiting_bytes == window.bytes
    channel.waiting_bytes = 0
    window.settle()
    assert channel.granted_bytes == window.bytes


def test_all_windows_together_are_within_the_memory() -> None:
    windows = Windows(64 * MIB)
    kept = [opened(windows) for _ in range(100)]
    assert sum(window.bytes for _, window in kept) <= 64 * MIB
    for channel, window in kept:  # those that came early shrink as they are used
        channel.send(channel.granted_bytes)
        channel.waiting_bytes = 0
        window.settle()
    assert sum(channel.granted_bytes for channel, _ in kept) <= 64 * MIB
    del kept[1:], channel, window
    assert windows.share_bytes() == 64 * MIB
