"""Opens the first connection of a session. Its login may ask a person, and it finds out whether the
far end has an agent or SFTP (--remote), or why neither answers.

Not here: further connections (one_host.py), who answers prompts (logins/authenticator.py), how a
channel's answer is waited for (greeting.py), what is remembered of a host (known/host_memory.py).
Read next: greeting.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from pscp.connect import greeting
from pscp.connect.control_master import SharedLogin
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.messages import Held
from pscp.connect.openers import Opener
from pscp.connect.spare_logins import EarlyLogins
from pscp.ground import errors
from pscp.ground.values import LOGINS_MAX
from pscp.transports import Channel, Control
from pscp.transports.channel import AGENT, Kind

if TYPE_CHECKING:
    from pscp.connect.bootstrap import Facts, FirstSteps, RemoteAgent
    from pscp.endpoint.asking import requests

Note = Callable[[str], None]  # shows people a line
# Returns for a round trip in seconds how many connections a copy is worth, as far as is known.
Worth = Callable[[float], int]


class Ahead(NamedTuple):
    """The logins and the request that a copy begins before its first connection is up."""

    lanes: Worth | None = None  # None: one
    request: requests.Request | None = None  # the first one, which the agent gets with its program


NOTHING_AHEAD = Ahead()

# Of this machine's processors, idle during a login: with less it has waited for its turn.
_SPARE = 0.15


def worth_many(_rtt_s: float) -> int:
    """Return how many connections a copy is worth of which nothing is known."""
    return LOGINS_MAX


class LoginClock:
    """The time of the latest first login, from the start of its ssh to the agent's HELLO."""

    def __init__(self) -> None:
        self._begun_s, self._idle_s = 0.0, 0.0  # idle_s() then
        self.login_s = 0.0  # without people's; where several shared the processors, that of one
        self.was_crowded = False  # processors were busy: login_s does not tell how fast they are

    def start(self) -> None:
        self._begun_s, self._idle_s = time.monotonic(), idle_s()

    def stop(self, waited_s: float, at_once: int) -> None:
        """Note that it is over; people took `waited_s` of it, and so many logged in at once."""
        taken_s = time.monotonic() - self._begun_s
        self.login_s = (taken_s - waited_s) / max(1.0, at_once / (os.cpu_count() or 1))
        idle = idle_s() - self._idle_s  # not a number where the system does not tell
        self.was_crowded = idle < _SPARE * taken_s


