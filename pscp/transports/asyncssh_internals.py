"""The parts of asyncssh that its documentation promises nobody: all that pscp uses of them.

They are as described here in asyncssh 2.19 (the oldest that pyproject.toml allows) to 2.24.
../../tests/unit/test_internals.py names the one that another version lacks.

Not here: what asyncssh documents (asyncssh_helper.py, asyncssh_pump.py).
"""

from __future__ import annotations

import asyncio

from asyncssh import SSHClientChannel, SSHClientConnection
from asyncssh.config import SSHClientConfig
from asyncssh.constants import MSG_CHANNEL_WINDOW_ADJUST
from asyncssh.packet import UInt32

# Those of ssh_config(5) that asyncssh ignores, as it leaves what they are about to its caller.
_KEYWORDS = (
    "AddressFamily", "BatchMode", "BindInterface", "GlobalKnownHostsFile", "KnownHostsCommand",
    "NumberOfPasswordPrompts", "ProxyUseFdpass", "RevokedHostKeys", "StrictHostKeyChecking",
    "UserKnownHostsFile",
)  # fmt: skip
_WORDS = SSHClientConfig._set_string_list  # keeps a keyword's words as they are


class Config(SSHClientConfig):
    """What ssh_config(5) says of one host, with the keywords that asyncssh ignores."""

    _handlers = {
        **SSHClientConfig._handlers, **{name.lower(): (name, _WORDS) for name in _KEYWORDS},
    }  # fmt: skip

    @classmethod
    def read(cls, paths: list[str], local_user: str, host: str) -> Config:
        """Read these files for this host. Raises OSError, and ValueError for a line in them."""
        found = cls.load(None, paths, False, False, False, local_user, (), host, ())
        assert isinstance(found, cls)
        return found

    def words(self, keyword: str) -> list[str]:
        """Return a keyword's value, in whichever case the keyword is written; [] without one."""
        name, _ = self._handlers[keyword.lower()]
        value = self.get(name)
        if value is None:
            return []
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def loop_of(connection: SSHClientConnection) -> asyncio.AbstractEventLoop:
    """Return the event loop in which this connection was made."""
    loop: asyncio.AbstractEventLoop = connection._loop
    return loop


def lacks_bytes(channel: SSHClientChannel[bytes], window_bytes: int) -> int:
    """Return how many bytes less than these the far end may send now (RFC 4254, 5.2)."""
    left_bytes: int = channel._recv_window
    return window_bytes - left_bytes


def grant(channel: SSHClientChannel[bytes], window_bytes: int) -> None:
    """Let the far end send so many bytes from now on; asyncssh grants as many again by itself."""
    channel.send_packet(MSG_CHANNEL_WINDOW_ADJUST, UInt32(lacks_bytes(channel, window_bytes)))
    channel._recv_window = channel._init_recv_window = window_bytes
