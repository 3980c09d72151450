"""One login for all: an ssh without a command, whose connection carries every channel.

Nothing that fails on a channel, the first command included, costs another login. So the first login
of a host that may ask a person is one as well, until it is known what the far end offers.

Not here: when it is used (connections.py), how a channel rides on it (transports/openssh.py).
Read next: prompts.py.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from pscp.connect import host_cache
from pscp.connect.patience import Patience
from pscp.errors import PscpError, Unreachable
from pscp.options import Location, Options
from pscp.transports import Channel, Control
from pscp.transports.openssh import lines_of

_LOOK_MS = 5  # between two looks for its socket
_SAID_MAX_BYTES = 8 * 1024


def may_ask_again(host: Location, options: Options) -> bool:
    """Would a second login, where no agent can be, trouble a person a second time?"""
    if options.batch or options.remote != "auto" or not host_cache.asks(host, options):
        return False
    from pscp.connect import tty  # here: most logins ask nothing

    return tty.has_person()


class Master:
    """That ssh, logging in or logged in."""

    def __init__(self, channel: Channel, control: Control) -> None:
        self.channel, self.control = channel, control
        self.is_only = False  # no other login is to be tried
        self._said = b""
        self._is_up = False
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="master", daemon=True)

    def wait(self, note: Callable[[str], None], patience: Patience) -> PscpError | None:
        """Until channels can be opened. Returns why they never will be."""
        poll = select.poll()
        poll.register(self.channel.error_fd, select.POLLIN)
        while not (self._is_up or os.path.exists(self.control.path)):
            if poll.poll(_LOOK_MS) and not self._hear(note):
                return self.channel.explain(self._said.decode(errors="replace"))
            try:
                patience.left_s()
            except Unreachable as error:
                return error
        if not self._is_up:
            self._is_up = True
            self._thread.start()
        return None

    def is_usable(self) -> bool:
        return not self._is_up or self.control.is_alive()

    def close(self) -> None:
        self.channel.end()
        os.close(self._end)
        if self._is_up:
            self._thread.join()
        os.close(self._ends)
        self.channel.close()

    def _hear(self, note: Callable[[str], None]) -> bool:
        """Tell people what it says. False: it will say nothing more."""
        data = os.read(self.channel.error_fd, 4096)
        self._said = (self._said + data)[-_SAID_MAX_BYTES:]
        for line in lines_of(data.decode(errors="replace")):
            note(line)
        return bool(data)

    def _drain(self) -> None:
        """What it says later, of channels that were refused, their own ssh says as well."""
        poll = select.poll()
        poll.register(self._ends, 0)
        poll.register(self.channel.error_fd, select.POLLIN)
        while self._ends not in dict(poll.poll()):
            if not os.read(self.channel.error_fd, 4096):
                return
