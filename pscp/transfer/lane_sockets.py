"""The TCP sockets of a copy's connections, which their ssh processes lend.

Not here: which congestion control is good (congestion.py), how a process lends its socket
(transports/live_socket.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from pscp.transports.live_socket import LiveSocket, Sending, borrow

_ATTEMPTS = 40  # looks until a process that lends no socket is asked no more: it logs in meanwhile


class LaneSockets:
    """The sockets that are lent now, by the ids of their processes. For one thread."""

    def __init__(self) -> None:
        self._lent: dict[int, tuple[LiveSocket, str]] = {}  # with the control it came with
        self._attempts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def update(self, pids: Iterable[int], congestion: str) -> None:
        """Borrow the sockets of these processes, and give back others.

        Each gets this congestion control; "" stands for the one it came with.
        """
        current = {pid for pid in pids if pid}
        for pid in self._lent.keys() - current:
            self._lent.pop(pid)[0].close()
        for pid in current - self._lent.keys():
            self._attempts[pid] = attempts = self._attempts.get(pid, 0) + 1
            found = borrow(pid) if attempts < _ATTEMPTS else None
            if found is not None:
                self._lent[pid] = found, found.congestion()
        for found, own in self._lent.values():
            wanted = congestion or own
            if wanted and found.congestion() != wanted:
                found.set_congestion(wanted)

    def sendings(self) -> dict[int, Sending]:
        """Return how the sending of each goes."""
        seen = ((pid, found.sending()) for pid, (found, _) in self._lent.items())
        return {pid: sending for pid, sending in seen if sending is not None}

    def close(self) -> None:
        """Give all of them back."""
        self.update((), "")
