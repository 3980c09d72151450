"""Waits for what answers on a channel that logs in: an agent, or the program for SFTP.

Not here: how the channel was opened (openers.py), what the agent tells of itself (bootstrap.py),
which kind is there (first_login.py).
Read next: bootstrap.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pscp.connect.known.host_setup import HostSetup
from pscp.connect.logins.authenticator import Authenticator, Patience
from pscp.ground import errors
from pscp.ground.log import Log
from pscp.options.options import UNCOMPRESSED
from pscp.transports import Channel
from pscp.transports.openssh import user_words

if TYPE_CHECKING:
    from pscp.connect.bootstrap import Facts, FirstSteps, RemoteAgent

# A connection that was kept, and whose server does not open a session in this time, is given up.
_SILENT_S = 2.0
_SILENT_ROUND_TRIPS = 3

# What is said where a server hangs up; before the login it is too busy (MaxStartups).
_HUNG_UP = re.compile("^(?!kex_exchange_identification).*(?:closed by|connection closed)")
_SHUT_OUT = "the account may have expired, or be shut out (the server's log); try: ssh HOST true"

_log = Log("connect")


def greet(
    channel: Channel,
    setup: HostSetup,
    authenticator: Authenticator,
    note: Callable[[str], None] | None = None,
    *,
    facts: Facts | None = None,
    first: FirstSteps | None = None,
) -> RemoteAgent:
    """Send the agent, unless that was done, and wait for the HELLO.

    With `note` a person may be asked, and sees what the login prints. With the `facts` of another
    agent of the host it is not waited for; of a first connection there are the `first` steps.
    Raises ConnectError.
    """
    from pscp.connect.bootstrap import RemoteAgent  # here: it is loaded while ssh logs in

    patience = patience_for(setup, authenticator, may_prompt=note is not None)
    try:
        far = RemoteAgent(channel, note, patience, facts, first)
    except errors.ConnectError as error:
        reason = explain(channel, error, setup, authenticator)
        _log.debug("process %d: no far end: %s", channel.pid, reason.message)
        raise reason from None
    authenticator.end_login(channel)
    _log.debug("process %d: the far end answers: %s", channel.pid, far.hello)
    return far


def patience_for(setup: HostSetup, authenticator: Authenticator, *, may_prompt: bool) -> Patience:
    """Return the time for a login: twice the time to connect, and at least a minute."""
    from pscp.connect.bootstrap import SILENCE_S

    timeout = setup.timeout_s
    limit_s = max(SILENCE_S, 2.0 * int(timeout)) if timeout.isdecimal() else SILENCE_S
    return authenticator.patience(limit_s, setup.options, may_prompt)


def explain(
    channel: Channel, error: errors.PscpError, setup: HostSetup, authenticator: Authenticator
) -> errors.PscpError:
    """Return why a login failed: a refused prompt, else ssh's reason with the host's name."""
    host = setup.host
    was_answered = authenticator.was_answered(channel)
    error = authenticator.end_login(channel) or error
    if was_answered and isinstance(error, errors.ConnectionLost) and _HUNG_UP.search(error.message):
        why = "the login was answered, and then the server closed the connection"
        error = errors.AuthenticationError(f"{host.login}: {why}", _SHUT_OUT)
    if isinstance(error, errors.Unreachable):
        where = "" if str(host.host) in error.message else f"{host.login}: "
        after = f" ({setup.timeout_s} s)" if "timed out" in error.message else ""
        error = errors.Unreachable(f"{where}{error.message}{after}", error.hint)
    if setup.options.retry_for_s is not None:
        error.hint = error.hint.removesuffix(errors.RETRY_FOR)
    error.hint = as_typed(error.hint, setup)
    if isinstance(error, errors.AuthenticationError):
        of_password = re.search("password|keyboard-interactive", error.message)
        reads = "; --password-file FILE reads a password" if of_password else ""
        asks = f"with -B no password or passphrase is asked for{reads}"
        no_key = "no key was accepted there" if "publickey" in error.message else ""
        told = (no_key, asks if setup.options.batch else "", error.hint)
        error.hint = "; ".join(filter(None, told))
    return error


def as_typed(hint: str, setup: HostSetup) -> str:
    """Return a hint in which `ssh HOST` and `sftp HOST` reach the host as pscp was told to."""
    typed = tuple(each for each in setup.options.ssh_options if each != UNCOMPRESSED)
    host, options = setup.host, replace(setup.options, debug=False, ssh_options=typed)
    for program in ("ssh", "sftp"):
        if f"{program} HOST" in hint:
            words = user_words(replace(host, user=None), options)
            if program == "sftp":
                words = ["-P" if word == "-p" else word for word in words]
            command = shlex.join([options.program if program == "ssh" else program, *words])
            hint = hint.replace(f"{program} HOST", f"{command} {host.login}")
    return hint.replace("HOST", host.login)


def live_or_closed(channel: Channel, setup: HostSetup) -> bool:
    """Return whether a channel may be waited for; else it is closed.

    False where its connection was kept open and does not answer, or takes no more channels.
    """
    rtt_s = max(setup.memory.recall(is_push).rtt_s for is_push in (True, False))
    if channel.answers(max(_SILENT_S, _SILENT_ROUND_TRIPS * rtt_s)):
        return True
    _log.debug("a connection that was kept is given up: %s", channel.control)
    channel.close()
    return False
