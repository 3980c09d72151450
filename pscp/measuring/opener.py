"""Opens the connections of a measurement: one that may prompt, and others with given ciphers.

Not here: what moves over them (trial.py), the connections of a copy (../connect/connections.py).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pscp import errors
from pscp.api import Session
from pscp.connect.bootstrap import RemoteAgent
from pscp.transfer.worker import OPENING_MAX
from pscp.transports import Channel, open_channel, resolve
from pscp.transports.remote_command import command

_PAUSE_S = 1.0
_MOST_CONNECTIONS = 16


class CipherOpener:
    """Opens connections to a session's host. For the main thread."""

    def __init__(self, session: Session) -> None:
        self.host, self._connections = session.host, session.connections
        asked = session.options.with_agent("--measure")
        self._direct = asked  # for the lanes of --plane
        self._options = dataclasses.replace(asked, plane="ssh")
        setup = resolve(session.host, session.options)
        # Those of OpenSSH's own first: where time is short, the others are left out.
        self.offered = sorted(setup.offered, key=lambda name: "@" not in name)
        self._setup = dataclasses.replace(setup, ciphers_are_ours=False)
        self._opened: list[Channel] = []  # each thread adds the channel that it opens
        self._is_over = False  # no more logins

    @property
    def first_cipher(self) -> str:
        """The name by which the first connection's cipher is shown."""
        return self._options.cipher or "as configured"

    @property
    def plane(self) -> str:
        """The direct plane that is to be measured; "" for none."""
        return self._direct.plane if self._direct.has_plane else ""

    @property
    def most_connections(self) -> int:
        return self._options.connections or _MOST_CONNECTIONS

    def first(self, note: Callable[[str], None]) -> RemoteAgent:
        """Return the first connection, whose login may prompt; `note` gets the login's messages."""
        [first] = self._connections.take(self._options, note)
        self._opened.append(first.channel)
        return first

    def close(self) -> None:
        for channel in self._opened:
            channel.close()

    def direct(self, count: int, note: Callable[[str], None]) -> list[RemoteAgent]:
        """Return so many lanes of the direct plane; none where there can be none."""
        agents = self._connections.take(self._options, note)
        self._connections.spread(self._direct, agents, count, note)
        self._opened += [far.channel for far in agents]
        return [far for far in agents if far.plane == self.plane]

    def open(self, ciphers: Sequence[str]) -> list[tuple[str, RemoteAgent | errors.PscpError]]:
        """Return a connection with each of these ciphers, or the error. Several log in at once."""
        with ThreadPoolExecutor(OPENING_MAX) as pool:
            try:
                return list(zip(ciphers, pool.map(self._open_one, ciphers), strict=True))
            except BaseException:
                self._is_over = True
                pool.shutdown(wait=False, cancel_futures=True)
                for channel in list(self._opened):
                    channel.end()
                raise

    def _open_one(self, cipher: str, attempts: int = 2) -> RemoteAgent | errors.PscpError:
        # That a cipher is not offered ssh prints at level INFO, which may be switched off.
        words = ("LogLevel=INFO", *self._options.ssh_options)
        options = dataclasses.replace(self._options, cipher=cipher, ssh_options=words)
        try:
            channel = open_channel(
                self.host,
                options,
                self._setup,
                command(),
                may_prompt=False,
                number=len(self._opened),
                control=None,
            )
            self._opened.append(channel)
            if self._is_over:  # open() has ended the others
                channel.end()
            return RemoteAgent(channel)
        except errors.PscpError as error:
            if not error.retry or attempts == 1 or self._is_over:
                return error
        time.sleep(_PAUSE_S)  # sshd's MaxStartups, most likely
        return self._open_one(cipher, attempts - 1)
