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
_AT_ONCE = 8  # logins that are hastened so often; more are more seldom
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
        return _borrow(pid)
    except (OSError, AttributeError, ImportError):
        return None


def _borrow(pid: int) -> LiveSocket | None:
    """Return the connected TCP socket of a child process; None where it has none so far.

    Raises OSError where it has ended, or the kernel forbids to lend; AttributeError and ImportError
    where that cannot be asked for.
    """
    process = os.pidfd_open(pid)
    try:
        _check_runs(os.P_PIDFD, process)
        folder = f"/proc/{pid}/fd"
        for number in sorted(map(int, os.listdir(folder)))[:_DESCRIPTORS_MAX]:
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{number}").startswith("socket:"):
                    found = _lent(process, number)
                    if found is not None:
                        return found
        return None
    finally:
        os.close(process)


def _check_runs(kind: int, process: int) -> None:
    """Raise OSError for a process that has ended, or is no child: its id is another's by now."""
    if os.waitid(kind, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        raise ProcessLookupError(errno.ESRCH, "it has ended")


def _lent(process: int, number: int) -> LiveSocket | None:
    """Return what a process lends of its descriptor, if that is a connected socket of TCP."""
    import ctypes  # here: it takes 6 ms to load

    lent = int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0))
    if lent >= 0:
        return _connected_tcp(lent)
    if ctypes.get_errno() == errno.EBADF:  # it is closed by now
        return None
    raise OSError(ctypes.get_errno(), "no descriptor is lent")


def _connected_tcp(descriptor: int) -> LiveSocket | None:
    """Return the socket that has this descriptor; close any other than a connected one of TCP."""
    try:
        is_blocking = os.get_blocking(descriptor)
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        os.close(descriptor)
        return None
    if is_blocking != os.get_blocking(descriptor):  # socket.setdefaulttimeout() in a program
        os.set_blocking(descriptor, is_blocking)  # the owner's is the same one
    with contextlib.suppress(OSError):  # it is not connected
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            found.getpeername()
            return LiveSocket(found)
    found.close()
    return None


# --- a login's packets

_hastened: list[int] = []  # processes that log in; each change is one operation


def hasten(channel: Channel) -> None:
    """Have what a login says arrive at once, until it is over.

    Neither ssh nor sshd sets TCP_NODELAY before a session begins. So what is small waits until the
    packet before it is acknowledged (RFC 896), which the other end puts off for 40 ms (RFC 1122,
    4.2.3.2): twice in a login, each time for a round trip more. A thread sets it for them, and
    TCP_QUICKACK again and again; where the kernel forbids that, or there is no thread, none does.
    """
    if sys.platform == "linux":
        with contextlib.suppress(RuntimeError):  # there are no more threads
            start_thread("login", _hasten, channel, channel.pid)


def _hasten(channel: Channel, pid: int) -> None:
    begin_s, lent = time.monotonic(), None
    _hastened.append(pid)
    try:
        while channel.is_logging_in and (passed_s := time.monotonic() - begin_s) < _LOGIN_MOST_S:
            pause_s = _HASTE_S * max(1.0, len(_hastened) / _AT_ONCE)
            if lent is None:
                lent = _borrow(pid)
                pause_s = max(pause_s, _WAIT_SHARE * passed_s)
            if lent is not None:
                _check_runs(os.P_PID, pid)
                lent.hasten()
            time.sleep(pause_s)
    except (OSError, AttributeError, ImportError):  # it has ended, or lends nothing
        return
    finally:
        _hastened.remove(pid)
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
