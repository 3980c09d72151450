"""The options of the sockets below ssh, and the socket of a channel's connection.

A congestion control and the buffers' sizes are set before a socket connects. ssh has no options
for them, but it takes a connected socket from its ProxyCommand (ProxyUseFdpass): fdpass.py.

Linux lends a process the descriptors of its children (pidfd_getfd(2)), unless Yama or a container's
seccomp profile forbids it. An option that is set on the lent descriptor is the connection's.

Not here: what a connected socket says (../endpoint/plane/congestion.py). Read next: fdpass.py.
"""

from __future__ import annotations

import _socket as socket  # socket.py would take 9 ms more to load
import contextlib
import errno
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from pscp.endpoint.plane.congestion import LiveSocket, Sending
from pscp.ground.contexts import start_thread
from pscp.ground.errors import UsageError
from pscp.ground.values import show_size
from pscp.options.options import Options

if TYPE_CHECKING:
    from pscp.transports import Channel

_FDPASS = os.path.join(os.path.dirname(__file__), "fdpass.py")
_OFFERED = "/proc/sys/net/ipv4/tcp_{}_congestion_control"
_PIDFD_GETFD = 438  # the same on every architecture
_HASTE_S = 0.004  # between two acknowledgements while it logs in
_WAIT_SHARE = 0.05  # of the time that has passed: until its connection is looked for again
_LOGIN_MOST_S = 10.0  # after which it is left alone: a person is asked
_DESCRIPTORS_MAX = 64  # that are looked at: ssh opens its connection as one of the first


def of_channel(channel: Channel) -> LiveSocket | None:
    """Return the connected TCP socket of a channel, or a duplicate; None where there is none."""
    if channel.pid:
        return borrow(channel.pid)
    try:
        return _connected_tcp(os.dup(channel.read_fd))
    except OSError:  # it is closed
        return None


def sending_of(channel: Channel) -> Sending | None:
    """Return how the sending over a channel's connection goes; None where that is not known."""
    lent = of_channel(channel)
    if lent is None:
        return None
    try:
        return lent.sending()
    finally:
        lent.close()


def borrow(pid: int) -> LiveSocket | None:
    """Return the connected TCP socket of a child process; None where it has or lends none."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux; or the process is gone
        return None
    try:
        # Its id may be another process's by now: then this raises, as for what is no child.
        if os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
        for number in range(_DESCRIPTORS_MAX):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                    found = _lent(process, number)
                    if found is not None:
                        return found
        return None
    except OSError:
        return None
    finally:
        os.close(process)


def _lent(process: int, number: int) -> LiveSocket | None:
    """Return what a process lends of its descriptor, if that is a connected socket of TCP."""
    import ctypes  # here: only far pushes need it

    lent = int(ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, number, 0))
    return _connected_tcp(lent) if lent >= 0 else None


def _connected_tcp(descriptor: int) -> LiveSocket | None:
    """Return the socket that has this descriptor; close any other than a connected one of TCP."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # it is not connected
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            found.getpeername()
            return LiveSocket(found)
    found.close()
    return None


# --- a login's packets


def hasten(channel: Channel) -> None:
    """Have what a login says arrive at once, until it is over.

    Neither ssh nor sshd sets TCP_NODELAY before a session begins. So what is small waits until the
    packet before it is acknowledged (RFC 896), which the other end puts off for 40 ms (RFC 1122,
    4.2.3.2): twice in a login, each time for a round trip more. A thread sets it for them, and
    TCP_QUICKACK again and again. Does nothing where the channel's process lends no socket.
    """
    if sys.platform == "linux":
        start_thread("login", _hasten, channel, channel.pid)


def _hasten(channel: Channel, pid: int) -> None:
    begin_s, lent = time.monotonic(), None
    try:
        while channel.is_logging_in and (passed_s := time.monotonic() - begin_s) < _LOGIN_MOST_S:
            lent = lent or borrow(pid)
            if lent is not None:
                lent.hasten()
            time.sleep(_HASTE_S if lent is not None else max(_HASTE_S, _WAIT_SHARE * passed_s))
    finally:
        if lent is not None:
            lent.close()


