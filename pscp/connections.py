"""The connections of a session to one host: how they begin, wait for the next copy, and end.

Not here: what a program calls (api.py), how many lanes are good (tuner.py), when one connects
again (worker.py), what is remembered of a host (hosts.py), and where (state.py).
Read next: worker.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pscp import errors, hosts, state
from pscp.channels import (
    Channel,
    Control,
    SshSetup,
    check_lent,
    open_channel,
    open_lent,
    resolve,
    transport_of,
)
from pscp.channels.command import command
from pscp.channels.openssh import user_words
from pscp.channels.sockets import Route, asked
from pscp.options import Location, Options

if TYPE_CHECKING:
    from pscp.bootstrap import Far
    from pscp.worker import Worker

# A first connection that was closed before the login: sshd's MaxStartups, most likely.
_FIRST_ATTEMPTS = 4

_EARLY_MAX = 8  # logging in at once; sshd's MaxStartups begins to refuse at 10
_RUN_FOLDER_MAX = 50  # characters: unix(7) takes 107 for a socket, and ssh adds some of its own


class Connections:
    """Those of one session. Those that are idle are of use to the next copy."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self.keeps = True  # they outlive a copy
        self.login_s = 0.0  # from the start of the first ssh to the agent's HELLO
        self._setup: SshSetup | None = None
        self._is_guess = False  # what ssh -G said for the last copy, and not yet for this one
        self._numbers = itertools.count()  # of the connections, in the order of their opening
        self._idle: list[Far] = []
        self._first: Channel | None = None  # ssh is logging in; no agent there yet
        self._early: list[tuple[Channel, bytes]] = []  # likewise; the agent's marker, once sent
        self._lock = threading.RLock()  # two streams may begin at once
        self._begun_s = 0.0  # when the first ssh was started
        self._controls: list[str] = []  # sockets for further channels

    def begin(self, options: Options, is_push: bool, is_small: bool) -> None:
        """Have ssh begin to log in, unless there is a connection."""
        with self._lock:
            self._start(options, is_push, is_small)

    def begun(self, options: Options, is_push: bool, is_small: bool) -> None:
        """While ssh logs in: is its configuration what was thought; and have the agent sent."""
        with self._lock:
            self._check_setup(options, is_push, is_small)
            self._send_agents()

    def close(self) -> None:
        """End every connection."""
        for channel in [self._first, *(channel for channel, _ in self._early)]:
            if channel is not None:
                channel.close()
        self._first, self._early = None, []
        while self._idle:
            self._idle.pop().close()
        while self._controls:  # an ssh that was killed has not removed its own
            with contextlib.suppress(OSError):
                os.unlink(self._controls.pop())

    def check(self, options: Options, is_push: bool) -> list[str]:
        """Refuse what cannot be, before anybody is contacted; returns what -v says."""
        setup = self._resolved(options)
        said = setup.check(options, is_push)
        advised = []
        connections = hosts.advice(self.host, options)[0]
        if connections and options.connections is None:
            advised.append(f"connections: {connections}")
        if setup.advised and setup.ciphers_are_ours:
            advised.append(f"cipher: {setup.advised}")
        if advised:
            listed = ", ".join(advised)
            said.append(f"as pscp --measure --save found best for this host: {listed}")
        return said

    def _start(self, options: Options, is_push: bool, is_small: bool) -> None:
        """Have ssh begin to log in, unless there is a connection.

        Over several connections at once, where the last copy's logins needed no prompt.
        """
        while self._idle and self._idle[0].is_closed():
            self._idle.pop(0).close()
        if self._idle or self._first is not None:
            return
        self._begun_s = time.monotonic()
        self._first = self._channel(options, may_prompt=True)
        if is_small:
            return
        known = hosts.recall(self.host, options, is_push)
        lanes = min(known.logins, options.connections or known.logins, _EARLY_MAX)
        chosen = self._with_congestion(options, known.congestion if is_push else "")
        missing = lanes - 1 - len(self._early)  # another stream may have some on their way
        self._early += [(self._channel(chosen, False), b"") for _ in range(missing)]

    def _send_agents(self) -> None:
        """To connections that log in, so that it is there as soon as they are up."""
        from pscp.bootstrap import send_agent

        self._early = [(each, marker or send_agent(each)) for each, marker in self._early]

    def _with_congestion(self, options: Options, name: str) -> Options:
        """The user's own choice goes before one that was made here."""
        if options.congestion or not name or not self.has_bbr(options):
            return options
        return dataclasses.replace(options, congestion=name)

    def has_early(self) -> bool:
        """Is another connection logging in already?"""
        return bool(self._early)

    def has_bbr(self, options: Options) -> bool:
        """May connections from here use BBR?"""
        try:
            self._resolved(options).check(dataclasses.replace(options, congestion="bbr"), True)
        except errors.UsageError:
            return False
        return True

    def _channel(
        self, options: Options, may_prompt: bool, rides_on: Control | None = None
    ) -> Channel:
        number, control = 0, rides_on and Control(rides_on.path, False)
        if rides_on is None:
            number = next(self._numbers)
            control = self._new_control() if options.channels != 1 else None
        setup = self._resolved(options)
        return open_channel(self.host, options, setup, command(), may_prompt, number, control)

    def _resolved(self, options: Options) -> SshSetup:
        if self._setup is None:
            self._setup = self._guessed(options)
        return self._setup

    def _new_control(self) -> Control | None:
        """A socket's path of its own: ssh makes it there, and removes it. None: no place for it."""
        folder = control_folder()
        if folder is None:
            return None
        self._controls.append(f"{folder}/{os.urandom(8).hex()}")
        return Control(self._controls[-1], True)

    def _guessed(self, options: Options) -> SshSetup:
        """What ssh -G said last, so that ssh need not wait for it: _check_setup() asks again."""
        advised = hosts.advice(self.host, options)[1]
        if transport_of(options) != "openssh":  # nobody is asked, so nothing need be remembered
            return dataclasses.replace(resolve(self.host, options), advised=advised)
        try:  # --bind and the like depend on the way there, and may not be
            kept: Any = None if asked(options) else state.recall(_setup_name(self.host, options))
            route, offered = Route(**kept["route"]), tuple(kept["offered"])
            guess = SshSetup(**{**kept, "route": route, "offered": offered, "advised": advised})
        except (TypeError, LookupError):  # nothing, or of another shape
            found = resolve(self.host, options)
            self._remember_setup(options, found)
            return dataclasses.replace(found, advised=advised)
        self._is_guess = True
        return guess

    def _check_setup(self, options: Options, is_push: bool, is_small: bool) -> None:
        """While ssh logs in: begin again where the user's configuration has changed meanwhile."""
        if not self._is_guess:
            return
        self._is_guess = False
        assert self._setup is not None
        found = resolve(self.host, options)
        if found != dataclasses.replace(self._setup, advised=""):
            self.close()
            self._setup = dataclasses.replace(found, advised=self._setup.advised)
            self._remember_setup(options, found)
            self._start(options, is_push, is_small)

    def _remember_setup(self, options: Options, setup: SshSetup) -> None:
        state.remember(_setup_name(self.host, options), dataclasses.asdict(setup))

    def take(self, options: Options, note: Callable[[str], None]) -> list[Far]:
        """The connections that are open; if there is none, a first one, which may prompt."""
        with self._lock:
            return self._taken(options, note)

    def _taken(self, options: Options, note: Callable[[str], None]) -> list[Far]:
        for attempt in range(_FIRST_ATTEMPTS):
            if self._idle:
                break
            try:
                first = self._first or self._channel(options, may_prompt=True)
                self._first = None
                self._idle.append(self._greeted(first, note))
                self.login_s = time.monotonic() - self._begun_s
            except errors.ConnectionLost:
                if attempt == _FIRST_ATTEMPTS - 1:
                    raise
                time.sleep(1 << attempt)
        fars, self._idle = self._idle, []
        return fars

    def give(self, fars: list[Far]) -> None:
        """Connections that are of use to the next copy."""
        for far in fars:
            far.was_kept = True
        self._idle += fars

    def connect(self, options: Options, worker: Worker) -> Far:
        """A further connection or channel, for a worker. Never prompts. Raises ConnectError."""
        marker = b""
        master = worker.master.channel if worker.master is not None else None
        if master is not None:
            worker.channel = self._channel(options, may_prompt=False, rides_on=master.control)
        else:
            chosen = self._with_congestion(options, worker.congestion)
            with self._lock:
                early = self._early.pop(0) if self._early else None
            worker.channel, marker = early or (self._channel(chosen, False), b"")
        return self._greeted(worker.channel, None, marker)

    def _greeted(
        self, channel: Channel, note: Callable[[str], None] | None, marker: bytes = b""
    ) -> Far:
        from pscp.bootstrap import Far

        try:
            far = Far(channel, note, marker)
        except errors.ConnectError as error:
            error.hint = error.hint.replace("HOST", self.host.login)
            raise
        aes = far.hello.get("aes")
        if self._setup is not None and self._setup.far_aes is None and isinstance(aes, bool):
            self._setup = dataclasses.replace(self._setup, far_aes=aes)
        return far


class LentConnections(Connections):
    """Those of a session whose lanes are channels of a connection that the program has made."""

    def __init__(self, host: Location, options: Options, client: Any) -> None:
        super().__init__(host)
        check_lent(client, options)
        self._client = client

    def check(self, options: Options, is_push: bool) -> list[str]:
        check_lent(self._client, options)
        return []

    def has_bbr(self, options: Options) -> bool:
        return False

    def _channel(
        self, options: Options, may_prompt: bool, rides_on: Control | None = None
    ) -> Channel:
        return open_lent(self._client, command())

    def _check_setup(self, options: Options, is_push: bool, is_small: bool) -> None:
        pass


def _setup_name(host: Location, options: Options) -> str:
    words = user_words(host, options)
    return state.name_of("ssh", options.program, *words, "--", str(host.host))


def control_folder() -> str | None:
    """A folder of the user's own for sockets, made where it is missing; None: there is none."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if len(base) > _RUN_FOLDER_MAX or not re.fullmatch(r"/[\w/.-]+", base, re.ASCII):
        base = "/tmp"
    folder = f"{base}/pscp-{os.getuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return folder if is_ours and not status.st_mode & 0o077 else None