class FirstLogin:
    """The first connection, from the start of its ssh to the agent's HELLO.

    One thread at a time calls start() and finish() (OneHost holds a lock meanwhile); any thread
    may call the rest.
    """

    def __init__(self, opener: Opener, authenticator: Authenticator, early: EarlyLogins) -> None:
        self._opener, self._authenticator, self._early = opener, authenticator, early
        self.shared = SharedLogin()
        self.held = Held()
        # Changed by start() and finish() only:
        self.clock = LoginClock()
        self.facts: Facts | None = None  # what the agent has told; None: there is none yet
        self.is_kept = False  # an earlier run left the connection open, so that nobody logged in
        self._is_only = False  # of such a connection: --login-once
        self._begun = EarlyLogins()  # the first connection's: ssh logs in, and nobody waits
        self._lock = threading.Lock()  # guards what follows
        self._is_sftp: bool | None = None  # with --remote auto; None: what is remembered holds

    @property
    def is_started(self) -> bool:
        """Return whether an ssh for it logs in, and no thread waits for it yet."""
        return len(self._begun) > 0

    @property
    def has_one_login(self) -> bool:
        """Return whether no login follows this one: all lanes are channels of its connection."""
        return self._is_only or self.shared.is_only or self._authenticator.is_single_use

    def uses_sftp(self, setup: HostSetup) -> bool:
        """Return whether a channel is to end at SFTP, by the options or by what was found out."""
        remote = setup.options.remote
        if remote != "auto":
            return remote == "sftp"
        with self._lock:
            if self._is_sftp is None:
                self._is_sftp = setup.memory.uses_sftp()
            return self._is_sftp

    def kind_for(self, setup: HostSetup) -> Kind:
        """Return what the connections of a call with this setup are to end at."""
        return setup.options.verify if self.uses_sftp(setup) else AGENT

    def _find(self, is_sftp: bool | None) -> None:
        """Keep what was found to be at the far end; None: neither, so go by the memory again."""
        with self._lock:
            self._is_sftp = is_sftp

    def start(self, setup: HostSetup) -> bool:
        """Have ssh begin to log in. Return whether others may log in at the same time."""
        self.clock.start()
        channel = self.open_kept(setup)
        if channel is None and self.shared.begin(setup, self._opener.open_master):
            return False
        channel = channel or self.open(setup, may_prompt=True)
        self.is_kept = is_kept(channel)
        self._begun.add(channel)
        if self.is_kept:  # the agent starts while the rest of this program is loaded
            self._begun.send_agents(are_known=False)
        return True

    def finish(
        self,
        setup: HostSetup,
        note: Note,
        when_let_in: Callable[[Channel], None] = lambda first: None,
        request: requests.Request | None = None,
    ) -> RemoteAgent:
        """Wait for the connection, starting it if it was not started. Raises ConnectError.

        `when_let_in` is called where a login is let in that nobody was asked for; `request` is sent
        to the agent with its program.
        """
        from pscp.connect.bootstrap import FirstSteps  # here: it is loaded while ssh logs in

        def let_in(channel: Channel) -> None:
            is_login = not (self.is_kept or self.has_one_login or self._authenticator.was_asked)
            if is_login and self.shared.is_there() is None:
                when_let_in(channel)

        first, at_once = FirstSteps(let_in, request), 1 + len(self._early)
        if not self.is_started:
            self.clock.start()
        with self.held.holding(note) if setup.options.quiet else nullcontext(note) as notice:
            far = self._of_either_kind(setup, notice, first)
        if setup.options.persist not in (None, "no") and not setup.persists:
            note("--persist is for --transport openssh: these connections end with this run")
        if setup.options.remote == "agent":
            setup.memory.remember_sftp(False)
        self.clock.stop(self._authenticator.waited_s, at_once)
        self.facts = None if far.is_sftp else far.facts
        self.shared.share(far.channel.control)
        if self._authenticator.was_asked or self.has_one_login:
            self._early.end(is_cut=True)  # nobody answers the prompts of these logins
        return far

    def close(self) -> None:
        """End the login that was started, if no thread waits for it yet."""
        self._begun.end(is_cut=True)

    def open(
        self, setup: HostSetup, *, may_prompt: bool = False, shared: Control | None = None
    ) -> Channel:
        """Open a channel to what is at the far end, of a new connection or the shared one."""
        is_sftp = self.uses_sftp(setup)
        return self._opener.open(setup, is_sftp=is_sftp, may_prompt=may_prompt, shared=shared)

    def open_kept(self, setup: HostSetup) -> Channel | None:
        """Open a channel of a connection that an earlier run left open; None if there is none."""
        return self._opener.open_kept(setup, is_sftp=self.uses_sftp(setup))

    def _greeted(self, setup: HostSetup, note: Note, first: FirstSteps) -> RemoteAgent:
        """Return what answers on the channel that is logging in, a kept, a shared or a new one."""
        channel = self._begun.take(self.kind_for(setup))
        self._begun.end(is_cut=True)  # what another call has begun, if it was of another kind
        channel = channel or self.open_kept(setup)
        if channel is not None and not greeting.live_or_closed(channel, setup):
            channel = None
        self.is_kept = channel is not None and is_kept(channel)
        self._is_only = self.is_kept and setup.options.login_once
        if channel is None and self.shared.begin(setup, self._opener.open_master):
            control = self.shared.wait(setup, self._authenticator, note)
            channel = self.open(setup, shared=control)
        channel = channel or self.open(setup, may_prompt=True)
        return greeting.greet(channel, setup, self._authenticator, note, first=first)

    def _missing_kind(
        self, error: errors.ConnectError, setup: HostSetup
    ) -> errors.ConnectError | None:
        """Return why no agent, or no SFTP, is at the far end; None if the login failed otherwise.

        When a command is refused on a channel of the shared login, ssh gives no reason, and a
        server may even end the whole connection.
        """
        if isinstance(error, errors.NoPython | errors.NoAgent | errors.NoSftp):
            return error
        is_there = self.shared.is_there()
        is_lost = isinstance(error, errors.ConnectionLost)
        if is_there is None or not is_lost or self.uses_sftp(setup):
            return None
        return errors.NoAgent("the far end runs no commands") if is_there else error

    def _of_either_kind(self, setup: HostSetup, note: Note, first: FirstSteps) -> RemoteAgent:
        """Return what answers: with --remote auto an agent or SFTP, whichever is there."""
        try:
            return self._greeted(setup, note, first)
        except errors.ConnectError as error:
            reason = self._missing_kind(error, setup)
            if reason is None or setup.options.remote != "auto":
                raise reason or error from None
            is_sure = not isinstance(error, errors.ConnectionLost)
            return self._other_kind(setup, note, reason, first, is_sure=is_sure)

    def _other_kind(
        self,
        setup: HostSetup,
        note: Note,
        reason: errors.ConnectError,
        first: FirstSteps,
        *,
        is_sure: bool,
    ) -> RemoteAgent:
        """Connect to SFTP where no agent can run, or to an agent where there is no SFTP.

        With `is_sure` the next copy to this host does so from the start.
        """
        self._early.end(is_cut=False)
        is_sftp = not self.uses_sftp(setup)
        self._find(is_sftp)
        self.clock.start()
        try:
            far = self._greeted(setup, note, first)
        except (errors.NoPython, errors.NoAgent, errors.NoSftp) as error:
            self._find(None)
            raise error if isinstance(reason, errors.NoSftp) else reason from None
        if is_sure:
            setup.memory.remember_sftp(is_sftp)
        if is_sftp and not setup.options.quiet:
            note(f"{reason.message.rstrip('.')}{errors.USING_SFTP}")
        return far


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
