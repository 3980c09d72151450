"""A lane of the direct plane at this end: an agent over a TCP connection instead of SSH.

Not here: how the connection is made (direct_plane.py), its channel (../transports/direct.py).
Read next: ../transports/direct.py.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from pscp import errors
from pscp.connect.authenticator import Patience
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import session, system, wire
from pscp.transports import Channel
from pscp.transports.direct import PlainChannel

_HANGUP = getattr(select, "POLLRDHUP", select.POLLHUP)


class DirectAgent(RemoteAgent):
    """An agent on the machine where SSH has started another one, of which everything is known."""

    def __init__(
        self, channel: Channel, plane: str, control: RemoteAgent, settle: Callable[[bool], None]
    ) -> None:
        """`settle` is called once: with True when a frame has come, with False if none ever does.

        Something else than an agent may take connections in the place of the far end.
        """
        self.plane, self._control = plane, control
        self._settle: Callable[[bool], None] | None = settle
        super().__init__(channel)
        self.verify = control.verify

    def receive(self) -> wire.Frame | None:
        try:
            frame = super().receive()
        except errors.PscpError:
            self._settled(False)
            raise
        if self._settle is not None:
            self._settled(frame is not None)
        return frame

    def _settled(self, is_working: bool) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(is_working)

    def _greet(self, marker: bytes, patience: Patience) -> None:
        control = self._control
        self.hello, self.hashes, self.rtt_s = control.hello, control.hashes, control.rtt_s
        self.session.advance(session.HELLO)


class PlainAgent(DirectAgent):
    """One whose channel is a socket."""

    def __init__(
        self, channel: PlainChannel, control: RemoteAgent, settle: Callable[[bool], None]
    ) -> None:
        self._link = channel.link
        super().__init__(channel, "plain", control, settle)

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
