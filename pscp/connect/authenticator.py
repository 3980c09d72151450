"""Has the prompts of a session's logins answered, and knows whether a login can be repeated.

Not here: what is answered (prompts.py), the one login whose connection all channels share
(control_master.py).
Read next: prompts.py.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pscp.connect import credentials
from pscp.connect.patience import Patience
from pscp.connect.ssh_setup import setup_key
from pscp.errors import AuthenticationError, PscpError
from pscp.options import Location, Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.bootstrap import RemoteAgent
    from pscp.connect.prompts import Prompts

OpenChannel = Callable[[Mapping[str, str] | None], Channel]


class Authenticator:
    """The logins of one session to one host. Any thread may use it."""

    def __init__(self, host: Location) -> None:
        self.host = host
        self._lock = threading.Lock()  # guards what follows
        self._prompts: Prompts | None = None  # None: nothing is asked, or ssh asks by itself
        self._tokens: dict[Channel, str] = {}  # of the channels whose prompts are answered
        self._second = threading.Lock()  # held for the whole second login; guards what follows
        self._is_repeated = False  # the answers to prompts were good for a second login
        self._refusal: AuthenticationError | None = None  # or they were not

    def log_in(self, options: Options, may_prompt: bool, open_channel: OpenChannel) -> Channel:
        """Return a new channel, with its prompts answered as far as there may be any.

        `open_channel` is given the environment by which ssh has its prompts answered; None: ssh
        asks a person by itself, or nobody. Raises UsageError.
        """
        with self._lock:
            if self._prompts is None and (may_prompt or not options.batch):
                self._prompts = _prompts(self.host, options)
            prompts = self._prompts
        if prompts is None or not (may_prompt or prompts.was_asked):
            return open_channel(None)
        token, environment = prompts.caller(may_prompt and not options.batch)
        channel = open_channel(environment)
        with self._lock:
            self._tokens[channel] = token
        return channel

    def end_login(self, channel: Channel) -> PscpError | None:
        """Forget a login that has come to its end; return why its prompts were not answered."""
        with self._lock:
            prompts, token = self._prompts, self._tokens.pop(channel, None)
        return prompts.refusal(token) if prompts is not None and token is not None else None

    def repeat(self, log_in: Callable[[], RemoteAgent]) -> RemoteAgent:
        """Log in once more. Where logins have prompts, the second one goes alone.

        So where its answers are wrong, they are wrong only once, and nobody tries them again.
        """
        if self.was_asked:
            with self._second:
                if not self._is_repeated:
                    return self._second_login(log_in)
        return log_in()

    def _second_login(self, log_in: Callable[[], RemoteAgent]) -> RemoteAgent:
        if self._refusal is not None:
            raise self._refusal
        try:
            far = log_in()
        except AuthenticationError as error:
            self._refusal = error
            raise
        self._is_repeated = True
        return far

    @property
    def was_asked(self) -> bool:
        """Whether logins need answers to prompts."""
        prompts = self._current()
        return prompts is not None and prompts.was_asked

    @property
    def is_single_use(self) -> bool:
        """Whether a login cannot be repeated: one of its answers was good for one login only."""
        prompts = self._current()
        return prompts is not None and prompts.is_single_use

    @property
    def waited_s(self) -> float:
        """Seconds for which people had to be waited for, in all."""
        prompts = self._current()
        return prompts.waited_s if prompts is not None else 0.0

    def patience(self, limit_s: float, options: Options, may_prompt: bool) -> Patience:
        """Return the time for one login, which is not counted while a person is asked."""
        prompts = self._current()
        if prompts is not None:
            return Patience(limit_s, prompts.busy_until_s)
        asks_itself = may_prompt and not options.batch  # ssh asks a person, at the terminal
        return Patience(limit_s, lambda: math.inf if asks_itself else 0.0)

    def close(self) -> None:
        """Ask nobody any more, and forget the answers, unless another session has them."""
        with self._lock:
            prompts, self._prompts = self._prompts, None
            self._tokens.clear()
        if prompts is not None:
            prompts.close()

    def _current(self) -> Prompts | None:
        with self._lock:
            return self._prompts


def _prompts(host: Location, options: Options) -> Prompts | None:
    """Return what answers the prompts; None: nobody is asked, or ssh asks by itself."""
    password_file = options.password_file or os.environ.get("PSCP_PASSWORD_FILE") or None
    key = setup_key(host, options)
    if options.batch and not password_file and not credentials.are_known(key):
        return None
    from pscp.connect import prompts

    return prompts.start_prompts(password_file, key)
