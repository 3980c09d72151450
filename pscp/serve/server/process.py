"""The processes of pscp-serve: the first opens ports and keys, and keeps the workers running.

Signals: SIGHUP has the settings read again, SIGTERM and SIGINT end the server. systemd may have
opened the ports (sd_listen_fds(3)), and is told when all is ready (sd_notify(3)).

Not here: connections (worker.py), who is connected, and the metrics (status.py).
Read next: worker.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pwd
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from pscp.ground.errors import PscpError, UsageError
from pscp.jobs.reports.systemd import notify
from pscp.options.arguments import version
from pscp.serve.account import is_locked
from pscp.serve.events import Events
from pscp.serve.server import status
from pscp.serve.server.config import load
from pscp.serve.server.shared import Shared
from pscp.serve.server.worker import Worker
from pscp.serve.settings import Current, Settings

_SIGNALS = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_BACKLOG = 1024  # clients that have connected and were not looked at yet
_AGAIN_S = 1.0  # a worker that dies at once is not begun more often
_TOLD_S = 15.0  # from one file of metrics to the next
_FIRST_FD = 3  # of those from systemd


@dataclass
class Server:
    """The first process: it has the ports, and serves none of the connections."""

    path: str  # of the settings, read again at SIGHUP; "" for none
    current: Current
    keys: list[asyncssh.SSHKey]
    listeners: list[list[socket.socket]]  # of each worker
    shared: Shared
    events: Events
    state_fd: int  # which locks the state folder for this server
    workers: dict[int, tuple[int, float]] = field(default_factory=dict)  # by process: which, since
    alive_fds: tuple[int, int] = field(default_factory=os.pipe)  # its end tells workers of ours

    def run(self, begun: Callable[[], None] = lambda: None) -> int:
        """Serve until a signal ends it; return the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.metrics = status.Metrics()
        for number in range(len(self.listeners)):
            self._begin(number)
        listen = [f"{host}:{port}" for host, port in self.current.settings.listen]
        self.events.tell("started", "", "", listen=listen, version=version())
        notify("READY=1")
        begun()
        next_s = time.monotonic()
        while True:
            found = signal.sigtimedwait(_SIGNALS, max(0.0, next_s - time.monotonic()))
            if found is None:
                next_s = time.monotonic() + _TOLD_S
                self._tell()
            elif found.si_signo == signal.SIGCHLD:
                self._revive()
            elif found.si_signo == signal.SIGHUP:
                self._read_again()
                next_s = time.monotonic()
            elif found.si_signo in (signal.SIGTERM, signal.SIGINT):
                break
            # Else it was stopped until its time was up: what Python returns is no signal then.
        notify("STOPPING=1")
        self._end()
        return 0

    def _begin(self, number: int) -> None:
        """Begin a worker."""
        if process := os.fork():
            self.workers[process] = (number, time.monotonic())
            return
        code = 1
        try:  # whatever comes, nothing of the first process's is to be run here
            # A terminal's: the first process tells. A handler, as commands do not inherit it.
            signal.signal(signal.SIGINT, lambda *_: None)
            os.close(self.alive_fds[1])
            os.close(self.state_fd)
            self.shared.become(number)
            # It warns of what is written to a client that is gone, which is no news.
            logging.getLogger("asyncio").setLevel(logging.ERROR)
            asyncio.run(self._work(number))
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)

    async def _work(self, number: int) -> None:
        worker = Worker(self.path, self.current, self.shared, self.keys)
        worker.listen()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        await worker.run(self.listeners[number], self.alive_fds[0])

    def _revive(self) -> None:
        """Begin a worker in the place of each that has ended."""
        while True:
            try:
                process, how = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if process in self.workers:
                number, began_s = self.workers.pop(process)
                self.shared.wipe(number)
                self.metrics.ended(number)
                code = os.waitstatus_to_exitcode(how)
                self.events.tell("worker ended", "", "", worker=number, code=code)
                time.sleep(max(0.0, began_s + _AGAIN_S - time.monotonic()))
                self._begin(number)

    def _read_again(self) -> None:
        """Take the settings as they are now, where they are sound, and have the workers do so."""
        self.events.reopen()
        if self.path:
            try:
                settings = load(self.path)
            except UsageError as error:
                self.events.tell("settings", "", "", ok=False, mistakes=error.message.split("\n"))
                return
            late = self.current.renew(settings)
            self.events.tell("settings", "", "", ok=True, at_the_next_start=late)
        for process in self.workers:
            os.kill(process, signal.SIGHUP)

    def _tell(self, is_over: bool = False) -> None:
        settings = self.current.settings
        if settings.metrics:
            found = {} if is_over else status.ask(settings.state)
            try:
                self.metrics.write(settings.metrics, found)
            except OSError as error:
                self.events.tell("metrics", "", "", ok=False, why=str(error))

    def _end(self) -> None:
        self._tell()
        for process in self.workers:
            os.kill(process, signal.SIGTERM)
        for process in self.workers:
            os.waitpid(process, 0)
        self._tell(is_over=True)
        self.events.tell("stopped", "", "")


