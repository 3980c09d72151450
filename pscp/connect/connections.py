"""The connections of a session to one host: how they begin, wait for the next copy, and end.

Not here: what a program calls (api.py), when a lane connects again (transfer/worker.py), what ssh
is set up to be like (ssh_setup.py), how long a login may take (patience.py), logins that begin
early (early_logins.py), what came late (latecomers.py).
Read next: bootstrap.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pscp import errors, state
from pscp.connect import credentials, host_cache
from pscp.connect.control_master import Master, may_ask_again
from pscp.connect.early_logins import EarlyLogins
from pscp.connect.latecomers import Latecomers
from pscp.connect.patience import Patience
from pscp.connect.ssh_setup import Setup, setup_name
from pscp.options import Location, Options
from pscp.transports import Channel, Control, open_channel
from pscp.transports.control_sockets import sweep
from pscp.transports.remote_command import command

if TYPE_CHECKING:
    from pscp.connect.bootstrap import Far
    from pscp.connect.prompts import Prompts

# A first connection that was closed before the login: sshd's MaxStartups, most likely.
_FIRST_ATTEMPTS = 4

_PAUSE_MAX_S = 30  # between two attempts
_EARLY_MAX = 8  # logging in at once; sshd's MaxStartups begins to refuse at 10

_GONE = "the only login's connection was lost, and it cannot be repeated"


class Wanted(NamedTuple):
    """The connection that a lane asks for."""

    rides_on: Channel | None  # it is one more channel of this one's connection
    congestion: str  # the congestion control of a new connection; "": any
    opened: Callable[[Channel], None]  # is given the channel at once, to end it from elsewhere


class Connections:
    """Those of one session. Those that are idle are of use to the next copy."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self.keeps = True  # they outlive a copy
        self.login_s = 0.0  # of the first, to the agent's HELLO; those at once share processors
        self._setup = Setup(host)
        self._numbers = itertools.count()  # of the connections, in the order of their opening
        self._idle: list[Far] = []
        self.late = Latecomers()
        self._first: Channel | None = None  # ssh is logging in; no agent there yet
        self._early = EarlyLogins()
        self._lock = threading.RLock()  # two streams may begin at once
        self._begun_s = 0.0  # when the first ssh was started
        self._controls: list[str] = []  # sockets for further channels
        self._prompts: Prompts | None = None  # None: nothing is asked, or ssh asks by itself
        self._tokens: dict[int, str] = {}  # of those whose prompts are answered, by their pid
        self._master: Master | None = None  # the connection that carries all, with login_once
        self._only: Control | None = None  # of the first connection, by which others can ride on it
        self._repeating = threading.Lock()
        self._is_repeated = False  # the answers to prompts were good for a second login
        self._refusal: errors.AuthenticationError | None = None  # or they were not
        self._is_sftp: bool | None = None  # with --remote auto: no agent can be there

    def begin(self, options: Options, is_push: bool, is_small: bool) -> None:
        """Have ssh begin to log in, unless there is a connection."""
        with self._lock:
            self._start(options, is_push, is_small)

    def begun(self, options: Options, is_push: bool, is_small: bool) -> None:
        """While ssh logs in: is its configuration what was thought; and have the agent sent."""
        with self._lock:
            self._check_setup(options, is_push, is_small)
            from pscp.connect.bootstrap import send_agent  # here: it is loaded while ssh logs in

            self._early.send_agents(send_agent)

    def close(self, is_cut: bool = False) -> None:
        """End every connection; with `is_cut` those as well that only log in, and at once."""
        if self._first is not None:
            self._first.close()
            self._first = None
        self._early.end(is_cut)
        self.late = self.late.closed()
        while self._idle:
            self._idle.pop().close()
        if self._master is not None:
            self._master.close()
            self._master = None
        if self._prompts is not None:
            self._prompts.close()
            self._prompts = None
        while self._controls:  # an ssh that was killed has not removed its own
            with contextlib.suppress(OSError):
                os.unlink(self._controls.pop())

    def check(self, options: Options, is_push: bool) -> list[str]:
        """Refuse what cannot be, before anybody is contacted; returns what -v says."""
        setup = self._setup.get(options)
        cipher = setup.advised if setup.ciphers_are_ours else ""
        return setup.check(options, is_push) + host_cache.advice_said(self.host, options, cipher)

    def _start(self, options: Options, is_push: bool, is_small: bool) -> None:
        """Have ssh begin to log in, unless there is a connection.

        Over several connections at once, where the last copy's logins needed no prompt.
        """
        while self._idle and (self._idle[0].is_closed() or not self._suits(self._idle[0], options)):
            self._idle.pop(0).close()
        if self._idle or self._first is not None:
            return
        self._begun_s = time.monotonic()
        if self._begin_master(options):
            return
        self._first = self._channel(options, may_prompt=True)
        if is_small:
            return
        known = host_cache.recall(self.host, options, is_push)
        lanes = min(known.logins, options.connections or known.logins, _EARLY_MAX)
        chosen = self._with_congestion(options, known.congestion if is_push else "")
        missing = lanes - 1 - len(self._early)  # another stream may have some on their way
        for _ in range(missing):
            self._early.add(self._channel(chosen, False))

    def _with_congestion(self, options: Options, name: str) -> Options:
        """The user's own choice goes before one that was made here."""
        if options.congestion or not name or not self.has_bbr(options):
            return options
        return dataclasses.replace(options, congestion=name)

    def has_early(self) -> bool:
        """Is another connection logging in already?"""
        return len(self._early) > 0

    def has_bbr(self, options: Options) -> bool:
        """May connections from here use BBR?"""
        try:
            self._setup.get(options).check(dataclasses.replace(options, congestion="bbr"), True)
        except errors.UsageError:
            return False
        return True

    def _channel(
        self, options: Options, may_prompt: bool, rides_on: Control | None = None
    ) -> Channel:
        if rides_on is not None:
            return self._opened(options, False, 0, Control(rides_on.path, False))
        has_riders = may_prompt or options.channels != 1 or self._uses_sftp(options)
        control = self._new_control() if has_riders else None
        return self._logging_in(options, may_prompt, control)

    def _logging_in(
        self, options: Options, may_prompt: bool, control: Control | None, is_empty: bool = False
    ) -> Channel:
        """With `is_empty` a connection that only others use."""
        number = next(self._numbers)
        if self._prompts is None and (may_prompt or not options.batch):
            self._prompts = _prompts(self.host, options)
        prompts = self._prompts
        if prompts is None or not (may_prompt or prompts.was_asked):
            return self._opened(options, may_prompt, number, control, None, is_empty)
        token, asks = prompts.caller(may_prompt and not options.batch)
        channel = self._opened(options, may_prompt, number, control, asks, is_empty)
        self._tokens[channel.pid] = token
        return channel

    def _opened(
        self, options: Options, may_prompt: bool, number: int, control: Control | None,
        asks: Mapping[str, str] | None = None, is_empty: bool = False,
    ) -> Channel:  # fmt: skip
        setup = self._setup.get(options)
        if not is_empty and self._uses_sftp(options):
            from pscp.sftp.channel import open_sftp  # here: most far ends have python3

            return open_sftp(self.host, options, setup, may_prompt, number, control, asks)
        request = "" if is_empty else command()
        return open_channel(self.host, options, setup, request, may_prompt, number, control, asks)

    def _uses_sftp(self, options: Options) -> bool:
        if options.remote != "auto":
            return options.remote == "sftp"
        if self._is_sftp is None:
            self._is_sftp = host_cache.uses_sftp(self.host, options)
        return self._is_sftp

    def _suits(self, far: Far, options: Options) -> bool:
        """Is it of the kind that this copy asks for?"""
        is_sftp = self._uses_sftp(options)
        return far.is_sftp == is_sftp and (not is_sftp or far.verify == options.verify)

    def _new_control(self) -> Control | None:
        """A socket's path of its own: ssh makes it there, and removes it. None: no place for it."""
        folder = state.control_folder()
        if folder is None:
            return None
        if not self._controls:
            sweep(folder)
        self._controls.append(state.private_path(folder))
        return Control(self._controls[-1], True)

    def _check_setup(self, options: Options, is_push: bool, is_small: bool) -> None:
        """While ssh logs in: begin again where the user's configuration has changed meanwhile."""
        if self._setup.has_changed(options):
            self.close()
            self._start(options, is_push, is_small)

    def take(self, options: Options, note: Callable[[str], None]) -> list[Far]:
        """The connections that are open; if there is none, a first one, which may prompt."""
        with self._lock:
            return self._taken(options, note)

    def _taken(self, options: Options, note: Callable[[str], None]) -> list[Far]:
        self._idle += self.late.take()
        until_s = time.monotonic() + (options.retry_for_s or 0)
        for attempt in itertools.count():
            if self._idle:
                break
            try:
                self._idle.append(self._first_far(options, note))
            except (errors.ConnectionLost, errors.Unreachable) as error:
                pause_s = min(1 << attempt, _PAUSE_MAX_S)
                is_full = isinstance(error, errors.ConnectionLost) and attempt < _FIRST_ATTEMPTS - 1
                if not is_full and time.monotonic() + pause_s > until_s:
                    raise
                if attempt == 0 and options.retry_for_s:
                    note(f"{error.message}; trying again for up to {options.retry_for_s} s")
                time.sleep(pause_s)
        fars, self._idle = self._idle, []
        return fars

    def _first_far(self, options: Options, note: Callable[[str], None]) -> Far:
        try:
            far = self._greeted(self._first_channel(options, note), options, note)
        except errors.ConnectError as error:
            why = self._nothing_there(error)
            if why is None or options.remote != "auto":
                raise why or error from None
            far = self._other_way(options, note, why)
        if options.remote == "agent":
            host_cache.remember_sftp(self.host, options, False)
        waited_s = self._prompts.waited_s if self._prompts is not None else 0.0
        share = max(1.0, (1 + len(self._early)) / (os.cpu_count() or 1))
        self.login_s = (time.monotonic() - self._begun_s - waited_s) / share
        self._only = self._master.control if self._master is not None else far.channel.control
        if self._is_answered() or self.is_once:  # what logs in already gets no answers
            self._early.end(is_cut=True)
        return far

    def _first_channel(self, options: Options, note: Callable[[str], None]) -> Channel:
        """The one that is logging in; else one of the connection that carries others; else new."""
        first, self._first = self._first, None
        if first is None and self._begin_master(options):
            return self._channel(options, False, self._awaited_master(options, note).control)
        return first or self._channel(options, may_prompt=True)

    def _nothing_there(self, error: errors.ConnectError) -> errors.ConnectError | None:
        """Why the far end has not what was asked for; None: that is not the reason.

        ssh says nothing of a further channel whose command was refused; a server may even end
        the whole connection.
        """
        if isinstance(error, errors.NoPython | errors.NoAgent | errors.NoSftp):
            return error
        if self._master is None or self._is_sftp or not isinstance(error, errors.ConnectionLost):
            return None
        is_there = self._master.is_usable()
        return errors.NoAgent("the far end runs no commands") if is_there else error

    def _other_way(
        self, options: Options, note: Callable[[str], None], why: errors.ConnectError
    ) -> Far:
        """No agent can be there: SFTP, now and the next time. Or no SFTP any more: the agent."""
        self._early.end(is_cut=False)
        self._is_sftp = not self._uses_sftp(options)
        self._begun_s = time.monotonic()
        try:
            far = self._greeted(self._first_channel(options, note), options, note)
        except (errors.NoPython, errors.NoAgent, errors.NoSftp) as error:
            self._is_sftp = None
            raise error if isinstance(why, errors.NoSftp) else why from None
        if not isinstance(why, errors.ConnectionLost):
            host_cache.remember_sftp(self.host, options, self._is_sftp)
        if self._is_sftp:
            note(f"{why.message.rstrip('.')}: using SFTP")
        return far

    @property
    def is_once(self) -> bool:
        """There is one login, and all lanes are channels of its connection."""
        if self._master is not None and self._master.is_only:
            return True
        return self._prompts is not None and self._prompts.is_once

    def _is_answered(self) -> bool:
        """Do logins need answers to prompts?"""
        return self._prompts is not None and self._prompts.was_asked

    def remember(self, options: Options, is_push: bool, known: host_cache.Known) -> None:
        """What this copy came to. Where a prompt was answered, logins do not begin at once."""
        if self._is_answered() or self.is_once:
            known = known._replace(logins=1)
        host_cache.remember_asks(self.host, options, self._is_answered() or self.is_once)
        host_cache.remember(self.host, options, is_push, known)

    def give(self, fars: list[Far]) -> None:
        """Connections that are of use to the next copy."""
        for far in fars:
            far.was_kept = True
        self._idle += fars

    def connect(self, options: Options, wanted: Wanted) -> Far:
        """Open a further connection, or channel, of a lane. Never prompts. Raises ConnectError."""
        rides_on = wanted.rides_on.control if wanted.rides_on is not None else None
        if wanted.rides_on is None and self.is_once:
            rides_on = self._only
            if rides_on is None or not rides_on.is_alive():
                raise errors.AuthenticationError(_GONE, errors.RUN_AGAIN)
        if rides_on is not None:
            channel = self._channel(options, may_prompt=False, rides_on=rides_on)
            wanted.opened(channel)
            return self._greeted(channel, options, None)
        if not self._is_answered():
            return self._logged_in(options, wanted)
        if not self._is_repeated:
            with self._repeating:
                if not self._is_repeated:
                    return self._repeated(options, wanted)
        return self._logged_in(options, wanted)

    def _repeated(self, options: Options, wanted: Wanted) -> Far:
        """The second login, alone: where its answers are wrong, they are wrong only once."""
        if self._refusal is not None:
            raise self._refusal
        try:
            far = self._logged_in(options, wanted)
        except errors.AuthenticationError as error:
            self._refusal = error
            raise
        self._is_repeated = True
        return far

    def _logged_in(self, options: Options, wanted: Wanted) -> Far:
        while (late := self.late.next()) is not None:
            if self._suits(late, options) and not late.is_closed():
                wanted.opened(late.channel)
                return late
            late.close()
        chosen = self._with_congestion(options, wanted.congestion)
        with self._lock:
            early = self._early.take()
        channel, marker = early or (self._channel(chosen, False), b"")
        wanted.opened(channel)
        return self._greeted(channel, options, None, marker)

    def _greeted(
        self, channel: Channel, options: Options, note: Callable[[str], None] | None,
        marker: bytes = b"",
    ) -> Far:  # fmt: skip
        from pscp.connect.bootstrap import Far

        try:
            far = Far(channel, note, marker, self._patience(options, note is not None))
        except errors.ConnectError as error:
            raise self._explained(channel, error, options) from None
        self._tokens.pop(channel.pid, None)
        far.verify = options.verify
        self._setup.learn_aes(far.hello.get("aes"))
        return far

    def _patience(self, options: Options, may_prompt: bool) -> Patience:
        """What a login has of it: as long as to connect once more, and a minute at the least."""
        from pscp.connect.bootstrap import SILENCE_S

        timeout = self._timeout(options)
        limit_s = max(SILENCE_S, 2.0 * int(timeout)) if timeout.isdecimal() else SILENCE_S
        if self._prompts is not None:
            return Patience(limit_s, self._prompts.busy_until_s)
        asks_itself = may_prompt and not options.batch  # ssh asks a person, at the terminal
        return Patience(limit_s, lambda: math.inf if asks_itself else 0.0)

    def _timeout(self, options: Options) -> str:
        """The seconds in which the host has to answer, or "none"."""
        return self._setup.get(options).timeout_s(options)

    def _explained(
        self, channel: Channel, error: errors.PscpError, options: Options
    ) -> errors.PscpError:
        prompts, token = self._prompts, self._tokens.pop(channel.pid, None)
        if prompts is not None and token is not None:
            error = prompts.refusal(token) or error
        if isinstance(error, errors.Unreachable):
            where = "" if str(self.host.host) in error.message else f"{self.host.login}: "
            after = f" ({self._timeout(options)} s)" if "timed out" in error.message else ""
            error = errors.Unreachable(f"{where}{error.message}{after}", error.hint)
        error.hint = error.hint.replace("HOST", self.host.login)
        return error

    # --- one login for all

    def _begin_master(self, options: Options) -> bool:
        """Have ssh begin to log in for a connection that carries others. False: there is none."""
        if self._master is not None and not self._master.is_usable():
            self._master.close()
            self._master = None
        is_wanted = options.login_once or may_ask_again(self.host, options)
        if self._master is None and is_wanted and (control := self._new_control()):
            channel = self._logging_in(options, True, control, is_empty=True)
            self._master = Master(channel, control)
        if self._master is not None:
            self._master.is_only |= options.login_once
        elif options.login_once:
            message = "--login-once: no folder for a private socket"
            raise errors.UsageError(message, state.NO_FOLDER)
        return self._master is not None

    def _awaited_master(self, options: Options, note: Callable[[str], None]) -> Master:
        master = self._master
        assert master is not None
        error = master.wait(note, self._patience(options, True))
        if error is not None:
            self._master = None
            master.close()
            raise self._explained(master.channel, error, options)
        return master


def _prompts(host: Location, options: Options) -> Prompts | None:
    """What answers them; None: nobody is asked, or ssh asks by itself."""
    password_file = options.password_file or os.environ.get("PSCP_PASSWORD_FILE") or None
    name = setup_name(host, options)
    if options.batch and not password_file and not credentials.are_known(name):
        return None
    from pscp.connect import prompts

    return prompts.begun(password_file, name)
