"""A channel through the ssh program, as the user has set it up.

ssh_config, the agent, ProxyJump, certificates, known_hosts and prompts are left to ssh. pscp adds
the few options below, and reads ssh's messages and exit status.

Not here: what runs there (../connect/bootstrap.py), further channels' sockets (control_sockets.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pscp.endpoint.frames import system, wire
from pscp.ground import errors
from pscp.ground.leaving import LoginProcess
from pscp.ground.locations import Location
from pscp.ground.log import Log
from pscp.ground.processes import signal_tree
from pscp.options.option_rows import TIMEOUT_S
from pscp.options.options import Options
from pscp.transports import socket_options
from pscp.transports.channel import FAILED_STATUS, Channel, end_input
from pscp.transports.control_sockets import Control
from pscp.transports.remote_command import NO_PYTHON_STATUS, OLD_PYTHON_STATUS

# As scp does: nothing of an interactive session. The user's own ControlMaster is not used: all
# lanes would share its connection.
_FIXED = (
    "-T", "-x", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no", "-oRemoteCommand=none",
)  # fmt: skip
# For a channel of another ssh's connection: if that refuses it, ssh must not make a connection.
_FURTHER = ("-oBatchMode=yes", "-oProxyCommand=false", "-oProxyUseFdpass=no", "-oLogLevel=ERROR")
_ALIVE = ("-oServerAliveInterval=15", "-oServerAliveCountMax=4")  # ends a dead path after a minute

_AES_GCM = "aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_CHACHA = "chacha20-poly1305@openssh.com"

_END_S = 2.0  # an ssh has this time to end after SIGTERM

WRONG_STATUS = 96  # exit status of a library's program that cannot do what was asked for


@dataclass(frozen=True)
class SshSetup:
    """Facts from `ssh -G` about a host, and what pscp may therefore set itself."""

    ciphers_are_ours: bool = False  # the user configured none, so pscp puts its own in front
    alive_is_ours: bool = False  # the same of ServerAliveInterval
    far_aes: bool | None = None  # whether the far processor has AES instructions; None: not known
    route: socket_options.Route = socket_options.Route()  # noqa: RUF009 - nobody can change it
    advised: str = ""  # the cipher that was measured to be best
    offered: tuple[str, ...] = ()  # the ciphers of ssh here
    forbids_direct: bool = False  # ssh_config has "SetEnv PSCP_PLANE=ssh" for this host
    # For connections that outlive a run (../connect/persistent.py):
    digest: str = ""  # of all that ssh -G says: it changes with the configuration
    users_master: str = ""  # ControlPath of the user's own; "": there is none
    send_env: tuple[str, ...] = ()  # SendEnv
    set_env: tuple[str, ...] = ()  # SetEnv

    def without_kept(self) -> SshSetup:
        """Return this setup without what concerns only connections that outlive a run."""
        return replace(self, digest="", users_master="", send_env=(), set_env=())

    def check(self, options: Options, is_push: bool) -> list[str]:
        """Raise UsageError for what cannot be, contacting nobody; return notes for -v."""
        _check_cpus(options.cpus)
        return socket_options.check(options, self.route, is_push)

    def argv(
        self, host: Location, options: Options, *, may_prompt: bool, number: int,
        control: Control | None, is_answered: bool = False,
    ) -> list[str]:  # fmt: skip
        """Return ssh's command line for a connection or a channel of it, up to the remote command.

        `number` counts the connections from 0; with `is_answered` SSH_ASKPASS answers prompts.
        """
        path, is_master, persist = control or ("none", False, "")
        words = [options.program, *_FIXED, f"-oControlPath={path}"]
        words += ["-oForwardAgent=no"] * (not options.direct)  # which may need it for the sink
        words.append(f"-oControlMaster={'yes' if is_master else 'no'}")
        words.append(f"-oControlPersist={persist if is_master and persist else 'no'}")
        if control and not is_master:
            plain = replace(options, jump=None, compress=False)  # no -J beside a ProxyCommand
            return [*words, *_FURTHER, *user_words(host, plain), "--", str(host.host)]
        timeout_s = self.timeout_s(options)
        words += socket_options.words(options, self.route._replace(timeout_s=timeout_s), number)
        # Through a proxy ssh would count the time in which a person answers the proxy's prompts.
        if not self.route.proxy or options.batch:
            words.append(f"-oConnectTimeout={timeout_s}")
        if (options.batch or not may_prompt) and not is_answered:
            words.append("-oBatchMode=yes")
        if self.alive_is_ours:
            words += _ALIVE
        if self.ciphers_are_ours:
            words.append(f"-oCiphers=^{self.ciphers()}")
        if options.itemize and not (options.debug or options.persist):
            words.append("-v")  # it names the cipher
        return words + user_words(host, options) + ["--", str(host.host)]

    def timeout_s(self, options: Options) -> str:
        """Return the seconds that a host has to answer, as a value of ConnectTimeout."""
        if options.timeout_s is None and self.route.timeout_s not in ("none", "0"):
            return self.route.timeout_s
        return str(options.timeout_s or TIMEOUT_S)

    def ciphers(self) -> str:
        """Return the advised cipher, else AES-GCM, or ChaCha20 if a processor is slow at AES."""
        if self.advised:
            return self.advised
        return _CHACHA if False in (system.has_aes(), self.far_aes) else _AES_GCM


def user_words(host: Location, options: Options) -> list[str]:
    """Return the user's own ssh options, as scp passes them."""
    given: list[tuple[str, object]] = [("-F", options.config_file)]
    given += [("-o", option) for option in options.ssh_options]
    given += [("-i", identity) for identity in options.identities]
    given += [("-c", options.cipher), ("-J", options.jump)]
    given += [("-p", host.port or options.port), ("-l", host.user)]
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
    asked = _start_ssh([options.program, "-G", *words, "--", str(host.host)])
    plain = _start_ssh([options.program, "-F", "none", "-G", "--", "localhost"])
    try:
        (output, messages), (default_output, _) = asked.communicate(), plain.communicate()
    except BaseException:
        for child in (asked, plain):
            child.kill()
            child.communicate()
        raise
    if asked.returncode in (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP):  # as we are, too
        is_interrupted = asked.returncode == -signal.SIGINT
        raise (errors.Interrupted if is_interrupted else errors.Terminated)("interrupted")
    if asked.returncode:
        lines = messages.decode(errors="replace").strip().splitlines() or ["ssh -G failed"]
        file = str(options.config_file or "")
        taken = f"-F takes {file!r} for an ssh_config: " if file and file in lines[0] else ""
        raise errors.UsageError(f"{options.program}: {lines[0]}", f"{taken}see ssh_config(5)")
    text, default_text = (each.decode(errors="replace") for each in (output, default_output))
    configured, default = (
        dict(line.split(" ", 1) for line in each.splitlines() if " " in line)
        for each in (text, default_text)
    )
    import hashlib  # here: `ssh -G` is run while ssh logs in

    kept = [line for line in output.splitlines() if not line.startswith(b"loglevel ")]  # of -d
    ciphers, users_master = configured.get("ciphers"), configured.get("controlpath", "none")
    return SshSetup(
        ciphers_are_ours=ciphers == default.get("ciphers") and not options.cipher,
        alive_is_ours=configured.get("serveraliveinterval", "0") == "0",
        route=socket_options.Route.read(configured),
        offered=tuple(ciphers.split(",")) if ciphers else (),
        forbids_direct=b"\nsetenv PSCP_PLANE=ssh\n" in output,
        digest=hashlib.sha256(b"\n".join(kept)).hexdigest(),
        users_master="" if users_master == "none" else users_master,
        send_env=tuple(re.findall("^sendenv (.+)$", text, re.MULTILINE)),
        set_env=tuple(re.findall("^setenv (.+)$", text, re.MULTILINE)),
    )