def prepared(path: str, settings: Settings) -> Server:
    """Open ports and keys, and become the user that the settings name. Raises PscpError."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    workers = settings.workers or len(os.sched_getaffinity(0))
    state_fd = _alone(settings.state)  # first: a second server could listen at the same ports
    listeners = list(opened(settings, workers))
    keys = _keys(settings)
    if settings.run_as:
        become(settings.run_as, settings.state)
    try:
        events = Events(settings.log)
    except OSError as error:
        raise PscpError(f"{settings.log}: {error.strerror}", "log names the file") from None
    return Server(path, Current(settings), keys, listeners, Shared(workers), events, state_fd)


def _alone(state: str) -> int:
    """Make the state folder, and lock it for this server. Return what holds the lock.

    Raises PscpError.
    """
    try:
        os.makedirs(state, 0o700, exist_ok=True)
        fd = os.open(os.path.join(state, "server"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PscpError(f"state {state}: {error.strerror}", "state names the folder") from None
    if not is_locked(fd, fcntl.LOCK_EX):
        os.close(fd)
        raise PscpError(f"a pscp-serve runs already with {state}", "--status shows who is there")
    return fd


def opened(settings: Settings, workers: int) -> Iterator[list[socket.socket]]:
    """Yield the listening sockets of each worker. Raises PscpError."""
    if given := _from_systemd():
        for _ in range(workers):
            yield given
        return
    for _ in range(workers):
        found = []
        for host, port in settings.listen:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            how: Any = {"family": family, "backlog": _BACKLOG, "reuse_port": True}
            try:
                found.append(socket.create_server((host, port), **how))
            except OSError as error:
                why = os.strerror(error.errno or 0)
                hint = "ports below 1024 are root's; another server may have it"
                raise PscpError(f"{host} port {port}: {why}", hint) from None
        yield found


def _from_systemd() -> list[socket.socket]:
    """Return the sockets that the service manager has opened, if it has."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return []
    found = [socket.socket(fileno=_FIRST_FD + number) for number in range(int(count))]
    for each in found:
        os.set_inheritable(each.fileno(), False)
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    return found


def _keys(settings: Settings) -> list[asyncssh.SSHKey]:
    """Read the host keys; make one where none is named, once. Raises PscpError."""
    try:
        files = settings.host_keys or (os.path.join(settings.state, "host_ed25519"),)
        for path in files:
            if not os.path.lexists(path):
                _make_key(path)
        return [asyncssh.read_private_key(path) for path in files]
    except (OSError, asyncssh.KeyImportError) as error:
        raise PscpError(f"host keys: {error}", "host-keys names them") from None


def _make_key(path: str) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519", comment="pscp-serve")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(key.export_private_key())
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):
        key.write_public_key(f"{path}.pub")


def become(name: str, state: str) -> None:
    """Become another user for good; the state folder is then that user's. Raises PscpError."""
    its = pwd.getpwnam(name)
    try:
        for folder, folders, files in os.walk(state):
            for each in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
                os.chown(each, its.pw_uid, its.pw_gid, follow_symlinks=False)
        os.initgroups(name, its.pw_gid)
        os.setgid(its.pw_gid)
        os.setuid(its.pw_uid)
    except OSError as error:
        raise PscpError(
            f"run-as {name}: {error.strerror}", "only root can become another"
        ) from None
