"""A lane of the direct plane at this end: an agent over a TCP connection instead of SSH.

Not here: how the connection is made (direct_plane.py), its channel (../transports/direct.py).
Read next: ../transports/direct.py.
"""

from __future__ import annotations

import os
import select

from pscp import errors
from pscp.connect.authenticator import Patience
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import session, system
from pscp.transports import Channel
from pscp.transports.direct import PlainChannel

_HANGUP = getattr(select, "POLLRDHUP", select.POLLHUP)


class DirectAgent(RemoteAgent):
    """An agent on the machine where SSH has started another one, of which everything is known."""

    def __init__(self, channel: Channel, plane: str, control: RemoteAgent) -> None:
        self.plane, self._control = plane, control
        super().__init__(channel)
        self.verify = control.verify

    def _greet(self, marker: bytes, patience: Patience) -> None:
        control = self._control
        self.hello, self.hashes, self.rtt_s = control.hello, control.hashes, control.rtt_s
        self.session.advance(session.HELLO)


class PlainAgent(DirectAgent):
    """One whose channel is a socket."""

    def __init__(self, channel: PlainChannel, control: RemoteAgent) -> None:
        self._link = channel.link
        super().__init__(channel, "plain", control)

    def _read(self, spaces: list[memoryview]) -> int:
        self._wait()
        try:
            return os.readv(self.channel.read_fd, spaces)
        except OSError as error:  # a reset, or the kernel has given the connection up
            raise errors.ConnectionLost(f"a direct lane: {error.strerror}") from None

    def _write(self, header: bytes, payload: system.Payload) -> None:
        try:
            self._link.send(header, payload)
        except OSError as error:
            raise errors.ConnectionLost(f"a direct lane: {error.strerror}") from None

    def is_closed(self) -> bool:
        waiting = select.poll()
        waiting.register(self.channel.read_fd, _HANGUP)
        return bool(waiting.poll(0))