def _start_ssh(argv: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise _cannot_run(argv[0], error) from None


def _cannot_run(program: str, error: OSError) -> errors.PscpError:
    if error.errno in (errno.EAGAIN, errno.ENOMEM):  # the program is there
        return errors.Unreachable(f"cannot run {program}: {error.strerror}", errors.NO_MORE)
    return errors.UsageError(f"cannot run {program}: {error.strerror}", "-S names the ssh program")


def _check_cpus(cpus: tuple[int, ...]) -> None:
    """Raise UsageError for a processor that this process may not use.

    This thread is pinned to each for a moment: a container may have fewer than the machine.
    """
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise errors.UsageError("--cpus: this system has no way to pin a process to a processor")
    before = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
            except OSError:
                listed = ", ".join(map(str, sorted(before)))
                message = f"--cpus: no processor {cpu} here; there is: {listed}"
                raise errors.UsageError(message, "without --cpus the kernel decides") from None
    finally:
        os.sched_setaffinity(0, before)


_SHOWN_MAX = 400  # characters of a command line in the log; the remote command is long
_log = Log("transports")


class Child(Channel):
    """A running ssh, or a program that behaves as ssh does."""

    def __init__(
        self, argv: list[str], may_prompt: bool, cpu: int | None, control: Control | None, *,
        environment: Mapping[str, str] | None = None, pass_fds: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Start the program; `environment` is added to that of this process."""
        self.control = control
        # An ssh that outlives this run keeps the folder where it was started.
        self._is_kept = control is not None and control.is_master and bool(control.persist)
        self._master_pid = 0  # of such an ssh, which is not the child; 0: not known yet
        # An ssh that must not prompt gets a session of its own, so that a Ctrl-C at the terminal
        # reaches only the coordinator, which then ends every lane.
        try:
            self._child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, start_new_session=not may_prompt,
                env={**os.environ, **environment} if environment else None, pass_fds=pass_fds,
                cwd="/" if self._is_kept else None,
            )  # fmt: skip
        except OSError as error:
            raise _cannot_run(argv[0], error) from None
        if cpu is not None:
            with contextlib.suppress(ProcessLookupError):  # the child has ended already
                os.sched_setaffinity(self._child.pid, {cpu})
        if _log.is_wanted:
            import shlex  # here: few copies write a log

            _log.debug("process %d runs: %s", self.pid, shlex.join(argv)[:_SHOWN_MAX])
        self._has_group = not may_prompt  # the child leads a process group
        self._closing = threading.Lock()  # held where descriptors are closed or replaced
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._files = (self._child.stdin, self._child.stdout, self._child.stderr)
        self.write_fd, self.read_fd, self.error_fd = (file.fileno() for file in self._files)
        for fd in (self.write_fd, self.read_fd):
            system.widen_pipe(fd)

    @property
    def pid(self) -> int:
        """The process that encrypts: with ControlPersist another than the child, after the login"""
        if self._is_kept and not self._master_pid:
            assert self.control is not None
            from pscp.transports.mux_protocol import process_of  # here: most copies need it not

            self._master_pid = process_of(self.control.path) or 0
        return self._master_pid or self._child.pid

    @property
    def login(self) -> LoginProcess | None:
        if self._child.poll() is not None or self.pid != self._child.pid:
            return None
        socket = self.control.path if self._is_kept and self.control is not None else ""
        return LoginProcess(self._child.pid, socket)

    def end(self) -> None:
        self.login_over()
        if self._child.poll() is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
        with self._closing:
            if not self._files[0].closed:  # a script around ssh may leave ssh behind
                end_input(self.write_fd, self.error_fd)

    def _signal(self, kind: signal.Signals) -> None:
        """Send a signal to the child and to the processes below it.

        An `ssh` may be a script that runs the real ssh as its child: without the script that would
        go on, with the descriptors of its channel.
        """
        if self.pid != self._child.pid:  # below the child is what leads to the jump host, and stays
            self._child.send_signal(kind)
        elif self._has_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a zombie
                os.killpg(self._child.pid, kind)
        else:
            signal_tree(self._child.pid, kind)

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

    def close_data_fds(self) -> None:
        self._close_files(2)

    def _close_files(self, count: int) -> None:
        with self._closing:
            for file in self._files[:count]:
                with contextlib.suppress(OSError):
                    file.close()

    def explain(self, messages: str, /) -> errors.PscpError:
        try:
            status = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            return errors.ConnectionLost(last_line(messages) or "the connection closed")
        return error_of(status, messages)


def reap(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait so long for a child that was asked to end; then kill it."""
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# What ssh writes after its ProxyCommand has written why it passes no socket; what error_of() says.
_AFTERTHOUGHT = re.compile(
    r"mm_receive_fd: |proxy dialer did not pass back a connection|"
    r"Host key verification failed\.$|REMOTE HOST IDENTIFICATION HAS CHANGED: "
)
# What ssh writes where it ends because of a key that has changed: error_of() says it in one line.
_CHANGED_KEY = (
    r"^@{9,}\r?\n@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!(?:.*\n)+?"
    r"Host key for (\S+) has changed and you have requested strict checking\.\r?$"
)
_OTHER_KEY = r"REMOTE HOST IDENTIFICATION HAS CHANGED: (\S+) has another (\S+) key \((\S+)\)"


def lines_of(messages: str) -> list[str]:
    """Return the lines of ssh's messages that tell something."""
    lines = re.sub(_CHANGED_KEY, "", messages, flags=re.MULTILINE).splitlines()
    return [line for line in lines if line.strip() and not _AFTERTHOUGHT.match(line)]


def last_line(messages: str) -> str:
    """Return the last line of ssh's messages that tells something, or ""."""
    lines = lines_of(messages)
    return lines[-1].strip() if lines else ""


# What OpenSSH writes to standard error, and the error that it means (sshconnect.c, packet.c, ssh.c)
_MEANINGS: tuple[tuple[str, type[errors.ConnectError]], ...] = (
    (r"Session open refused by peer|mux_client_request_session", errors.ConnectionFull),
    (r"Permission denied|Too many authentication failures|No supported authentication",
     errors.AuthenticationError),
    (r"Host key verification failed|No .* host key is known", errors.HostKeyError),
    (r"REMOTE HOST IDENTIFICATION", errors.HostKeyError),
    (r"Bad configuration option|Unable to negotiate|no matching|"
     r"Address family for hostname not supported|Bad owner or permissions|"
     r"environment variable|env var|bad configuration options",
     errors.ConnectError),
    (r"Could not resolve hostname|Connection refused|No route to host|Network is unreachable|"
     r"Network is down|Host is down|Cannot assign requested|Operation timed out|"
     r"connect to (host|address) .*Connection timed out|Connection timed out during banner",
     errors.Unreachable),
    (r"(exec|subsystem) request failed on channel", errors.NoAgent),
)  # fmt: skip
_PASSING = (
    r"Connection (closed|reset|timed out)|Broken pipe|kex_exchange_identification|"
    r"ssh_exchange_identification|Timeout, server|mux_client|Exceeded MaxStartups|"
    r"Not allowed at this time"
)
# Of a shell that may start python3 the next time: its status is 126 then, or 137 if it was killed.
_SHORT = r"Cannot allocate memory|Resource temporarily unavailable"
# What ssh writes of a key that it passes over; that the login is refused follows from it.
_OF_KEY = re.compile(r"(?:Permissions \d+ for .* are too open|Load key |no such identity: )")
_SSH_STATUSES = (FAILED_STATUS, -15, -2, -9, 0)  # perhaps ssh's own; others are the command's


def error_of(status: int, messages: str) -> errors.PscpError:
    """Return the error that ssh's exit status and messages mean."""
    if status == NO_PYTHON_STATUS:
        return errors.NoPython("the far end has no python3")
    if status == OLD_PYTHON_STATUS:
        return errors.NoPython("the python3 at the far end is older than 3.6")
    if status == wire.PROTOCOL_STATUS:
        return errors.ProtocolError(last_line(messages))
    if status == WRONG_STATUS:
        return errors.UsageError(last_line(messages))
    if status in _SSH_STATUSES:
        if (changed := _changed_key(messages)) is not None:
            return changed
        for pattern, error in _MEANINGS:
            found = re.search(f"^(?!{_OF_KEY.pattern}).*({pattern}).*$", messages, re.MULTILINE)
            if found:
                return _explained(error(found.group(0).strip()), messages)
        if status != 0 or re.search(_PASSING, messages):
            return errors.ConnectionLost(last_line(messages) or "the connection closed")
    shown = f" (status {status})" if status not in _SSH_STATUSES else ""
    line = f"; it said: {last_line(messages)}" if last_line(messages) else ""
    is_passing = status == 137 or (status == 126 and re.search(_SHORT, last_line(messages)))
    kind = errors.AgentFailed if is_passing else errors.NoAgent
    return kind(f"the far end did not start the agent{shown}{line}")


def _explained(error: errors.ConnectError, messages: str) -> errors.ConnectError:
    """Return the error with what else ssh has said of its cause."""
    if isinstance(error, errors.AuthenticationError):
        of_keys = [line.strip(" \r.") for line in messages.splitlines() if _OF_KEY.match(line)]
        return type(error)("; ".join([*dict.fromkeys(of_keys), error.message]))
    if found := re.search(r"env(?:ironment)? var\S* (\$\{\w+\}) has no value", error.message):
        name = found[1][2:-1]
        hint = f"ssh_config names it: set {name} where pscp runs (crontab: {name}=..., systemd: "
        return type(error)(error.message, f"{hint}Environment=)")
    return error


def _changed_key(messages: str) -> errors.HostKeyError | None:
    """Return the error where the host has another key than the one on record."""
    if found := re.search(_CHANGED_KEY, messages, re.MULTILINE):
        name = found[1]
        key = re.search(r"The fingerprint for the (\S+) key .*\s+([^\s]*[^\s.])", found[0])
        command = re.search(r"ssh-keygen .*-R \S+", found[0])
    elif found := re.search(_OTHER_KEY, messages):
        name, key, command = found[1], re.match("(.*) (.*)", f"{found[2]} {found[3]}"), None
    else:
        return None
    now = f"; it is {key[1]} {key[2]} now" if key else ""
    remove = command[0] if command else f'ssh-keygen -R "{name}"'
    return errors.HostKeyError(
        f"the host key of {name} has changed{now}",
        f"if the host's owner confirms that key, remove the old one and connect with ssh: {remove}",
    )
