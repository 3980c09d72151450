"""The connections of a session to one host: how the first is made, and how a lane gets another.

Not here: how a channel is opened (openers.py), agent or SFTP (first_login.py), logins that begin
early and connections that are idle (spare_logins.py).
Read next: first_login.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pscp.connect import greeting
from pscp.connect.connections import ConnectionRequest, Connections
from pscp.connect.first_login import NOTHING_AHEAD, Ahead, FirstLogin, Worth
from pscp.connect.known.host_memory import FAR_S, PathRecord
from pscp.connect.known.host_setup import HostSetup, SetupSource
from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.openers import Opener, SshOpener
from pscp.connect.spare_logins import Choose, EarlyLogins, IdleConnections
from pscp.ground import errors, stops
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.ground.values import LOGINS_MAX
from pscp.options.options import Options
from pscp.transports import Channel, socket_options

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent
    from pscp.connect.direct_plane import DirectPlane

_FIRST_ATTEMPTS = 4  # where the connection is closed before the login: MaxStartups, most likely
_PAUSE_MAX_S = 30  # between two attempts
# Lanes that begin early over connections that stay. More come within 4 round trips, where there is
# work for them; each agent costs processor time (5,000 files at 50 ms: 2.4 s with 8, 1.5 with 3).
_KEPT_MAX = 3

_ASKS = "a further login may have a prompt"
_GONE = "the only login's connection was lost, and it cannot be repeated"

_log = Log("connect")


class OneHost(Connections):
    """The connections of one session to one host."""

    def __init__(self, host: Location, opener: Opener | None = None) -> None:
        """`opener` is what opens channels; None: processes of --transport.

        Raises UsageError for a list of hosts (transfer/far_hosts.py).
        """
        if host.others:
            raise errors.UsageError(f"{host.prefix[:-1]}: only a copy goes to several hosts")
        super().__init__(host)
        self._authenticator = Authenticator(may_ask=opener is None or opener.logs_in)
        self._opener = opener or SshOpener(self._authenticator)
        self._setups = SetupSource(self._opener.resolve)
        self._early = EarlyLogins()
        self.first = FirstLogin(self._opener, self._authenticator, self._early)
        # Held by the thread that opens a first connection, for the whole login: a second stream
        # that begins meanwhile then uses its answers, and asks nobody again.
        self._turn = threading.Lock()
        # Any thread may change these two: each change is one operation.
        self._on_plane: set[int] = set()  # ids of the lists of agents that calls have spread
        self._note: Callable[[str], None] = lambda text: None  # of the last call with direct lanes
        self._lock = threading.Lock()  # held to change what follows
        self._plane: DirectPlane | None = None
        self._has_said_ssh = False  # people know that lanes are SSH's, though they asked for others

    @property
    def has_one_login(self) -> bool:
        return self.first.has_one_login

    def check(self, options: Options, is_push: bool) -> list[str]:
        if options.plane == "tls":
            from pscp.connect import direct_sockets  # here: few copies need it

            direct_sockets.check()
        return self._opener.check(self._setup(options), is_push)

    def has_bbr(self, options: Options) -> bool:
        return self._opener.logs_in and self._setup(options).has_bbr()

    def _setup(self, options: Options) -> HostSetup:
        return self._setups.get(self.host, options)

    def has_early(self) -> bool:
        return len(self._early) > 0

    def close(self, *, is_cut: bool = False) -> None:
        if self.is_foreign:
            return
        self.first.close()
        self._early.end(is_cut=is_cut)
        with self._lock:
            plane, self._plane = self._plane, None
        if plane is not None:
            plane.close()
        self.idle.close(is_cut=self._authenticator.was_asked)
        self.first.shared.close()
        self._authenticator.close()
        self._opener.close()

    # --- a first connection

    def start_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        """Have ssh begin to log in, unless there is a connection.

        Several connections log in at once where the last copy's logins needed no prompt, on a far
        path not more than `worth` says.
        """
        with self._my_turn():
            self._start(options, is_push, worth)

    def check_logins(self, options: Options, *, is_push: bool, worth: Worth | None) -> None:
        with self._my_turn():
            if self._setups.has_changed(self.host, options):
                self.close()
                self.idle = IdleConnections()
                self._start(options, is_push, worth)
            self._early.send_agents(are_known=True)

    def take(
        self, options: Options, note: Callable[[str], None], ahead: Ahead = NOTHING_AHEAD
    ) -> list[RemoteAgent]:
        """Return the connections that are open; if there is none, open a first one.

        Its login may ask a person. If it asked nobody, others begin once it is let in. Raises
        ConnectError when no further attempt is made (--retry-for).
        """
        until_s = time.monotonic() + (options.retry_for_s or 0)
        for attempt in itertools.count():
            try:
                if idle := self.idle.take(self._choice(options)):
                    return idle  # another call's login may take its time
                with self._my_turn():
                    idle = self.idle.take(self._choice(options))
                    return idle or [self._first_connection(options, note, ahead)]
            except (errors.ConnectionLost, errors.Unreachable, errors.AgentFailed) as error:
                pause_s = min(1 << attempt, _PAUSE_MAX_S)
                _log.debug("attempt %d to connect failed: %s", attempt + 1, error.message)
                is_full = isinstance(error, errors.ConnectionLost) and attempt < _FIRST_ATTEMPTS - 1
                # With a single use a person would be asked for another code.
                if self._authenticator.is_single_use or not error.retry:
                    raise
                if not is_full and time.monotonic() + pause_s > until_s:
                    raise
                if attempt == 0 and options.retry_for_s and not options.quiet:
                    note(f"{error.message}; trying again for up to {options.retry_for_s} s")
            stops.pause(pause_s)
        raise AssertionError("attempts are counted without an end")

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Hold the lock of the thread that opens a first connection."""
        self.check_process()
        stops.acquire(self._turn)
        try:
            yield
        finally:
            self._turn.release()

    def _first_connection(
        self, options: Options, note: Callable[[str], None], ahead: Ahead
    ) -> RemoteAgent:
        """Return the connection that asks for direct lanes, if there is one, else a first one."""
        setup, plane, control = self._setup(options), self._plane, None
        # Another call's lanes end with the connection that asked for them.
        if plane is not None and not self._on_plane and not self.first.uses_sftp(setup):
            control = plane.take_control()
        if control is None:
            let_in = partial(self._log_in_others, setup, ahead)
            control = self.first.finish(setup, note, let_in, ahead.request)
            self._setups.learn_aes(control.hello.get("aes"))
        return control

    def expect_lanes(self, options: Options, far: RemoteAgent) -> None:
        if _is_for_direct(far, options) and not self._why_no_plane(options, far):
            self._direct_plane(options).expect(options, far)

    def _why_no_plane(self, options: Options, far: RemoteAgent) -> str:
        """Return why no direct lanes can be asked for over this connection; "" if they can."""
        no_agent = "there is no agent at the far end" if far.is_sftp else ""
        return self._direct_plane(options).refused or no_agent

    def spread(
        self, options: Options, agents: list[RemoteAgent], count: int, note: Callable[[str], None]
    ) -> None:
        far = agents[0]
        if options.has_plane:
            self._on_plane.add(id(agents))
            self._note = note
        if not _is_for_direct(far, options):
            return
        from pscp.connect.direct_sockets import NoDirectLane  # here: few copies need it

        plane = self._direct_plane(options)
        why_not = self._why_no_plane(options, far)
        if not why_not:
            agents.remove(far)  # it is the plane's from now on, which may close it
            try:
                lanes = plane.first(options, far, count, note)
                for other in agents:
                    other.close()
                agents[:] = lanes
            except NoDirectLane as error:
                why_not = str(error)
                self._setup(options).memory.remember_no_direct()
                if (control := plane.take_control()) is None:
                    raise errors.ConnectionLost("the connection closed") from None
                agents.insert(0, control)
        if why_not:
            self._say_ssh(options, why_not)

    def _say_ssh(self, options: Options, why_not: str) -> None:
        """Tell people, once, that lanes are SSH's though they asked for direct ones."""
        with self._lock:
            has_said, self._has_said_ssh = self._has_said_ssh, True
        if not has_said:
            self._note(f"--plane {options.plane}: {why_not}; going over SSH")

    def _direct_plane(self, options: Options) -> DirectPlane:
        from pscp.connect.direct_plane import DirectPlane

        with self._lock:
            if self._plane is None:
                setup = self._setup(options)
                path = setup.direct_path()
                if self._opener.why_no_plane:
                    path = path._replace(why_not=self._opener.why_no_plane)
                elif not path.why_not and setup.memory.refuses_direct():
                    path = path._replace(why_not="no direct lane was let in lately")
                    self._has_said_ssh = True
                self._plane = DirectPlane(path, self._new_control)
            return self._plane

    def _new_control(self, options: Options, opened: Callable[[Channel], None]) -> RemoteAgent:
        over_ssh = dataclasses.replace(options, plane="ssh")
        return self.connect(over_ssh, ConnectionRequest(None, "", opened))

    def carrier(self, options: Options) -> str:
        plane = self._plane
        is_refused = plane is not None and plane.refused
        return options.plane if options.has_plane and not is_refused else "ssh"

    def give(self, agents: list[RemoteAgent], note: Callable[[str], None] | None = None) -> None:
        self._on_plane.discard(id(agents))
        super().give(agents, note)

    def remember(self, options: Options, is_push: bool, known: PathRecord) -> None:
        """Remember it of this way to the host. After a prompt only one login begins at first."""
        if not self._opener.logs_in:
            return
        memory = self._setup(options).memory
        has_prompts = self._authenticator.was_asked or self.has_one_login
        if self.first.is_kept:  # nobody has logged in first
            has_prompts = memory.is_known_to_ask()
        else:
            memory.remember_asks(has_prompts)
        if has_prompts:
            known = known._replace(logins=1)
        memory.remember(is_push, known)

    def _start(self, options: Options, is_push: bool, worth: Worth | None) -> None:
        if self.first.is_started or self.idle.keep_only(self._choice(options)):
            return
        if self._plane is not None and self._plane.has_control():
            return
        setup = self._setup(options)
        if not self.first.start(setup) or worth is None:
            return
        if options.has_plane:
            self._direct_plane(options).prepare(options)
            return
        known = setup.memory.recall(is_push)
        fixed = options.connections
        lanes = min(known.logins_at_once if fixed is None else min(known.logins, fixed), LOGINS_MAX)
        if fixed is None and known.rtt_s > FAR_S and lanes > 1:
            lanes = min(lanes, worth(known.rtt_s))
        setup = setup.with_congestion(known.congestion if is_push else "")
        if self.first.is_kept:
            lanes = min(lanes, _KEPT_MAX)
        self._open_early(setup, lanes)

    def _open_early(self, setup: HostSetup, lanes: int) -> None:
        """Have connections log in until there are so many, with the first."""
        missing = lanes - 1 - len(self._early)  # another stream may have some on their way
        for _ in range(missing):
            self._early.add(self.first.open_kept(setup) or self.first.open(setup))

    def _log_in_others(self, setup: HostSetup, ahead: Ahead, first: Channel) -> None:
        """Have further connections log in: the host has let the first one in just now."""
        if ahead.lanes is None or setup.options.has_plane:
            return
        sending = socket_options.sending_of(first)
        if sending is not None and sending.min_rtt_s > FAR_S:
            self._open_early(setup, min(ahead.lanes(sending.min_rtt_s), LOGINS_MAX))
            self._early.send_agents(are_known=True)

    def _choice(self, options: Options) -> Choose:
        """Return what chooses the idle connections that a copy with these options may use.

        Direct lanes are asked for by one that goes over SSH. The choice is made while the idle ones
        are held, so all that waits for a lock, or for ssh, has been asked before.
        """
        carrier, is_usable = self.carrier(options), self._usable(options)
        plane = self._plane
        needs_control = plane is None or not plane.has_control()

        def choose(agents: list[RemoteAgent]) -> list[RemoteAgent]:
            usable = [far for far in agents if is_usable(far)]
            fit = [far for far in usable if far.plane == carrier]
            if fit or not needs_control:
                return fit
            return [far for far in usable if far.plane == "ssh"][:1]

        return choose

    def _usable(self, options: Options) -> Callable[[RemoteAgent], bool]:
        """Return what tells whether a copy with these options may use a connection."""
        kind = self.first.kind_for(self._setup(options))
        carriers = ("ssh", self.carrier(options))  # lanes that are SSH's can ask for direct ones

        def is_usable(far: RemoteAgent) -> bool:
            is_known = far.is_sftp or far.hashes  # else the first one had not answered yet
            is_alike = far.channel.kind == kind and far.plane in carriers
            return bool(is_known and is_alike) and not far.is_closed()

        return is_usable

    # --- a further connection

    def connect(self, options: Options, wanted: ConnectionRequest) -> RemoteAgent:
        plane = self._plane
        if options.has_plane and plane is not None and not plane.refused:
            far = plane.connect(options)
            wanted.opened(far.channel)
            return far
        if options.has_plane and plane is not None:  # lanes may be lost after spread()
            self._say_ssh(options, plane.refused)
        shared = wanted.connection_of.control if wanted.connection_of is not None else None
        if wanted.connection_of is None and self.has_one_login:
            shared = self.first.shared.control
            if shared is None or not shared.is_alive():
                raise errors.AuthenticationError(_GONE, errors.RUN_AGAIN)
        setup = self._setup(options)
        if shared is not None:
            channel = self.first.open(setup, shared=shared)
            wanted.opened(channel)
            return greeting.greet(channel, setup, self._authenticator, facts=self.first.facts)
        is_unsure = self.first.is_kept and setup.memory.asks()
        log_in = partial(self._logged_in, setup, wanted)
        return self._authenticator.repeat(log_in, is_unsure=is_unsure)

    def _logged_in(self, setup: HostSetup, wanted: ConnectionRequest) -> RemoteAgent:
        """Return a connection that is idle; else one that began early; else a new one."""
        is_usable = self._usable(setup.options)
        while (idle := self.idle.next()) is not None:
            if is_usable(idle):
                wanted.opened(idle.channel)
                _log.debug("process %d: a connection that was idle is used", idle.channel.pid)
                return idle
            idle.close()
        chosen = setup.with_congestion(wanted.congestion)
        early = self._early.take(self.first.kind_for(setup))
        channel = early or self.first.open_kept(chosen)
        if channel is not None:
            wanted.opened(channel)
            if not greeting.live_or_closed(channel, chosen):
                channel = None
        if channel is None:
            if self.first.is_kept and setup.memory.is_known_to_ask():
                raise errors.AuthenticationError(_ASKS)
            channel = self.first.open(chosen)
            wanted.opened(channel)
        return greeting.greet(channel, setup, self._authenticator, facts=self.first.facts)


def _is_for_direct(far: RemoteAgent, options: Options) -> bool:
    """Return whether a connection over SSH is to be replaced by direct lanes."""
    return options.has_plane and far.plane == "ssh"
