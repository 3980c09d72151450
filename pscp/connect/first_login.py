"""Opens the first connection of a session. Its login may ask a person, and it finds out whether the
far end has an agent or SFTP.

Not here: further connections (connections.py), who answers prompts (authenticator.py).
Read next: greeter.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp import errors
from pscp.connect import host_cache
from pscp.connect.control_master import SharedLogin
from pscp.connect.greeter import Greeter, RemoteKind
from pscp.connect.spare_logins import EarlyLogins
from pscp.connect.ssh_opener import Opener
from pscp.options import Location, Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent

Note = Callable[[str], None]  # shows people a line


class FirstLogin:
    """The first connection, from the start of its ssh to the agent's HELLO.

    One thread at a time calls start() and finish() (Connections holds a lock meanwhile); any thread
    may call the rest.
    """

    def __init__(
        self,
        host: Location,
        opener: Opener,
        *,
        kind: RemoteKind,
        shared: SharedLogin,
        early: EarlyLogins,
    ) -> None:
        self.host = host
        self._opener, self._kind, self._shared, self._early = opener, kind, shared, early
        self.greeter = Greeter(host, opener)
        self._started_s = 0.0  # when its ssh was started; used by start() and finish() only
        self._lock = threading.Lock()  # guards what follows
        self._channel: Channel | None = None  # ssh is logging in, and no thread waits for it yet
        self._login_s = 0.0

    @property
    def login_s(self) -> float:
        """Seconds from the start of the latest login to its HELLO, without the time of people.

        Where several logins shared the processors here, it is the time that one alone would take.
        """
        with self._lock:
            return self._login_s

    @property
    def is_started(self) -> bool:
        """Whether an ssh for it logs in, and no thread waits for it yet."""
        with self._lock:
            return self._channel is not None

    @property
    def has_one_login(self) -> bool:
        """Whether no login is made after this one: all lanes are channels of its connection."""
        return self._shared.is_only or self._opener.authenticator.is_single_use

    def start(self, options: Options) -> bool:
        """Have ssh begin to log in. Return whether others may log in at the same time."""
        self._started_s = time.monotonic()
        if self._shared.begin(options, self._opener.open_master):
            return False
        channel = self._open(options)
        with self._lock:
            self._channel = channel
        return True

    def finish(self, options: Options, note: Note) -> RemoteAgent:
        """Wait for the connection, starting it if it was not started. Raises ConnectError."""
        try:
            far = self._greeted(options, note)
        except errors.ConnectError as error:
            reason = self._missing_kind(error, options)
            if reason is None or options.remote != "auto":
                raise reason or error from None
            far = self._other_kind(options, note, reason)
        if options.remote == "agent":
            host_cache.remember_sftp(self.host, options, False)
        share = max(1.0, (1 + len(self._early)) / (os.cpu_count() or 1))
        waited_s = self._opener.authenticator.waited_s
        with self._lock:
            self._login_s = (time.monotonic() - self._started_s - waited_s) / share
        self._shared.share(far.channel.control)
        if self._opener.authenticator.was_asked or self.has_one_login:
            self._early.end(is_cut=True)  # nobody answers the prompts of these logins
        return far

    def close(self) -> None:
        """End the login that was started, if no thread waits for it yet."""
        channel = self._taken()
        if channel is not None:
            channel.close()

    def _taken(self) -> Channel | None:
        with self._lock:
            channel, self._channel = self._channel, None
        return channel

    def _open(self, options: Options) -> Channel:
        return self._opener.open(options, is_sftp=self._kind.uses_sftp(options), may_prompt=True)

    def _greeted(self, options: Options, note: Note) -> RemoteAgent:
        return self.greeter.greet(self._channel_for(options, note), options, note)

    def _channel_for(self, options: Options, note: Note) -> Channel:
        """Return the channel that is logging in, else one of the shared login, else a new one."""
        channel = self._taken()
        if channel is None and self._shared.begin(options, self._opener.open_master):
            patience = self.greeter.patience(options, may_prompt=True)
            explain = partial(self.greeter.explain, options=options)
            control = self._shared.wait(note, patience, explain)
            is_sftp = self._kind.uses_sftp(options)
            return self._opener.open(options, is_sftp=is_sftp, may_prompt=False, shared=control)
        return channel or self._open(options)

    def _missing_kind(
        self, error: errors.ConnectError, options: Options
    ) -> errors.ConnectError | None:
        """Return why no agent, or no SFTP, is at the far end; None if the login failed otherwise.

        When a command is refused on a channel of the shared login, ssh gives no reason, and a
        server may even end the whole connection.
        """
        if isinstance(error, errors.NoPython | errors.NoAgent | errors.NoSftp):
            return error
        is_there = self._shared.is_there()
        if is_there is None or not isinstance(error, errors.ConnectionLost):
            return None
        if self._kind.uses_sftp(options):
            return None
        return errors.NoAgent("the far end runs no commands") if is_there else error

    def _other_kind(self, options: Options, note: Note, reason: errors.ConnectError) -> RemoteAgent:
        """Connect to SFTP where no agent can run, or to an agent where there is no SFTP.

        The next copy to this host does so from the start.
        """
        self._early.end(is_cut=False)
        self._kind.switch(options)
        self._started_s = time.monotonic()
        try:
            far = self._greeted(options, note)
        except (errors.NoPython, errors.NoAgent, errors.NoSftp) as error:
            self._kind.forget()
            raise error if isinstance(reason, errors.NoSftp) else reason from None
        is_sftp = self._kind.uses_sftp(options)
        if not isinstance(reason, errors.ConnectionLost):
            host_cache.remember_sftp(self.host, options, is_sftp)
        if is_sftp:
            note(f"{reason.message.rstrip('.')}: using SFTP")
        return far
