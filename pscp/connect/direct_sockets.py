"""Sockets of the direct plane at this end: where the far end may be reached, and from where.

Not here: when they are made (direct_plane.py), who lets whom in (../endpoint/gate.py).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from pscp import errors
from pscp.connect.bootstrap import RemoteAgent
from pscp.endpoint import gate, link
from pscp.options import Options

_DIAL_S = 3.0  # a filtered port answers nothing


class Refused(Exception):
    """Raised where no lane can be opened directly; the text says why."""


T = TypeVar("T")


def all_at_once(open_lane: Callable[[int, T], RemoteAgent], of: list[T]) -> list[RemoteAgent]:
    """Open a lane for each of these, in threads. Raises Refused if none could be opened."""
    lanes: list[RemoteAgent] = []
    reasons = ["no connection came"]

    def run(number: int, one: T) -> None:
        try:
            lanes.append(open_lane(number, one))
        except OSError as error:
            reasons.append(error.strerror or str(error))
        except errors.PscpError as error:  # there are too many processes, or open files
            reasons.append(error.message)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not lanes:
        raise Refused(reasons[-1])
    return lanes


def places(host: str, own: str, port: int) -> list[tuple[str, int]]:
    """Return where the far end may be reached: its own address, if the host's name has it.

    Else the name's addresses first: what the far end sees may be behind a translation.
    """
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = list(dict.fromkeys(str(where[0]) for *_, where in found))
    return [(each, port) for each in ([own] if own in named else [*named, own])]


def connected(to: list[tuple[str, int]], options: Options, number: int) -> socket.socket:
    """Return a socket that is connected to the first place that answers. Raises OSError."""
    source = options.address(number)
    failure = OSError("no address")

    def bind(sock: socket.socket) -> None:
        prepare(options, sock)
        if source:
            sock.bind((source, 0))

    for place in to:
        try:
            return gate.dial(place, bind, _DIAL_S)
        except OSError as error:
            failure = error
    raise failure


def prepare(options: Options, sock: socket.socket) -> None:
    sizes = options.rcvbuf_bytes or 0, options.sndbuf_bytes or 0
    link.prepare(sock, options.congestion or "", *sizes)


def own_address(address: str) -> str:
    """Return the address of this machine from which it reaches this one. Raises OSError."""
    family, kind, *_, where = socket.getaddrinfo(address, 9, 0, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(where)
        return str(sock.getsockname()[0])
