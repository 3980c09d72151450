"""Opens a session's channels on a connection that the user's program made (paramiko, asyncssh).

Not here: the channels themselves (transports/libraries/external.py), connections that pscp makes
(../connect/openers.py).
"""

from __future__ import annotations

from pscp.connect.known.host_setup import HostSetup
from pscp.connect.openers import Opener
from pscp.options.options import Options
from pscp.transports import SFTP, Channel, Control, Request
from pscp.transports.libraries.external import LentChannel, check, closed
from pscp.transports.remote_command import command


class ExternalOpener(Opener):
    """Makes all lanes channels of one connection, which stays open."""

    why_no_plane = "the connection is the program's own"

    def __init__(self, options: Options, client: object) -> None:
        """Raises UsageError if `client` is no connection, or cannot be used from this thread."""
        check(client, options)
        self._client = client

    def check(self, setup: HostSetup, is_push: bool) -> list[str]:
        if (error := closed(self._client)) is not None:
            raise error
        check(self._client, setup.options)
        return []

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        if not is_sftp:
            return LentChannel(self._client, Request(command()))
        from pscp.sftp.channel import SftpChannel  # as in connect/openers.py

        below = LentChannel(self._client, SFTP)
        return SftpChannel(below, setup.host, setup.options, setup.ssh)
