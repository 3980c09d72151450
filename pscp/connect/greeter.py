"""Waits until the far end of a channel answers, and says why it does not.

Not here: what it answers (bootstrap.py), who answers prompts meanwhile (authenticator.py).
Read next: bootstrap.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pscp import errors
from pscp.connect.patience import Patience
from pscp.connect.ssh_opener import Opener
from pscp.log import Log
from pscp.options import Location, Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent


_log = Log("connect")


class Greeter:
    """Makes a RemoteAgent of a channel. It changes nothing of its own, so any thread may use it."""

    def __init__(self, host: Location, opener: Opener) -> None:
        self.host = host
        self._opener = opener

    def greet(
        self,
        channel: Channel,
        options: Options,
        note: Callable[[str], None] | None = None,
        marker: bytes = b"",
    ) -> RemoteAgent:
        """Wait for the HELLO; `marker` is that of the agent, if it was sent already.

        With `note` a person may be asked, and sees what the login says. Raises ConnectError.
        """
        from pscp.connect.bootstrap import RemoteAgent  # here: it is loaded while ssh logs in

        try:
            far = RemoteAgent(
                channel, note, marker, self.patience(options, may_prompt=note is not None)
            )
        except errors.ConnectError as error:
            explained = self.explain(channel, error, options)
            _log.debug("process %d: no far end: %s", channel.pid, explained.message)
            raise explained from None
        self._opener.authenticator.end_login(channel)
        _log.debug("process %d: the far end answers: %s", channel.pid, far.hello)
        far.verify = options.verify
        self._opener.learn_aes(far.hello.get("aes"))
        return far

    def patience(self, options: Options, *, may_prompt: bool) -> Patience:
        """Return the time for a login: twice that to connect, and a minute at the least."""
        from pscp.connect.bootstrap import SILENCE_S

        timeout = self._opener.timeout_s(options)
        limit_s = max(SILENCE_S, 2.0 * int(timeout)) if timeout.isdecimal() else SILENCE_S
        return self._opener.authenticator.patience(limit_s, options, may_prompt)

    def explain(
        self, channel: Channel, error: errors.PscpError, options: Options
    ) -> errors.PscpError:
        """Return why a login failed: as its prompts were refused, else as ssh says, with names."""
        error = self._opener.authenticator.end_login(channel) or error
        if isinstance(error, errors.Unreachable):
            where = "" if str(self.host.host) in error.message else f"{self.host.login}: "
            timeout = self._opener.timeout_s(options)
            after = f" ({timeout} s)" if "timed out" in error.message else ""
            error = errors.Unreachable(f"{where}{error.message}{after}", error.hint)
        error.hint = error.hint.replace("HOST", self.host.login)
        return error
