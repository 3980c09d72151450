"""The text that a channel's program and its agent write to standard error: kept, shown to people,
logged; and which host a message is about, where a copy has two far ends.

Not here: when it is read (bootstrap.py), what ssh's messages mean (../transports/openssh.py), the
errors (../ground/errors.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator

from pscp.ground.errors import ConnectError, ProtocolError, PscpError
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.transports import Channel
from pscp.transports.openssh import lines_of

_KEPT_BYTES = 8 * 1024  # the end, for the error that explains why the channel ended
_READ_BYTES = 4096  # at once
_HELD_MOST = 100  # lines with -q: the last ones
READS_MAX = _KEPT_BYTES // _READ_BYTES * 2  # a program may write without an end

_log = Log("stderr")
# What ssh writes where a jump host or a ProxyCommand has failed; an error tells of the cause.
_CONSEQUENCE = re.compile(
    r"Connection closed by UNKNOWN|kex_exchange_identification: Connection cl"
)
# What ssh warns of and goes on; -q shows it, too.
_WARNING = re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|POSSIBLE DNS SPOOFING")
_DEBUG_LINE = re.compile(  # of ssh -v; of asyncssh and paramiko
    rb"debug\d: |DEBUG:|OpenSSH_\S+ |Authenticated to .* using |Transferred: sent |Bytes per second"
)
_TRACEBACK = "Traceback (most recent call last):"
_CIPHER = re.compile(rb"debug1: kex: client->server cipher: ([\w@.-]+)")


def about(host: Location, text: str) -> str:
    """Return the text with the host's name before it, unless it has that already."""
    name = re.escape(str(host.host))
    return text if re.search(rf"(?<![\w.-]){name}(?![\w.-])", text) else f"{host.login}: {text}"


def named(host: Location, error: PscpError) -> PscpError:
    """Return the error, which names the host from now on if it is about a connection."""
    if isinstance(error, ConnectError | ProtocolError):
        error.args = (about(host, error.message), *error.args[1:])
    return error


def noting(host: Location, note: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that notes what is about the host."""
    return lambda text: note(about(host, text))


class Held:
    """The lines that a login prints, such as a banner: with -q they are held, and shown only where
    the login or the copy fails.
    """

    def __init__(self) -> None:
        self._lines = deque[str](maxlen=_HELD_MOST)

    @contextlib.contextmanager
    def holding(self, note: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
        """Hold what is noted in the block, unless that fails, or ssh warns of another host key."""
        try:
            yield self._lines.append
        except BaseException:
            self.show(note)
            raise
        if any(map(_WARNING.search, self._lines)):
            self.show(note)

    def show(self, note: Callable[[str], None]) -> None:
        """Note what is held, once."""
        while self._lines:
            note(self._lines.popleft())


class Messages:
    """The standard error of a channel: its end is kept, its lines are shown to people and logged.

    `notice` shows a line to people; with None nothing is shown. Lines for who looks for a cause (of
    `ssh -v`, or of a traceback but its end) are logged only, and one of them tells the cipher.
    """

    def __init__(self, channel: Channel, notice: Callable[[str], None] | None) -> None:
        self.notice = notice
        self._channel = channel
        self._kept = b""  # the last _KEPT_BYTES
        self._line = b""  # one that has not ended yet
        self.cipher = ""  # what ssh has agreed on, where it says so
        self._unshown = ""  # not shown yet, since an error may repeat it
        self.is_over = False  # the end has come
        self._is_traced = False  # the line that came last is of a traceback, but its end

    @property
    def has_unshown(self) -> bool:
        """Return whether something came that people have not seen."""
        return bool(self._unshown or self._line)

    def text(self) -> str:
        """Return the end of what came."""
        return (self._kept + self._line).decode(errors="replace")

    def read(self) -> bool:
        """Read what has come. Return False at its end."""
        data = os.read(self._channel.error_fd, _READ_BYTES)
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _KEPT_BYTES or not data:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            self._take(line)
        self.is_over = not data
        return bool(data)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if _log.is_wanted and line:
            _log.debug("process %d writes: %s", self._channel.pid, text)
        # Of a program that answers in place of the agent: it would look like one of pscp.
        self._is_traced = text.startswith(_TRACEBACK) or (self._is_traced and text[:1] == " ")
        if _DEBUG_LINE.match(line) or self._is_traced:
            if found := _CIPHER.match(line):
                self.cipher = found[1].decode()
            return
        self._kept = (self._kept + line + b"\n")[-_KEPT_BYTES:]
        if self.notice is not None:
            self._unshown += f"{text}\n"

    def show(self, error: str = "") -> None:
        """Show people the lines that came, except for those in this error."""
        if self._line and not _DEBUG_LINE.match(self._line):
            self._take(self._line)
            self._line = b""
        lines, self._unshown = lines_of(self._unshown), ""
        for line in lines:
            is_said = line.strip() in error or (error and _CONSEQUENCE.match(line))
            if self.notice is not None and not is_said:
                self.notice(line)
