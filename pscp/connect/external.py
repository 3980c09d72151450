"""A session's channels on a connection that the program has made, with paramiko or asyncssh.

Not here: the channels themselves (transports/external.py), connections of our own (connections.py).
"""

from __future__ import annotations

from typing import Any

from pscp.connect.connections import Connections
from pscp.connect.host_cache import Known
from pscp.options import Location, Options
from pscp.transports import Channel, Control, Request
from pscp.transports.external import LentChannel, check
from pscp.transports.remote_command import command


class LentConnections(Connections):
    """All lanes are channels of one connection, which stays open."""

    def __init__(self, host: Location, options: Options, client: Any) -> None:
        """Raises UsageError for what is no connection, or where it cannot be used from here."""
        super().__init__(host)
        check(client, options)
        self._client = client

    def check(self, options: Options, is_push: bool) -> list[str]:
        check(self._client, options)
        return []

    def has_bbr(self, options: Options) -> bool:
        return False

    def remember(self, options: Options, is_push: bool, known: Known) -> None:
        """The next connection to this address may be of another kind."""

    def _channel(
        self, options: Options, may_prompt: bool, rides_on: Control | None = None
    ) -> Channel:
        if not self._uses_sftp(options):
            return LentChannel(self._client, Request(command()))
        from pscp.sftp.channel import SUBSYSTEM, SftpChannel  # as in connections.py

        below = LentChannel(self._client, Request(SUBSYSTEM, True))
        return SftpChannel(below, options.verify, [])

    def _timeout(self, options: Options) -> str:
        return "none"  # there is no login

    def _begin_master(self, options: Options) -> bool:
        return False

    def _check_setup(self, options: Options, is_push: bool, is_small: bool) -> None:
        pass
