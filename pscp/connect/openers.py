"""Opens channels to one host: the process of each, its socket for further channels, its number.

Not here: what is known of the host (known/host_setup.py), when a channel is opened
(one_host.py), what answers at its other end (greeting.py), channels of a connection that the
user's program made (../calls/external.py), channels through another host (onward.py).
Read next: logins/authenticator.py.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from pscp.connect.control_master import Master, may_ask_again
from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.authenticator import Authenticator
from pscp.connect.persistent import PersistentConnections
from pscp.ground import errors, state
from pscp.ground.locations import Location
from pscp.options.options import Options
from pscp.transports import SFTP, Channel, Control, SshSetup, open_channel, resolve
from pscp.transports.control_sockets import USERS, sweep
from pscp.transports.remote_command import command


class Opener(Protocol):
    """The opener of a session's channels. Any thread may use it.

    What it does by itself is right where nothing is configured, and no connection outlives a run.
    """

    logs_in: bool = False  # whether there are logins; if not, nothing of them is remembered
    why_no_plane: str = ""  # why no connection beside SSH may go to this host

    # Finds out how ssh is set up for a host, contacting nobody; None: it is not ssh's to say.
    resolve: Callable[[Location, Options], SshSetup] | None = None

    def check(self, setup: HostSetup, is_push: bool) -> list[str]:
        """Refuse what cannot be, before anybody is contacted; return what -v says."""
        return []

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        """Open a channel of the connection with this socket, if it is given, else of a new one."""
        ...

    def open_kept(self, setup: HostSetup, *, is_sftp: bool) -> Channel | None:
        """Open a channel of a connection that an earlier run left open; None if there is none."""
        return None

    def open_master(self, setup: HostSetup) -> Master | None:
        """Begin the one login for all channels; None if none is wanted, or possible."""
        return None

    def close(self) -> None:
        """Remove sockets that are left."""
        return


class SshOpener(Opener):
    """Opens a process of --transport for each channel."""

    logs_in = True
    resolve = staticmethod(resolve)

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._persisted = PersistentConnections()
        self._numbers = itertools.count()  # of the connections, in the order of their opening
        self._kept_numbers = itertools.count()  # of those that an earlier run left
        self._lock = threading.Lock()  # guards what follows
        self._controls: list[str] = []  # sockets for further channels

    def check(self, setup: HostSetup, is_push: bool) -> list[str]:
        return setup.check(is_push)

    def open(
        self, setup: HostSetup, *, is_sftp: bool, may_prompt: bool, shared: Control | None = None
    ) -> Channel:
        """Open a channel; the prompts of a new connection are answered by the authenticator.

        A new connection gets a socket where further channels may come to share it.
        """
        if shared is not None:
            of_shared = shared._replace(is_master=False)
            return _process(setup, is_sftp, number=0, control=of_shared)
        is_shared = may_prompt or setup.options.channels != 1 or is_sftp
        number = next(self._numbers)
        control = self._new_control(setup, number) if is_shared or setup.persists else None
        log_in = partial(
            _process, setup, is_sftp, number=number, control=control, may_prompt=may_prompt
        )
        return self._authenticator.log_in(setup.key, setup.options, may_prompt, log_in)

    def open_kept(self, setup: HostSetup, *, is_sftp: bool) -> Channel | None:
        while setup.persists and (control := self._kept_control(setup)) is not None:
            with contextlib.suppress(errors.ConnectionLost):  # its ssh has ended just now
                return _process(setup, is_sftp, number=0, control=control)
        return None

    def _kept_control(self, setup: HostSetup) -> Control | None:
        number = next(self._kept_numbers)
        found = self._persisted.next(setup, setup.options.address(number))
        if found is None and number == 0 and setup.ssh.users_master and _is_plain(setup.options):
            control = Control(setup.ssh.users_master, False, USERS)
            return control if control.is_alive() else None
        return found

    def open_master(self, setup: HostSetup) -> Master | None:
        """Begin the one login, with --login-once or where a second one might ask a person again.

        Raises UsageError with --login-once if there is no folder for its socket.
        """
        is_once = setup.options.login_once
        if not (is_once or may_ask_again(setup)):
            return None
        number = next(self._numbers)
        control = self._new_control(setup, number)
        if control is None:
            if is_once:
                message = "--login-once: no folder for a private socket"
                raise errors.UsageError(message, state.NO_FOLDER)
            return None
        log_in = partial(
            _process, setup, False, request="", number=number, control=control, may_prompt=True
        )
        channel = self._authenticator.log_in(setup.key, setup.options, True, log_in)
        return Master(channel, control)

    def close(self) -> None:
        self._persisted.close()
        self._kept_numbers = itertools.count()
        with self._lock:
            paths, self._controls = self._controls, []
        for path in paths:  # an ssh that was killed has not removed its socket
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _new_control(self, setup: HostSetup, number: int) -> Control | None:
        """Return a new path, where ssh makes a socket and removes it; None if no folder can be."""
        if setup.persists:
            return self._persisted.new(setup, setup.options.address(number))
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


def _is_plain(options: Options) -> bool:
    """Return whether nothing is asked of a connection that the user's own may not have."""
    sockets = (options.congestion, options.rcvbuf_bytes, options.sndbuf_bytes, options.bind)
    return not any((options.cipher, options.compress, options.cpus, *sockets))


def _process(
    setup: HostSetup,
    is_sftp: bool,
    asks: Mapping[str, str] | None = None,
    *,
    request: str | None = None,
    number: int,
    control: Control | None,
    may_prompt: bool = False,
) -> Channel:
    """Start the process of one channel: for SFTP, else for this command, else for the agent."""
    if setup.persists:
        setup = setup.absolute()
    channel = open_channel(
        setup.host,
        setup.options,
        setup.ssh,
        SFTP if is_sftp else command() if request is None else request,
        may_prompt=may_prompt,
        number=number,
        control=control,
        asks=asks,
    )
    if not is_sftp:
        return channel
    from pscp.sftp.channel import SftpChannel  # here: most far ends have python3

    return SftpChannel(channel, setup.host, setup.options, setup.ssh)
