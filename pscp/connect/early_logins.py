"""Logins that begin before a copy knows whether it needs them, so that their time is not lost.

Not here: how many (connections.py), how long one may take (patience.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pscp.transports import Channel

LET_GO_S = 4.0  # for a login that nobody needs any more to end by itself


class EarlyLogins:
    """Channels that log in, and wait for a lane. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._channels: list[tuple[Channel, bytes]] = []  # with the agent's marker, once it is sent

    def __len__(self) -> int:
        with self._lock:
            return len(self._channels)

    def add(self, channel: Channel) -> None:
        """Keep a channel that has just been opened."""
        with self._lock:
            self._channels.append((channel, b""))

    def send_agents(self, send: Callable[[Channel], bytes]) -> None:
        """Send the agent to each channel, so that it is there as soon as the connection is up.

        With the lock held, since a pipe has room for all of it.
        """
        with self._lock:
            self._channels = [(each, marker or send(each)) for each, marker in self._channels]

    def take(self) -> tuple[Channel, bytes] | None:
        """Return the channel that began first, and the marker of the agent that was sent to it."""
        with self._lock:
            return self._channels.pop(0) if self._channels else None

    def end(self, *, is_cut: bool) -> None:
        """End all; without `is_cut` those that go on end by themselves once they are in.

        To sshd a login that is cut is an offence (sshd_config(5), PerSourcePenalties).
        """
        with self._lock:
            ended, self._channels = self._channels, []
        for channel, _ in ended:
            if is_cut:
                channel.close()
            else:
                let_go = threading.Thread(target=channel.let_go, args=(LET_GO_S,), daemon=True)
                let_go.start()
