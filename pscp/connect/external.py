"""Opens a session's channels on a connection that the user's program made (paramiko, asyncssh).

Not here: the channels themselves (transports/libraries/external.py), connections that pscp makes
(ssh_opener.py).
"""

from __future__ import annotations

from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.ssh_opener import DirectPath, Opener
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import SFTP, Channel, Control, Request
from pscp.transports.libraries.external import LentChannel, check
from pscp.transports.remote_command import command


class ExternalOpener(Opener):
    """Makes all lanes channels of one connection, which stays open."""

    logs_in = False  # the next connection to this address may be of another kind

    def __init__(self, host: Location, options: Options, client: object) -> None:
        """Raises UsageError if `client` is no connection, or cannot be used from this thread."""
        check(client, options)
        self.authenticator = Authenticator(host)  # there are no logins, so it has nothing to do
        self._client = client

    def check(self, options: Options, is_push: bool) -> list[str]:
        check(self._client, options)
        return []

    def timeout_s(self, options: Options) -> str:
        return "none"  # there is no login

    def direct_path(self, options: Options) -> DirectPath:
        return DirectPath("", why_not="the connection is the program's own")

    def open(
        self, options: Options, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        if not is_sftp:
            return LentChannel(self._client, Request(command()))
        from pscp.sftp.channel import SftpChannel  # as in ssh_opener.py

        return SftpChannel(LentChannel(self._client, SFTP), options.verify, [])

    def close(self) -> None:
        """Do nothing: the connection belongs to the user's program."""
