"""What the user asks of the sockets below ssh, and how the stock ssh comes by such a socket.

A congestion control and the buffers' sizes are set before a socket connects. ssh has no options
for them, but it takes a connected socket from its ProxyCommand (ProxyUseFdpass): from fdpass.py.
An address to connect from is ssh's own -b, unless the socket is made here anyway.

Not here: the rest of ssh's command line (openssh.py). Read next: fdpass.py.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from dataclasses import dataclass

from pscp.errors import UsageError
from pscp.options import Options, show_size

_FDPASS = os.path.join(os.path.dirname(__file__), "fdpass.py")
_OFFERED = "/proc/sys/net/ipv4/tcp_{}_congestion_control"


@dataclass(frozen=True)
class Route:
    """How ssh would connect, as `ssh -G` says, and as fdpass.py has to in its place."""

    proxy: str = ""  # "ProxyJump HOST": where there is one, the socket is not ssh's to choose
    family: str = "any"
    timeout_s: str = "none"
    address: str = ""  # BindAddress
    interface: str = ""  # BindInterface
    canonical: bool = False  # CanonicalizeHostname, which without "always" means: without a proxy

    @classmethod
    def read(cls, settings: dict[str, str]) -> Route:
        proxies = [("ProxyJump", "proxyjump"), ("ProxyCommand", "proxycommand")]
        set_ones = [f"{name} {settings[key]}" for name, key in proxies if key in settings]
        return cls(
            proxy=next(iter(set_ones), ""),
            family=settings.get("addressfamily", "any"),
            timeout_s=settings.get("connecttimeout", "none"),
            address=settings.get("bindaddress", ""),
            interface=settings.get("bindinterface", ""),
            canonical=settings.get("canonicalizehostname") in ("true", "yes"),
        )


def words(options: Options, route: Route, number: int) -> list[str]:
    """Return the words of ssh's command line for the connection of this number, from 0 on."""
    address = options.bind[number % len(options.bind)] if options.bind else ""
    if not _are_ours(options):
        return ["-b", address] if address else []
    asked = (
        route.family, route.timeout_s, address or route.address or "-", options.congestion or "-",
        options.rcvbuf_bytes or "-", options.sndbuf_bytes or "-",
    )  # fmt: skip
    fixed = (sys.executable or "python3", "-I", "-S", _FDPASS)
    program = " ".join(_quoted(str(word)) for word in fixed)
    settings = " ".join(_quoted(str(word)) for word in asked)
    given = ["-oProxyUseFdpass=yes", f"-oProxyCommand={program} '%h' %p {settings}"]
    return given + ["-oCanonicalizeHostname=always"] * route.canonical


def check(options: Options, route: Route, is_push: bool) -> list[str]:
    """Raise UsageError for what this machine or the way there rules out; return notes for -v."""
    names = asked(options)
    if not names:
        return []
    _check_route(names, options, route)
    for address in options.bind:
        _check_address(address)
    said = []
    if options.congestion:
        _check_congestion(options.congestion)
        if not is_push:
            said.append("--congestion is for what this end sends; on a pull the far end's counts")
    sizes = (("rcv", options.rcvbuf_bytes), ("snd", options.sndbuf_bytes))
    said += [_less(way, size) for way, size in sizes if size]
    return [sentence for sentence in said if sentence]


def _are_ours(options: Options) -> bool:
    """Does fdpass.py make the sockets, rather than ssh?"""
    return bool(options.congestion or options.rcvbuf_bytes or options.sndbuf_bytes)


def asked(options: Options) -> str:
    """Return the options that ask something of the sockets, by name."""
    given = {
        "--congestion": options.congestion, "--rcvbuf": options.rcvbuf_bytes,
        "--sndbuf": options.sndbuf_bytes, "--bind": options.bind,
    }  # fmt: skip
    return " and ".join(name for name, value in given.items() if value)


def _check_route(names: str, options: Options, route: Route) -> None:
    if route.proxy:
        straight = "without -J" if options.jump else f"-o {route.proxy.split()[0]}=none"
        raise UsageError(
            f"{names}: not with {route.proxy}, which connects in the place of ssh",
            f"leave out {names}, or go straight to the host: {straight}",
        )
    if _are_ours(options) and route.interface and not options.bind:
        raise UsageError(
            f"{names}: not with BindInterface {route.interface}",
            "say where to connect from by --bind ADDRESS",
        )


def _quoted(word: str) -> str:
    """Quote a word of a ProxyCommand, which the user's shell runs, with no % taken for a token."""
    return shlex.quote(word).replace("%", "%%")


def _check_address(address: str) -> None:
    import socket  # here and below: it takes 9 ms, and few copies need it

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        found = socket.getaddrinfo(address, None, family, flags=socket.AI_NUMERICHOST)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(found[0][4])
    except OSError as error:
        raise UsageError(
            f"--bind: cannot connect from {address}: {error.strerror}",
            "it must be an address of this machine",
        ) from None


def _check_congestion(name: str) -> None:
    import socket

    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        raise UsageError("--congestion: this system has one for all connections", "leave it out")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.IPPROTO_TCP, option, name.encode())
    except OSError as error:
        is_reserved = error.errno == errno.EPERM
        kept = "this user may not use it" if is_reserved else "this kernel does not offer it"
        raise UsageError(
            f"--congestion {name}: {kept}; there is: {_offered(is_reserved)}",
            f"as root: sysctl net.ipv4.tcp_allowed_congestion_control, or modprobe tcp_{name}",
        ) from None


def _offered(is_reserved: bool) -> str:
    try:
        with open(_OFFERED.format("allowed" if is_reserved else "available")) as offered:
            return offered.read().strip()
    except OSError:
        return "see sysctl net.inet.tcp.cc"  # FreeBSD


def _less(way: str, wanted_bytes: int) -> str:
    """Return a note where the kernel makes a buffer smaller than asked for."""
    import socket

    option = socket.SO_RCVBUF if way == "rcv" else socket.SO_SNDBUF
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
            got_bytes = probe.getsockopt(socket.SOL_SOCKET, option)
    except OSError as error:  # what BSD says where Linux grants less
        raise UsageError(
            f"--{way}buf {show_size(wanted_bytes)}: {error.strerror}", "ask for less"
        ) from None
    if sys.platform == "linux":
        got_bytes //= 2  # it doubles what it grants, for its own bookkeeping
    if got_bytes >= wanted_bytes:
        return ""
    wanted, got = show_size(wanted_bytes), show_size(got_bytes)
    limit = "rmem_max" if way == "rcv" else "wmem_max"
    return f"--{way}buf {wanted}: the kernel grants {got} (sysctl net.core.{limit})"
