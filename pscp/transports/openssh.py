"""A channel through the ssh program, as the user has set it up.

ssh_config, the agent, ProxyJump, certificates, known_hosts and prompts are ssh's own business.
Ours are only the few options below, and the reading of its exit.

Not here: what runs at the far end (../connect/bootstrap.py), the sockets for further channels
(control_sockets.py), the processes below a wrapper of ssh (children.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pscp.endpoint import system
from pscp.errors import (
    AuthenticationError,
    ConnectError,
    ConnectionFull,
    ConnectionLost,
    HostKeyError,
    NoAgent,
    NoPython,
    ProtocolError,
    PscpError,
    Unreachable,
    UsageError,
)
from pscp.log import Log
from pscp.options import TIMEOUT_S, Location, Options
from pscp.transports import children, socket_options
from pscp.transports.control_sockets import Control
from pscp.transports.remote_command import NO_PYTHON_STATUS, OLD_PYTHON_STATUS

# As scp does: nothing of an interactive session. A ControlMaster of the user's is not used: it
# would fold all connections into one.
_FIXED = (
    "-T", "-x", "-oForwardAgent=no", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no",
    "-oRemoteCommand=none", "-oControlPersist=no",
)  # fmt: skip
# A channel of another's connection: where that takes no more, ssh must not open one of its own.
_RIDING = (
    "-oBatchMode=yes", "-oProxyCommand=false", "-oProxyUseFdpass=no", "-oLogLevel=ERROR",
)  # fmt: skip
_ALIVE = ("-oServerAliveInterval=15", "-oServerAliveCountMax=4")  # a dead path is known in 1 min

_AES_GCM = "aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_CHACHA = "chacha20-poly1305@openssh.com"

_END_S = 2.0  # what an ssh gets to end after SIGTERM

PROTOCOL_STATUS = 99  # of the agent
WRONG_STATUS = 96  # of our own programs: what was asked for cannot be; nobody was contacted


@dataclass(frozen=True)
class SshSetup:
    """What ssh -G says of a host, and what pscp may therefore set itself."""

    ciphers_are_ours: bool = False  # the user configured none, so we may put ours in front
    alive_is_ours: bool = False
    far_aes: bool | None = None  # AES instructions there; None: not known yet
    route: socket_options.Route = socket_options.Route()  # noqa: RUF009 - nobody can change it
    advised: str = ""  # the cipher that was measured to be best
    offered: tuple[str, ...] = ()  # ciphers, by ssh here

    def check(self, options: Options, is_push: bool) -> list[str]:
        """Raise UsageError for what cannot be, before anybody is contacted; return notes for -v."""
        _check_cpus(options.cpus)
        return socket_options.check(options, self.route, is_push)

    def argv(
        self, host: Location, options: Options, *, may_prompt: bool, number: int,
        control: Control | None, is_answered: bool = False,
    ) -> list[str]:  # fmt: skip
        """Return ssh's command line for a connection or a channel of it, up to the remote command.

        With `is_answered` its prompts are answered by SSH_ASKPASS.
        """
        path, is_master = control or ("none", False)
        words = [options.program, *_FIXED, f"-oControlPath={path}"]
        words.append(f"-oControlMaster={'yes' if is_master else 'no'}")
        if control and not is_master:
            plain = replace(options, jump=None, compress=False)  # no -J beside a ProxyCommand
            return [*words, *_RIDING, *user_words(host, plain), "--", str(host.host)]
        timeout_s = self.timeout_s(options)
        words += socket_options.words(options, replace(self.route, timeout_s=timeout_s), number)
        # ssh would count the time in which a person answers the prompts of the host in between.
        if not self.route.proxy or options.batch:
            words.append(f"-oConnectTimeout={timeout_s}")
        if (options.batch or not may_prompt) and not is_answered:
            words.append("-oBatchMode=yes")
        if self.alive_is_ours:
            words += _ALIVE
        if self.ciphers_are_ours:
            words.append(f"-oCiphers=^{self.ciphers()}")
        return words + user_words(host, options) + ["--", str(host.host)]

    def timeout_s(self, options: Options) -> str:
        """Return the seconds in which a host has to answer, as ssh takes them."""
        if options.timeout_s is None and self.route.timeout_s not in ("none", "0"):
            return self.route.timeout_s
        return str(options.timeout_s or TIMEOUT_S)

    def ciphers(self) -> str:
        """Return the advised cipher, else AES-GCM if both have instructions for it, or ChaCha20."""
        if self.advised:
            return self.advised
        return _CHACHA if False in (system.has_aes(), self.far_aes) else _AES_GCM


def user_words(host: Location, options: Options) -> list[str]:
    """Return the user's own ssh options, as scp passes them."""
    given: list[tuple[str, object]] = [("-F", options.config_file)]
    given += [("-o", option) for option in options.ssh_options]
    given += [("-i", identity) for identity in options.identities]
    given += [
        ("-c", options.cipher),
        ("-J", options.jump),
        ("-p", host.port or options.port),
        ("-l", host.user),
    ]
    words = [str(word) for letter, value in given if value for word in (letter, value)]
    if options.compress:
        words.append("-C")
    if options.address_family:
        words.append(f"-{options.address_family}")
    if options.debug:
        words.append("-v")
    return words


