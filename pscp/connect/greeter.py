"""What is at the far end of a channel: an agent or SFTP (--remote), or why neither answers.

Not here: what the agent tells of itself (bootstrap.py), who answers prompts meanwhile
(authenticator.py), what is done where one of the two is missing (first_login.py), what is
remembered of a host (host_cache.py).
Read next: bootstrap.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp import errors
from pscp.connect import host_cache
from pscp.connect.authenticator import Patience
from pscp.connect.ssh_opener import Opener
from pscp.locations import Location
from pscp.log import Log
from pscp.options import Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent

_log = Log("connect")


class RemoteKind:
    """Whether a session uses SFTP or agents. Any thread may use it."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._lock = threading.Lock()  # guards what follows
        self._is_sftp: bool | None = None  # with --remote auto; None: what the host cache says

    def uses_sftp(self, options: Options) -> bool:
        """Return whether a channel is to end at SFTP, by the options or by what was found out."""
        if options.remote != "auto":
            return options.remote == "sftp"
        with self._lock:
            if self._is_sftp is None:
                self._is_sftp = host_cache.uses_sftp(self.host, options)
            return self._is_sftp

    def suits(self, far: RemoteAgent, options: Options) -> bool:
        """Return whether a connection ends at what these options ask for."""
        is_sftp = self.uses_sftp(options)
        return far.is_sftp == is_sftp and (not is_sftp or far.verify == options.verify)

    def switch(self, options: Options) -> None:
        """With --remote auto, use SFTP from now on instead of agents, or agents instead of SFTP."""
        is_sftp = not self.uses_sftp(options)
        with self._lock:
            self._is_sftp = is_sftp

    def forget(self) -> None:
        """Go by the host cache again, since neither SFTP nor an agent was there."""
        with self._lock:
            self._is_sftp = None


class Greeter:
    """Makes a RemoteAgent of a channel. It has no state of its own, so any thread may use it."""

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

        With `note` a person may be asked, and sees what the login prints. Raises ConnectError.
        """
        from pscp.connect.bootstrap import RemoteAgent  # here: it is loaded while ssh logs in

        patience = self.patience(options, may_prompt=note is not None)
        begin: Callable[[], RemoteAgent] = partial(RemoteAgent, channel, note, marker, patience)
        if options.direct:
            from pscp.connect.onward import OnwardAgent, OnwardChannel

            if isinstance(channel, OnwardChannel):
                begin = partial(OnwardAgent, channel, note, patience)
        try:
            far = begin()
        except errors.ConnectError as error:
            reason = self.explain(channel, error, options)
            _log.debug("process %d: no far end: %s", channel.pid, reason.message)
            raise reason from None
        self._opener.authenticator.end_login(channel)
        _log.debug("process %d: the far end answers: %s", channel.pid, far.hello)
        far.verify = options.verify
        self._opener.learn_aes(far.hello.get("aes"))
        return far

    def patience(self, options: Options, *, may_prompt: bool) -> Patience:
        """Return the time for a login: twice the time to connect, and at least a minute."""
        from pscp.connect.bootstrap import SILENCE_S

        timeout = self._opener.timeout_s(options)
        limit_s = max(SILENCE_S, 2.0 * int(timeout)) if timeout.isdecimal() else SILENCE_S
        return self._opener.authenticator.patience(limit_s, options, may_prompt)

    def explain(
        self, channel: Channel, error: errors.PscpError, options: Options
    ) -> errors.PscpError:
        """Return why a login failed: a refused prompt, else ssh's reason with the host's name."""
        error = self._opener.authenticator.end_login(channel) or error
        if isinstance(error, errors.Unreachable):
            where = "" if str(self.host.host) in error.message else f"{self.host.login}: "
            timeout = self._opener.timeout_s(options)
            after = f" ({timeout} s)" if "timed out" in error.message else ""
            error = errors.Unreachable(f"{where}{error.message}{after}", error.hint)
        error.hint = error.hint.replace("HOST", self.host.login)
        if options.batch and isinstance(error, errors.AuthenticationError):
            error.hint += "; with -B nothing is asked: ssh-agent must have a key with a passphrase"
        return error
