"""What is remembered of a host from the last copy there, for the next one.

It knows how many logins needed no prompt: the next copy logs in over that many connections at once
instead of waiting for the first; with a round trip of 100 ms this saves a second and a half. It
knows how many lanes -c auto came to, over which path; and what --measure --save found best. Nothing
is secret, and without it a copy is only slower. Each way to a host has a file of its own, since the
libraries differ in speed, in ciphers, and in what they can log in with: {"push": [logins, lanes,
rtt_s, congestion, enough_bytes_s], "pull": likewise, "connections": number, "cipher": name,
"remote": "sftp" where no agent can run, "asks": whether a login asked a person}.

Not here: the connections (connections.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pscp import state
from pscp.options import MAX_CONNECTIONS, Location, Options
from pscp.transports import transport_of

_ALIKE = 2.0  # round trips that differ by less than this factor are taken for the same path
_NEAR_S = 0.01  # and so are all shorter ones


class Known(NamedTuple):
    """What the last copy in one direction found best."""

    logins: int = 0  # connections that were open at once
    lanes: int = 0  # the lanes that -c auto chose; 0: not known
    rtt_s: float = 0.0
    congestion: str = ""  # the congestion control that was faster; "": the system's
    enough_bytes_s: float = 0.0  # the rate at which more lanes brought nothing; 0: not known

    def over(self, rtt_s: float) -> Known:
        """Return this if it was found over a similar round trip, else the defaults."""
        low, high = sorted((self.rtt_s, rtt_s))
        return self if high < max(_ALIKE * low, _NEAR_S) else Known()


def _key(host: Location, options: Options) -> state.Key:
    """Return what distinguishes the ways to a host: each has its own memory."""
    return (
        host.user,
        host.host,
        host.port or options.port,
        options.program,
        options.config_file,
        options.jump,
        transport_of(options),
    )


def _known(host: Location, options: Options) -> dict[str, object]:
    found = state.recall_entry("hosts", host.login, _key(host, options))
    return found if isinstance(found, dict) else {}


def _keep(host: Location, options: Options, values: dict[str, object]) -> bool:
    """Add these values to what is remembered. Return False where they cannot be kept."""
    before = _known(host, options)
    after = {**before, **values}
    if after == before:
        return True
    return state.remember_entry("hosts", host.login, _key(host, options), after)


def recall(host: Location, options: Options, is_push: bool) -> Known:
    """Return what the last copy in this direction found best; the defaults if it is not known."""
    found = _known(host, options)
    kept = found.get(_way(is_push))
    try:
        known = Known(*kept) if isinstance(kept, list) else Known()
    except TypeError:
        known = Known()
    are_right = [
        isinstance(*pair) for pair in zip(known, (int, int, float, str, float), strict=True)
    ]
    if not (all(are_right) and 0 <= known.lanes <= MAX_CONNECTIONS):
        known = Known()
    # --measure logs in without prompts as well
    return known if known.logins else known._replace(logins=_number(found.get("connections")))


def remember(host: Location, options: Options, is_push: bool, known: Known) -> None:
    """Keep what this copy found best, for the next one in this direction."""
    before = recall(host, options, is_push)
    if options.connections is not None:  # the user's number says nothing about what is best
        known = before._replace(logins=known.logins)
    if known._replace(rtt_s=0.0) != before.over(known.rtt_s)._replace(rtt_s=0.0):
        _keep(host, options, {_way(is_push): list(known)})


def advice(host: Location, options: Options) -> tuple[int, str]:
    """Return the connections and the cipher that --measure --save found best, or 0 and ""."""
    known = _known(host, options)
    cipher = known.get("cipher")
    is_name = isinstance(cipher, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._-]*", cipher)
    return _number(known.get("connections")), str(cipher) if is_name else ""


def advice_said(host: Location, options: Options, cipher: str) -> list[str]:
    """Return the lines of -v about the advice that is followed.

    `cipher` is the advised one, if it is used, else "".
    """
    connections = advice(host, options)[0]
    advised = []
    if connections and options.connections is None:
        advised.append(f"connections: {connections}")
    if cipher:
        advised.append(f"cipher: {cipher}")
    listed = ", ".join(advised)
    return [f"as pscp --measure --save found best for this host: {listed}"] if advised else []


def save_advice(host: Location, options: Options, connections: int, cipher: str) -> bool:
    """Keep what --measure --save found best. Return False where it cannot be kept."""
    return _keep(host, options, {"connections": connections, "cipher": cipher})


def uses_sftp(host: Location, options: Options) -> bool:
    """Return whether the last copy to this host used SFTP, since no agent could run there."""
    return _known(host, options).get("remote") == "sftp"


def remember_sftp(host: Location, options: Options, is_so: bool) -> None:
    """Keep whether SFTP was used since no agent could run there."""
    if uses_sftp(host, options) != is_so:
        _keep(host, options, {"remote": "sftp" if is_so else "agent"})


def asks(host: Location, options: Options) -> bool:
    """Return whether a login may ask a person something: True unless the last one asked nothing."""
    return _known(host, options).get("asks") is not False


def is_known_to_ask(host: Location, options: Options) -> bool:
    """Return whether the last login asked a person something; False where that is not known."""
    return _known(host, options).get("asks") is True


def remember_asks(host: Location, options: Options, is_so: bool) -> None:
    """Keep whether a login asked a person something."""
    if _known(host, options).get("asks") is not is_so:
        _keep(host, options, {"asks": is_so})


def _way(is_push: bool) -> str:
    return "push" if is_push else "pull"


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= MAX_CONNECTIONS else 0