def resolve(host: Location, options: Options) -> SshSetup:
    """Ask `ssh -G` what the user's configuration says. Contacts nobody. Raises UsageError."""
    words = user_words(host, options)
    ours = _resolved([options.program, "-G", *words, "--", str(host.host)])
    plain = _resolved([options.program, "-F", "none", "-G", "--", "localhost"])
    try:
        configured, default = ours.communicate(), plain.communicate()
    except BaseException:
        for child in (ours, plain):
            child.kill()
            child.communicate()
        raise
    if ours.returncode:
        said = configured[1].decode(errors="replace").strip().splitlines() or ["ssh -G failed"]
        raise UsageError(f"{options.program}: {said[0]}", "see ssh_config(5)")
    mine, theirs = _settings(configured[0]), _settings(default[0])
    return SshSetup(
        ciphers_are_ours=mine.get("ciphers") == theirs.get("ciphers") and not options.cipher,
        alive_is_ours=mine.get("serveraliveinterval", "0") == "0",
        route=socket_options.Route.read(mine),
        offered=tuple(mine["ciphers"].split(",")) if "ciphers" in mine else (),
    )


def _resolved(argv: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise _cannot_run(argv[0], error) from None


def _cannot_run(program: str, error: OSError) -> UsageError:
    return UsageError(f"cannot run {program}: {error.strerror}", "-S names the ssh program")


def _settings(output: bytes) -> dict[str, str]:
    lines = output.decode(errors="replace").splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def _check_cpus(cpus: tuple[int, ...]) -> None:
    """Pin this thread to each for a moment: a container may have fewer than the machine."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("--cpus: this system has no way to pin a process to a processor")
    before = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
            except OSError:
                listed = ", ".join(map(str, sorted(before)))
                message = f"--cpus: no processor {cpu} here; there is: {listed}"
                raise UsageError(message, "without --cpus the kernel decides") from None
    finally:
        os.sched_setaffinity(0, before)


_SHOWN_MAX = 400  # characters of a command line in a record; the loader of an agent is long
_log = Log("transports")


class Child:
    """A running ssh, or a program that behaves as ssh does."""

    needs_agent = True

    def __init__(
        self, argv: list[str], may_prompt: bool, cpu: int | None, control: Control | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`environment` is added to ours."""
        self.control = control
        # A lane that must not prompt gets a session of its own, so that a Ctrl-C at the terminal
        # reaches the coordinator alone, which then ends every lane.
        try:
            self._child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, start_new_session=not may_prompt,
                env={**os.environ, **environment} if environment else None,
            )  # fmt: skip
        except OSError as error:
            raise _cannot_run(argv[0], error) from None
        if cpu is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended already
                os.sched_setaffinity(self._child.pid, {cpu})
        self.pid = self._child.pid
        _log.debug("process %d runs: %s", self.pid, shlex.join(argv)[:_SHOWN_MAX])
        self._has_group = not may_prompt  # and so have the processes that it starts
        self._closing = threading.Lock()  # held where descriptors are closed or replaced
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._files = (self._child.stdin, self._child.stdout, self._child.stderr)
        self.write_fd, self.read_fd, self.error_fd = (file.fileno() for file in self._files)
        for fd in (self.write_fd, self.read_fd):
            system.widen_pipe(fd)

    def end(self) -> None:
        if self._child.poll() is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # one that was stopped takes no SIGTERM
        with self._closing:
            if not self._files[0].closed:  # a program between us and ssh may leave ssh behind
                children.end_input(self.write_fd)

    def _signal(self, kind: signal.Signals) -> None:
        """Send a signal to ssh, and to a wrapper or a shell that runs it."""
        if self._has_group:
            children.signal_group(self.pid, kind)
        else:
            children.signal_tree(self.pid, kind)

    def close(self) -> None:
        self.end()
        self._close_files(3)
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._child.wait()

    def let_go(self, patience_s: float) -> None:
        self._close_files(1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience_s)
        self.close()

    def lent(self) -> None:
        self._close_files(2)

    def _close_files(self, count: int) -> None:
        with self._closing:
            for file in self._files[:count]:
                with contextlib.suppress(OSError):
                    file.close()

    def explain(self, said: str) -> PscpError:
        try:
            status = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            return ConnectionLost(last_line(said) or "the connection closed")
        return explained(status, said)


