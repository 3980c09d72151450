"""The TCP sockets of a copy's connections: their ssh processes lend them, or they are this one's.

Not here: which congestion control is good (../endpoint/congestion.py), how a process lends its
socket (../transports/live_socket.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from pscp.endpoint.tcp_socket import LiveSocket, Sending
from pscp.transports import Channel, live_socket

_ATTEMPTS = 40  # looks until a process that lends no socket is asked no more: it logs in meanwhile


class LaneSockets:
    """The sockets that are lent now. For one thread."""

    def __init__(self) -> None:
        # By the process that encrypts, which may have several channels; without one by the channel.
        self._lent: dict[object, tuple[LiveSocket, str]] = {}  # with the control it came with
        self._attempts: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def update(self, channels: Iterable[Channel], congestion: str) -> None:
        """Borrow the sockets of these channels, and give back others.

        Each gets this congestion control; "" stands for the one it came with.
        """
        current: dict[object, Channel] = {each.pid or each: each for each in channels}
        for key in self._lent.keys() - current.keys():
            self._lent.pop(key)[0].close()
        for key in current.keys() - self._lent.keys():
            self._attempts[key] = attempts = self._attempts.get(key, 0) + 1
            found = live_socket.of_channel(current[key]) if attempts < _ATTEMPTS else None
            if found is not None:
                self._lent[key] = found, found.congestion()
        for found, own in self._lent.values():
            wanted = congestion or own
            if wanted and found.congestion() != wanted:
                found.set_congestion(wanted)

    def sendings(self) -> dict[object, Sending]:
        """Return how the sending of each goes."""
        seen = ((key, found.sending()) for key, (found, _) in self._lent.items())
        return {key: sending for key, sending in seen if sending is not None}

    def close(self) -> None:
        """Give all of them back."""
        self.update((), "")
