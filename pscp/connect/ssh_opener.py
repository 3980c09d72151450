"""Opens channels to one host: the process of each, its socket for further channels, its number.

Not here: how ssh is set up (logins/ssh_setup.py), when a channel is opened (connections.py), what
answers at its other end (first_login.py), channels of a connection that the user's program made
(external.py).
Read next: logins/authenticator.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pscp.connect.control_master import Master, may_ask_again
from pscp.connect.logins import host_cache
from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.logins.ssh_setup import Setup
from pscp.connect.persisted import Persisted, absolute
from pscp.ground import errors, state
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.options.options import Options
from pscp.transports import SFTP, Channel, Control, open_channel, transport_of
from pscp.transports.control_sockets import USERS, sweep
from pscp.transports.remote_command import command

# A connection that was kept, and whose server does not open a session in this time, is given up.
_SILENT_S = 2.0
_SILENT_ROUND_TRIPS = 3

_log = Log("connect")


class DirectPath(NamedTuple):
    """Where connections beside SSH may go."""

    host: str  # a name or an address
    is_proxied: bool = False  # SSH goes through another host, which the far end sees instead of us
    why_not: str = ""  # why there may be none


def persists(options: Options) -> bool:
    """Return whether connections outlive this run: only ssh can let them."""
    return options.persist not in (None, "no") and transport_of(options) == "openssh"


def _is_plain(options: Options) -> bool:
    """Return whether nothing is asked of a connection that the user's own may not have."""
    sockets = (options.congestion, options.rcvbuf_bytes, options.sndbuf_bytes, options.bind)
    return not any((options.cipher, options.compress, options.cpus, *sockets))


