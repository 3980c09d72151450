"""Connections that no copy uses yet, or any more: logins that begin before a copy knows whether it
needs them, so that their time is not lost, and connections for the session's next copy.

Not here: how many there are (one_host.py), how long a login may take (logins/authenticator.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp.ground.errors import ConnectionLost
from pscp.ground.leaving import LET_GO_S, LoginProcess, let_go
from pscp.transports import Channel
from pscp.transports.channel import Kind

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent

Choose = Callable[[list["RemoteAgent"]], list["RemoteAgent"]]

# How long a lane waits for a login that another copy began. That login ends after LET_GO_S; if it
# belongs to the waiting lane itself, whose copy is over meanwhile, it never comes.
_PATIENCE_S = LET_GO_S + 1.0


class EarlyLogins:
    """Channels that log in before a lane needs them. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._channels: list[Channel] = []

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, channel: Channel) -> None:
        """Keep a channel that has just been opened."""
        with self._lock:
            self._channels.append(channel)

    def send_agents(self, *, are_known: bool) -> None:
        """Send the agent to each channel, so that it is there as soon as the connection is up.

        Those of further lanes are known: they say no HELLO, as the first one does. The lock is
        held, but nobody waits for the network: a pipe has room for the whole agent.
        """
        from pscp.connect.bootstrap import send_agent  # here: it is loaded while ssh logs in

        with self._lock:
            for channel in self._channels:
                send_agent(channel, is_known=are_known)

    def take(self, kind: Kind) -> Channel | None:
        """Return the channel of this kind that began first; None if there is none.

        Another call's may be of another kind.
        """
        with self._lock:
            for place, channel in enumerate(self._channels):
                if channel.kind == kind:
                    return self._channels.pop(place)
        return None

    def end(self, *, is_cut: bool) -> None:
        """End all channels: with `is_cut` at once, else each after its login."""
        with self._lock:
            ended, self._channels = self._channels, []
        for channel in ended:
            if is_cut:
                channel.close()
            else:
                let_go(partial(channel.let_go, LET_GO_S), partial(_login_of, channel))


class IdleConnections:
    """Connections that no copy uses: the last one left them, or was over when their login ended.

    The session's next copy gets them. Any thread may use it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what follows
        self._agents: list[RemoteAgent] = []
        self._awaited = 0  # logins that go on without a copy
        self._is_closed = False
        self.is_cut = False  # logins that go on are to be ended at once; any thread may read it

    def expect(self, count: int) -> None:
        """Count logins that go on though their copy is over; -1, as each succeeds or fails."""
        with self._changed:
            self._awaited += count
            self._changed.notify_all()

    def give(self, agents: list[RemoteAgent]) -> None:
        """Keep connections for the next copy; close them, if the session is closed."""
        for far in agents:
            far.was_kept = True
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._agents += agents
                self._changed.notify_all()
        if is_closed:
            _close(agents)

    def take(self, choose: Choose) -> list[RemoteAgent]:
        """Take the connections that `choose` returns of those that are idle; close the others."""
        return self._choose(choose, stay=False)

    def keep_only(self, choose: Choose) -> bool:
        """Return whether `choose` returns any of those that are idle; close the others."""
        return bool(self._choose(choose, stay=True))

    def _choose(self, choose: Choose, *, stay: bool) -> list[RemoteAgent]:
        with self._changed:
            chosen = choose(self._agents)
            others = [far for far in self._agents if far not in chosen]
            self._agents = list(chosen) if stay else []
        _close(others)
        return chosen

    def next(self) -> RemoteAgent | None:
        """Wait for a connection, and return it; None if no more is expected.

        So a copy has no more logins than it may have connections, though logins of the copy before
        still go on. Raises ConnectionLost if the session is closed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._agents or not self._awaited or self._is_closed, _PATIENCE_S
            )
            if self._is_closed:
                raise ConnectionLost("the session was closed before it had connected")
            return self._agents.pop(0) if self._agents else None

    def close(self, *, is_cut: bool = False) -> None:
        """Close the connections that are idle, and those that still come.

        With `is_cut` logins that go on are ended, and this waits for it: one that asks for a
        password with nobody left to answer would send an empty one, and the server would count it
        as wrong.
        """
        with self._changed:
            self._is_closed, self.is_cut = True, is_cut
            self._changed.notify_all()
            if is_cut:
                self._changed.wait_for(lambda: not self._awaited, _PATIENCE_S)
            agents, self._agents = self._agents, []
        _close(agents)


def _login_of(channel: Channel) -> list[LoginProcess | None]:
    return [channel.login]


def _close(agents: list[RemoteAgent]) -> None:
    for far in agents:
        far.close()
