"""Has the prompts of a session's logins answered, and knows whether a login can be repeated and
how long one may take.

Not here: what is answered (prompts.py), the one login whose connection all channels share
(../control_master.py), the transports' own limits of time (ConnectTimeout, transports/), the
silence of an agent that has answered before (../bootstrap.py).
Read next: prompts.py.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pscp.connect.logins import credentials
from pscp.ground.errors import AuthenticationError, PscpError, Unreachable
from pscp.options.options import Options
from pscp.transports import Channel

if TYPE_CHECKING:
    from pscp.connect.logins.prompts import Caller, Prompts

OpenChannel = Callable[[Mapping[str, str] | None], Channel]
_Connection = TypeVar("_Connection")

SILENT_HINT = "try: ssh HOST 'python3 --version'; --timeout TIME waits longer"


class Patience:
    """The time left for one login, until an agent or SFTP answers; it begins when this is made.

    A person who is asked for a password has all the time; the far end has not.
    """

    def __init__(self, limit_s: float, busy_until_s: Callable[[], float]) -> None:
        """`busy_until_s` returns until when a person was asked, on the monotonic clock.

        That is now while a question is open, and infinity where this cannot be known.
        """
        self.limit_s = limit_s
        self._busy_until_s = busy_until_s
        self._begun_s = time.monotonic()

    def left_s(self) -> float:
        """Return the seconds left; infinite while a person may type. Raises Unreachable at 0."""
        from_s = max(self._begun_s, self._busy_until_s())
        left_s = from_s + self.limit_s - time.monotonic()
        if left_s <= 0:
            raise Unreachable(f"no answer after {self.limit_s:.0f} s", SILENT_HINT)
        return left_s


class Authenticator:
    """Has the prompts of a session's logins answered. Any thread may use it."""

    def __init__(self, *, may_ask: bool = True) -> None:
        """`may_ask`: a person may be asked, by ssh itself where there are no Prompts."""
        self._may_ask = may_ask
        # By the channels whose prompts are answered; each change is one operation.
        self._callers: dict[Channel, Caller] = {}
        self._lock = threading.Lock()  # guards changes of what follows
        self._prompts: Prompts | None = None  # None: nothing is asked, or ssh asks by itself
        self._second = threading.Lock()  # held for the whole second login; guards what follows
        self._is_repeated = False  # the answers to prompts were good for a second login
        self._refusal: AuthenticationError | None = None  # why they were not, if they were not

    def log_in(
        self, key: Hashable, options: Options, may_prompt: bool, open_channel: OpenChannel
    ) -> Channel:
        """Return a new channel; the prompts of its login are answered, if there can be any.

        Sessions with the same `key` share their answers. `open_channel` is given the environment
        by which ssh has its prompts answered. With None ssh asks a person by itself, or nobody.
        Raises UsageError.
        """
        with self._lock:
            if self._prompts is None and (may_prompt or not options.batch):
                self._prompts = _prompts(key, options)
            prompts = self._prompts
        if prompts is None or not (may_prompt or prompts.was_asked):
            return open_channel(None)
        caller, environment = prompts.caller(may_prompt and not options.batch)
        channel = open_channel(environment)
        self._callers[channel] = caller
        return channel

    def was_answered(self, channel: Channel) -> bool:
        """Return whether a login that has not ended got an answer to a prompt."""
        caller = self._callers.get(channel)
        return caller is not None and caller.was_answered

    def end_login(self, channel: Channel) -> PscpError | None:
        """Forget a login that succeeded or failed; return why its prompts were not answered."""
        caller = self._callers.pop(channel, None)
        return caller.refusal if caller is not None else None

    def repeat(self, log_in: Callable[[], _Connection], *, is_unsure: bool = False) -> _Connection:
        """Log in once more. Where logins have prompts, no other login runs beside the second one.

        The same holds with `is_unsure`: the first connection was open already, so it is not known
        whether a login has prompts.

        If an answer was good for one login only, the server counts one wrong answer, not one for
        each connection: all later logins fail with the second one's error.
        """
        if not (self.was_asked or is_unsure):
            return log_in()
        with self._second:
            if self._refusal is not None:
                raise self._refusal
            if not self._is_repeated:
                try:
                    connection = log_in()
                except AuthenticationError as error:
                    self._refusal = error
                    raise
                self._is_repeated = True
                return connection
        return log_in()

    @property
    def was_asked(self) -> bool:
        """Return whether logins need answers to prompts."""
        prompts = self._prompts
        return prompts is not None and prompts.was_asked

    @property
    def is_single_use(self) -> bool:
        """Return whether a login cannot be repeated: one of its answers was good only once."""
        prompts = self._prompts
        return prompts is not None and prompts.is_single_use

    @property
    def waited_s(self) -> float:
        """Seconds in all for which logins waited for people."""
        prompts = self._prompts
        return prompts.waited_s if prompts is not None else 0.0

    def patience(self, limit_s: float, options: Options, may_prompt: bool) -> Patience:
        """Return the time for one login, which is not counted while a person is asked."""
        prompts = self._prompts
        if prompts is not None:
            return Patience(limit_s, prompts.busy_until_s)
        # Without Prompts ssh asks a person by itself, at the terminal.
        asks_itself = self._may_ask and may_prompt and not options.batch
        return Patience(limit_s, lambda: math.inf if asks_itself else 0.0)

    def close(self) -> None:
        """Ask nobody any more, and forget the answers, unless another session has them."""
        with self._lock:
            prompts, self._prompts = self._prompts, None
        self._callers.clear()
        if prompts is not None:
            prompts.close()


def _prompts(key: Hashable, options: Options) -> Prompts | None:
    """Return what answers the prompts; None: nobody is asked, or ssh asks by itself."""
    password_file = options.password_file or os.environ.get("PSCP_PASSWORD_FILE") or None
    if options.batch and not password_file and not credentials.are_known(key):
        return None
    from pscp.connect.logins import prompts

    return prompts.start_prompts(password_file, key)