class Route(NamedTuple):
    """How ssh would connect, as `ssh -G` says; fdpass.py connects in the same way."""

    proxy: str = ""  # "ProxyJump HOST", for instance: then another program makes the socket
    family: str = "any"
    timeout_s: str = "none"
    address: str = ""  # BindAddress
    interface: str = ""  # BindInterface
    canonical: bool = False  # CanonicalizeHostname, which without "always" means: without a proxy
    hostname: str = ""  # HostName; "" where it is not known

    @classmethod
    def read(cls, settings: dict[str, str]) -> Route:
        """Return the route from the lines of `ssh -G`."""
        names = ("ProxyJump", "ProxyCommand")
        proxies = (f"{name} {settings[name.lower()]}" for name in names if name.lower() in settings)
        return cls(
            proxy=next(proxies, ""),
            family=settings.get("addressfamily", "any"),
            timeout_s=settings.get("connecttimeout", "none"),
            address=settings.get("bindaddress", ""),
            interface=settings.get("bindinterface", ""),
            canonical=settings.get("canonicalizehostname") in ("true", "yes"),
            hostname=settings.get("hostname", ""),
        )


def words(options: Options, route: Route, number: int) -> list[str]:
    """Return the words of ssh's command line for the socket of a connection, counted from 0."""
    address = options.address(number)
    if not _are_ours(options):
        return ["-b", address] if address else []
    import shlex  # here: few copies need it

    def quoted(*words: str) -> str:  # for the user's shell, and for ssh, which expands tokens
        return shlex.join(words).replace("%", "%%")

    sizes = (options.rcvbuf_bytes, options.sndbuf_bytes)
    wishes = (address or route.address, options.congestion, *sizes)
    settings = quoted(route.family, route.timeout_s, *(str(each or "-") for each in wishes))
    program = quoted(sys.executable or "python3", "-I", "-S", _FDPASS)
    found = ["-oProxyUseFdpass=yes", f"-oProxyCommand={program} '%h' %p {settings}"]
    return found + ["-oCanonicalizeHostname=always"] * route.canonical


def check(options: Options, route: Route, is_push: bool) -> list[str]:
    """Raise UsageError for what this machine or the route rules out; return notes for -v."""
    names = asked(options)
    if not names:
        return []
    _check_route(names, options, route)
    for address in options.bind:
        _check_address(address)
    notes = []
    if options.congestion:
        _check_congestion(options.congestion)
        if not is_push:
            notes.append("--congestion is for what this end sends; on a pull the far end's counts")
    for way, size_bytes in (("rcv", options.rcvbuf_bytes), ("snd", options.sndbuf_bytes)):
        if size_bytes and (note := _check_buffer(way, size_bytes)):
            notes.append(note)
    return notes


def _are_ours(options: Options) -> bool:
    """Return whether fdpass.py makes the sockets, instead of ssh."""
    return bool(options.congestion or options.rcvbuf_bytes or options.sndbuf_bytes)


def asked(options: Options) -> str:
    """Return the names of the options about sockets that are set."""
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
        kept, which = "this kernel does not offer it", "available"
        if error.errno == errno.EPERM:
            kept, which = "this user may not use it", "allowed"
        offered = "see sysctl net.inet.tcp.cc"  # FreeBSD
        with contextlib.suppress(OSError), open(_OFFERED.format(which)) as file:
            offered = file.read().strip()
        raise UsageError(
            f"--congestion {name}: {kept}; there is: {offered}",
            f"as root: sysctl net.ipv4.tcp_allowed_congestion_control, or modprobe tcp_{name}",
        ) from None


def _check_buffer(way: str, wanted_bytes: int) -> str:
    """Return a note if the kernel makes a buffer smaller than asked for, else ""."""
    import socket

    option = socket.SO_RCVBUF if way == "rcv" else socket.SO_SNDBUF
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
            got_bytes = probe.getsockopt(socket.SOL_SOCKET, option)
    except OSError as error:  # BSD refuses where Linux grants less
        raise UsageError(
            f"--{way}buf {show_size(wanted_bytes)}: {error.strerror}", "ask for less"
        ) from None
    if sys.platform == "linux":
        got_bytes //= 2  # Linux doubles the size for its own bookkeeping
    if got_bytes >= wanted_bytes:
        return ""
    wanted, got = show_size(wanted_bytes), show_size(got_bytes)
    limit = "rmem_max" if way == "rcv" else "wmem_max"
    return f"--{way}buf {wanted}: the kernel grants {got} (sysctl net.core.{limit})"
