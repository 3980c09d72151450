"""All undocumented parts of asyncssh that pscp uses.

They are as described here in asyncssh 2.19 (the oldest that pyproject.toml allows) to 2.24.
../../../tests/unit/test_internals.py fails with the name of a part that another version lacks.

Not here: what asyncssh documents (asyncssh_helper.py, asyncssh_pump.py), its servers' parts
(asyncssh_server_internals.py).
"""

from __future__ import annotations

import asyncio

from asyncssh import SSHClientConnection
from asyncssh.channel import SSHChannel
from asyncssh.config import SSHClientConfig
from asyncssh.constants import MSG_CHANNEL_WINDOW_ADJUST
from asyncssh.packet import UInt32

# Keywords of ssh_config(5) that asyncssh ignores, since it leaves their subjects to its caller.
_KEYWORDS = (
    "AddressFamily", "BatchMode", "BindInterface", "GlobalKnownHostsFile", "KnownHostsCommand",
    "NumberOfPasswordPrompts", "ProxyUseFdpass", "RevokedHostKeys", "StrictHostKeyChecking",
    "UserKnownHostsFile",
)  # fmt: skip
_WORDS = SSHClientConfig._set_string_list  # keeps a keyword's value as a list of words


class Config(SSHClientConfig):
    """The configuration of one host (ssh_config(5)), with the keywords that asyncssh ignores."""

    _handlers = SSHClientConfig._handlers | {name.lower(): (name, _WORDS) for name in _KEYWORDS}

    @classmethod
    def read(cls, paths: list[str], local_user: str, host: str) -> Config:
        """Read these files for this host. Raises OSError, and ValueError for a wrong line."""
        found = cls.load(None, paths, False, False, False, local_user, (), host, ())
        assert isinstance(found, cls)
        return found

    def words(self, keyword: str) -> list[str]:
        """Return the words of a keyword's value, in any case; [] if it is not set."""
        name, _ = self._handlers[keyword.lower()]
        value = self.get(name)
        if value is None:
            return []
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def loop_of(connection: SSHClientConnection) -> asyncio.AbstractEventLoop:
    """Return the event loop in which this connection was made."""
    loop: asyncio.AbstractEventLoop = connection._loop
    return loop


def lacks_bytes(channel: SSHChannel[bytes], window_bytes: int) -> int:
    """Return by how many bytes the receive window is below this size now (RFC 4254, 5.2)."""
    left_bytes: int = channel._recv_window
    return window_bytes - left_bytes


def grant(channel: SSHChannel[bytes], window_bytes: int) -> None:
    """Set the receive window to this size; asyncssh refills it to this size from now on."""
    channel.send_packet(MSG_CHANNEL_WINDOW_ADJUST, UInt32(lacks_bytes(channel, window_bytes)))
    channel._recv_window = channel._init_recv_window = window_bytes
