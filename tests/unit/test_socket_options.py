"""transports/socket_options.py: the words ssh is given for a socket, and what other systems refuse.

Not here: what becomes of them (../e2e/test_copy_sockets.py).
Read next: pscp/transports/socket_options.py.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import Any

import pytest

from pscp.ground.errors import UsageError
from pscp.ground.values import MIB
from pscp.options.options import Options
from pscp.transports.openssh import SshSetup
from pscp.transports.socket_options import Route, check, words

NOWHERE = Route()


def proxy_command(options: Options, route: Route = NOWHERE, number: int = 0) -> str:
    first, second, *rest = words(options, route, number)
    assert (first, rest) == ("-oProxyUseFdpass=yes", [])
    assert second.startswith("-oProxyCommand=")
    return second.partition("fdpass.py ")[2]


def test_a_socket_with_settings() -> None:
    options = Options(congestion="bbr", rcvbuf_bytes=MIB, bind=("fe80::1%eth0", "192.0.2.2"))
    assert proxy_command(options) == "'%h' %p any none fe80::1%%eth0 bbr 1048576 -"
    route = Route(family="inet", timeout_s="7", address="192.0.2.9")
    assert proxy_command(options, route, 1) == "'%h' %p inet 7 192.0.2.2 bbr 1048576 -"
    assert proxy_command(Options(sndbuf_bytes=MIB), route) == "'%h' %p inet 7 192.0.2.9 - - 1048576"


def test_names_stay_canonical() -> None:
    """With a ProxyCommand ssh would canonicalize a name only where it is told always to."""
    given = words(Options(congestion="bbr"), Route(canonical=True), 0)
    assert given[-1] == "-oCanonicalizeHostname=always"
    assert words(Options(bind=("::1",)), Route(canonical=True), 0) == ["-b", "::1"]


def test_several_are_refused_by_name() -> None:
    options = Options(rcvbuf_bytes=MIB, bind=("127.0.0.1",))
    with pytest.raises(UsageError, match=r"^--rcvbuf and --bind: not with ProxyJump a,b"):
        check(options, Route("ProxyJump a,b"), True)


def test_a_system_without_congestion_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    with pytest.raises(UsageError, match="this system has one for all connections"):
        check(Options(congestion="reno"), NOWHERE, True)


CONTROL = r"there is: .*reno"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"congestion": "reno"}, errno.EPERM, f"reno: .*this user may not use it; {CONTROL}"),
        ({"congestion": "reno"}, errno.ENOENT, f"reno: .*does not offer it; {CONTROL}"),
        ({"sndbuf_bytes": MIB}, errno.ENOBUFS, "--sndbuf 1 MiB: No buffer space"),  # as on BSD
    ],
)
def test_what_the_kernel_refuses(
    options: dict[str, Any], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(socket.socket, "setsockopt", refuse)
    with pytest.raises(UsageError, match=said):
        check(Options(**options), NOWHERE, True)


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels grant in other ways")
def test_what_the_kernel_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says twice of what it gives."""
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: MIB)
    (said,) = check(Options(rcvbuf_bytes=MIB, sndbuf_bytes=MIB // 2), NOWHERE, True)
    assert said == "--rcvbuf 1 MiB: the kernel grants 512 KiB (sysctl net.core.rmem_max)"


def test_a_system_that_cannot_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(UsageError, match="--cpus: this system"):
        SshSetup().check(Options(cpus=(0,)), True)
    assert SshSetup().check(Options(), True) == []
