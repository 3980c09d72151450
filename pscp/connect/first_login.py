"""Opens the first connection of a session. Its login may ask a person, and it finds out whether the
far end has an agent or SFTP (--remote), or why neither answers.

Not here: further connections (connections.py), who answers prompts (logins/authenticator.py), what
the agent tells of itself (bootstrap.py), what is remembered of a host (logins/host_cache.py).
Read next: bootstrap.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pscp.connect.control_master import SharedLogin
from pscp.connect.logins import host_cache
from pscp.connect.logins.authenticator import Patience
from pscp.connect.spare_logins import EarlyLogins
from pscp.connect.ssh_opener import Opener, persists
from pscp.ground import errors
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent

Note = Callable[[str], None]  # shows people a line

# Of this machine's processors, idle during a login: with less it has waited for its turn.
_SPARE = 0.15
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
        # When its ssh was started, and idle_s() then; used by start() and finish() only.
        self._started_s, self._started_idle_s = 0.0, 0.0
        # Changed by start() and finish() only. Seconds from the start of the latest login to its
        # HELLO, without the time of people: where several shared the processors, those of one.
        self.login_s = 0.0
        self.was_crowded = False  # processors were busy: login_s does not tell how fast they are
        self.is_kept = False  # an earlier run left the connection open, so that nobody logged in
        self._is_only = False  # of such a connection: --login-once
        self._lock = threading.Lock()  # guards what follows
        # With the marker of an agent that was sent to it already; ssh logs in, and nobody waits.
        self._started: tuple[Channel, bytes] | None = None

    @property
    def is_started(self) -> bool:
        """Whether an ssh for it logs in, and no thread waits for it yet."""
        return self._started is not None

    @property
    def has_one_login(self) -> bool:
        """Whether no login is made after this one: all lanes are channels of its connection."""
        return self._is_only or self._shared.is_only or self._opener.authenticator.is_single_use

    def start(self, options: Options) -> bool:
        """Have ssh begin to log in. Return whether others may log in at the same time."""
        self._started_s, self._started_idle_s = time.monotonic(), idle_s()
        channel, marker = self._open_kept(options), b""
        if channel is not None:
            marker = _send_agent(channel)
        elif self._shared.begin(options, self._opener.open_master):
            return False
        else:
            channel = self._open(options)
        self.is_kept = is_kept(channel)
        with self._lock:
            self._started = channel, marker
        return True

    def finish(self, options: Options, note: Note) -> RemoteAgent:
        """Wait for the connection, starting it if it was not started. Raises ConnectError."""
        if not self.is_started:
            self._started_s, self._started_idle_s = time.monotonic(), idle_s()
        try:
            far = self._greeted(options, note)
        except errors.ConnectError as error:
            reason = self._missing_kind(error, options)
            if reason is None or options.remote != "auto":
                raise reason or error from None
            far = self._other_kind(options, note, reason)
        if options.persist not in (None, "no") and not persists(options):
            note("--persist is for --transport openssh: these connections end with this run")
        if options.remote == "agent":
            host_cache.remember_sftp(self.host, options, False)
        share = max(1.0, (1 + len(self._early)) / (os.cpu_count() or 1))
        waited_s = self._opener.authenticator.waited_s
        taken_s = time.monotonic() - self._started_s
        idle = idle_s() - self._started_idle_s  # not a number where the system does not tell
        self.login_s = (taken_s - waited_s) / share
        self.was_crowded = idle < _SPARE * taken_s
        self._shared.share(far.channel.control)
        if self._opener.authenticator.was_asked or self.has_one_login:
            self._early.end(is_cut=True)  # nobody answers the prompts of these logins
        return far

    def close(self) -> None:
        """End the login that was started, if no thread waits for it yet."""
        if (started := self._taken()) is not None:
            started[0].close()

    def _taken(self) -> tuple[Channel, bytes] | None:
        """Take what start() began; another thread may end it meanwhile."""
        with self._lock:
            started, self._started = self._started, None
        return started

    def _open(self, options: Options) -> Channel:
        return self._opener.open(options, is_sftp=self._kind.uses_sftp(options), may_prompt=True)

    def _open_kept(self, options: Options) -> Channel | None:
        return self._opener.open_kept(options, is_sftp=self._kind.uses_sftp(options))

    def _greeted(self, options: Options, note: Note) -> RemoteAgent:
        """Return what answers on the channel that is logging in, a kept, a shared or a new one."""
        channel, marker = self._taken() or (self._open_kept(options), b"")
        if channel is not None and not self._opener.is_live(channel, options):
            channel, marker = None, b""
        self.is_kept = channel is not None and is_kept(channel)
        self._is_only = self.is_kept and options.login_once
        if channel is None and self._shared.begin(options, self._opener.open_master):
            patience = self.greeter.patience(options, may_prompt=True)
            explain = partial(self.greeter.explain, options=options)
            control = self._shared.wait(note, patience, explain)
            is_sftp = self._kind.uses_sftp(options)
            channel = self._opener.open(options, is_sftp=is_sftp, may_prompt=False, shared=control)
        return self.greeter.greet(channel or self._open(options), options, note, marker)

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
        if is_sftp and not options.quiet:
            note(f"{reason.message.rstrip('.')}: using SFTP")
        return far


def _send_agent(channel: Channel) -> bytes:
    """Send the agent before the rest of the program is loaded: no login takes longer than that."""
    from pscp.connect.bootstrap import send_agent  # here: while ssh logs in there is time for it

    return send_agent(channel)


def is_kept(channel: Channel) -> bool:
    """Return whether the channel is one of a connection that an earlier run left open."""
    return channel.control is not None and channel.control.is_kept


def idle_s() -> float:
    """Return the seconds that a processor was idle since it was started, on average; or inf."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat") as stat:
        # "cpu  user nice system idle iowait ...", in ticks, of all processors
        ticks = int(stat.readline().split()[4])
        return ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return math.inf