def reap(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for a child that was told to end; one that does not in time is killed."""
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# What ssh adds where its ProxyCommand passed it no socket, having said why.
_AFTERTHOUGHT = re.compile(r"mm_receive_fd: |proxy dialer did not pass back a connection")


def lines_of(said: str) -> list[str]:
    """Return the lines of ssh's messages that are worth showing."""
    lines = said.splitlines()
    return [line for line in lines if line.strip() and not _AFTERTHOUGHT.match(line)]


def last_line(said: str) -> str:
    lines = lines_of(said)
    return lines[-1].strip() if lines else ""


# What OpenSSH says on standard error, and what it means (ssh.c, sshconnect.c, packet.c).
_MEANINGS: tuple[tuple[str, type[ConnectError]], ...] = (
    (r"Session open refused by peer|mux_client_request_session", ConnectionFull),
    (r"Permission denied|Too many authentication failures|No supported authentication",
     AuthenticationError),
    (r"Host key verification failed|No .* host key is known", HostKeyError),
    (r"REMOTE HOST IDENTIFICATION", HostKeyError),
    (r"Bad configuration option|Unable to negotiate|no matching|"
     r"Address family for hostname not supported|Bad owner or permissions",
     ConnectError),
    (r"Could not resolve hostname|Connection refused|No route to host|Network is unreachable|"
     r"Network is down|Host is down|Cannot assign requested|Operation timed out|"
     r"connect to (host|address) .*Connection timed out|Connection timed out during banner",
     Unreachable),
    (r"(exec|subsystem) request failed on channel", NoAgent),
)  # fmt: skip
_PASSING = (
    r"Connection (closed|reset|timed out)|Broken pipe|kex_exchange_identification|"
    r"ssh_exchange_identification|Timeout, server|mux_client|Exceeded MaxStartups|"
    r"Not allowed at this time"
)


def explained(status: int, said: str) -> PscpError:
    """Return the error that an ssh's exit status and messages mean."""
    if status == NO_PYTHON_STATUS:
        return NoPython("the far end has no python3")
    if status == OLD_PYTHON_STATUS:
        return NoPython("the python3 at the far end is older than 3.6")
    if status == PROTOCOL_STATUS:
        return ProtocolError(last_line(said))
    if status == WRONG_STATUS:
        return UsageError(last_line(said))
    if status in (255, -15, -2, -9, 0):
        for pattern, error in _MEANINGS:
            found = re.search(f"^.*({pattern}).*$", said, re.MULTILINE)
            if found:
                return error(found.group(0).strip())
        if status != 0 or re.search(_PASSING, said):
            return ConnectionLost(last_line(said) or "the connection closed")
        return NoAgent(_instead(said))
    return NoAgent(_instead(said, f" (status {status})"))


def _instead(said: str, status: str = "") -> str:
    line = last_line(said)
    return f"the far end did not start the agent{status}" + (f"; it said: {line}" if line else "")
