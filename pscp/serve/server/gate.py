"""Who is let in to log in: limits of connections, penalties for what failed, PROXY headers.

As sshd's MaxStartups and PerSourcePenalties (sshd_config(5)), for all worker processes together.

Not here: how a login is proven (logins.py), where the numbers are kept (shared.py).
Read next: shared.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections.abc import Iterable

from pscp.serve.server.shared import Shared
from pscp.serve.settings import Current

FAILED_S = 5.0  # the penalty of a login that was refused, as sshd's authfail
LATE_S = 10.0  # of one that was not over in time: grace-exceeded
NOTHING_S = 1.0  # of a connection without a login: noauth
_FREE_S = 15.0  # penalties below it change nothing: min
_MOST_S = 600.0  # max
_USER_MOST_S = 25.0  # a user is slowed down, and never shut out
_TOLD_S = 10.0  # between two lines on refusals of one address
_PROXY_S = 5.0
_PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n"  # https://www.haproxy.org/download/3.1/doc/proxy-protocol.txt
_PROXY_1_MAX_BYTES = 107


class Gate:
    """Decides, for one worker process, which connections may begin."""

    def __init__(self, current: Current, shared: Shared) -> None:
        self._current = current
        self._shared = shared
        self._told: dict[str, float] = {}

    def why_refused(self, address: str) -> str:
        """Return why no connection from this address is let in now; "" if one is."""
        settings, source = self._current.settings, source_of(address)
        if self._shared.penalty_s(source) > _FREE_S:  # first, as it may be asked for most often
            return "too many failed logins from this address"
        if self._shared.count("all") >= settings.connections:
            return "too many connections"
        if self._shared.count(source) >= settings.per_address:
            return "too many connections from this address"
        return ""

    def is_told(self, address: str) -> bool:
        """Return whether a refusal of this address is worth a line: one in 10 s is."""
        now_s = time.monotonic()
        if now_s - self._told.get(address, -_TOLD_S) < _TOLD_S:
            return False
        if len(self._told) > 1000:
            self._told.clear()
        self._told[address] = now_s
        return True

    def enter(self, address: str) -> None:
        self._shared.add("all", 1)
        self._shared.add(source_of(address), 1)

    def leave(self, address: str) -> None:
        self._shared.add("all", -1)
        self._shared.add(source_of(address), -1)

    def enter_user(self, user: str) -> bool:
        """Count a user's connection; return whether there are no more than this user may have."""
        self._shared.add(f"user {user}", 1)
        return self._shared.count(f"user {user}") <= self._current.settings.per_user

    def leave_user(self, user: str) -> None:
        self._shared.add(f"user {user}", -1)

    def penalize(self, address: str, cost_s: float) -> None:
        self._shared.penalize(source_of(address), cost_s, _MOST_S)

    def penalize_user(self, user: str) -> None:
        self._shared.penalize(f"guess {user}", FAILED_S, _USER_MOST_S)

    def pause_s(self, user: str) -> float:
        """Return how long the answer to this user's password has to wait: somebody guesses."""
        return max(0.0, self._shared.penalty_s(f"guess {user}") - _FREE_S)


def source_of(address: str) -> str:
    """Return what counts as one source: an address, or an IPv6 network of 64 bits."""
    known = _parsed(address)
    if known is None:
        return address
    return str(known if known.version == 4 else ipaddress.ip_network((known, 64), strict=False))


def is_within(address: str, networks: Iterable[str]) -> bool:
    """Return whether an address is in any of these networks."""
    known = _parsed(address)
    return known is not None and any(
        known in ipaddress.ip_network(each, strict=False) for each in networks
    )


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, an IPv4 one that IPv6 has mapped as itself; None where it is none."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (known.ipv4_mapped or known) if isinstance(known, ipaddress.IPv6Address) else known


async def proxied(client: socket.socket) -> str:
    """Read a PROXY header, of version 1 or 2; return the address it names, "" for none.

    Raises ValueError, OSError and TimeoutError where it is none.
    """
    async with asyncio.timeout(_PROXY_S):
        begin = await _exactly(client, len(_PROXY_2))
        if begin == _PROXY_2:
            return await _version_2(client)
        while not begin.endswith(b"\r\n"):
            if len(begin) >= _PROXY_1_MAX_BYTES or not begin.startswith(b"PROXY "):
                raise ValueError("no PROXY header")
            begin += await _exactly(client, 1)
    words = begin.decode("ascii").split()
    if len(words) == 1:
        raise ValueError("no PROXY header")
    if words[1] not in ("TCP4", "TCP6"):
        return ""
    return str(ipaddress.ip_address(words[2])) if len(words) == 6 else ""


async def _version_2(client: socket.socket) -> str:
    command, family, size = struct.unpack("!BBH", await _exactly(client, 4))
    rest = await _exactly(client, size)
    length = {0x11: 4, 0x21: 16}.get(family, 0)
    if command >> 4 != 2 or len(rest) < 2 * length:
        raise ValueError("no PROXY header of version 2")
    return str(ipaddress.ip_address(rest[:length])) if command == 0x21 and length else ""


async def _exactly(client: socket.socket, size: int) -> bytes:
    """Read so many bytes and not one more: what follows is SSH's."""
    found = b""
    while len(found) < size:
        part = await asyncio.get_running_loop().sock_recv(client, size - len(found))
        if not part:
            raise ValueError("the connection ended")
        found += part
    return found
