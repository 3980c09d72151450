"""The ways to a server: loopback, a wide-area link, slow cores.

Each is a context manager that starts a private sshd with stock settings (and iperf3's server,
where that is installed), and stops all of it at the end.

Not here: how the lab does it (../lab). Read next: regimes.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stock import LeftOut

from pscp.ground.errors import ConnectError
from pscp.ground.processes import descendants, end_tree

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from servers.private import ADDRESS, PrivateServer, SshdServer, free_port

LAB = Path(__file__).resolve().parents[1] / "lab"
RATE_MBIT = 1000
SLOW_PERCENT = 8
FAR_ADDRESS = "10.99.0.2"  # of host b, as the lab numbers it
SLOWCORE = str(LAB / "slowcore")
# No start-up files of this account's: some cost more than a copy of one file.
PLAIN = "SetEnv PATH=/usr/local/bin:/usr/bin:/bin HOME=/nonexistent"
NAMESPACES = Path("/run/netns")
S = TypeVar("S", bound=PrivateServer)
READY_S = 10.0  # what a server gets to start, and the sessions of a run to end
POLL_S = 0.02


def at(host: str) -> tuple[str, ...]:
    """What runs a command on a host of the lab."""
    return "ip", "netns", "exec", f"wan-{host}"


NEAR, FAR = at("a"), at("b")


@dataclass(frozen=True)
class Link:
    """How commands run at the near end reach the server."""

    server: PrivateServer
    near: tuple[str, ...] = ()  # what runs a command on the client's host
    address: str = ADDRESS
    rtt_ms: float = 0.0
    ssh: str = "ssh"  # the program that the tools run
    iperf_port: int = 0  # of each server of iperf3; 0: there is none
    keeps: bool = False  # connections stay open between runs
    serve: PrivateServer | None = None  # pscp-serve, where it is measured
    hpn: PrivateServer | None = None  # hpnsshd, where that is as well

    @property
    def servers(self) -> Sequence[PrivateServer]:
        return (self.server,)

    def settle(self) -> None:
        """Wait until no session of an earlier run is left to take CPU time from the next."""
        wait_for(lambda: not any(map(self._has_sessions, self.servers)))

    def _has_sessions(self, server: PrivateServer) -> bool:
        for process in descendants(server.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                name = Path(f"/proc/{process.pid}/comm").read_text().strip()
                if not self.keeps or name != "sshd":
                    return True
        return False


@contextlib.contextmanager
def loopback() -> Iterator[Link]:
    with started(lambda: SshdServer([PLAIN])) as server, iperf_server((), ADDRESS) as port:
        yield Link(server, iperf_port=port)


@contextlib.contextmanager
def wan(
    rtt_ms: float, loss_percent: float = 0.0, buffers: int = 0, rate_mbit: int = RATE_MBIT
) -> Iterator[Link]:
    """Two hosts and a link, with TCP buffers of so many bytes at most (0: a stock host's)."""
    sizes = {"WAN_WMEM": str(buffers), "WAN_RMEM": str(buffers)} if buffers else {}
    with (
        hosts("up", rate_mbit, rtt_ms, loss_percent, **sizes),
        started(lambda: far_server("b", FAR_ADDRESS)) as server,
        iperf_server(FAR, FAR_ADDRESS) as port,
    ):
        yield Link(server, NEAR, FAR_ADDRESS, rtt_ms, iperf_port=port)


@contextlib.contextmanager
def hosts(*words: object, **environment: str) -> Iterator[None]:
    """The hosts and links that scripts/lab/wan makes of these words.

    Raises LeftOut where they cannot be made.
    """
    need_root("network namespaces")
    for taken in NAMESPACES.glob("wan-*"):
        raise LeftOut(f"{taken.name} is in use; where it is left over: scripts/lab/wan down")
    try:
        lab(*map(str, words), **environment)
        yield
    finally:
        lab("down")


@contextlib.contextmanager
def slow_cores() -> Iterator[Link]:
    """Each connection is held to so much of a CPU, at both ends."""
    need_root("control groups")
    try_slowcore()
    try:
        with started(slow_server) as server:
            program = server.folder / "slow-ssh"
            program.write_text(f"#!/bin/sh\nexec '{SLOWCORE}' run {SLOW_PERCENT} ssh \"$@\"\n")
            program.chmod(0o755)
            yield Link(server, ssh=str(program))
    finally:
        try_slowcore()  # it removes what is left of those that were killed


def try_slowcore() -> None:
    done = subprocess.run([SLOWCORE, "run", "50", "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise LeftOut(f"slowcore does not work here: {last_line(done.stderr)}")


class LabServer(SshdServer):
    """sshd as the lab starts it: `start` makes its command line of the plain one and the port."""

    def __init__(
        self, start: Callable[[Sequence[str], int], Sequence[str]], address: str, *config: str
    ) -> None:
        self.start, self.address = start, address
        super().__init__([*config, PLAIN])

    def _spawn(
        self, argv: Sequence[str], cwd: Path | None, *, pipes: bool
    ) -> subprocess.Popen[bytes]:
        return super()._spawn(self.start(argv, self.port), cwd, pipes=pipes)

    def _write_client_files(self) -> None:
        super()._write_client_files()
        for name in ("known_hosts", "ssh_config"):
            file = self.folder / name
            file.write_text(file.read_text().replace(ADDRESS, self.address))


def far_server(host: str, address: str, *config: str) -> SshdServer:
    listen = f"ListenAddress {address}"
    return LabServer(lambda argv, port: [*at(host), *argv], address, listen, *config)


def slow_server() -> SshdServer:
    slow = (SLOWCORE, "sshd", str(SLOW_PERCENT))
    return LabServer(lambda argv, port: [*slow, str(port), argv[-1]], ADDRESS)


@contextlib.contextmanager
def started(make: Callable[[], S]) -> Iterator[S]:
    try:
        server = make()
    except ConnectError as error:
        raise LeftOut(error.message) from None
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def iperf_server(far: Sequence[str], address: str, port: int = 0) -> Iterator[int]:
    """The port of an iperf3 server at the far end; 0 where iperf3 is not installed."""
    if shutil.which("iperf3") is None:
        yield 0
        return
    port = port or free_port()
    argv = [*far, "iperf3", "-s", "--forceflush", "-B", address, "-p", str(port)]
    with program(argv, "listening"):
        yield port


@contextlib.contextmanager
def program(argv: Sequence[str], ready: str, **environment: str) -> Iterator[None]:
    """Have a program run meanwhile, once it has said this. Raises LeftOut where it does not."""
    with tempfile.NamedTemporaryFile("r", prefix="pscp-bench-") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        try:
            if not wait_for(lambda: ready in Path(log.name).read_text()):
                raise LeftOut(f"{argv} did not start: {last_line(Path(log.name).read_text())}")
            yield
        finally:
            end_tree(process)


def wait_for(happened: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        if happened():
            return True
        time.sleep(POLL_S)
    return False


def need_root(what: str) -> None:
    if os.getuid() != 0:
        raise LeftOut(f"needs root ({what})")


def lab(*words: str, **environment: str) -> None:
    """Runs scripts/lab/wan to its end, whatever happens: half a lab could not be taken down."""
    with subprocess.Popen(
        [str(LAB / "wan"), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    ) as process:
        said = process.communicate()[1]
    if process.returncode != 0:
        raise LeftOut(f"scripts/lab/wan {words[0]} failed: {last_line(said)}")


def last_line(said: str) -> str:
    return (said.strip() or "it said nothing").splitlines()[-1]
