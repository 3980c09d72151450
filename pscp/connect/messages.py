"""What a channel's program and its agent write to standard error: kept, shown to people, logged.

Not here: when it is read (bootstrap.py), what ssh's messages mean (../transports/openssh.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pscp.log import Log
from pscp.transports import Channel
from pscp.transports.openssh import lines_of

_KEPT_BYTES = 8 * 1024  # the end, for the error that explains why the channel ended
_READ_BYTES = 4096  # at once
READS_MAX = _KEPT_BYTES // _READ_BYTES * 2  # a program may write without an end

_log = Log("stderr")
# What ssh writes where a jump host or a ProxyCommand has failed; an error tells of the cause.
_CONSEQUENCE = re.compile(
    r"Connection closed by UNKNOWN|kex_exchange_identification: Connection cl"
)
_DEBUG_LINE = re.compile(r"debug\d: |DEBUG:")  # of ssh -v; of asyncssh and paramiko


class Messages:
    """The standard error of a channel: its end is kept, its lines are shown to people and logged.

    `notice` shows a line to people; with None nothing is shown.
    """

    def __init__(self, channel: Channel, notice: Callable[[str], None] | None) -> None:
        self.notice = notice
        self._channel = channel
        self._kept = b""  # the last _KEPT_BYTES
        self._line = b""  # a line that has not ended yet, for the log
        self._unshown = ""  # not shown yet, since an error may repeat it
        self._is_over = False

    @property
    def has_more(self) -> bool:
        """Whether the end has not come."""
        return not self._is_over

    @property
    def has_unshown(self) -> bool:
        """Whether something came that people have not seen."""
        return bool(self._unshown)

    def text(self) -> str:
        """Return the end of what came."""
        return self._kept.decode(errors="replace")

    def read(self) -> bool:
        """Read what has come. Return False at its end."""
        data = os.read(self._channel.error_fd, _READ_BYTES)
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        if _log.is_wanted:
            *lines, self._line = (self._line + data)[-_KEPT_BYTES:].split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                _log.debug("process %d writes: %s", self._channel.pid, text)
        if self.notice is not None:
            self._unshown += data.decode(errors="replace")
        self._is_over = not data
        return bool(data)

    def show(self, error: str = "") -> None:
        """Show people the lines that came, except for those in this error or in the log."""
        lines, self._unshown = lines_of(self._unshown), ""
        for line in lines:
            is_logged = _DEBUG_LINE.match(line) and _log.is_wanted
            is_said = line.strip() in error or (error and _CONSEQUENCE.match(line))
            if self.notice is not None and not is_said and not is_logged:
                self.notice(line)