class Opener(Protocol):
    """What a session opens its channels with. Any thread may use it.

    What it does by itself is right where nothing is configured, and no connection outlives a run.
    """

    authenticator: Authenticator
    logs_in: bool  # whether there are logins; if not, nothing of them is remembered

    def check(self, options: Options, is_push: bool) -> list[str]:
        """Refuse what cannot be, before anybody is contacted; return what -v says."""
        return []

    def has_bbr(self, options: Options) -> bool:
        """Return whether connections from here may use BBR."""
        return False

    def has_changed(self, options: Options) -> bool:
        """Return whether ssh's configuration has changed since the first channel was opened."""
        return False

    def timeout_s(self, options: Options) -> str:
        """Return the seconds that the host has to answer, or "none"."""
        ...

    def direct_path(self, options: Options) -> DirectPath:
        """Return where connections beside SSH may go."""
        ...

    def learn_aes(self, has_aes: object) -> None:
        """Keep whether the far end's processor has AES instructions, if `has_aes` is a bool."""
        return

    def open(
        self, options: Options, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        """Open a channel of the connection with this socket, if it is given, else of a new one."""
        ...

    def open_kept(self, options: Options, *, is_sftp: bool) -> Channel | None:
        """Open a channel of a connection that an earlier run left open; None if there is none."""
        return None

    def is_live(self, channel: Channel, options: Options) -> bool:
        """Return whether a channel may be waited for; else it is closed.

        False where its connection was kept open and does not answer, or takes no more channels.
        """
        return True

    def open_master(self, options: Options) -> Master | None:
        """Begin the one login for all channels; None if none is wanted, or possible."""
        return None

    def close(self) -> None:
        """Forget the answers to prompts, and remove sockets that are left."""


class SshOpener:
    """Opens a process of --transport for each channel."""

    logs_in = True

    def __init__(self, host: Location) -> None:
        self.host = host
        self.authenticator = Authenticator(host)
        self._setup = Setup(host)
        self._persisted = Persisted(host)
        self._lock = threading.Lock()  # guards what follows
        self._numbers = itertools.count()  # of the connections, in the order of their opening
        self._kept_numbers = itertools.count()  # of those that an earlier run left
        self._has_looked = False  # whether there is such a one
        self._controls: list[str] = []  # sockets for further channels

    def check(self, options: Options, is_push: bool) -> list[str]:
        setup = self._setup.get(options)
        cipher = setup.advised if setup.ciphers_are_ours else ""
        said = setup.check(options, is_push) + host_cache.advice_said(self.host, options, cipher)
        if setup.ciphers_are_ours and not cipher:
            said.append(f"ciphers, the first that the host has: {setup.ciphers()}")
        return said

    def has_bbr(self, options: Options) -> bool:
        try:
            self._setup.get(options).check(dataclasses.replace(options, congestion="bbr"), True)
        except errors.UsageError:
            return False
        return True

    def has_changed(self, options: Options) -> bool:
        return self._setup.has_changed(options)

    def timeout_s(self, options: Options) -> str:
        return self._setup.get(options).timeout_s(options)

    def direct_path(self, options: Options) -> DirectPath:
        setup = self._setup.get(options)
        why_not = "ssh_config forbids it (SetEnv PSCP_PLANE=ssh)" if setup.forbids_direct else ""
        host = setup.route.hostname or str(self.host.host)
        return DirectPath(host, bool(setup.route.proxy), why_not)

    def learn_aes(self, has_aes: object) -> None:
        self._setup.learn_aes(has_aes)

    def open(
        self, options: Options, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        """Open a channel; the prompts of a new connection are answered by the authenticator.

        A new connection gets a socket where further channels may come to share it.
        """
        if shared is not None:
            of_shared = shared._replace(is_master=False)
            return self._process(options, is_sftp, number=0, control=of_shared)
        is_shared = may_prompt or options.channels != 1 or is_sftp
        number = self._new_number()
        control = self._new_control(options, number) if is_shared or persists(options) else None

        def log_in(asks: Mapping[str, str] | None) -> Channel:
            return self._process(
                options, is_sftp, number=number, control=control, may_prompt=may_prompt, asks=asks
            )

        return self.authenticator.log_in(options, may_prompt, log_in)

    def open_kept(self, options: Options, *, is_sftp: bool) -> Channel | None:
        while persists(options) and (control := self._kept_control(options)) is not None:
            with contextlib.suppress(errors.ConnectionLost):  # its ssh has ended just now
                return self._process(options, is_sftp, number=0, control=control)
        return None

    def _kept_control(self, options: Options) -> Control | None:
        setup = self._setup.get(options)
        with self._lock:
            is_first, self._has_looked = not self._has_looked, True
            address = options.address(next(self._kept_numbers))
        found = self._persisted.next(options, setup, address)
        if found is None and is_first and setup.users_master and _is_plain(options):
            control = Control(setup.users_master, False, USERS)
            return control if control.is_alive() else None
        return found

    def is_live(self, channel: Channel, options: Options) -> bool:
        rtt_s = max(host_cache.recall(self.host, options, way).rtt_s for way in (True, False))
        if channel.answers(max(_SILENT_S, _SILENT_ROUND_TRIPS * rtt_s)):
            return True
        _log.debug("a connection that was kept is given up: %s", channel.control)
        channel.close()
        return False

    def open_master(self, options: Options) -> Master | None:
        """Begin the one login, with --login-once or where a second one might ask a person again.

        Raises UsageError with --login-once if there is no folder for its socket.
        """
        if not (options.login_once or may_ask_again(self.host, options)):
            return None
        number = self._new_number()
        control = self._new_control(options, number)
        if control is None:
            if options.login_once:
                message = "--login-once: no folder for a private socket"
                raise errors.UsageError(message, state.NO_FOLDER)
            return None

        def log_in(asks: Mapping[str, str] | None) -> Channel:
            return self._process(
                options, False, "", number=number, control=control, may_prompt=True, asks=asks
            )

        return Master(self.authenticator.log_in(options, True, log_in), control)

    def close(self) -> None:
        self.authenticator.close()
        self._persisted.close()
        with self._lock:
            self._has_looked = False
            paths, self._controls = self._controls, []
        for path in paths:  # an ssh that was killed has not removed its socket
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _process(
        self,
        options: Options,
        is_sftp: bool,
        request: str | None = None,
        *,
        number: int,
        control: Control | None,
        may_prompt: bool = False,
        asks: Mapping[str, str] | None = None,
    ) -> Channel:
        """Start the process of one channel: for SFTP, else for this command, else for the agent."""
        setup = self._setup.get(options)
        if persists(options):
            options = absolute(options)
        channel = open_channel(
            self.host,
            options,
            setup,
            SFTP if is_sftp else command() if request is None else request,
            may_prompt=may_prompt,
            number=number,
            control=control,
            asks=asks,
        )
        if not is_sftp:
            return channel
        from pscp.sftp.channel import over_sftp  # here: most far ends have python3

        return over_sftp(channel, self.host, options, setup)

    def _new_control(self, options: Options, number: int) -> Control | None:
        """Return a new path, where ssh makes a socket and removes it; None if no folder can be."""
        if persists(options):
            setup = self._setup.get(options)
            return self._persisted.new(options, setup, options.address(number))
        folder = state.control_folder()
        if folder is None:
            return None
        with self._lock:
            is_first = not self._controls
            path = state.private_path(folder)
            self._controls.append(path)
        if is_first:
            sweep(folder)
        return Control(path, is_master=True)

    def _new_number(self) -> int:
        with self._lock:
            return next(self._numbers)
